"""Put the table of run-config keys into docs/configuration.md: python tests/docs/update_configuration.py"""

from __future__ import annotations

import re
from pathlib import Path

from fedpriv.settings.table import settings_table

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
_BETWEEN = re.compile(r"(<!-- begin: [^\n]*-->\n).*(<!-- end -->\n)", re.DOTALL)


def updated(text: str) -> str:
    """The document with the table that the settings models give now."""
    table = settings_table().rstrip("\n")
    changed, count = _BETWEEN.subn(lambda match: f"{match[1]}\n{table}\n\n{match[2]}", text)
    if count != 1:
        raise ValueError(f"{DOCUMENT} has {count} pairs of markers, one is needed")
    return changed


if __name__ == "__main__":
    DOCUMENT.write_text(updated(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
