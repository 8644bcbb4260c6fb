"""Totals per view from the entries of a ledger: composition, and stage bounds where they are better."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import cast

from fedpriv.accounting.accountant import Accountant, Epsilon
from fedpriv.accounting.events import PrivacyEvent, event_from_json
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.accounting.vocabulary import Adjacency, View
from fedpriv.ledger.entries import LedgerState, StageBound

Counts = Counter[PrivacyEvent]

#: With more bounded stages than this, bounds are chosen one stage at a time instead of over all subsets.
MAX_SUBSET_STAGES = 6


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One valid way to account for a view: a composition in which some stages are replaced by their bound."""

    accountant: Accountant
    bounded_stages: tuple[str, ...]

    def epsilon(self, delta: float, use_pld: bool) -> Epsilon:
        """Epsilon of this candidate, with a note that names the stages whose bound was used."""
        epsilon = self.accountant.epsilon(delta, use_pld=use_pld)
        notes = tuple(
            f"stage {stage!r}: bound on the stage as a whole, smaller than the composition of its rounds"
            for stage in self.bounded_stages
        )
        return dataclasses.replace(epsilon, notes=epsilon.notes + notes)


class Totals:
    """Running counts of equal events per run, stage and view."""

    def __init__(self, state: LedgerState) -> None:
        self._state = state
        self._counts: dict[tuple[str, str, View], Counts] = {}
        self._bound_events: dict[tuple[str, str, int], tuple[PrivacyEvent, PrivacyEvent]] = {}

    def add(self, run: str, stage: str, events: Mapping[View, PrivacyEvent], count: int = 1) -> None:
        """Count a release (`count` = 1) or take a voided one back (`count` = -1)."""
        for view, event in events.items():
            counts = self._counts.setdefault((run, stage, view), Counter())
            counts[event] += count
            if not counts[event]:
                del counts[event]

    def stages(self, run: str | None = None) -> list[str]:
        """Names of stages, in the order of their first entry."""
        names = (stage for r, stage, _ in self._counts if run in (None, r))
        return list(dict.fromkeys(names))

    def counts(
        self,
        view: View,
        *,
        run: str | None = None,
        stage: str | None = None,
        extra: tuple[str, str, PrivacyEvent, int] | None = None,
    ) -> dict[tuple[str, str], Counts]:
        """Events per (run, stage) as a view sees them; `extra` is (run, stage, event, count) on top."""
        chosen = {
            (r, s): counts.copy()
            for (r, s, v), counts in self._counts.items()
            if v == view and run in (None, r) and stage in (None, s)
        }
        if extra is not None:
            extra_run, extra_stage, event, count = extra
            chosen.setdefault((extra_run, extra_stage), Counter())[event] += count
        return chosen

    def compose(self, counts: Iterable[Counts]) -> Accountant:
        """An accountant over counted events."""
        accountant = Accountant(cast(Adjacency, self._state.adjacency), unit=self._state.unit)
        total: Counts = Counter()
        for part in counts:
            total.update(part)
        for event, count in total.items():
            if count:
                accountant.compose(event, count)
        return accountant

    def candidates(self, view: View, counts: Mapping[tuple[str, str], Counts]) -> list[Candidate]:
        """All valid ways to account for `counts`; the first is plain composition.

        A bound replaces exactly the rounds of its own run and stage that are charged with the event it was
        registered for; what else the stage released is composed on top. The view is a composition of stages,
        each replaced or not, so every subset of replacements is valid and the smallest result may be
        reported.
        """
        plain = [Candidate(self.compose(counts.values()), ())]
        if view != "release":
            return plain
        replaced = {
            key: swapped
            for key, part in counts.items()
            if (bound := self._state.bounds.get(key)) is not None
            and (swapped := self._with_bound(bound, part)) is not None
        }
        keys = sorted(replaced)
        subsets: Iterable[tuple[tuple[str, str], ...]]
        if len(keys) <= MAX_SUBSET_STAGES:
            subsets = itertools.chain.from_iterable(
                itertools.combinations(keys, size) for size in range(1, len(keys) + 1)
            )
        else:
            subsets = [(key,) for key in keys] + [tuple(keys)]
        for subset in subsets:
            merged = {**counts, **{key: replaced[key] for key in subset}}
            plain.append(Candidate(self.compose(merged.values()), tuple(stage for _, stage in subset)))
        return plain

    def _with_bound(self, bound: StageBound, part: Counts) -> Counts | None:
        """The stage's events with its covered rounds replaced by the bound; None when no round is covered."""
        round_event = _event(bound.round_event)
        rounds = part.get(round_event, 0)
        if rounds == 0:
            return None
        rest = part.copy()
        del rest[round_event]
        rest[_event({**bound.events_by_rounds, "rounds": rounds})] += 1
        return rest

    def best(
        self, view: View, counts: Mapping[tuple[str, str], Counts], delta: float, use_pld: bool
    ) -> Epsilon:
        """The smallest valid epsilon of a view.

        ``rdp_epsilon`` and ``pld_epsilon`` are those of the candidate that won, never a mixture of two.
        """
        first, *others = self.candidates(view, counts)
        best = first.epsilon(delta, use_pld)
        for candidate in others:
            try:
                epsilon = candidate.epsilon(delta, use_pld)
            except InvalidArgument as error:
                # A bound whose failure mass reaches delta says nothing at this delta; composition still
                # holds.
                best = dataclasses.replace(
                    best, notes=(*best.notes, f"stage bound not usable at delta {delta:g}: {error}")
                )
                continue
            if epsilon.epsilon < best.epsilon:
                best = epsilon
        return best

    def best_rdp(self, view: View, counts: Mapping[tuple[str, str], Counts], delta: float) -> float:
        """The smallest RDP epsilon of a view; cheap enough to call in every round."""
        first, *others = self.candidates(view, counts)
        best = first.accountant.rdp_epsilon(delta)
        for candidate in others:
            try:
                best = min(best, candidate.accountant.rdp_epsilon(delta))
            except InvalidArgument:
                continue
        return best


_EVENTS: dict[str, PrivacyEvent] = {}


def _event(description: Mapping[str, object]) -> PrivacyEvent:
    """An event from its JSON form; equal descriptions give the same object, with its cached curves."""
    key = json.dumps(description, sort_keys=True)
    if key not in _EVENTS:
        _EVENTS[key] = event_from_json(dict(description))
    return _EVENTS[key]
