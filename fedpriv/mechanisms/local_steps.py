"""DP-SGD on the records of one silo: noised steps, each followed by the projection on the ball."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpriv.accounting.events import Gaussian, NonPrivate, PrivacyEvent
from fedpriv.accounting.local_steps import LocalSteps
from fedpriv.accounting.validators import (
    InvalidArgument,
    check_choice,
    check_integer,
    check_non_negative,
    check_positive,
)
from fedpriv.accounting.vocabulary import ADJACENCIES, Adjacency
from fedpriv.mechanisms.grid import GridCodec
from fedpriv.mechanisms.noise import MAX_SHARE_UNITS, MIN_SHARE_UNITS, RandomSource, rounded_gaussian
from fedpriv.mechanisms.per_example import RecordGradients, encoded_sum, poisson_records
from fedpriv.mechanisms.projection import Ball

_CHUNK_NUMBERS = 2**22  # float64 numbers of per-record gradients that are held at once
_MOST_RECORDS = 1024


@dataclass(frozen=True)
class NoisedSteps:
    """What a silo does between two releases, and the privacy event of it: server and silo share this object.

    A step draws a Poisson batch, clips every record's gradient, rounds it to the grid, adds integer Gaussian
    noise to the sum, divides by the fixed expected batch, steps and projects.

    Parameters
    ----------
    sampling_rate : float
        q in (0, 1].
    codec : GridCodec
        Clip C of one record's gradient, and grid.
    noise_std_units : float
        Standard deviation of the noise on the sum of a step, in grid steps.
    steps : int
        E, steps between two releases.
    adjacency : {"add_or_remove", "replace_one"}
        Of the ledger. Batches are sampled under add_or_remove only (a record's contribution is present or
        zero); replace_one goes with q = 1.

    Notes
    -----
    Guarantees:

    * one record moves the sum of a step by at most ``clip_units`` (twice that under replace_one), in exact
      integer arithmetic; the noise is added to those integers, so what leaves a step is a function of
      ``x + round(N(0, s^2))`` with x an integer vector, which is ``round(x + N(0, s^2))``: the Gaussian
      mechanism exactly;
    * the denominator is q times the number of records of the silo, which is public and fixed, never the
      number of records that were drawn;
    * step and projection are functions of the noised sum and of public numbers.

    Assumed: the floating-point gradient of a record does not depend on which other records are in its batch.
    """

    sampling_rate: float
    codec: GridCodec
    noise_std_units: float
    steps: int
    adjacency: Adjacency = "add_or_remove"

    def __post_init__(self) -> None:
        if not 0.0 < self.sampling_rate <= 1.0:
            raise InvalidArgument(f"sampling_rate: {self.sampling_rate} is outside (0, 1]")
        check_integer(1, steps=self.steps)
        check_choice(ADJACENCIES, adjacency=self.adjacency)
        check_non_negative(noise_std_units=self.noise_std_units)
        if self.adjacency == "replace_one" and self.sampling_rate < 1.0:
            raise InvalidArgument(
                "adjacency: Poisson batches are accounted under add_or_remove only, got 'replace_one'; use "
                "sampling_rate = 1 with it"
            )
        if self.noise_std_units and not MIN_SHARE_UNITS <= self.noise_std_units <= MAX_SHARE_UNITS:
            raise InvalidArgument(
                f"noise_std_units: {self.noise_std_units:.3g} grid steps are outside {MIN_SHARE_UNITS:g} .. "
                f"{MAX_SHARE_UNITS:g}"
            )

    @classmethod
    def build(
        cls,
        *,
        sampling_rate: float,
        clipping_norm: float,
        noise_multiplier: float,
        steps: int,
        length: int,
        adjacency: Adjacency = "add_or_remove",
    ) -> NoisedSteps:
        """Choose the grid for a noise multiplier on the clip.

        Parameters
        ----------
        noise_multiplier : float
            Noise standard deviation of a step's sum over the clip.
        length : int
            Number of model coordinates d.
        """
        # every record is rounded, so finer than for one update of a whole client
        codec = GridCodec.choose(clipping_norm, length, noise_multiplier * clipping_norm, 1e-4)
        return cls(sampling_rate, codec, noise_multiplier * codec.clip_units, steps, adjacency)

    @property
    def noise_multiplier(self) -> float:
        """Noise standard deviation of a step's sum over the clip."""
        return self.noise_std_units / self.codec.clip_units

    def event(self) -> PrivacyEvent:
        """What the steps between two releases cost, for whoever sees any function of their outcome."""
        if self.noise_std_units == 0:
            return NonPrivate("local steps without noise")
        if self.sampling_rate < 1.0:
            return LocalSteps(self.sampling_rate, self.noise_multiplier, self.steps)
        moves = 1 if self.adjacency == "add_or_remove" else 2
        return Gaussian(self.noise_multiplier / moves / math.sqrt(self.steps))

    def descend(
        self,
        start: NDArray[np.float64],
        gradients: RecordGradients,
        ball: Ball,
        learning_rate: float,
        source: RandomSource,
        on_failure: Callable[[BaseException], None] = lambda error: None,
    ) -> NDArray[np.float64]:
        """Take the steps from a model.

        A gradient function that fails on a chunk is asked for its records one by one, and the record that
        fails counts as zero: an exception of one record must not take others out of the sum.

        Parameters
        ----------
        start : np.ndarray
            Shape (d,), finite; projected first.
        gradients : RecordGradients
            Of the silo's records, at least one.
        ball : Ball
            Where the model is kept.
        learning_rate : float
            Step size, > 0.
        source : RandomSource
            Of batches and noise.
        on_failure : callable, optional
            Called with the first failure of each step; for the silo's own log.

        Returns
        -------
        np.ndarray
            Shape (d,), inside the ball.
        """
        check_positive(learning_rate=learning_rate)
        check_integer(1, num_records=gradients.num_records)
        weights = ball.project(np.asarray(start, dtype=np.float64))
        for _ in range(self.steps):
            mean = self.noised_mean(weights, gradients, source, on_failure)
            weights = ball.project(weights - learning_rate * mean)
        return weights

    def noised_mean(
        self,
        weights: NDArray[np.float64],
        gradients: RecordGradients,
        source: RandomSource,
        on_failure: Callable[[BaseException], None] = lambda error: None,
        most_records: int = _MOST_RECORDS,
    ) -> NDArray[np.float64]:
        """One noised sum over a fresh batch, divided by the fixed expected batch, shape of the weights.

        Parameters
        ----------
        most_records : int
            Records that ``gradients`` is asked for at once.
        """
        batch = poisson_records(gradients.num_records, self.sampling_rate, source)
        total = rounded_gaussian(self.noise_std_units, weights.size, source)
        failures: list[BaseException] = []
        chunk = max(1, min(most_records, _CHUNK_NUMBERS // weights.size))
        # Warnings that the engineer has turned into exceptions must not make the outcome depend on a record.
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            for first in range(0, len(batch), chunk):
                rows = _rows(gradients, weights, batch[first : first + chunk], failures)
                total += encoded_sum(rows, self.codec)
        if failures:
            on_failure(failures[0])
        mean: NDArray[np.float64] = self.codec.decode(total) / (self.sampling_rate * gradients.num_records)
        return mean


def _rows(
    gradients: RecordGradients,
    weights: NDArray[np.float64],
    records: NDArray[np.int64],
    failures: list[BaseException],
) -> NDArray:
    """Gradients of some records, shape (m, d); zeros for those whose gradient cannot be computed."""
    try:
        rows = np.asarray(gradients.gradients(weights.copy(), records))
        if rows.shape != (len(records), weights.size) or rows.dtype.kind != "f":
            raise InvalidArgument(f"gradients: shape {rows.shape}, type {rows.dtype}")
        return rows
    except (Exception, SystemExit) as error:
        failures.append(error)
    if len(records) == 1:
        return np.zeros((1, weights.size))
    return np.concatenate(
        [_rows(gradients, weights, records[i : i + 1], failures) for i in range(len(records))]
    )
