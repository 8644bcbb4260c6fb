"""Try the papers' claims: ``python -m benchmarks.reproduction [KEY ...]``."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.output import Stopwatch, environment
from benchmarks.reproduction import allocation, iteration, pac_zero, votes, zeroth_order
from benchmarks.reproduction.claim import Claim
from benchmarks.reproduction.page import render

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[2] / "docs" / "reproduction.md"
CLAIMS: list[Claim] = [
    *votes.CLAIMS,
    *iteration.CLAIMS,
    *zeroth_order.CLAIMS,
    *allocation.CLAIMS,
    *pac_zero.CLAIMS,
]


def _plain(value: Any) -> bool | float:
    """A number or truth value of numpy as Python's."""
    return bool(value) if isinstance(value, np.bool_) else float(value)


def run(claims: Sequence[Claim], folder: Path, quick: bool) -> None:
    """Try claims and store what was found, one JSON file and one picture each."""
    watch = Stopwatch()
    folder.mkdir(parents=True, exist_ok=True)
    for claim in claims:
        found = claim.run(quick)
        stored = asdict(found) | {"verdict": found.verdict, "environment": environment()}
        (folder / f"{claim.key}.json").write_text(json.dumps(stored, indent=1, default=_plain) + "\n")
        if claim.draw is not None:
            claim.draw(found.data, folder / f"{claim.key}.png")
        watch.say(f"{claim.key}: {found.verdict}")
        for check in found.checks:
            print(f"           {'holds' if check.holds else 'FAILS'}: {check.words} ({check.figure})")


def stored_page(folder: Path) -> str:
    """The page from all stored results."""
    results = {
        claim.key: json.loads((folder / f"{claim.key}.json").read_text())
        for claim in CLAIMS
        if (folder / f"{claim.key}.json").exists()
    }
    return render(CLAIMS, results)


def main(arguments: Sequence[str] | None = None) -> None:
    """Try the claims; write results and, with the default output, docs/reproduction.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduction", description=__doc__)
    parser.add_argument("claims", nargs="*", metavar="KEY", help=", ".join(claim.key for claim in CLAIMS))
    parser.add_argument("--quick", action="store_true", help="a smoke run; its verdicts mean nothing")
    parser.add_argument("--output", type=Path, help="folder of the results; the page goes there too")
    options = parser.parse_args(arguments)
    unknown = set(options.claims) - {claim.key for claim in CLAIMS}
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: should be of {', '.join(c.key for c in CLAIMS)}")
    if options.quick and options.output is None:
        parser.error("--quick needs --output: its figures do not replace those of a whole run")
    chosen = [claim for claim in CLAIMS if not options.claims or claim.key in options.claims]
    folder = options.output or RESULTS
    run(chosen, folder, options.quick)
    page = PAGE if options.output is None else folder / PAGE.name
    page.write_text(stored_page(folder))


if __name__ == "__main__":
    main()
