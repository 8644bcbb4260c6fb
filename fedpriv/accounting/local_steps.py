"""Noised steps that a silo takes on its own records between two releases (DP-SGD, Abadi et al. 2016)."""

from dataclasses import dataclass

from fedpriv.accounting.curves import DirectionalCurves, FloatArray
from fedpriv.accounting.events import PoissonGaussian, PrivacyEvent, register_event
from fedpriv.accounting.validators import check_integer, check_non_negative, check_probability


@register_event
@dataclass(frozen=True)
class LocalSteps(PrivacyEvent):
    """``steps`` noised sums over Poisson-sampled records, whose outcome is released once.

    Parameters
    ----------
    sampling_rate : float
        q in [0, 1]: probability with which a record is in the batch of a step, drawn anew in every step.
    noise_multiplier : float
        Noise standard deviation of a step's sum over the clip of one record's gradient, >= 0.
    steps : int
        Steps, >= 1.

    Notes
    -----
    Formal guarantee: what is released is a function of the steps' noised sums and of public numbers, so the
    composition of the steps bounds it. No amplification is taken from the fact that only the last of them is
    seen.
    """

    sampling_rate: float
    noise_multiplier: float
    steps: int

    kind = "local_steps"
    adjacencies = PoissonGaussian.adjacencies
    assumptions = PoissonGaussian.assumptions

    def __post_init__(self) -> None:
        check_probability(sampling_rate=self.sampling_rate)
        check_non_negative(noise_multiplier=self.noise_multiplier)
        check_integer(1, steps=self.steps)

    @property
    def step(self) -> PoissonGaussian:
        """The event of one step."""
        return PoissonGaussian(self.sampling_rate, self.noise_multiplier)

    def parts(self) -> tuple[tuple[PrivacyEvent, int], ...]:
        """The steps."""
        return ((self.step, self.steps),)

    def curves(self, orders: FloatArray) -> DirectionalCurves:
        """``steps`` times the curve of one step."""
        return self.step.curves(orders).scaled(self.steps)

    def gaussian_equivalent(self) -> float | None:
        """``steps / z^2`` where every record is in every batch."""
        one = self.step.gaussian_equivalent()
        return None if one is None else self.steps * one
