"""Random allocation: speed and tightness against other packages, and the allocation figure.

Run ``python benchmarks/accounting/allocation.py``. The other packages are installed into an environment of their own
(``--environment``) and driven as subprocesses; every question, ours included, is answered in a fresh process, after a
tiny warm-up call. Writes ``results/allocation.md`` and ``results/allocation.png``.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RESULTS = HERE / "results"
Answer = dict[str, Any]


# --- our side, run in a fresh process per question ---------------------------------------------------------------


def ours_profile(
    sigma: float, bins: int, epochs: int, delta: float, fine: bool = False
) -> tuple[float, float]:
    """Upper and lower value of the profile; more than one epoch means redrawn bins, as in the other packages."""
    from fedpriv.accounting.allocation import RandomAllocation
    from fedpriv.accounting.allocation_profile import FINE, STANDARD

    resolution = FINE if fine else STANDARD
    event = RandomAllocation(bins, sigma, epochs, redraw=epochs > 1)
    lower = next(event.lower_laws(delta, resolution)).epsilon(delta)
    return event.upper_law(delta, resolution=resolution).epsilon(delta), lower


def ours_add(sigma: float, bins: int, epochs: int, delta: float) -> tuple[float, float]:
    """Upper and lower value of the add direction."""
    from fedpriv.accounting.allocation import RandomAllocation

    event = RandomAllocation(bins, sigma, epochs, redraw=epochs > 1)
    return event.upper_law(delta).epsilon_add(delta), next(event.lower_laws(delta)).epsilon_add(delta)


def ours_upper(sigma: float, bins: int, epochs: int, delta: float) -> tuple[float, None]:
    """The upper value alone: what an accountant needs."""
    from fedpriv.accounting.allocation import RandomAllocation

    return RandomAllocation(bins, sigma, epochs, redraw=epochs > 1).upper_law(delta).epsilon(delta), None


def ours_renyi(sigma: float, bins: int, epochs: int, delta: float) -> tuple[float, None]:
    """The Rényi bound at the default orders, both directions."""
    from fedpriv.accounting.allocation import RandomAllocation
    from fedpriv.accounting.curves import DEFAULT_ORDERS

    event = RandomAllocation(bins, sigma, epochs, redraw=epochs > 1)
    return event.curves(DEFAULT_ORDERS).to_epsilon(delta).epsilon, None


def renyi_one_pass(sigma: float, bins: int, epochs: int, delta: float) -> tuple[float, None]:
    """All orders 2..256 of the remove direction; returns the divergence of order 256."""
    from fedpriv.accounting.allocation_renyi import remove_divergence

    return float(remove_divergence(sigma, bins, np.arange(2.0, 257.0))[-1]), None


def renyi_banded(sigma: float, bins: int, epochs: int, delta: float) -> tuple[float, None]:
    """All orders 2..32 of the remove direction for a 2-banded matrix; returns the divergence of order 32."""
    from fedpriv.accounting.allocation_gram import exact_remove_curve
    from fedpriv.accounting.matrices import bsr

    return float(exact_remove_curve(bsr(bins, 2), bins, sigma, np.arange(2.0, 33.0)).rdp[-1]), None


OURS: dict[str, Callable[..., tuple[float, float | None]]] = {
    "fedpriv profile": ours_profile,
    "fedpriv profile, fine": lambda **question: ours_profile(**question, fine=True),
    "fedpriv profile, add direction": ours_add,
    "fedpriv upper": ours_upper,
    "fedpriv Rényi": ours_renyi,
    "orders 2..256 at once": renyi_one_pass,
    "2-banded, orders 2..32": renyi_banded,
}


def answer(question: dict[str, Any]) -> Answer:
    """Answer one question in this process."""
    method = OURS[question.pop("method")]
    method(sigma=2.0, bins=10, epochs=1, delta=1e-5)
    start = time.perf_counter()
    upper, lower = method(**question)
    seconds = time.perf_counter() - start
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"upper": upper, "lower": lower, "seconds": seconds, "megabytes": megabytes}


# --- asking -------------------------------------------------------------------------------------------------------


def ask(python: str, script: list[str], question: dict[str, Any], timeout: float) -> Answer:
    """Run one question in a process of its own; an empty answer when it takes too long or fails."""
    try:
        done = subprocess.run(
            [python, *script], input=json.dumps(question), capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"> {timeout:.0f} s"}
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1][:60]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def peers(environment: Path) -> str:
    """The interpreter of the other packages' environment, which is made on first use."""
    python = environment / "bin" / "python"
    if not python.exists():
        print(f"installing the other packages into {environment}", file=sys.stderr)
        venv.create(environment, with_pip=True)
        requirements = str(HERE / "peers-requirements.txt")
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", requirements], check=True)
    return str(python)


