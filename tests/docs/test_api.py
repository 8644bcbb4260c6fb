"""The names that docs/api.md promises exist, and no public name is forgotten without notice."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "api.md"


def promised(tier: str) -> dict[str, list[str]]:
    """Module -> names of one tier."""
    section = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {tier}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(fedpriv[a-z_.]*)` \| (.+) \|$", section, re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


@pytest.mark.parametrize("tier", ["Stable", "Provisional"])
def test_promised_names_are_public(tier: str) -> None:
    found = promised(tier)
    assert found
    for module, names in found.items():
        public = importlib.import_module(module).__all__
        assert len(set(names)) == len(names) > 0
        for name in names:
            assert name in public, f"{module}.{name} is {tier.lower()} in docs/api.md, but not public"
            assert hasattr(importlib.import_module(module), name)


def test_no_name_is_in_two_tiers() -> None:
    stable, provisional = promised("Stable"), promised("Provisional")
    for module, names in stable.items():
        assert not set(names) & set(provisional.get(module, []))


@pytest.mark.parametrize("module", ["clients", "strategies", "testing", "ledger", "secure_sum"])
def test_every_public_name_of_the_entry_points_has_a_tier(module: str) -> None:
    name = f"fedpriv.{module}"
    listed = {*promised("Stable").get(name, []), *promised("Provisional").get(name, [])}
    assert listed == set(importlib.import_module(name).__all__)
