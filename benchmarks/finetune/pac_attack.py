"""Attacks that use all that PACZero's guarantee grants, and silos with a planted fault that the attacks must find.

The attacker knows all records, all subsets and the silo's code, chooses every round's model and direction after what it
has seen (any pattern of signs over the subsets, that is), and sees real values and noise levels before the sign
is taken. It keeps a posterior of its own, so that a silo which errs about its posterior does not mislead it.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from fedpriv.accounting.pac import SubsetPosterior
from fedpriv.mechanisms.noise import RandomSource
from fedpriv.mechanisms.sign_release import (
    Measurement,
    SignRelease,
    balanced_subsets,
    subset_signs,
    uniform_below,
)

Question = Literal["record", "halves"]
RECORDS = 8


class HalvedNoise(SignRelease):
    """Planted fault: half of the noise."""

    def _noise_std(self, log_odds: float, allowance: float) -> float:
        return super()._noise_std(log_odds, allowance) / 2


class NoNoise(SignRelease):
    """Planted fault: the secret subset's sign as it is (with noise that changes nothing)."""

    def _noise_std(self, log_odds: float, allowance: float) -> float:
        return 1e-3


class Forgetful(SignRelease):
    """Planted fault: the posterior is not updated, so that later noise is made for the prior."""

    def _learn(self, signs: np.ndarray, value: float, noise_std: float) -> None:
        return


class LeaningCoin(SignRelease):
    """Planted fault: where the subsets differ, three coins in ten are replaced by the secret subset's sign."""

    def measure(self, signs: np.ndarray | None, source: RandomSource) -> Measurement:
        found = super().measure(signs, source)
        if signs is not None and not self.unanimous and uniform_below(10, source) < 3:
            return Measurement(float(signs[self.secret]), math.inf)
        return found


@dataclass(frozen=True)
class Attack:
    """What attacks on many silos found.

    Parameters
    ----------
    wins, runs : int
        Right guesses of whether record 0 was used, and guesses.
    information, error : float
        Mean divergence of the attacker's posterior from uniform, which is the mutual information that the
        silos gave away, in nats; and its standard error.
    """

    wins: int
    runs: int
    information: float
    error: float

    def success(self, confidence: float = 0.95) -> tuple[float, float]:
        """Two-sided Clopper-Pearson interval of the probability to guess right."""
        found = stats.binomtest(self.wins, self.runs).proportion_ci(confidence, "exact")
        return float(found.low), float(found.high)

    def refutes(self, nats: float, bound: float, confidence: float = 0.998) -> bool:
        """Whether the attacks show that more than ``nats`` were given away, or a success above ``bound``."""
        z = float(stats.norm.isf((1 - confidence) / 2))
        return self.success(confidence)[0] > bound or self.information - z * self.error > nats


def attack(
    kind: type[SignRelease],
    nats: float,
    subsets: int,
    rounds: int,
    runs: int,
    question: Question,
    source: RandomSource,
    seed: int = 0,
) -> Attack:
    """Attack the noisy signs (variant ``mi``) of many silos.

    Parameters
    ----------
    kind : type
        :class:`SignRelease`, or one with a fault.
    nats : float
        Budget of a silo, > 0.
    subsets, rounds, runs : int
        M, T, and silos attacked.
    question : {"record", "halves"}
        In every round: "is record 0 in the secret subset?", which wins the most guesses; or "is it among the
        fewest subsets that hold half of my posterior?", which learns most from a silo that misjudges the posterior.
    source : RandomSource
        Of the silos.
    seed : int
        Of ties in the attacker's guesses.
    """
    ties = np.random.default_rng(seed)
    member = np.arange(subsets) % 2 == 0  # record 0 is in every other subset
    wins, information = 0, []
    for _ in range(runs):
        silo = kind.start("mi", subsets, nats, rounds, source)
        known = SubsetPosterior.uniform(subsets)
        for _ in range(rounds):
            inside = member if question == "record" else _heaviest_half(known)
            signs = np.where(inside, 1, -1)
            seen = silo.measure(signs, source)
            if 0 < seen.noise_std < math.inf:
                known.update(signs, seen.value, seen.noise_std)
        weights = _weights(known)
        positive = weights[weights > 0]
        information.append(math.log(subsets) + float(positive @ np.log(positive)))
        share = float(weights[member].sum())
        guess = share > 0.5 or (share == 0.5 and bool(ties.integers(2)))
        wins += int(guess == member[silo.secret])
    error = float(np.std(information, ddof=1)) / math.sqrt(runs)
    return Attack(wins, runs, float(np.mean(information)), error)


def _weights(posterior: SubsetPosterior) -> np.ndarray:
    weights = np.exp(posterior.log_weights)
    found: np.ndarray = weights / weights.sum()
    return found


def _heaviest_half(posterior: SubsetPosterior) -> np.ndarray:
    weights = _weights(posterior)
    order = np.argsort(-weights, kind="stable")
    count = int(np.argmin(np.abs(np.cumsum(weights[order]) - 0.5))) + 1
    inside = np.zeros(weights.size, dtype=bool)
    inside[order[:count]] = True
    return inside


def transcripts(
    kind: type[SignRelease], rounds: int, runs: int, subsets: int, source: RandomSource, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Bits of silos (variant ``zpl``) that fine-tune a tiny model, each with a secret of its own.

    Records a_i have the loss |w - a_i|^2 / 2, so that the quotient along u is <u, w - a_i>; directions are public and
    the model follows from them and the bits. Record 0 outweighs the others: subsets with and without it differ.

    Returns
    -------
    tuple
        Transcripts as integers below 2^rounds, shape (runs,), and whether the secret subset holds record 0.
    """
    rng = np.random.default_rng(seed)
    records = rng.normal(size=(RECORDS, 3))
    records[0] *= 6.0
    directions = rng.normal(size=(rounds, 3))
    members = balanced_subsets(RECORDS, subsets, rng.bytes(16))
    signs: dict[tuple[int, ...], np.ndarray] = {}
    for length in range(rounds):
        for bits in itertools.product((-1, 1), repeat=length):
            model = -0.3 * (np.array(bits) @ directions[:length] if length else np.zeros(3))
            signs[bits] = subset_signs((model - records) @ directions[length], members)
    found, holds = np.zeros(runs, dtype=np.int64), np.zeros(runs, dtype=bool)
    for run in range(runs):
        silo = kind.start("zpl", subsets, 0.0, rounds, source)
        bits = ()
        for _ in range(rounds):
            bits = (*bits, silo.release(signs[bits], source))
        found[run] = sum((bit > 0) << place for place, bit in enumerate(bits))
        holds[run] = members[silo.secret, 0]
    return found, holds


def two_sample_p(found: np.ndarray, holds: np.ndarray) -> float:
    """p-value of the chi-square test that whole transcripts have one law with and without record 0."""
    table = np.stack([np.bincount(found[group], minlength=found.max() + 1) for group in (holds, ~holds)])
    table = table[:, table.sum(axis=0) > 0]
    return float(stats.chi2_contingency(table).pvalue) if table.shape[1] > 1 else 1.0
