"""A release that would exceed the budget is refused before anything is written."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting import VIEWS, Accountant, Gaussian, InvalidArgument, NoRelease, PoissonGaussian
from fedpriv.ledger import Budget, BudgetExceeded, Ledger


def everywhere(event):
    return dict.fromkeys(VIEWS, event)


def test_the_refusal_says_the_numbers_and_writes_nothing(path, open_ledger):
    with open_ledger(budgets=Budget(3.0, 1e-5, "server")) as ledger:
        ledger.reserve("tune", 1, everywhere(Gaussian(3.0))).commit()
        spent = Accountant("add_or_remove").compose(Gaussian(3.0)).epsilon(1e-5).epsilon
        would = (
            Accountant("add_or_remove").compose(Gaussian(3.0)).compose(Gaussian(1.0)).epsilon(1e-5).epsilon
        )
        before = path.read_bytes()
        with pytest.raises(BudgetExceeded) as caught:
            ledger.reserve("train", 4, everywhere(Gaussian(1.0)))
        error = caught.value
        assert (error.spent, error.would_be, error.allowed) == (spent, would, 3.0)
        assert (error.view, error.delta, error.stage, error.round) == ("server", 1e-5, "train", 4)
        for part in ("'train'", "round 4", "server", f"{would:.4f}", f"{spent:.4f}", "3.0000"):
            assert part in str(error)
        assert path.read_bytes() == before
        # A smaller release still fits, and one that the view does not see is free.
        ledger.reserve("train", 4, everywhere(Gaussian(3.0)))
        ledger.reserve("train", 5, everywhere(Gaussian(0.1)) | {"server": NoRelease()})


@pytest.mark.parametrize("use_pld", [True, False])
def test_exactly_as_many_rounds_as_fit(open_ledger, use_pld):
    event, limit, delta = PoissonGaussian(0.1, 1.2), 4.0, 1e-5

    def epsilon(rounds: int) -> float:
        return Accountant("add_or_remove").compose(event, rounds).epsilon(delta, use_pld).epsilon

    low, high = 1, 512
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon(middle) <= limit else (low, middle)
    rounds = 0
    with open_ledger(budgets=Budget(limit, delta, "server", use_pld=use_pld)) as ledger:
        with pytest.raises(BudgetExceeded) as caught:
            while True:
                ledger.reserve("train", rounds + 1, everywhere(event))
                rounds += 1
        assert rounds == low > 10
        assert ledger.epsilon("server", delta, use_pld=use_pld).epsilon <= limit < caught.value.would_be


def test_the_distribution_is_asked_rarely(open_ledger, monkeypatch):
    calls = 0
    real = Accountant.epsilon

    def counting(self, delta, use_pld=True):
        nonlocal calls
        calls += use_pld
        return real(self, delta, use_pld)

    monkeypatch.setattr(Accountant, "epsilon", counting)
    with open_ledger(budgets=Budget(8.0, 1e-5, "server")) as ledger:
        for number in range(236):
            ledger.reserve("train", number, everywhere(PoissonGaussian(0.1, 1.2)))
        assert ledger.epsilon("server", 1e-5).rdp_epsilon > 8.0
    assert 1 < calls < 16


def test_a_voided_release_gives_its_budget_back(open_ledger):
    limit = Accountant("add_or_remove").compose(Gaussian(2.0)).epsilon(1e-5).epsilon * 1.01
    with open_ledger(budgets=Budget(limit, 1e-5, "release")) as ledger:
        first = ledger.reserve("train", 1, everywhere(Gaussian(2.0)))
        with pytest.raises(BudgetExceeded):
            ledger.reserve("train", 2, everywhere(Gaussian(2.0)))
        first.void("no quorum")
        ledger.reserve("train", 2, everywhere(Gaussian(2.0)))


def test_earlier_runs_in_the_account_count_against_the_budget(open_ledger):
    limit = Accountant("add_or_remove").compose(Gaussian(2.0), 2).epsilon(1e-5).epsilon * 1.001
    with open_ledger(run="monday") as ledger:
        ledger.reserve("train", 1, everywhere(Gaussian(2.0))).commit()
    with open_ledger(run="tuesday", budgets=Budget(limit, 1e-5, "server")) as ledger:
        ledger.reserve("train", 1, everywhere(Gaussian(2.0))).commit()
        with pytest.raises(BudgetExceeded):
            ledger.reserve("train", 2, everywhere(Gaussian(2.0)))
        assert [s.budgets for s in ledger.sessions][1][0]["max_epsilon"] == limit


def test_a_smaller_budget_later_refuses_costs_but_not_what_is_free(open_ledger):
    with open_ledger() as ledger:
        ledger.reserve("train", 1, everywhere(Gaussian(1.0))).commit()
    with open_ledger(budgets=Budget(1.0, 1e-5, "server")) as ledger:
        ledger.reserve("train", 2, everywhere(Gaussian(1.0)) | {"server": NoRelease()})
        with pytest.raises(BudgetExceeded):
            ledger.reserve("train", 3, everywhere(Gaussian(1000.0)))


def test_every_budget_is_checked(open_ledger):
    budgets = [Budget(100.0, 1e-5, "server"), Budget(1.0, 1e-5, "release")]
    with open_ledger(budgets=budgets) as ledger:
        assert ledger.budgets == tuple(budgets)
        ledger.reserve("train", 1, everywhere(Gaussian(0.5)) | {"release": NoRelease()})
        with pytest.raises(BudgetExceeded, match="release view"):
            ledger.reserve("train", 1, everywhere(Gaussian(0.5)))


def test_an_infinite_release_exceeds_any_finite_budget(open_ledger):
    events = everywhere(Gaussian(1.0)) | {"server": Gaussian(0.0)}
    with open_ledger(budgets=Budget(1e9, 1e-5, "server")) as ledger:
        with pytest.raises(BudgetExceeded, match="inf"):
            ledger.reserve("train", 1, events, allow_infinite=("server",))
        assert ledger.entries == ()
    with open_ledger(budgets=Budget(math.inf, 1e-5, "server")) as ledger:
        ledger.reserve("train", 1, events, allow_infinite=("server",))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((0.0, 1e-5, "server"), "max_epsilon"),
        ((-1.0, 1e-5, "server"), "max_epsilon"),
        ((math.nan, 1e-5, "server"), "max_epsilon"),
        ((1.0, 1.0, "server"), "delta"),
        ((1.0, 1e-5, "clients"), "view"),
    ],
)
def test_a_bad_budget_is_named(arguments, name):
    with pytest.raises(InvalidArgument, match=name):
        Budget(*arguments)


@settings(max_examples=30, deadline=None)
@given(
    noise=st.lists(st.floats(0.8, 12.0), min_size=1, max_size=25),
    voided=st.sets(st.integers(0, 24)),
    limit=st.floats(0.5, 12.0),
    delta=st.sampled_from([1e-9, 1e-5, 1e-2]),
)
def test_what_is_accepted_fits_and_what_is_refused_does_not(tmp_path_factory, noise, voided, limit, delta):
    path = tmp_path_factory.mktemp("budget") / "ledger.jsonl"
    truth = Accountant("replace_one")
    budget = Budget(limit, delta, "participants")
    with Ledger.open(path, unit="client", adjacency="replace_one", run="one", budgets=budget) as ledger:
        for number, multiplier in enumerate(noise):
            event = Gaussian(multiplier)
            would = truth.would_be([(event, 1)], delta).epsilon
            try:
                reservation = ledger.reserve("train", number, everywhere(event))
            except BudgetExceeded as error:
                assert error.would_be == pytest.approx(would) and would > limit * (1 - 1e-12)
                continue
            assert would <= limit * (1 + 1e-12)
            if number in voided:
                reservation.void("no quorum")
            else:
                truth.compose(event)
        assert ledger.epsilon("participants", delta).epsilon <= limit
