"""The report as one HTML file: the text of ``report.md`` with its pictures inside, and nothing from elsewhere.

The Markdown that `fedpriv.reporting.markdown` writes is the only source, so that the two cannot say different
things. Names in it may come from strangers (a silo, a column of a file): raw HTML is shown as text, links are
not made, and a picture is shown only when it is one of the run's own.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_OPEN_FOLD = re.compile(r"<details><summary>(\d+) rounds</summary>")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*(e[-+]?\d+)?( (%|[kMGT]?B|s))?|infinite|-")
_SHORT, _LONG = 20, 40
_STATUS = ("holds", "assumed", "fails")

STYLE = """\
:root { color-scheme: light; --ink: #1b1f24; --soft: #57606a; --line: #d8dee4; --blue: #0072b2; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1.25rem 4rem; color: var(--ink); background: #fff;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; }
.claim { margin: 0 0 1rem; padding: 1rem 1.25rem; font-size: 1.12rem; line-height: 1.5;
  border-left: 6px solid var(--blue); background: #eef5fa; }
.claim.void { border-color: #b00020; background: #fdecee; }
h1 { margin: 1.6rem 0 .3rem; font-size: 1.7rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { margin: 2.4rem 0 .8rem; padding-bottom: .25rem; font-size: 1.25rem; border-bottom: 1px solid var(--line); }
nav { margin: 1rem 0; color: var(--soft); font-size: .92rem; }
nav a { margin-right: 1rem; color: var(--blue); text-decoration: none; white-space: nowrap; }
nav a:hover { text-decoration: underline; }
ul { padding-left: 1.3rem; }
li { margin: .2rem 0; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .92rem; line-height: 1.4; }
th, td { padding: .4rem .75rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word; }
th { background: #f6f8fa; border-bottom: 2px solid var(--line); vertical-align: bottom; }
tbody tr:nth-child(even) { background: #fafbfc; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number, td.short { white-space: nowrap; }
th.number { min-width: 6rem; }
td.long { min-width: 14rem; }
img { display: block; max-width: 100%; height: auto; margin: 1rem 0; }
code, pre { font: .88em/1.5 ui-monospace, "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace; }
code { overflow-wrap: anywhere; }
pre { padding: .8rem 1rem; overflow-x: auto; background: #f6f8fa; border: 1px solid var(--line);
  border-radius: 4px; }
pre code { font-size: inherit; overflow-wrap: normal; }
summary { cursor: pointer; color: var(--blue); }
.holds, .assumed, .fails { display: inline-block; padding: 0 .5em; border-radius: .8em; font-style: normal;
  font-size: .84em; background: #e7f4ee; color: #00563f; }
.assumed { background: #fdf3dd; color: #704a00; }
.fails { background: #fdecee; color: #8e0019; }
.warning { color: #8e0019; }
.missing { color: var(--soft); font-style: italic; }
@media print { body { max-width: none; } nav { display: none; } h2 { break-after: avoid; } }
"""


def to_html(markdown: str, pictures: Mapping[str, bytes], title: str) -> str:
    """Turn a report's Markdown into one HTML file that needs nothing else.

    Parameters
    ----------
    markdown : str
        As `to_markdown` writes it; its first paragraph is the claim.
    pictures : mapping from path to bytes
        PNG files by the path that the Markdown names them with. A picture that is missing here is replaced by its
        caption.
    title : str
        Of the browser's window.

    Returns
    -------
    str
        HTML. The same input gives the same text.
    """
    parser = _parser(pictures)
    tokens = parser.parse(markdown)
    _mark_claim(tokens)
    contents = _name_headings(tokens)
    _unfold(tokens)
    _lay_out_tables(tokens)
    body = parser.renderer.render(tokens, parser.options, {})
    links = "".join(f'<a href="#{name}">{html.escape(text)}</a>\n' for name, text in contents)
    # The contents stand after the title; a report without a title keeps them at its end, where nothing is lost.
    before, end, after = body.partition("</h1>\n")
    navigation = f"<nav>\n{links}</nav>\n" if contents else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{html.escape(title)}</title>\n<style>\n{STYLE}</style>\n</head>\n"
        f"<body>\n{before}{end}{navigation}{after}</body>\n</html>\n"
    )


def _parser(pictures: Mapping[str, bytes]) -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.disable(["link", "autolink", "reference"])

    def image(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        caption = html.escape(tokens[index].content)
        data = pictures.get(str(tokens[index].attrs.get("src", "")))
        if data is None:
            return f'<span class="missing">{caption} (no picture)</span>'
        return f'<img alt="{caption}" src="data:image/png;base64,{base64.b64encode(data).decode()}">'

    def emphasis(self: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
        word = tokens[index + 1].content if index + 1 < len(tokens) else ""
        return f'<em class="{word}">' if word in _STATUS else "<em>"

    parser.add_render_rule("image", image)
    parser.add_render_rule("em_open", emphasis)
    parser.add_render_rule("table_open", lambda *_: '<div class="table">\n<table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    return parser


def _mark_claim(tokens: list[Token]) -> None:
    """Give the first paragraph its box, and warnings their colour."""
    if len(tokens) > 1 and tokens[0].type == "paragraph_open":
        void = tokens[1].content.startswith("NO PRIVACY")
        tokens[0].attrSet("class", "claim void" if void else "claim")
    for i, token in enumerate(tokens):
        text = "".join(following.content for following in tokens[i + 2 : i + 3])
        if token.type == "list_item_open" and text.startswith("**Warning:"):
            token.attrSet("class", "warning")


def _name_headings(tokens: list[Token]) -> list[tuple[str, str]]:
    """Number the sections so that the contents can point to them."""
    contents: list[tuple[str, str]] = []
    for i, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag == "h2":
            name = f"section-{len(contents) + 1}"
            token.attrSet("id", name)
            contents.append((name, tokens[i + 1].content))
    return contents


def _unfold(tokens: list[Token]) -> None:
    """Fold a table between the two lines that `to_markdown` writes around a long one; make no other HTML."""
    from markdown_it.token import Token

    def line_of(index: int) -> str:
        """Text of the paragraph that begins here, outside any list or table."""
        is_line = (
            index + 2 < len(tokens) and tokens[index].type == "paragraph_open" and tokens[index].level == 0
        )
        return tokens[index + 1].content if is_line else ""

    for start in range(len(tokens)):
        found = _OPEN_FOLD.fullmatch(line_of(start))
        if not found or start + 3 >= len(tokens) or tokens[start + 3].type != "table_open":
            continue
        end = next(i for i in range(start, len(tokens)) if tokens[i].type == "table_close") + 1
        if line_of(end) != "</details>":
            continue
        for place, markup in (
            (start, f"<details><summary>{found[1]} rounds</summary>\n"),
            (end, "</details>\n"),
        ):
            # The paragraph's three tokens become one and two empty ones: positions stay.
            tokens[place] = Token("html_block", "", 0, content=markup)
            tokens[place + 1 : place + 3] = [Token("text", "", 0), Token("text", "", 0)]


def _lay_out_tables(tokens: list[Token]) -> None:
    """Right-align the columns that hold nothing but numbers; keep short cells on one line and long ones wide."""
    start = 0
    for end, token in enumerate(tokens):
        if token.type == "td_open":
            length = len(tokens[end + 1].content)
            token.attrSet("class", "short" if length <= _SHORT else "long" if length > _LONG else "text")
        if token.type == "table_open":
            start = end
        if token.type != "table_close":
            continue
        rows: list[list[int]] = []
        for i in range(start, end):
            if tokens[i].type == "tr_open":
                rows.append([])
            elif tokens[i].type in ("th_open", "td_open"):
                rows[-1].append(i)
        for column in zip(*rows, strict=False):
            cells = [tokens[i + 1].content.strip("*") for i in column[1:]]
            if cells and all(_NUMBER.fullmatch(cell) for cell in cells):
                for i in column:
                    tokens[i].attrSet("class", "number")
