"""The wheel outside the repository: fedpriv alone, its command and its strategies."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the unpacked wheel and nothing else of the repository."""
    out, target = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("site")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
    ]
    subprocess.run([*build, str(ROOT)], check=True, timeout=120)
    (wheel,) = out.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def _python(site: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(site)}
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=site, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_holds_fedpriv_and_no_generic_top_level_name(site: Path) -> None:
    names = {path.name for path in site.iterdir()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"fedpriv"}


def test_the_command_and_a_strategy_work_outside_the_repository(site: Path) -> None:
    assert "plan" in _python(site, "-m", "fedpriv.cli", "--help")
    where = _python(site, "-c", "import fedpriv.strategies as s; print(s.__file__, s.DpsgdDc.__name__)")
    assert str(site) in where