class Bench:
    """Collects tables."""

    def __init__(self, peer_python: str, timeout: float) -> None:
        self.peer_python, self.timeout = peer_python, timeout
        self.lines: list[str] = []

    def ask(self, method: str, **question: Any) -> Answer:
        """Ours or a peer's, by the name of the method."""
        mine = method in OURS
        python = sys.executable if mine else self.peer_python
        script = [str(Path(__file__).resolve()), "--answer"] if mine else [str(HERE / "peer_values.py")]
        result = ask(python, script, {"method": method, **question}, self.timeout)
        print(method, question, result, file=sys.stderr, flush=True)
        return result

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """One markdown table."""
        self.lines += ["", f"## {title}", "", "| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
        self.lines += ["| " + " | ".join(row) + " |" for row in rows]

    def say(self, text: str) -> None:
        """A paragraph."""
        self.lines += ["", text]


def shown(value: float | None, digits: int = 6) -> str:
    """A number for a table."""
    return "" if value is None else f"{value:.{digits}g}"


def seconds(value: Answer) -> str:
    """Time of an answer."""
    return value.get("failed") or f"{value['seconds']:.2f} s"


def against_peers(bench: Bench) -> None:
    """One epoch: our two-sided value against the other packages."""
    rows = []
    delta = 1e-6
    for sigma, bins in ((1.0, 100), (1.0, 1000), (0.5, 1000), (0.3, 1000), (1.0, 10_000)):
        question = {"sigma": sigma, "bins": bins, "epochs": 1, "delta": delta}
        mine, upper = bench.ask("fedpriv profile", **question), bench.ask("fedpriv upper", **question)
        renyi = bench.ask("fedpriv Rényi", **question)
        others = {
            name: bench.ask(name, **question)
            for name in (
                "pld-accounting range",
                "pld-accounting default",
                "random-allocation direct",
                "random-allocation decomposition",
            )
        }
        setting = f"sigma {sigma:g}, b = {bins}"
        entries: list[tuple[str, Answer]] = [
            ("fedpriv, both sides", mine),
            ("fedpriv, upper only", upper),
            ("fedpriv, Rényi", renyi),
            *others.items(),
        ]
        for name, result in entries:
            ratio = "" if "failed" in result else f"{result['seconds'] / upper['seconds']:.3g}"
            excess = "" if "failed" in result else f"{100 * (result['upper'] / mine['lower'] - 1):.3g} %"
            rows.append(
                [
                    setting,
                    name,
                    shown(result.get("lower")),
                    shown(result.get("upper")),
                    excess,
                    seconds(result),
                    ratio,
                ]
            )
            setting = ""
    bench.table(
        "One epoch, delta = 1e-6",
        ["setting", "method", "lower", "epsilon", "above our lower value", "time", "times our upper"],
        rows,
    )


def full_range(bench: Bench) -> None:
    """The whole required range."""
    rows = []
    for sigma, bins, delta in (
        (1.0, 10_000, 1e-6),
        (1.0, 100_000, 1e-6),
        (1.0, 10**6, 1e-12),
        (0.5, 100_000, 1e-6),
        (0.3, 10_000, 1e-6),
        (0.3, 100_000, 1e-6),
        (0.2, 8, 1e-12),
        (0.2, 10_000, 1e-6),
        (0.2, 10**6, 1e-12),
        (100.0, 10**6, 1e-9),
    ):
        question = {"sigma": sigma, "bins": bins, "epochs": 1, "delta": delta}
        coarse, fine = (
            bench.ask("fedpriv profile", **question),
            bench.ask("fedpriv profile, fine", **question),
        )
        rows.append(
            [
                f"{sigma:g}",
                f"{bins}",
                f"{delta:g}",
                f"[{shown(coarse['lower'], 9)}, {shown(coarse['upper'], 9)}]",
                seconds(coarse),
                f"[{shown(fine['lower'], 9)}, {shown(fine['upper'], 9)}]",
                seconds(fine),
                f"{fine['megabytes']:.0f} MB",
            ]
        )
    bench.table(
        "Range (both sides in the time)",
        ["sigma", "b", "delta", "standard grid", "time", "fine grid", "time", "peak memory, process"],
        rows,
    )


def epochs(bench: Bench) -> None:
    """Redrawn epochs."""
    rows = []
    for sigma, bins, count, delta in ((1.0, 100, 10, 1e-6), (1.0, 1000, 10, 1e-6), (2.0, 10, 100, 1e-6)):
        question = {"sigma": sigma, "bins": bins, "epochs": count, "delta": delta}
        setting = f"sigma {sigma:g}, b = {bins}, k = {count}"
        for name in (
            "fedpriv profile",
            "fedpriv Rényi",
            "pld-accounting default",
            "random-allocation direct",
            "fedpriv profile, add direction",
            "random-allocation direct, add direction",
        ):
            result = bench.ask(name, **question)
            rows.append(
                [setting, name, shown(result.get("lower")), shown(result.get("upper")), seconds(result)]
            )
            setting = ""
    bench.table("Bins redrawn in each of k epochs", ["setting", "method", "lower", "epsilon", "time"], rows)
    bench.say(
        "The add direction of `random-allocation` charges one of its terms once instead of k times: for k > 1 it falls "
        "below our lower value, so it is not a bound there (its remove direction is the same Rényi bound as ours)."
    )


def renyi(bench: Bench) -> None:
    """Time of Rényi curves."""
    rows = []
    for name, bins, limit in (
        ("orders 2..256 at once", 10_000, "0.2 s"),
        ("2-banded, orders 2..32", 100, "10 s"),
    ):
        result = bench.ask(name, sigma=1.0, bins=bins, epochs=1, delta=1e-6)
        rows.append(
            [name, str(bins), f"{result['seconds'] * 1000:.0f} ms", limit, f"{result['megabytes']:.0f} MB"]
        )
    bench.table("Rényi curves, sigma 1", ["curve", "b", "time", "target", "peak memory, process"], rows)


# --- the figure ---------------------------------------------------------------------------------------------------


def figure() -> None:
    """Epsilon against noise: independent noise on the left, a banded matrix on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from fedpriv.accounting import Accountant, Gaussian, PoissonGaussian
    from fedpriv.accounting.allocation import RandomAllocation, allocation_epsilon
    from fedpriv.accounting.allocation_conditional import conditional_epsilon
    from fedpriv.accounting.curves import DEFAULT_ORDERS
    from fedpriv.accounting.matrices import bandmf

    bins, delta = 100, 1e-6
    noises = np.geomspace(0.5, 8, 13)
    left: dict[str, list[float | None]] = {}
    for sigma in noises.tolist():
        event = RandomAllocation(bins, sigma)
        result = allocation_epsilon(event, delta)
        poisson = Accountant("add_or_remove").compose(PoissonGaussian(1 / bins, sigma), bins).epsilon(delta)
        gaussian = Accountant("add_or_remove").compose(Gaussian(sigma)).epsilon(delta)
        for name, value in (
            ("no amplification", gaussian.epsilon),
            ("allocation, Rényi", result.candidates["rdp"]),
            ("allocation, conditional composition", conditional_epsilon(event, delta)),
            ("Poisson sampling at rate 1/b (PLD)", poisson.epsilon),
            ("allocation, profile (upper)", result.epsilon),
            ("allocation, profile (lower)", result.lower),
        ):
            left.setdefault(name, []).append(value)
    right: dict[str, list[float | None]] = {}
    matrix = bandmf(bins, 4)
    for sigma in noises.tolist():
        event = RandomAllocation(bins, sigma, matrix=matrix)
        result = allocation_epsilon(event, delta)
        for name, value in (
            ("no amplification", result.candidates["unamplified"]),
            ("Rényi (exact programme)", event.curves(DEFAULT_ORDERS).to_epsilon(delta).epsilon),
            ("grouping by rotation", result.candidates["grouping"]),
            ("lower value", result.lower),
        ):
            right.setdefault(name, []).append(value)

    styles = {
        "no amplification": ("0.6", "-"),
        "allocation, Rényi": ("tab:orange", "--"),
        "Rényi (exact programme)": ("tab:orange", "--"),
        "allocation, conditional composition": ("tab:green", "-."),
        "Poisson sampling at rate 1/b (PLD)": ("tab:purple", ":"),
        "allocation, profile (upper)": ("tab:blue", "-"),
        "grouping by rotation": ("tab:blue", "-"),
        "allocation, profile (lower)": ("k", (0, (1, 3))),
        "lower value": ("k", (0, (1, 3))),
    }
    drawing = Figure(figsize=(11, 4.6), layout="constrained")
    FigureCanvasAgg(drawing)
    for axes, curves, title in zip(
        drawing.subplots(1, 2, sharey=True),
        (left, right),
        (f"independent noise, b = {bins}", f"optimised 4-banded matrix, b = {bins}"),
        strict=True,
    ):
        for name, values in curves.items():
            color, style = styles[name]
            numbers = [np.nan if v is None else v for v in values]
            axes.plot(noises, numbers, color=color, linestyle=style, linewidth=2, label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
        axes.minorticks_off()
        axes.set_xlabel("noise multiplier (one epoch)")
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    drawing.axes[0].set_ylabel(f"epsilon at delta = {delta:g}")
    drawing.savefig(RESULTS / "allocation.png", dpi=150)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", type=Path, default=Path.home() / ".cache" / "fedpriv-peers")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds per value")
    parser.add_argument("--figure-only", action="store_true")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.answer:
        print(json.dumps(answer(json.load(sys.stdin))))
        return
    RESULTS.mkdir(exist_ok=True)
    if not arguments.figure_only:
        bench = Bench(peers(arguments.environment), arguments.timeout)
        bench.lines = ["# Random allocation: speed and tightness"]
        bench.say(
            f"Python {platform.python_version()}, numpy {np.__version__}, one process per value, imports and a warm-up "
            "call outside the time. `PLD_accounting` 2.0 with numba (`range`: adaptive, stops at bounds within ten "
            "percent; `default`: one evaluation), `random-allocation` 1.0.5. Written by "
            "`python benchmarks/accounting/allocation.py`."
        )
        against_peers(bench)
        full_range(bench)
        epochs(bench)
        renyi(bench)
        (RESULTS / "allocation.md").write_text("\n".join(bench.lines) + "\n")
    figure()


if __name__ == "__main__":
    main()
