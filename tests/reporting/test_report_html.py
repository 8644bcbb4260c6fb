"""report.html: one file with everything in it, well formed, and nothing in it from a name of a stranger."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedpriv.reporting import (
    SEEDED_NOISE,
    Hypothesis,
    LedgerRecord,
    PacRecord,
    RoundRecord,
    RunReport,
    StageReport,
    Warning,
    claim,
    write_report,
)
from fedpriv.reporting.html import to_html

VOID = {"meta", "br", "hr", "img", "input", "link"}
PNG = b"\x89PNG\r\n\x1a\nrest"
HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> \"'& ![p](https://e.example/p.png) "
    "[l](javascript:alert(3)) <https://e.example/> </details></td>"
)


class Page(HTMLParser):
    """Structure of a page: every tag closed in order, with the attributes and the text that a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open, f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            assert not (tag in ("p", "table", "ul", "h1", "h2") and "p" in self.open), f"{tag} in a paragraph"
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-1:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    def seen(self) -> str:
        return "".join(data for tag, data in self.text if tag not in ("style", "title"))


def write(folder: Path, report: RunReport) -> Page:
    write_report(folder, report)
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_the_page_is_whole_and_the_claim_stands_first(report: RunReport, tmp_path: Path) -> None:
    page = write(tmp_path, report)
    assert page.tags[0][0] == "html"
    body = [tag for tag, _ in page.tags].index("body")
    assert page.tags[body + 1] == ("p", {"class": "claim"})
    assert page.seen().strip().startswith(claim(report))
    assert [text for tag, text in page.text if tag == "title"] == [report.title]
    assert [text for tag, text in page.text if tag == "h1"] == [report.title]
    sections = [attributes["id"] for attributes in page.all("h2")]
    assert [link["href"] for link in page.all("a")] == [f"#{name}" for name in sections]
    assert len(set(sections)) == len(sections) >= 8


def test_everything_is_inside(report: RunReport, tmp_path: Path) -> None:
    figures = tmp_path / "figures"
    figures.mkdir()
    (figures / "partition.png").write_bytes(PNG)
    page = write(tmp_path, report)
    embedded = [
        base64.b64decode(image["src"].removeprefix("data:image/png;base64,")) for image in page.all("img")
    ]
    assert sorted(embedded) == sorted(path.read_bytes() for path in figures.glob("*.png"))
    assert len(embedded) == 4
    assert all(image["alt"] for image in page.all("img"))
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form")
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "srcset", "style", "background"):
                assert value.startswith(("data:image/png;base64,", "#section-"))
    assert not re.search(r"url\(|@import", (tmp_path / "report.html").read_text(encoding="utf-8"))


def test_it_says_what_the_markdown_says(report: RunReport, tmp_path: Path) -> None:
    page = write(tmp_path, report)
    seen = page.seen()
    markdown = (tmp_path / "report.md").read_text(encoding="utf-8")
    rows = [line for line in markdown.splitlines() if line.startswith("|") and "| --- |" not in line]
    assert len(page.all("tr")) == len(rows) > 40
    for row in rows:
        for cell in re.split(r"(?<!\\)\|", row):
            assert cell.strip().replace("**", "").replace("`", "") in seen
    for command in re.findall(r"```\w+\n(.*?)```", markdown, re.DOTALL):
        assert command in seen


def test_many_rounds_are_folded(report: RunReport, tmp_path: Path) -> None:
    train = report.stages[1].model_copy(
        update={"rounds": [RoundRecord(round=i, asked=5, survivors=5) for i in range(1, 41)]}
    )
    long = report.model_copy(update={"stages": [report.stages[0], train]})
    page = write(tmp_path, long)
    assert len(page.all("details")) == 1
    assert [text for tag, text in page.text if tag == "summary"] == ["40 rounds"]


def test_a_void_claim_looks_void(report: RunReport, tmp_path: Path) -> None:
    page = write(tmp_path, report.model_copy(update={"warnings": [SEEDED_NOISE]}))
    assert page.all("p")[0] == {"class": "claim void"}
    assert [attributes for attributes in page.all("li") if attributes.get("class") == "warning"]


