"""Python blocks of a document, run as a reader would run them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_PROMISED = re.compile(r"# prints (.+)$", re.MULTILINE)


def python_blocks(document: str) -> list[tuple[int, str]]:
    """First line number and code of every Python block of a Markdown file."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [
        (text[: match.start(1)].count("\n") + 1, match.group(1))
        for match in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


def run_block(document: str, line: int, code: str, namespace: dict[str, Any]) -> None:
    """Execute a block so that a traceback names the line of the document."""
    exec(compile("\n" * (line - 1) + code, document, "exec"), namespace)


def promises(code: str) -> list[str]:
    """What the lines of a block say that they print."""
    return [match.strip() for match in _PROMISED.findall(code)]
