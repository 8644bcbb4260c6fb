"""Calibration: the smallest noise that meets a target (epsilon, delta).

Formal guarantees
-----------------
* The returned noise multiplier meets the target as computed by the accountant (the safe end of the bracket).
* It is within a relative 1e-4 of the smallest one, if epsilon is non-increasing in the noise.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fedpriv.accounting.accountant import Accountant, Epsilon
from fedpriv.accounting.events import PrivacyEvent
from fedpriv.accounting.solvers import secant_decreasing
from fedpriv.accounting.validators import InvalidArgument, check_delta, check_positive
from fedpriv.accounting.vocabulary import Adjacency, Unit

EventCounts = Iterable[tuple[PrivacyEvent, int]]


@dataclass(frozen=True)
class Calibration:
    """Result of a calibration.

    Parameters
    ----------
    noise_multiplier : float
        Smallest value that meets the target, to a relative 1e-4, on the safe side.
    epsilon : Epsilon
        The epsilon at that value; its ``bound`` tells which bound was active.
    """

    noise_multiplier: float
    epsilon: Epsilon


def calibrate_noise_multiplier(
    make_events: Callable[[float], EventCounts],
    target_epsilon: float,
    delta: float,
    adjacency: Adjacency,
    fixed_events: EventCounts = (),
    use_pld: bool = True,
    unit: Unit = "client",
) -> Calibration:
    """Smallest noise multiplier with which ``make_events`` and ``fixed_events`` together meet the target.

    The cheap Rényi bound finds the neighbourhood; where a tighter bound by privacy-loss distributions
    exists, a few evaluations of it finish the search.

    Parameters
    ----------
    make_events : callable
        Events and their counts for a given noise multiplier; epsilon must not increase with it.
    target_epsilon : float
        In nats, > 0 and finite.
    delta : float
        In (0, 1).
    adjacency : {"add_or_remove", "replace_one"}
        The neighbouring relation.
    fixed_events : iterable of (event, count)
        What is spent besides, whatever the noise (a vote, say).
    use_pld : bool
        False: the Rényi bound only.
    unit : {"client", "record"}
        What is protected.

    Raises
    ------
    InvalidArgument
        When an argument is out of range, or the fixed events alone exceed the target, or no noise meets it.

    Examples
    --------
    >>> from fedpriv.accounting import Gaussian, calibrate_noise_multiplier
    >>> found = calibrate_noise_multiplier(
    ...     lambda z: [(Gaussian(z), 15)], target_epsilon=7.0, delta=1e-3, adjacency="add_or_remove"
    ... )
    >>> round(found.noise_multiplier, 2), found.epsilon.epsilon <= 7.0
    (2.06, True)
    """
    check_positive(target_epsilon=target_epsilon)
    check_delta(delta=delta)
    if delta == 0:
        raise InvalidArgument("delta must be in (0, 1) to calibrate Gaussian noise, got 0")
    base = Accountant(adjacency, unit)
    for event, count in fixed_events:
        base.compose(event, count)
    if base.events:
        spent = base.epsilon(delta, use_pld).epsilon
        if spent >= target_epsilon:
            raise InvalidArgument(
                f"target_epsilon must be above {spent:.6g}, the cost of the fixed events, "
                f"got {target_epsilon!r}"
            )

    results: dict[float, Epsilon] = {}

    def by_curves(noise_multiplier: float) -> float:
        trial = base.copy()
        for event, count in make_events(noise_multiplier):
            trial.compose(event, count)
        return trial.rdp_epsilon(delta)

    def by_everything(noise_multiplier: float) -> float:
        results[noise_multiplier] = base.would_be(make_events(noise_multiplier), delta, use_pld)
        return results[noise_multiplier].epsilon

    if use_pld:
        rough = secant_decreasing(by_curves, target_epsilon, start=1.0, relative_tolerance=0.1)
        found = secant_decreasing(by_everything, target_epsilon, start=rough or 1.0, first_factor=1.1)
    else:
        found = secant_decreasing(by_curves, target_epsilon, start=1.0)
    if found is None:
        raise InvalidArgument(f"target_epsilon must be reachable with some noise, got {target_epsilon!r}")
    if found not in results:
        by_everything(found)
    return Calibration(found, results[found])
