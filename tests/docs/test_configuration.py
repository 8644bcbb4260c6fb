"""docs/configuration.md holds the table that the settings models give, and every key is really there."""

from __future__ import annotations

import re

from update_configuration import DOCUMENT, updated

from fedpriv.settings.resolve import known_keys


def test_the_table_is_up_to_date() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert updated(text) == text, "type: python tests/docs/update_configuration.py"


def test_every_key_is_documented_once() -> None:
    rows = re.findall(r"^\| `([a-z.-]+)` \|", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == known_keys()
