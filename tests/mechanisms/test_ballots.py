"""Ballots: sensitivity by brute force, ties, losses that are no numbers."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from fedpriv.accounting import vote_sensitivity
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import Ballot

SMALL = [(p, k) for p in range(1, 7) for k in range(1, p + 1)]


def all_ballots(candidates: int, votes: int) -> list[np.ndarray]:
    """Every ballot that a client may send, the abstention included."""
    found = [np.zeros(candidates)]
    for chosen in itertools.combinations(range(candidates), votes):
        found.append(np.isin(np.arange(candidates), chosen).astype(float))
    return found


@pytest.mark.parametrize(("candidates", "votes"), SMALL)
def test_sensitivity_is_the_largest_distance_of_two_ballots(candidates: int, votes: int) -> None:
    ballots = all_ballots(candidates, votes)
    replace = max(float(np.linalg.norm(a - b)) for a in ballots for b in ballots)
    zero_out = max(float(np.linalg.norm(a)) for a in ballots)
    ballot = Ballot(candidates, votes)
    assert ballot.sensitivity("replace_one") == pytest.approx(replace, rel=1e-12)
    assert ballot.sensitivity("add_or_remove") == pytest.approx(zero_out, rel=1e-12)


@pytest.mark.parametrize(("candidates", "votes"), SMALL)
def test_the_accounting_formula_is_the_one_without_abstentions(candidates: int, votes: int) -> None:
    cast = all_ballots(candidates, votes)[1:]
    replace = max(float(np.linalg.norm(a - b)) for a in cast for b in cast)
    assert vote_sensitivity(votes, candidates, "replace_one") == pytest.approx(replace, rel=1e-12)


def test_sensitivity_does_not_depend_on_the_number_of_candidates() -> None:
    assert Ballot(100, 3).sensitivity("replace_one") == pytest.approx(math.sqrt(6))
    assert Ballot(7, 3).sensitivity("replace_one") == pytest.approx(math.sqrt(6))
    assert Ballot(100, 3).sensitivity("add_or_remove") == pytest.approx(math.sqrt(3))


def test_a_vote_for_everyone_still_differs_from_an_abstention() -> None:
    assert Ballot(4, 4).sensitivity("replace_one") == pytest.approx(2.0)


def test_lowest_losses_get_the_votes() -> None:
    assert Ballot(5, 2).cast([0.5, 0.1, 0.3, 0.2, 0.9]).tolist() == [0, 1, 0, 1, 0]
    assert Ballot(3, 1).cast([-1.0, 0.0, -2.0]).tolist() == [0, 0, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite_counts_as_worst(bad: float) -> None:
    assert Ballot(3, 2).cast([bad, 1e300, 5.0]).tolist() == [0, 1, 1]


def test_every_ballot_has_exactly_its_votes_unless_it_abstains() -> None:
    ballot = Ballot(4, 3)
    cast = ballot.cast([1.0, math.nan, math.inf, 2.0])  # a worst candidate fills the third place
    assert cast.sum() == 3
    assert cast[[0, 3]].tolist() == [1, 1]
    assert ballot.cast([math.nan, math.inf, -math.inf, math.nan]).tolist() == [0, 0, 0, 0]
    assert cast.dtype == np.int64


def test_ties_carry_no_advantage_of_position() -> None:
    ballot = Ballot(3, 1)
    wins = Counter(int(np.argmax(ballot.cast([0.7, 0.7, 0.7]))) for _ in range(3000))
    # binomial(3000, 1/3): six deviations are 155
    assert all(abs(wins[index] - 1000) < 160 for index in range(3))


def test_ties_ignore_global_seeds() -> None:
    import random

    cast = set()
    for _ in range(60):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        cast.add(tuple(Ballot(6, 3).cast([0.0] * 6)))
    assert len(cast) > 1


def test_winner_breaks_exact_ties_at_random() -> None:
    wins = Counter(Ballot.winner(np.array([5, 9, 9, -3])) for _ in range(2000))
    assert set(wins) == {1, 2}
    assert abs(wins[1] - 1000) < 140  # six deviations
    assert Ballot.winner(np.array([-5, -9])) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 1), "grid is empty"),
        ((3, 0), "votes: 0"),
        ((3, 4), "votes: 4 is outside 1 .. 3"),
        ((3, 1.5), "votes"),
        ((True, 1), "candidates"),
    ],
)
def test_bad_ballots_are_refused(arguments: tuple, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        Ballot(*arguments)


def test_wrong_number_of_losses_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="2 values for 3 candidates"):
        Ballot(3, 1).cast([0.1, 0.2])


def test_unknown_adjacency_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="adjacency"):
        Ballot(3, 1).sensitivity("zero_out")  # type: ignore[arg-type]
