"""``python -m benchmarks.audit``: attack every strategy; write table, picture and figures."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.audit.cases import DELTA, Case, cases
from benchmarks.output import Stopwatch, environment, markdown_table, quiet, write_results
from fedpriv.audit import Report, audit
from fedpriv.audit.figure import draw

RESULTS = Path(__file__).parent / "results"


def run(chosen: Sequence[Case], watch: Stopwatch) -> Report:
    """Audit the cases one by one and put their rows into one report."""
    together = Report("lower bounds beside the claims, by strategy", DELTA, 0.95)
    for case in chosen:
        watch.say(case.name)
        found = audit([case.make()], delta=DELTA, effort=case.effort)
        together.rows += found.rows
        together.findings += found.findings
        together.unaudited += found.unaudited
        together.code |= found.code
    return together


def text(report: Report, chosen: Sequence[Case], seconds: float) -> str:
    """The Markdown page."""
    header, *rows = report.cells()
    header[-1] = "bound is"
    words = "\n".join(f"* **{case.name}**: {case.words}" for case in chosen)
    failed = [finding for finding in report.findings if not finding.good]
    checks = f"{len(report.findings)} consistency checks, {len(failed)} failed."
    left_out = "\n".join(f"* {item.stage}, {item.view}: {item.why}" for item in report.unaudited)
    return (
        "# Audit\n\n"
        f"Epsilon at delta = {DELTA:g}, or success of a membership attack. Within each strategy no lower bound is "
        "above the truth with 95 % confidence.\n\n"
        f"{markdown_table(header, rows)}\n{checks}\n\n## Configurations\n\n{words}\n\n"
        f"## Not attacked\n\n{left_out}\n\n{environment()}; {seconds / 60:.1f} CPU minutes\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a smoke run that writes nothing unless told where"
    )
    parser.add_argument("--only", nargs="*", help="names of cases")
    parser.add_argument("--output", type=Path, help="folder of the results")
    options = parser.parse_args(arguments)
    quiet()
    watch = Stopwatch()
    chosen = [c for c in cases(0.005 if options.quick else 1.0) if not options.only or c.name in options.only]
    report = run(chosen, watch)
    page = text(report, chosen, time.process_time())
    print(page)
    folder = options.output or (None if options.quick else RESULTS)
    if folder is not None:
        write_results(folder, "audit", page, report.to_json())
        draw(report, folder / "audit.png")
    if report.refuted:
        raise SystemExit("a lower bound exceeds its claim, or a check failed")


if __name__ == "__main__":
    main()
