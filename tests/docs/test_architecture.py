"""Import directions are those of the table in docs/architecture.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "fedpriv"


def documented() -> dict[str, set[str]]:
    """Room -> rooms that it may import, as the document has it."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    allowed: dict[str, set[str]] = {}
    for room, imports in re.findall(r"^\| `([a-z_]+)` \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE):
        named = set(re.findall(r"`([a-z_]+)`", imports))
        if imports.startswith("everything above but"):
            allowed[room] = set(allowed) - named
        elif imports == "everything":
            allowed[room] = rooms()
        else:
            assert named or imports == "nothing", imports
            allowed[room] = named
    return allowed


def rooms() -> set[str]:
    """Sub-packages and modules of fedpriv."""
    return {
        path.stem for path in PACKAGE.iterdir() if (path / "__init__.py").exists() or path.suffix == ".py"
    } - {"__init__"}


def imported_by(room: str) -> set[tuple[str, str]]:
    """(file, room) for every import of ours, those inside functions included."""
    module = PACKAGE / f"{room}.py"
    files = [module] if module.exists() else sorted((PACKAGE / room).rglob("*.py"))
    found = set()
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module == "fedpriv":
                names = [f"fedpriv.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                assert node.level == 0, f"{file}: relative import"
                names = [node.module]
            for name in names:
                parts = name.split(".")
                if parts[0] == "fedpriv" and len(parts) > 1:
                    found.add((str(file.relative_to(ROOT)), parts[1]))
    return found


def test_the_table_names_every_room() -> None:
    assert set(documented()) == rooms()


@pytest.mark.parametrize("room", sorted(rooms()))
def test_a_room_imports_only_what_the_table_allows(room: str) -> None:
    allowed = documented()[room] | {room}
    wrong = {(file, other) for file, other in imported_by(room) if other not in allowed}
    assert not wrong


def test_the_apps_hold_no_algorithm() -> None:
    for name in ("server_app", "client_app"):
        source = (ROOT / name / "app.py").read_text(encoding="utf-8")
        assert not re.search(r"^\s*(import|from) (numpy|scipy|cryptography)", source, re.MULTILINE)
        assert len(source.splitlines()) < 120
