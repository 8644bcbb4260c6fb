"""Attack PACZero with all that its guarantee grants: ``python -m benchmarks.finetune.pac_evidence``.

First on records at random, then with the questions that tell most (`benchmarks.finetune.pac_attack`), there beside
silos with a planted fault, which the same test must find.

The attacker knows every record and every subset and sees the *real* values before their sign is taken, so its posterior
over the subsets is the silo's own. It guesses whether one record was used, by Bayes' rule: nobody does better. Beside
it, the mean divergence of that posterior from the uniform prior, which is the mutual information that was really
spent, and the two-sample test for ``zpl``: bits of silos whose secret contains the record against the others.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.finetune.pac_attack import (
    Forgetful,
    HalvedNoise,
    LeaningCoin,
    NoNoise,
    Question,
    transcripts,
    two_sample_p,
)
from benchmarks.finetune.pac_attack import attack as sharp_attack
from benchmarks.output import environment, markdown_table, write_results
from fedpriv.accounting.pac import membership_success
from fedpriv.mechanisms import SecureSource
from fedpriv.mechanisms.sign_release import SignRelease, Variant, balanced_subsets

RESULTS = Path(__file__).parent / "results"
RECORDS = 40


@dataclass(frozen=True)
class Evidence:
    """What the attack found.

    Parameters
    ----------
    success, low, high : float
        Share of right guesses, and its 95 % Clopper-Pearson interval.
    information, error : float
        Mean of the divergence of the posterior from uniform, nats, and its standard error.
    agreement : float
        p-value of the test that bits agree with the secret subset's sign no more often than by chance.
    """

    success: float
    low: float
    high: float
    information: float
    error: float
    agreement: float


def attack(variant: Variant, nats: float, subsets: int, rounds: int, runs: int, seed: int = 0) -> Evidence:
    """Run many silos and attack each."""
    rng = np.random.default_rng(seed)
    wins, hits, disagreements = 0, 0, 0
    information = []
    source = SecureSource()
    for _ in range(runs):
        members = balanced_subsets(RECORDS, subsets, rng.bytes(16))
        release = SignRelease.start(variant, subsets, nats, rounds, source)
        for _ in range(rounds):
            # quotients around a mean that leaves the subsets of one mind in some rounds only
            means = members @ (rng.normal() * 0.3 + rng.normal(size=RECORDS))
            signs = np.where(means >= 0.0, 1, -1)
            bit = release.release(signs, source)
            if not release.unanimous:
                hits += int(bit == signs[release.secret])
                disagreements += 1
        weights = np.exp(release.posterior.log_weights)
        weights /= weights.sum()
        positive = weights[weights > 0]
        information.append(math.log(subsets) + float(positive @ np.log(positive)))
        inside = float(weights[members[:, 0]].sum())
        guess = inside > 0.5 or (inside == 0.5 and bool(rng.integers(2)))
        wins += int(guess == bool(members[release.secret, 0]))
    interval = stats.binomtest(wins, runs).proportion_ci(0.95, "exact")
    agreement = stats.binomtest(hits, disagreements).pvalue if disagreements else 1.0
    spread = float(np.std(information) / math.sqrt(runs))
    return Evidence(
        wins / runs, interval.low, interval.high, float(np.mean(information)), spread, float(agreement)
    )


def sharp_rows(runs: int, rounds: int) -> list[dict[str, Any]]:
    """The questions that tell most, asked of sound silos and of those with a planted fault."""
    cases: list[tuple[type[SignRelease], float, int, Question]] = [
        *((SignRelease, nats, subsets, "record") for subsets in (2, 126) for nats in (0.11, 0.33, 0.68)),
        (HalvedNoise, 0.33, 2, "record"),
        (NoNoise, 0.33, 2, "record"),
        (SignRelease, 2.0, 16, "halves"),
        (Forgetful, 2.0, 16, "halves"),
    ]
    found = []
    for kind, nats, subsets, question in cases:
        seen, bound = (
            sharp_attack(kind, nats, subsets, rounds, runs, question, SecureSource()),
            membership_success(nats),
        )
        low, high = seen.success()
        found.append(
            {
                "silo": (kind.__doc__ or "").split(".")[0] if kind is not SignRelease else "sound",
                "nats": nats,
                "subsets": subsets,
                "question": question,
                "information": seen.information,
                "error": seen.error,
                "success": seen.wins / seen.runs,
                "low": low,
                "high": high,
                "bound": bound,
                "refuted": seen.refutes(nats, bound),
            }
        )
        print(found[-1], flush=True)
    return found


def sharp_text(
    found: list[dict[str, Any]], p_values: dict[str, float], runs: int, transcripts_of: int
) -> str:
    """Their table, and the two-sample test."""
    rows = [
        [
            f"{row['silo']}, M = {row['subsets']}, {row['question']}",
            f"{row['nats']:g}",
            f"{row['information']:.3f} ± {row['error']:.3f}",
            f"{100 * row['success']:.1f} ({100 * row['low']:.1f} to {100 * row['high']:.1f})",
            f"{100 * row['bound']:.1f}",
            "YES" if row["refuted"] else "no",
        ]
        for row in found
    ]
    header = [
        "silo",
        "budget (nats)",
        "spent, measured",
        "attack right % (95 %)",
        "bound %",
        "guarantee refuted",
    ]
    return (
        f"\n## The questions that tell most\n\n{runs} silos per row. The attacker chooses the signs of all subsets, "
        "after what it has seen: *record*, whether a record is in the secret subset; *halves*, whether the secret is "
        "among the fewest subsets that hold half of the attacker's posterior. The posterior is the attacker's own. "
        "*Refuted*: more than the budget was spent, or the success is above the bound, at 99.9 % one-sided. Sound "
        "silos must not be refuted, planted faults must be.\n\n"
        f"{markdown_table(header, rows)}\n"
        f"Two-sample test for `zpl`: whole transcripts of {transcripts_of} silos that fine-tune a tiny model, those "
        "whose secret subset holds a record against the others, chi-square over all transcripts: "
        + "; ".join(f"{name}: p = {value:.2g}" for name, value in p_values.items())
        + ".\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and write it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.finetune.pac_evidence", description=__doc__)
    parser.add_argument("--runs", type=int, default=1000, help="silos attacked per row")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sharp-rounds", type=int, default=6, help="rounds of the sharp attacks")
    parser.add_argument("--output", type=Path, default=RESULTS)
    chosen = parser.parse_args(arguments)
    cases: list[tuple[Variant, float, int]] = [("zpl", 0.0, 16), ("zpl", 0.0, 126)]
    cases += [("mi", nats, subsets) for subsets in (4, 16, 126) for nats in (0.11, 0.33, 0.68)]
    rows, data = [], []
    for variant, nats, subsets in cases:
        found = attack(variant, nats, subsets, chosen.rounds, chosen.runs)
        bound = membership_success(nats)
        rows.append(
            [
                f"{variant}, M = {subsets}",
                f"{nats:g}",
                f"{abs(found.information):.4f} ± {found.error:.4f}",
                f"{100 * found.success:.1f} ({100 * found.low:.1f} to {100 * found.high:.1f})",
                f"{100 * bound:.1f}",
                "yes" if found.low <= bound else "NO",
                f"{found.agreement:.2g}",
            ]
        )
        data.append({"variant": variant, "nats": nats, "subsets": subsets, "bound": bound} | found.__dict__)
        print(rows[-1], flush=True)
    header = [
        "variant",
        "budget (nats)",
        "spent, measured",
        "attack right % (95 %)",
        "bound %",
        "below",
        "p of agreement",
    ]
    sharp = sharp_rows(chosen.runs, chosen.sharp_rounds)
    p_values = {
        name: two_sample_p(*transcripts(kind, 5, 10 * chosen.runs, 6, SecureSource()))
        for name, kind in (("sound", SignRelease), ("planted fault, a leaning coin", LeaningCoin))
    }
    text = (
        "# PACZero under attacks with all that its guarantee grants\n\n## Records at random\n\n"
        f"{chosen.runs} silos per row, {chosen.rounds} rounds, {RECORDS} records; the attacker knows all records and "
        "subsets and sees the real values before their sign is taken. *Spent, measured* is the mean divergence of the "
        "posterior from uniform, with its standard error. The last column tests "
        "whether bits agree with the secret subset's sign more or less "
        "often than a coin: for `zpl` they must not, for `mi` they should.\n\n"
        f"{markdown_table(header, rows)}"
        f"{sharp_text(sharp, p_values, chosen.runs, 10 * chosen.runs)}\n{environment()}.\n"
    )
    print(text)
    write_results(chosen.output, "pac_evidence", text, {"rows": data, "sharp": sharp, "two-sample": p_values})


if __name__ == "__main__":
    main()
