"""A budget on one view of a ledger, checked before a release is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fedpriv.accounting.events import NoRelease, PrivacyEvent
from fedpriv.accounting.validators import check_choice, check_delta, check_positive
from fedpriv.accounting.vocabulary import VIEWS, View
from fedpriv.ledger.errors import BudgetExceeded
from fedpriv.ledger.totals import Counts, Totals


@dataclass(frozen=True)
class Budget:
    """At most `max_epsilon` at `delta` in one view, over all runs in the ledger.

    Parameters
    ----------
    max_epsilon : float
        Largest epsilon, > 0; infinity for no limit.
    delta : float
        In [0, 1).
    view : {"server", "participants", "release"}
    use_pld : bool
        Let a release pass when the privacy-loss distribution shows that it fits although RDP does not.

    Raises
    ------
    InvalidArgument
        Naming the argument.
    """

    max_epsilon: float
    delta: float
    view: View
    use_pld: bool = True

    def __post_init__(self) -> None:
        if self.max_epsilon != float("inf"):
            check_positive(max_epsilon=self.max_epsilon)
        check_delta(delta=self.delta)
        check_choice(VIEWS, view=self.view)


class BudgetGuard:
    """Decides whether one more release fits a budget.

    RDP answers in microseconds and is enough for most of a run. Near the end the distribution is needed,
    which takes a noticeable part of a second; since epsilon never falls when events are added, a composition
    that fits proves that every part of it fits, so a few look-aheads replace a computation per round.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._fits: list[dict[tuple[str, str], Counts]] = []
        self._look_ahead = 16

    def check(self, totals: Totals, run: str, stage: str, round: int, event: PrivacyEvent) -> None:
        """Refuse a release that does not fit.

        Raises
        ------
        BudgetExceeded
        """
        budget = self.budget
        if budget.max_epsilon == float("inf") or isinstance(event, NoRelease):
            return
        wanted = totals.counts(budget.view, extra=(run, stage, event, 1))
        if totals.best_rdp(budget.view, wanted, budget.delta) <= budget.max_epsilon:
            return
        would_be = totals.best_rdp(budget.view, wanted, budget.delta)
        if budget.use_pld:
            if any(_covers(known, wanted) for known in self._fits):
                return
            if self._find_room(totals, run, stage, event):
                return
            would_be = totals.best(budget.view, wanted, budget.delta, True).epsilon
            if would_be <= budget.max_epsilon:
                self._fits.append(wanted)
                return
        spent = totals.best(budget.view, totals.counts(budget.view), budget.delta, budget.use_pld).epsilon
        raise BudgetExceeded(
            spent=spent,
            would_be=would_be,
            allowed=budget.max_epsilon,
            view=budget.view,
            delta=budget.delta,
            stage=stage,
            round=round,
        )

    def _find_room(self, totals: Totals, run: str, stage: str, event: PrivacyEvent) -> bool:
        """Whether some number > 1 of releases like this one fits; remembers the composition that does."""
        while self._look_ahead > 1:
            ahead = totals.counts(self.budget.view, extra=(run, stage, event, self._look_ahead))
            fits = (
                totals.best(self.budget.view, ahead, self.budget.delta, True).epsilon
                <= self.budget.max_epsilon
            )
            if fits:
                self._fits = [ahead]
                self._look_ahead *= 2
                return True
            self._look_ahead //= 2
        return False


def _covers(known: dict[tuple[str, str], Counts], wanted: dict[tuple[str, str], Counts]) -> bool:
    return all(
        count <= known.get(key, Counter())[event]
        for key, part in wanted.items()
        for event, count in part.items()
    )
