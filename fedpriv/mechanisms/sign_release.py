"""One bit a round from a secret half of a silo's records: subsets, unanimity, noisy sign or fair coin (PACZero).

A silo holds N records and M subsets, every record in exactly half of them; a secret subset is the one that it
trains on. A round asks for the sign of the subset's mean quotient. Where all subsets have the same sign the bit says
nothing about which one is the secret. Where they differ,

* ``zpl`` (zero privacy leakage) releases a fair coin: the bits carry 0 nats about the secret, exactly;
* ``mi`` adds Gaussian noise to the sign so that the release carries at most the round's part of the budget, updates
  the posterior over the subsets with the real value, and lets only that value's sign leave.

Source: PACZero (arXiv 2605.06505); the accounting is `fedpriv.accounting.pac`.
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

    The subsets are no secret (the guarantee holds against who knows them); which of them is used is.

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
        self.unanimous = None if signs is None else bool(abs(int(signs.sum())) == signs.size)
        if signs is None:
            return fair_coin(source)
        if self.unanimous:
            self._spend(0.0)
            return int(signs[0])
        if self.variant == "zpl":
            self._spend(0.0)
            return fair_coin(source)
        log_odds = self.posterior.log_odds(signs)
        allowance = self.budget.allowance(log_odds)
        noise_std = noise_std_from_log_odds(log_odds, allowance) if allowance > 0 else math.inf
        self._spend(allowance)
        if math.isinf(noise_std):
            return fair_coin(source)
        released = float(signs[self.secret]) + float(gaussian(noise_std, 1, source)[0])
        self.posterior.update(signs, released, noise_std)
        return 1 if released >= 0.0 else -1

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
        """Read :meth:`to_json` back."""
        return cls(
            data["variant"],
            int(data["secret"]),
            SubsetPosterior(np.array(data["log-weights"], dtype=np.float64)),
            PacBudget(float(data["nats"]), int(data["rounds"]), float(data["used"]), int(data["round"])),
        )


def fair_coin(source: RandomSource) -> int:
    """+1 or -1 with probability exactly 1/2 each."""
    return 1 if int(source.words(1)[0]) >> 63 else -1


def uniform_below(bound: int, source: RandomSource) -> int:
    """A uniform integer in 0 .. bound - 1, by rejection: no value is more likely than another."""
    limit = 2**64 - 2**64 % bound
    while (word := int(source.words(1)[0])) >= limit:
        continue
    return word % bound
