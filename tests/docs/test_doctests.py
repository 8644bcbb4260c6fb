"""The examples in docstrings run, all of them, and give what they say."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROMPT = re.compile(r"^\s*>>> ", re.MULTILINE)


def prompts() -> dict[str, int]:
    """Module -> number of lines that begin an example."""
    found = {}
    for file in sorted((ROOT / "fedpriv").rglob("*.py")):
        count = len(PROMPT.findall(file.read_text(encoding="utf-8")))
        if count:
            found[".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = count
    return found


PROMPTS = prompts()


def test_the_modules_with_examples_are_found() -> None:
    assert {"fedpriv.clients", "fedpriv.reporting.claim", "fedpriv.accounting.accountant"} <= set(PROMPTS)


@pytest.mark.parametrize("name", sorted(PROMPTS))
def test_the_examples_of_a_module_run(name: str) -> None:
    module = importlib.import_module(name)
    tests = doctest.DocTestFinder(exclude_empty=True).find(module, name)
    examples = [example for test in tests for example in test.examples]
    assert len(examples) == PROMPTS[name], "an example stands where doctest does not look"
    assert not [e for e in examples if e.options.get(doctest.SKIP)], "an example is skipped"
    runner = doctest.DocTestRunner(verbose=False)
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False) == (0, PROMPTS[name])
