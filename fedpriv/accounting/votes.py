"""Votes on hyperparameters (DP-HYPE, arXiv 2510.04902): sensitivity of a ballot, and chance of a good
winner."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fedpriv.accounting.validators import (
    InvalidArgument,
    check_choice,
    check_integer,
    check_non_negative,
)
from fedpriv.accounting.vocabulary import ADJACENCIES, Adjacency


def vote_sensitivity(votes: int, candidates: int, adjacency: Adjacency) -> float:
    """L2 sensitivity of the summed ballots when every ballot has exactly ``votes`` ones among ``candidates``.

    ``sqrt(votes)`` under add_or_remove (a ballot is replaced by zeros). Under replace_one two ballots
    differ most when they share as few ones as possible: ``sqrt(2 min(votes, candidates - votes))``. Below
    half of the candidates neither depends on their number.

    Parameters
    ----------
    votes : int
        Ones per ballot, between 1 and ``candidates``.
    candidates : int
        Entries of a ballot, >= 1.
    adjacency : {"add_or_remove", "replace_one"}
        The neighbouring relation.

    Returns
    -------
    float
        In votes. 0 under replace_one when all candidates must be voted for: such a ballot carries nothing.

    Examples
    --------
    >>> vote_sensitivity(4, 12, "add_or_remove"), vote_sensitivity(2, 12, "replace_one")
    (2.0, 2.0)
    """
    check_integer(1, votes=votes, candidates=candidates)
    check_choice(ADJACENCIES, adjacency=adjacency)
    if votes > candidates:
        raise InvalidArgument(f"votes must be at most candidates = {candidates}, got {votes}")
    if adjacency == "add_or_remove":
        return math.sqrt(votes)
    return math.sqrt(2 * min(votes, candidates - votes))


def vote_regret_probability(tallies: ArrayLike | Sequence[float], noise_std: float, gamma: float) -> float:
    """Lower bound on the chance that the noisy winner has a true tally of at least ``best - gamma``.

    ``1 - sum over worse candidates of Phi(-(best - tally) / (noise_std sqrt 2))``: a union bound over the
    candidates that would have to overtake the best one (exact for a single worse candidate).

    Parameters
    ----------
    tallies : array of shape (candidates,)
        True (or expected) tallies.
    noise_std : float
        Standard deviation of the noise on every tally, >= 0. Use the noise that is really added (all
        shares), not the part of it that is guaranteed.
    gamma : float
        Tolerated loss in votes, >= 0.

    Returns
    -------
    float
        In [0, 1].
    """
    array = np.asarray(tallies, dtype=np.float64)
    if array.ndim != 1 or array.size == 0 or not np.isfinite(array).all():
        raise InvalidArgument(f"tallies must be a non-empty list of finite numbers, got {tallies!r}")
    check_non_negative(noise_std=noise_std, gamma=gamma)
    gaps = array.max() - array
    worse = gaps[gaps > gamma]
    if worse.size == 0 or noise_std == 0:
        return 1.0
    from scipy.special import ndtr  # here: clients import this module and never call it

    return float(max(0.0, 1.0 - ndtr(-worse / (noise_std * math.sqrt(2))).sum()))
