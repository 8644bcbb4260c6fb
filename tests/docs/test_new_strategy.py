"""docs/new-strategy.md: its strategy runs, and the files, classes and registries that it names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT, promises, python_blocks, run_block

DOCUMENT = "docs/new-strategy.md"


def prose() -> str:
    text = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_the_strategy_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    # dataclasses look their module up
    namespace: dict[str, Any] = {"__name__": "documents"}
    promised = []
    for line, code in python_blocks(DOCUMENT):
        run_block(DOCUMENT, line, code, namespace)
        promised += promises(code)
    assert capsys.readouterr().out.split() == promised
    assert len(promised) == 2
    assert namespace["spent"] == pytest.approx(namespace["gaussian_epsilon"](2.0, 1e-3), rel=1e-6)


def test_every_path_of_the_page_exists() -> None:
    paths = set(re.findall(r"`((?:fedpriv|tests|docs|client_app|server_app)/[\w./-]*)`", prose()))
    assert len(paths) > 25
    for path in paths:
        assert (ROOT / path).exists(), path


def defined_names() -> set[str]:
    """Names of classes, functions, methods, arguments and variables of the library."""
    found = set()
    for file in (ROOT / "fedpriv").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name):
                found.add(node.id)
    return found


def test_every_name_of_the_page_exists() -> None:
    known = defined_names()
    elsewhere = {
        "PrivateMean",
        "mean",
        "dp_accounting",
        "CHANGELOG.md",
        "pyproject.toml",
        "PURPOSE_...",
        "RECORD_...",
    }
    quoted = set(re.findall(r"`@?([A-Za-z_][\w.]*)(?:\([^`]*\))?`", prose())) - elsewhere
    names = {part for text in quoted for part in text.split(".")}
    assert len(names) > 40
    assert sorted(names - known) == []


@pytest.mark.parametrize(
    ("registry", "file"), re.findall(r"`([A-Z_]+)` (?:in|of) `(fedpriv/[\w/]+\.py)`", prose())
)
def test_a_registry_is_in_the_file_that_the_page_says(registry: str, file: str) -> None:
    assert re.search(rf"^{registry}\b", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
