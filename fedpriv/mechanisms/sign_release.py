"""One bit a round from a secret half of a silo's records: subsets, unanimity, noisy sign or fair coin (PACZero).

A silo holds N records and M subsets, every record in exactly half of them; a secret subset is the one that it
trains on. A round asks for the sign of the subset's mean quotient. Where all subsets have the same sign the bit says
nothing about which one is the secret. Where they differ,

* ``zpl`` (zero privacy leakage) releases a fair coin: the bits carry 0 nats about the secret, exactly;
* ``mi`` adds Gaussian noise to the sign so that the release carries at most the round's part of the budget, updates
  the posterior over the subsets with the real value, and lets only that value's sign leave.

Source: PACZero (arXiv 2605.06505); the accounting is `fedpriv.accounting.pac`.

Formal guarantees
-----------------
For a secret that is uniform over the M subsets and an observer who knows all records and all subsets, chooses model
and direction of every round after what it has seen, and sees every measurement before its sign is taken:

* ``zpl``: the measurements are independent of the secret. They are a function of the signs of all subsets and of
  fresh coins; the secret is never read.
* ``mi``: mutual information of secret and measurements is at most the budget, by the chain rule: given what was
  measured before, a round's measurement is a binary-input Gaussian channel whose input weight is the posterior's.

What the silo spends time on (whether the subsets agree, which noise is solved for) follows from earlier measurements
and from the records, so that an observer who also sees its timing is covered. Time is not spent by the secret.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fedpriv.accounting.pac import PacBudget, SubsetPosterior, noise_std_from_log_odds
from fedpriv.accounting.validators import InvalidArgument, check_integer, check_non_negative
from fedpriv.mechanisms.noise import RandomSource, gaussian

Variant = Literal["zpl", "mi"]
VARIANTS: tuple[Variant, ...] = ("zpl", "mi")


def balanced_subsets(num_records: int, num_subsets: int, seed: bytes) -> NDArray[np.bool_]:
    """Random halves of the records and their complements: every record is in exactly half of the subsets.

    The subsets are no secret: the guarantee holds against who knows them, and which of them is used is drawn
    afterwards and independently. A silo still takes the seed from its operating system and keeps it. A seed from
    the server would let the server choose among subsets (all of them balanced, so nothing would be won), and would
    give silos with equally many records the same ones; a seed that is told helps nobody.

    Parameters
    ----------
    num_records : int
        N >= 2.
    num_subsets : int
        M >= 2, even.
    seed : bytes
        What they are derived from.

    Returns
    -------
    np.ndarray
        Shape (M, N), True for members. Subsets have N // 2 or N - N // 2 records, so none is empty.
    """
    check_integer(2, num_records=num_records, num_subsets=num_subsets)
    if num_subsets % 2:
        raise InvalidArgument(f"num_subsets: {num_subsets} is odd; subsets come as halves and complements")
    key = int.from_bytes(hashlib.sha256(b"fedpriv subsets" + seed).digest()[:16], "little")
    generator = np.random.Generator(np.random.Philox(key=key))
    members = np.zeros((num_subsets, num_records), dtype=bool)
    for pair in range(num_subsets // 2):
        half = generator.permutation(num_records)[: num_records // 2]
        members[2 * pair, half] = True
        members[2 * pair + 1] = ~members[2 * pair]
    return members


def subset_signs(quotients: NDArray[np.float64], members: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Sign of every subset's mean, +1 for a mean of exactly 0.

    Parameters
    ----------
    quotients : np.ndarray
        Shape (N,), finite.
    members : np.ndarray
        Shape (M, N).
    """
    if quotients.shape != (members.shape[1],) or not np.isfinite(quotients).all():
        raise InvalidArgument(f"quotients: {members.shape[1]} finite numbers are needed")
    return np.where(members @ quotients >= 0.0, 1, -1)


@dataclass(frozen=True)
class Measurement:
    """What a round tells an observer who sees the real value.

    Parameters
    ----------
    value : float
        The secret subset's sign plus noise, the common sign of all subsets, or a coin's +1 or -1.
    noise_std : float
        Standard deviation of the noise: 0 for the common sign, infinite for a coin.
    """

    value: float
    noise_std: float


