"""docs/reproduction.md, from the results of the claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.output import markdown_table
from benchmarks.reproduction.claim import PAPERS, Claim

RESULTS_FROM_DOCS = "../benchmarks/reproduction/results"
INTRO = """# What reproduces

Claims of the papers that fedpriv builds on, as far as two cores carry them. The words are ours. A verdict follows from
the checks below it and from nothing else: *reproduced* when all hold, *partly* when some do, *not* when none does.
Written by `python -m benchmarks.reproduction`; one claim alone: `python -m benchmarks.reproduction KEY`.
"""


def render(claims: Sequence[Claim], results: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page.

    Parameters
    ----------
    claims : sequence of Claim
        In the order of the page.
    results : mapping
        Key of a claim -> its stored result.
    """
    known = [claim for claim in claims if claim.key in results]
    rows = []
    for claim in known:
        found = results[claim.key]
        held = sum(check["holds"] for check in found["checks"])
        rows.append(
            (f"[{claim.key}](#{claim.key})", PAPERS[claim.paper].split(",")[0], f"**{found['verdict']}**",
             f"{held} of {len(found['checks'])}")
        )  # fmt: skip
    parts = [INTRO, markdown_table(["claim", "paper", "verdict", "checks that hold"], rows)]
    parts += [_section(claim, results[claim.key]) for claim in known]
    feet = list(dict.fromkeys(results[claim.key]["environment"] for claim in known))
    return "\n".join([*parts, "Made with " + "; ".join(feet) + ".\n"])


def _section(claim: Claim, found: Mapping[str, Any]) -> str:
    source = f" Figures: read from `{found['source']}`." if found["source"] else ""
    lines = [
        f"## {claim.key}\n",
        f"**Claim** ({PAPERS[claim.paper]}). {claim.words}\n",
        f"**Verdict: {found['verdict']}.** {found['remark']}{source}\n",
    ]
    lines += [
        f"* {'holds' if check['holds'] else 'does **not** hold'}: {check['words']} ({check['figure']})"
        for check in found["checks"]
    ]
    lines.append("")
    if found["rows"]:
        lines.append(markdown_table(found["header"], found["rows"]))
    if claim.draw is not None:
        lines.append(f"![{claim.key}]({RESULTS_FROM_DOCS}/{claim.key}.png)\n")
    return "\n".join(lines)
