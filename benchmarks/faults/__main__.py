"""Kill parts of a run at every point; table what was lost and what was charged: ``python -m benchmarks.faults``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

from benchmarks.faults.measure import Outcome, crash_and_resume
from benchmarks.faults.points import POINTS, Point
from benchmarks.faults.report import account_table, replace_section, server_table, silo_table
from benchmarks.faults.silos import DEATHS, SiloOutcome, lose_a_silo, places
from benchmarks.output import Stopwatch, environment, quiet, write_results

ROOT = Path(__file__).resolve().parents[2]


def measure_server(points: Sequence[Point], watch: Stopwatch) -> list[Outcome]:
    """Kill the ServerApp at each point."""
    found = []
    for point in points:
        with tempfile.TemporaryDirectory(prefix="fedpriv-faults-") as name:
            found.append(crash_and_resume(point, Path(name)))
        watch.say(f"{point.words}: {'; '.join(found[-1].problems) or 'as promised'}")
    return found


def measure_silos() -> list[SiloOutcome]:
    """Kill a silo in each exchange, in a federation that can spare one and in one that cannot."""
    with tempfile.TemporaryDirectory(prefix="fedpriv-faults-") as name:
        return [
            lose_a_silo(what, number, exchange, silos, fewest, Path(name))
            for what in DEATHS
            for number, exchange in places(what)
            for silos, fewest in ((4, 3), (3, 3))
        ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables; write them, the figures as JSON, and the section of docs/deployment.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--points", nargs="*", help="keys of the points (default all)")
    parser.add_argument(
        "--output", type=Path, help="folder of the results; docs/deployment.md is left alone then"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.points or ()) - {point.key for point in POINTS}
    if unknown:
        parser.error(
            f"--points: {', '.join(sorted(unknown))}: should be of {', '.join(p.key for p in POINTS)}"
        )
    quiet()
    _import_everything()
    watch = Stopwatch()
    chosen = [point for point in POINTS if not options.points or point.key in options.points]
    servers, silos = measure_server(chosen, watch), measure_silos()
    inside = [found for point, found in zip(chosen, servers, strict=True) if "unit" in point.config]
    clients = [found for found in servers if found not in inside]
    tables = [server_table(clients), account_table(inside), silo_table(silos)]
    text = "\n".join([*tables, f"Made by `python -m benchmarks.faults`: {environment()}.\n"])
    print("\n" + text)
    data = {"server": [asdict(found) for found in servers], "silos": [asdict(found) for found in silos]}
    write_results(options.output or Path(__file__).parent / "results", "faults", text, data)
    if options.output is None and not options.points:
        replace_section(ROOT / "docs" / "deployment.md", text)
    if any(found.problems for found in servers):
        raise SystemExit(1)


def _import_everything() -> None:
    """Once, so that the forked processes start in no time."""
    import matplotlib.pyplot
    import sklearn.datasets
    import torch

    import client_app.app
    import fedpriv.stages.report
    import fedpriv.stages.run
    import fedpriv.tasks.federated
    import server_app.app

    del matplotlib, sklearn, client_app, fedpriv, server_app
    torch.set_num_threads(1)


if __name__ == "__main__":
    main(sys.argv[1:])