@dataclass
class SignRelease:
    """The secret of one silo in one run, and everything that its releases have told so far.

    Parameters
    ----------
    variant : {"zpl", "mi"}
        What is released where the subsets disagree.
    secret : int
        Index of the subset that is trained on; drawn from the operating system's entropy.
    posterior : SubsetPosterior
        Of who sees every real value that was released.
    budget : PacBudget
        Nats in total and used, rounds in total and done. ``zpl`` needs none.
    unanimous : bool or None
        Whether the subsets agreed in the last round: a fact about the silo's data that must not leave.
    """

    variant: Variant
    secret: int
    posterior: SubsetPosterior
    budget: PacBudget
    unanimous: bool | None = field(default=None, compare=False)

    @classmethod
    def start(
        cls, variant: Variant, num_subsets: int, nats: float, rounds: int, source: RandomSource
    ) -> SignRelease:
        """Draw the secret subset.

        Parameters
        ----------
        variant : {"zpl", "mi"}
        num_subsets : int
            M.
        nats : float
            Budget of the run; must be 0 for ``zpl`` and positive for ``mi``.
        rounds : int
            Rounds that share the budget.
        source : RandomSource
            Secure, but for simulations that are declared not private.
        """
        if variant not in VARIANTS:
            raise InvalidArgument(f"variant: {variant!r} is not one of {', '.join(VARIANTS)}")
        check_integer(2, num_subsets=num_subsets)
        check_integer(1, rounds=rounds)
        check_non_negative(nats=nats)
        if (variant == "zpl") != (nats == 0.0):
            raise InvalidArgument(f"nats: {nats} does not go with variant {variant!r}; zpl spends 0, mi more")
        secret = uniform_below(num_subsets, source)
        return cls(variant, secret, SubsetPosterior.uniform(num_subsets), PacBudget(nats, rounds))

    def release(self, signs: NDArray[np.int64] | None, source: RandomSource) -> int:
        """The bit of a round, +1 or -1; call it once per round and write the new state before the bit leaves.

        Parameters
        ----------
        signs : np.ndarray or None
            Shape (M,): the subsets' signs; None where the silo has none (its objective failed): a fair coin,
            which says nothing.
        source : RandomSource
            Of coins and noise.
        """
        return 1 if self.measure(signs, source).value >= 0.0 else -1

    def measure(self, signs: NDArray[np.int64] | None, source: RandomSource) -> Measurement:
        """:meth:`release` before its sign is taken: the budget covers whoever sees this, but only the sign leaves.

        Parameters
        ----------
        signs, source
            As for :meth:`release`.
        """
        self.unanimous = None if signs is None else bool(abs(int(signs.sum())) == signs.size)
        if signs is None:
            return _coin(source)
        if self.unanimous:
            self._spend(0.0)
            return Measurement(float(signs[0]), 0.0)
        if self.variant == "zpl":
            self._spend(0.0)
            return _coin(source)
        log_odds = self.posterior.log_odds(signs)
        allowance = self.budget.allowance(log_odds)
        noise_std = self._noise_std(log_odds, allowance)
        self._spend(allowance)
        if math.isinf(noise_std):
            return _coin(source)
        value = float(signs[self.secret]) + float(gaussian(noise_std, 1, source)[0])
        self._learn(signs, value, noise_std)
        return Measurement(value, noise_std)

    def _noise_std(self, log_odds: float, allowance: float) -> float:
        return noise_std_from_log_odds(log_odds, allowance) if allowance > 0 else math.inf

    def _learn(self, signs: NDArray[np.int64], value: float, noise_std: float) -> None:
        self.posterior.update(signs, value, noise_std)

    def _spend(self, nats: float) -> None:
        """Rounds beyond the planned ones have nothing to spend; they stay coins and common signs."""
        if self.budget.round < self.budget.rounds:
            self.budget.charge(nats)

    def to_json(self) -> dict[str, Any]:
        """The state as plain data, for the silo's own file."""
        return {
            "variant": self.variant,
            "secret": self.secret,
            "log-weights": self.posterior.to_list(),
            "nats": self.budget.total,
            "used": self.budget.used,
            "rounds": self.budget.rounds,
            "round": self.budget.round,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> SignRelease:
        """Read :meth:`to_json` back.

        Raises
        ------
        ValueError, KeyError, TypeError
            When it is not the state of any silo.
        """
        variant, secret = data["variant"], data["secret"]
        posterior = SubsetPosterior(np.array(data["log-weights"], dtype=np.float64))
        if variant not in VARIANTS:
            raise InvalidArgument(f"variant: {variant!r} is not one of {', '.join(VARIANTS)}")
        check_integer(0, secret=secret)
        if secret >= posterior.log_weights.size:  # the message must not tell the number
            raise InvalidArgument("secret: not the number of a subset")
        budget = PacBudget(float(data["nats"]), int(data["rounds"]), float(data["used"]), int(data["round"]))
        return cls(variant, secret, posterior, budget)


def _coin(source: RandomSource) -> Measurement:
    return Measurement(float(fair_coin(source)), math.inf)


def fair_coin(source: RandomSource) -> int:
    """+1 or -1 with probability exactly 1/2 each."""
    return 1 if int(source.words(1)[0]) >> 63 else -1


def uniform_below(bound: int, source: RandomSource) -> int:
    """A uniform integer in 0 .. bound - 1, by rejection: no value is more likely than another."""
    limit = 2**64 - 2**64 % bound
    while (word := int(source.words(1)[0])) >= limit:
        continue
    return word % bound
