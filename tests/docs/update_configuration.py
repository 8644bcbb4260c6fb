"""Put all run-config keys into docs/configuration.md and pyproject.toml: python tests/docs/update_configuration.py"""

from __future__ import annotations

import re
from pathlib import Path

from fedpriv.settings.resolve import TABLES, _toml_value
from fedpriv.settings.table import settings_table

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT, PROJECT = ROOT / "docs" / "configuration.md", ROOT / "pyproject.toml"
_DEFAULTS = re.compile(r"\[tool\.flwr\.app\.config\]\n.*?(?=\n\[(?!tool\.flwr\.app\.config)|\Z)", re.DOTALL)
_BETWEEN = re.compile(r"(<!-- begin: [^\n]*-->\n).*(<!-- end -->\n)", re.DOTALL)


def updated(text: str) -> str:
    """The document with the table that the settings models give now."""
    table = settings_table().rstrip("\n")
    changed, count = _BETWEEN.subn(lambda match: f"{match[1]}\n{table}\n\n{match[2]}", text)
    if count != 1:
        raise ValueError(f"{DOCUMENT} has {count} pairs of markers, one is needed")
    return changed


def updated_project(text: str) -> str:
    """The project file with the defaults that the settings models give now."""
    lines: list[str] = []
    for table in TABLES:
        name = table.prefix.rstrip(".")
        lines += ["", f"[tool.flwr.app.config.{name}]"] if name else ["[tool.flwr.app.config]"]
        values = table()
        for key, field in table.keys().items():
            lines.append(f"{key.removeprefix(table.prefix)} = {_toml_value(getattr(values, field))}")
    block = "\n".join(lines) + "\n"
    changed, count = _DEFAULTS.subn(lambda match: block, text)
    if count != 1:
        raise ValueError(f"{PROJECT} has {count} tables of defaults, one is needed")
    return changed


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
    PROJECT.write_text(updated_project(PROJECT.read_text(encoding="utf-8")), encoding="utf-8")