def hostile(report: RunReport) -> RunReport:
    """The report with a stranger's text wherever one can stand."""
    stage = StageReport(
        name=HOSTILE,
        kind=HOSTILE,
        table={HOSTILE: HOSTILE},
        rounds=[RoundRecord(round=i, note=HOSTILE) for i in range(1, 31)],
        hypotheses=[Hypothesis(name=HOSTILE, status="assumed", detail=HOSTILE)],
    )
    vote = report.stages[0].vote
    assert vote is not None
    named = vote.model_copy(update={"candidates": [{HOSTILE: HOSTILE}] * len(vote.candidates)})
    views = {
        view: found.model_copy(update={"statement": HOSTILE, "notes": [HOSTILE]})
        for view, found in report.views.items()
    }
    return report.model_copy(
        update={
            "title": HOSTILE,
            "outcome": HOSTILE,
            "views": views,
            "stages": [report.stages[0].model_copy(update={"vote": named}), stage],
            "warnings": [Warning(text=HOSTILE), Warning(text=HOSTILE, severity="severe")],
            "settings": {HOSTILE: HOSTILE},
            "environment": {HOSTILE: HOSTILE},
            "pac": [PacRecord(stage=HOSTILE, silo=HOSTILE, nats=0.1)],
            "ledger": LedgerRecord(lines=1, head="0", runs=[HOSTILE], notes=[HOSTILE]),
            "partition_figure": "../../../etc/passwd",
            "load_example": f"print(1)\n{HOSTILE}",
        }
    )


def test_strangers_text_is_shown_and_does_nothing(report: RunReport, tmp_path: Path) -> None:
    bad = hostile(report)
    page = write(tmp_path, bad)  # the parser checks that no </details> or </td> of theirs closed ours
    tags = "html head meta title style body nav a p ul li strong em h1 h2 div table thead tbody tr th td"
    tags += " img span code pre details summary"
    names = "class id lang charset name content http-equiv alt src href"
    assert {tag for tag, _ in page.tags} <= set(tags.split())
    for tag, attributes in page.tags:
        assert set(attributes) <= set(names.split())
        if tag == "img":
            assert attributes["src"].startswith("data:image/png;base64,")
        if tag == "a":
            assert re.fullmatch(r"#section-\d+", attributes["href"])
    assert page.seen().count("<script>alert(1)</script>") >= 30
    assert len(page.all("details")) == 1
    assert HOSTILE.split("![", maxsplit=1)[0] in page.seen()


TABLE = "|a|\n|-|\n|b|"


@pytest.mark.parametrize(
    "text",
    [
        "</details>",
        "<details><summary>9 rounds</summary>",
        f"<details><summary>9 rounds</summary>\n\n{TABLE}",
        f"- <details><summary>9 rounds</summary>\n\n{TABLE}\n\n</details>",
        f"{TABLE}\n\n</details>\n\ny",
        "",
    ],
)
def test_folds_stay_in_balance_whatever_the_text(text: str) -> None:
    page = Page(to_html(f"claim\n\n{text}\n\nend\n", {}, "t"))
    assert page.seen().rstrip().endswith("end")


def test_a_picture_from_outside_the_folder_or_that_is_none_is_left_out(
    report: RunReport, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "secret.png").write_bytes(PNG)
    (folder / "no.png").write_bytes(b"not a picture")
    for name in ("../secret.png", "no.png", "missing.png"):
        page = write(folder, report.model_copy(update={"partition_figure": name}))
        assert len(page.all("img")) == 3
        assert "Examples per client and label (no picture)" in page.seen()


def test_the_same_report_gives_the_same_page(report: RunReport, tmp_path: Path) -> None:
    write_report(tmp_path / "a", report)
    write_report(tmp_path / "b", report)
    assert (tmp_path / "a" / "report.html").read_bytes() == (tmp_path / "b" / "report.html").read_bytes()
