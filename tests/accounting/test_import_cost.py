"""Importing the accounting costs little more than numpy and scipy.special, and loads nothing heavy."""

import json
import subprocess
import sys

import pytest

CODE = """
import json, sys, time
import numpy, numpy.typing, scipy.special
before = time.perf_counter()
import fedpriv.accounting
seconds = time.perf_counter() - before
slow = ["torch", "flwr", "pandas", "dp_accounting", "scipy.stats", "scipy.optimize", "scipy.integrate"]
heavy = [m for m in [*slow, "matplotlib", "pydantic", "typer", "absl"] if m in sys.modules]
print(json.dumps([seconds, heavy]))
"""


def test_every_public_name_can_be_imported():
    import fedpriv.accounting as accounting

    for name in accounting.__all__:
        assert getattr(accounting, name) is not None
        assert name in dir(accounting)
    with pytest.raises(AttributeError, match="has no attribute 'central_limit'"):
        _ = accounting.central_limit


def test_import_is_light():
    runs = [
        json.loads(
            subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
        )
        for _ in range(3)
    ]
    assert runs[0][1] == []
    assert min(seconds for seconds, _ in runs) < 0.2
