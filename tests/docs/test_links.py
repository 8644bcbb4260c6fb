"""Links between the documents lead somewhere, and the index names every page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("*.md", "docs/*.md", "examples/**/*.md", "benchmarks/*.md", "datasets/*.md")
PAGES = sorted(page for place in PLACES for page in ROOT.glob(place))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), target


def test_the_index_names_every_page_once() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[([\w-]+\.md)\]\(\1\) \|", index, re.MULTILINE)
    assert sorted(rows) == sorted(
        path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_of_docs_that_are_named_in_text_exist(page: Path) -> None:
    for name in re.findall(r"`(docs/[\w-]+\.md)`", page.read_text(encoding="utf-8")):
        assert (ROOT / name).exists(), name


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150


def test_the_index_of_the_data_sets_names_every_card() -> None:
    index = (ROOT / "datasets" / "README.md").read_text(encoding="utf-8")
    for card in (ROOT / "datasets").glob("*.md"):
        assert card.name == "README.md" or f"]({card.name})" in index, card.name
