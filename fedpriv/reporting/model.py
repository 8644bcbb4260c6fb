"""What a run reports, as plain data: everything in ``report.json``, and all that the text and figures are
made from.

Numbers here were already released or are public: noisy tallies, accuracy on a public hold-out, counts of
clients, times and bytes. Losses, votes or updates of single clients have no place in a report.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedpriv.accounting.vocabulary import VIEWS, Adjacency, Unit, View

SCHEMA = 1

Status = Literal["holds", "assumed", "fails"]
#: ``void``: the claim is false for this run. ``severe``: the claim leaves something out. ``note``: worth
#: knowing.
Severity = Literal["void", "severe", "note"]

Epsilon = Annotated[float, Field(ge=0, allow_inf_nan=True)]
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Cell = str | int | float | bool | None


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings", validate_assignment=True)


def _no_nan(value: float | None, name: str) -> float | None:
    if value is not None and math.isnan(value):
        raise ValueError(f"{name} is NaN; an epsilon is a number >= 0 or infinity")
    return value


class Warning(_Record):
    """One thing a reader must know; ``void`` and ``severe`` ones stand at the top of the report."""

    text: str
    severity: Severity = "note"


#: The run's noise can be computed again by whoever knows the seed.
SEEDED_NOISE = Warning(text="seeded noise: not private", severity="void")
CLEAR_METRICS = Warning(text="metrics released without noise: no guarantee covers them", severity="severe")
SIMULATED_SUM = Warning(
    text="secure sum was simulated: the server process could have seen single contributions",
    severity="severe",
)
PER_RUN_LEDGER = Warning(
    text="the ledger covers this run only: earlier runs on the same data are not counted"
)


class Hypothesis(_Record):
    """One thing that a bound needs: true by construction, taken on trust, or not true."""

    name: str
    status: Status
    detail: str = ""


class RoundRecord(_Record):
    """One round of a stage.

    Parameters
    ----------
    round : int
    released : bool
        False when the round was aborted before anything left the server.
    accuracy : float, optional
        In [0, 1], on data that belongs to no client or through a private release; None when not evaluated.
    asked, survivors : int, optional
        Clients asked, and clients whose contribution is in the sum.
    noise_shares : int, optional
        Noise shares in the sum, 0 when the server adds the noise; the guarantee counts fewer. None where no sum
        is noised: silos that add noise of their own before, or PAC privacy.
    epsilon : dict from view to float
        Cumulative epsilon after the round, at most: by the bound that is cheap enough while the run goes on.
    nats : float, optional
        Of a PAC-private stage: mutual information that its releases so far may carry, at most, per silo.
    diagnostics : dict of str to float
        Named numbers for plots that only a simulation can know (the fraction of unanimous silos).
    seconds : float, optional
    exchanges : dict of str to float
        Seconds of every exchange of the round's sum, in order; empty when it was aborted.
    bytes_up, bytes_down : int, optional
        Payload of the round's sum from the clients and to them.
    note : str
    """

    round: Count
    released: bool = True
    accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    asked: Count | None = None
    survivors: Count | None = None
    noise_shares: Count | None = None
    epsilon: dict[View, Epsilon] = Field(default_factory=dict)
    nats: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    diagnostics: dict[str, Annotated[float, Field(allow_inf_nan=False)]] = Field(default_factory=dict)
    seconds: Seconds | None = None
    exchanges: dict[str, Seconds] = Field(default_factory=dict)
    bytes_up: Count | None = None
    bytes_down: Count | None = None
    note: str = ""


class VoteRecord(_Record):
    """The outcome of a private vote.

    Parameters
    ----------
    candidates : list of dict
        The grid, in ballot order.
    tallies : list of float
        Noisy tallies, one per candidate. Noise can make them negative.
    chosen : int
        Index of the winner.
    votes_per_client : int
        Ones on a ballot.
    voters : int
        Ballots in the sum.
    noise_std : float
        Standard deviation of the noise that the sum really carried.
    """

    candidates: list[dict[str, Any]] = Field(min_length=1)
    tallies: list[Annotated[float, Field(allow_inf_nan=False)]]
    chosen: Count
    votes_per_client: Annotated[int, Field(ge=1)]
    voters: Count
    noise_std: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    @model_validator(mode="after")
    def _same_length(self) -> VoteRecord:
        if len(self.tallies) != len(self.candidates):
            raise ValueError(f"{len(self.tallies)} tallies for {len(self.candidates)} candidates")
        if self.chosen >= len(self.candidates):
            raise ValueError(f"chosen = {self.chosen}; allowed: 0 to {len(self.candidates) - 1}")
        return self


class StageReport(_Record):
    """One stage of a run.

    Parameters
    ----------
    name, kind : str
        Its name in the run (``train``) and what it is (``client-level DPSGD-DC``).
    table : dict
        What a reviewer needs to recompute the cost, in the order to print: mechanism, clip norm,
        normalisation convention, sampling and rate, rounds, noise multiplier, guaranteed and realised number
        of noise shares, events.
    rounds : list of RoundRecord
    vote : VoteRecord, optional
    hypotheses : list of Hypothesis
    seconds : float
        Wall time.
    bytes_up, bytes_down : int
        From all clients to the server, and back.
    epsilon : dict from view to float
        Of this stage alone.
    """

    name: str
    kind: str
    table: dict[str, Cell] = Field(default_factory=dict)
    rounds: list[RoundRecord] = Field(default_factory=list)
    vote: VoteRecord | None = None
    hypotheses: list[Hypothesis] = Field(default_factory=list)
    seconds: Seconds = 0.0
    bytes_up: Count = 0
    bytes_down: Count = 0
    epsilon: dict[View, Epsilon] = Field(default_factory=dict)

    @field_validator("table")
    @classmethod
    def _words_for_infinity(cls, table: dict[str, Cell]) -> dict[str, Cell]:
        # JSON has no infinities, and a cell may be a string: a word survives the round trip unchanged.
        return {
            key: repr(cell) if isinstance(cell, float) and not math.isfinite(cell) else cell
            for key, cell in table.items()
        }


class ViewReport(_Record):
    """The guarantee in one view.

    Parameters
    ----------
    epsilon : float
        The smallest valid epsilon; infinity when the view has no guarantee.
    bound : str
        Which bound gave it.
    rdp_epsilon, pld_epsilon : float, optional
        The same by Rényi accounting and by privacy-loss distributions.
    order : float, optional
        Rényi order at which RDP was smallest.
    statement : str
        Who this is, and why amplification was or was not applied, in a sentence.
    notes : list of str
    """

    epsilon: Epsilon
    bound: str
    rdp_epsilon: Epsilon | None = None
    pld_epsilon: Epsilon | None = None
    order: float | None = None
    statement: str = ""
    notes: list[str] = Field(default_factory=list)

    @field_validator("epsilon", "rdp_epsilon", "pld_epsilon")
    @classmethod
    def _not_nan(cls, value: float | None) -> float | None:
        return _no_nan(value, "epsilon")


class EpsilonPoint(_Record):
    """Cumulative epsilon after one release; the whole ledger up to there is counted.

    Parameters
    ----------
    stage, round
        Which release it was.
    epsilon : float
    release : int, optional
        Its number among all releases, counted from 1; without it, points are taken as consecutive.
    """

    stage: str
    round: Count
    epsilon: Epsilon
    release: Annotated[int, Field(ge=1)] | None = None


class BudgetRecord(_Record):
    """The limit a run was given."""

    view: View
    max_epsilon: Epsilon


class PacRecord(_Record):
    """PAC privacy spent by one silo; no differential privacy and never given an epsilon.

    Parameters
    ----------
    stage, silo : str
        Whose guarantee it is; ``each`` for one that every silo has.
    nats : float
        Mutual information between the secret and all releases, at most.
    success : float, optional
        Most that the success probability of an attacker who guesses the membership of one record can be; 1/2
        before the releases.
    comparison_epsilon : float, optional
        The epsilon of pure differential privacy that would bound the posterior as well; for comparison only.
    """

    stage: str
    silo: str
    nats: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    success: Annotated[float, Field(ge=0.5, le=1)] | None = None
    comparison_epsilon: Epsilon | None = None


class LedgerRecord(_Record):
    """Where the costs are written, and the hash that pins the file down."""

    file: str = "ledger.jsonl"
    lines: Count
    head: str
    runs: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)


class RunReport(_Record):
    """A whole run.

    Parameters
    ----------
    title : str
    unit, adjacency : str
    delta : float
        In [0, 1).
    views : dict from view to ViewReport
        All three views.
    stages : list of StageReport
    warnings : list of Warning
    settings : dict
        Resolved run configuration.
    environment : dict
        Versions, machine, commit.
    orders : list of float
        Rényi orders that the accountant used.
    epsilon_curves : dict from view to list of EpsilonPoint
        For the figure.
    budget : BudgetRecord, optional
    outcome : str
        How the run ended, in a sentence.
    final_accuracy : float, optional
    pac : list of PacRecord
        Stages that differential privacy does not cover.
    private : bool
        Whether differential privacy covers any stage of the run; without, the views say nothing.
    ledger : LedgerRecord, optional
    partition_figure : str, optional
        Path of the picture of the data split, relative to the run folder.
    model_file : str, optional
        Relative to the run folder.
    load_example : str
        About ten lines of Python that load and use the model.
    created : str
        UTC, ISO 8601.
    """

    schema_version: Literal[1] = 1
    title: str
    unit: Unit
    adjacency: Adjacency
    delta: Annotated[float, Field(ge=0, lt=1)]
    views: dict[View, ViewReport]
    stages: list[StageReport] = Field(default_factory=list)
    warnings: list[Warning] = Field(default_factory=list)
    settings: dict[str, Any] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    orders: list[float] = Field(default_factory=list)
    epsilon_curves: dict[View, list[EpsilonPoint]] = Field(default_factory=dict)
    budget: BudgetRecord | None = None
    outcome: str = ""
    final_accuracy: Annotated[float, Field(ge=0, le=1)] | None = None
    pac: list[PacRecord] = Field(default_factory=list)
    private: bool = True
    ledger: LedgerRecord | None = None
    partition_figure: str | None = None
    model_file: str | None = None
    load_example: str = ""
    created: str = ""

    @model_validator(mode="after")
    def _every_view(self) -> RunReport:
        missing = [view for view in VIEWS if view not in self.views]
        if missing:
            raise ValueError(f"views lacks {missing}; a report states epsilon for each of {list(VIEWS)}")
        return self

    def to_json(self) -> str:
        """The report as JSON text; infinities become the string ``Infinity``."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> RunReport:
        """Read `to_json`'s text back.

        Raises
        ------
        pydantic.ValidationError
            Naming the field.
        """
        return cls.model_validate_json(text)
