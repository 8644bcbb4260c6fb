"""The claim of a run as one sentence: the first line of its report."""

from __future__ import annotations

import math
from collections import Counter

from fedpriv.accounting.vocabulary import VIEWS
from fedpriv.reporting.model import RunReport, Warning

ADJACENCY_WORDS = {
    "add_or_remove": "one {unit}'s contribution present or replaced by zero",
    "replace_one": "one {unit}'s data replaced by any other",
}
VIEW_WORDS = {
    "server": "whoever sees every secure sum",
    "participants": "whoever sees every broadcast model",
    "release": "whoever sees only the final model",
}
ACCOUNTANT_WORDS = {
    "rdp": "Rényi",
    "pld": "privacy-loss distribution",
    "analytic": "exact Gaussian",
    "none": "no release",
}


def format_epsilon(value: float | None) -> str:
    """An epsilon for people, rounded up so that the text never claims more than the number.

    >>> format_epsilon(7.27901), format_epsilon(float("inf")), format_epsilon(0.00123)
    ('7.280', 'infinite', '0.00123')
    """
    if value is None:
        return "-"
    if math.isinf(value):
        return "infinite"
    if value == 0:
        return "0"
    digits = 3 if value >= 0.1 else 4 - math.floor(math.log10(value)) - 2
    scale = 10**digits
    # A hair is taken off first: 7.28 is 7.28000...02 in binary and stays 7.280.
    return f"{math.ceil(value * scale - 1e-7) / scale:.{digits}f}"


def bound_in_words(bound: str) -> str:
    """Name of a bound for people."""
    return ACCOUNTANT_WORDS.get(bound, bound.replace("_", " "))


def top_warnings(report: RunReport) -> list[Warning]:
    """Warnings that stand before everything else, the worst first."""
    return [w for level in ("void", "severe") for w in report.warnings if w.severity == level]


def is_void(report: RunReport) -> bool:
    """Whether the run's noise was not secret, so that nothing it would claim is true."""
    return any(w.severity == "void" for w in report.warnings)


def claim(report: RunReport) -> str:
    """The privacy claim of a run: unit, adjacency, epsilon and delta per view, accountant.

    A run whose noise was not secret (a ``void`` warning) claims nothing, and the sentence begins by saying
    so; what the claim leaves out (``severe`` warnings) is named at its end.
    """
    sentence = " ".join(part for part in (_private_part(report), *_pac_parts(report)) if part)
    void = [w.text for w in report.warnings if w.severity == "void"]
    severe = [w.text for w in report.warnings if w.severity == "severe"]
    if void:
        sentence = f"NO PRIVACY IN THIS RUN ({'; '.join(void)}). With secret noise it would be: {sentence}"
    if severe:
        sentence += f" Not covered: {'; '.join(severe)}."
    return sentence


def _private_part(report: RunReport) -> str:
    """What differential privacy covers; empty when it covers no stage."""
    if not report.private:
        return ""
    unit = report.unit
    accountants = Counter(v.bound for v in report.views.values() if math.isfinite(v.epsilon))
    parts = []
    for view in VIEWS:
        found = report.views[view]
        if math.isinf(found.epsilon):
            parts.append(f"no guarantee for the {view} view ({VIEW_WORDS[view]})")
            continue
        by = f", {bound_in_words(found.bound)} accountant" if len(accountants) > 1 else ""
        parts.append(f"epsilon {format_epsilon(found.epsilon)} for the {view} view ({VIEW_WORDS[view]}{by})")
    covered = ""
    if report.pac:
        without = {record.stage for record in report.pac}
        covered = f" of {', '.join(s.name for s in report.stages if s.name not in without)} alone"
    sentence = (
        f"{unit.capitalize()}-level differential privacy{covered}, adjacency {report.adjacency} "
        f"({ADJACENCY_WORDS[report.adjacency].format(unit=unit)}), at delta {report.delta:.6g}: "
        f"{'; '.join(parts)}"
    )
    if len(accountants) == 1:
        bound = next(iter(accountants))
        sentence += f"; by the {bound_in_words(bound)} accountant"
    if all(math.isinf(v.epsilon) for v in report.views.values()):
        sentence = (
            f"No differential privacy is claimed in any view (unit {unit}, adjacency {report.adjacency}, "
            f"delta {report.delta:.6g})"
        )
    return sentence + "."


def _pac_parts(report: RunReport) -> list[str]:
    """One sentence per stage with a PAC guarantee: that of its worst silo."""
    parts = []
    for stage in dict.fromkeys(record.stage for record in report.pac):
        worst = max((r for r in report.pac if r.stage == stage), key=lambda r: r.nats)
        attack = ""
        if worst.success is not None:
            percent = math.ceil(worst.success * 1e4 - 1e-7) / 100
            attack = (
                f", so that an attacker who guesses whether one record was used is right with probability at "
                f"most {percent:g} % (50 % before)"
            )
        parts.append(
            f"PAC privacy of {stage}, not differential privacy: all releases of a silo together carry at most "
            f"{format_nats(worst.nats)} nats about which half of its records it used{attack}."
        )
    return parts


def format_nats(value: float) -> str:
    """A mutual information for people, in nats, rounded up like an epsilon.

    >>> format_nats(0.0), format_nats(0.0123401), format_nats(2.0)
    ('0', '0.01235', '2')
    """
    if value == 0:
        return "0"
    digits = 4 - math.ceil(math.log10(value))
    return f"{math.ceil(value * 10**digits - 1e-7) / 10**digits:g}"
