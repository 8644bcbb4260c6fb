"""Client half of record-level training: noised steps on the silo's own records, its own account, a masked model."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.accounting.vocabulary import ADJACENCIES
from fedpriv.clients.noise_share import integer, log_failure, number, pass_on, purpose_of, record_of, refuse
from fedpriv.clients.silo_account import SiloAccount, SiloLimits, account_path
from fedpriv.ledger import Budget, BudgetExceeded, LedgerError
from fedpriv.mechanisms import ArrayLayout, Ball, GridCodec, SecureSource, SeededSource
from fedpriv.mechanisms.local_steps import NoisedSteps
from fedpriv.mechanisms.model_average import MOST_RECORDS, ModelGrid
from fedpriv.mechanisms.noise import RandomSource
from fedpriv.mechanisms.per_example import RecordGradients
from fedpriv.secure_sum import Refusal, handle, inside_simulation
from fedpriv.wire import ErrorCode

logger = logging.getLogger(__name__)

MakeGradients = Callable[[dict[str, np.ndarray], Context], RecordGradients]
"""From the round's arrays to the gradients of the silo's records; see
`fedpriv.mechanisms.per_example.RecordGradients` and, for torch models,
`fedpriv.tasks.record_training.ModelRecordGradients`."""


class HasRecords(Protocol):
    """Anything that says how many records a silo has."""

    @property
    def num_records(self) -> int: ...


Loaded = TypeVar("Loaded", bound=HasRecords)


@dataclass(frozen=True)
class SiloRequest:
    """What a round asks of a silo, checked.

    Parameters
    ----------
    steps : NoisedSteps
        Batches, clip, noise, number of steps: what is charged is its event.
    grid : ModelGrid
        Ball and grid of the answer.
    learning_rate : float
        Of the steps.
    server_round : int
        Round.
    stage, run : str
        Names in the silo's account.
    budget : Budget or None
        The run's limit on its own releases.
    simulation_folder : str
        See `account_path`.
    """

    steps: NoisedSteps
    grid: ModelGrid
    learning_rate: float
    server_round: int
    stage: str
    run: str
    budget: Budget | None
    simulation_folder: str

    @classmethod
    def of(cls, record: ConfigRecord) -> SiloRequest:
        """Read and check a request's record, or refuse."""
        adjacency = record.get(wire.SILO_ADJACENCY)
        if adjacency not in ADJACENCIES:
            raise Refusal(ErrorCode.BAD_REQUEST)
        epsilon = number(record, wire.SILO_MAX_EPSILON, 0.0, 1e300)
        delta = number(record, wire.SILO_DELTA, 0.0, 1.0)
        try:
            codec = GridCodec(
                number(record, wire.UPDATE_CLIPPING_NORM, 1e-12, 1e12),
                integer(record, wire.UPDATE_CLIP_UNITS, 1, 2**30),
            )
            steps = NoisedSteps(
                number(record, wire.SILO_SAMPLING_RATE, 0.0, 1.0),
                codec,
                # noise of zero would be an infinite epsilon: no silo answers that
                number(record, wire.SILO_NOISE_STD, 1.0, 2.0**52),
                integer(record, wire.SILO_STEPS, 1, 10**6),
                adjacency,
            )
            grid = ModelGrid(
                number(record, wire.SILO_RADIUS, 1e-12, 1e12),
                integer(record, wire.SILO_RADIUS_UNITS, 1, 2**30),
                integer(record, wire.SILO_MAX_WEIGHT, 1, MOST_RECORDS),
            )
            budget = Budget(epsilon, delta, "server") if epsilon > 0 else None
        except InvalidArgument as error:
            raise Refusal(ErrorCode.BAD_REQUEST) from error
        return cls(
            steps,
            grid,
            number(record, wire.SILO_LEARNING_RATE, 1e-12, 1e12),
            integer(record, wire.UPDATE_ROUND, 0, 2**62),
            _name(record, wire.SILO_STAGE),
            _name(record, wire.SILO_RUN),
            budget,
            str(record.get(wire.SILO_SIMULATION_FOLDER, "")),
        )

    def account(self, context: Context, limits: SiloLimits) -> SiloAccount:
        """The silo's account for this run."""
        path = account_path(context, self.simulation_folder)
        return SiloAccount(path, self.steps.adjacency, self.run, limits.budget, self.budget)


def record_level_mod(records: MakeGradients) -> Mod:
    """Make a Flower mod that answers record-level training; messages of other purposes go on.

    Node config of a silo: ``state-path`` (folder of its account), ``max-epsilon`` with ``delta`` (its own limit,
    over all runs), ``min-noise-multiplier`` and ``max-sampling-rate`` (what it refuses).

    Guarantees:

    * the steps of a round are on the silo's own account, on its disk, before a record is touched; what is
      charged is computed from the very numbers that the steps use;
    * when its limit or the run's is used up, or its account cannot be written, the silo answers with a vector
      of zeros and weight zero, which no record can influence, and without touching its records;
    * batches and noise come from the operating system; a record whose gradient fails counts as zero.

    Parameters
    ----------
    records : callable
        ``records(arrays, context) -> RecordGradients``. When it raises, or there are no records, the silo
        abstains and says at home why.

    Returns
    -------
    Mod
        For ``@app.train(mods=[...])``, before ``client_level_dp_mod``.
    """

    def mod(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
        purpose = purpose_of(msg, context)
        if purpose == wire.PURPOSE_RECORD_LEVEL:
            return handle(msg, context, lambda request, ctx: _contribution(request, ctx, records))
        if purpose is None and is_silo_check(msg) and wire.RECORD_ZEROTH_ORDER not in msg.content:
            return checked(msg, context, records)
        return pass_on(msg, context, call_next)

    return mod


def is_silo_check(msg: Message) -> bool:
    """Whether a message that belongs to no secure sum asks for a check of the silo."""
    asked = msg.content.get(wire.RECORD_RECORD_LEVEL) if msg.has_content() else None
    return isinstance(asked, ConfigRecord)


def _contribution(request: Message, context: Context, records: MakeGradients) -> np.ndarray:
    asked = SiloRequest.of(record_of(request, wire.RECORD_RECORD_LEVEL))
    arrays = arrays_of(request, "arrays")
    layout, start, center = _weights(request, arrays)

    def train(gradients: RecordGradients, source: RandomSource) -> np.ndarray:
        ball = Ball(asked.grid.radius, center)
        model = asked.steps.descend(start, gradients, ball, asked.learning_rate, source, log_failed_record)
        return model - center

    return paid_contribution(request, context, asked, layout.size, lambda: records(arrays, context), train)


def paid_contribution(
    request: Message,
    context: Context,
    asked: SiloRequest,
    dimension: int,
    load: Callable[[], Loaded],
    work: Callable[[Loaded, RandomSource], np.ndarray],
) -> np.ndarray:
    """Charge the silo's account, then compute what it sends; or abstain without touching a record.

    Parameters
    ----------
    request, context
        As Flower gives them.
    asked : SiloRequest
        What is charged, and the grid of the answer.
    dimension : int
        d.
    load : callable
        Opens the silo's records; they count as untouched until it is called.
    work : callable
        From what ``load`` returned and the source of batches and noise to a vector of shape (d,) in the ball, whose
        cost is ``asked.steps.event()``.

    Returns
    -------
    np.ndarray
        Shape (d + 3,), int64, see :class:`fedpriv.mechanisms.model_average.ModelGrid`.
    """
    limits = SiloLimits.of(context)
    limits.check(asked.steps.noise_multiplier, asked.steps.sampling_rate)
    source = _source(request, context, asked)
    account = asked.account(context, limits)
    try:
        with account.paying(
            asked.stage, asked.server_round, asked.steps.event(), _details(asked)
        ) as reserved:
            loaded = _loaded(load)
            if loaded is None:
                reserved.void("no data: nothing was computed from records")
                return asked.grid.abstention(dimension, out_of_budget=False)
            # settled at once: whatever happens from here on, it counts
            reserved.mark_released()
            reserved.commit({"records": loaded.num_records})
    except BudgetExceeded as exceeded:
        logger.warning("this silo does not train: %s", exceeded)
        return asked.grid.abstention(dimension, out_of_budget=True)
    except (LedgerError, OSError) as error:
        logger.error("this silo does not train, its account cannot be used: %s", error)
        return asked.grid.abstention(dimension, out_of_budget=True)
    return asked.grid.encode(work(loaded, source), min(loaded.num_records, asked.grid.max_weight))


def checked(
    msg: Message, context: Context, load: Callable[[dict[str, np.ndarray], Context], HasRecords]
) -> Message:
    """Answer a check before the run: everything that a round needs but the work itself."""
    try:
        asked = SiloRequest.of(record_of(msg, wire.RECORD_RECORD_LEVEL))
        limits = SiloLimits.of(context)
        limits.check(asked.steps.noise_multiplier, asked.steps.sampling_rate)
        arrays = arrays_of(msg, "arrays")
        _weights(msg, arrays)
        account = asked.account(context, limits)
    except Refusal as refusal:
        return refuse(msg, ErrorCode(refusal.code))
    try:
        account.check()
    except (LedgerError, OSError) as error:
        logger.error("the silo's account cannot be used: %s", error)
        return refuse(msg, ErrorCode.SILO_NO_ACCOUNT)
    loaded = _loaded(lambda: load(arrays, context))
    if loaded is None:
        return refuse(msg, ErrorCode.SILO_NO_DATA)
    size = ConfigRecord({wire.SILO_NUM_RECORDS: int(loaded.num_records)})
    return Message(RecordDict({wire.RECORD_SILO_CHECK: size}), reply_to=msg)


def log_failed_record(error: BaseException) -> None:
    """Say at the silo that some record's contribution could not be computed."""
    log_failure("a record could not be evaluated and counts as zero", error)


def _loaded(load: Callable[[], Loaded]) -> Loaded | None:
    try:
        found = load()
        if found.num_records > 0:
            return found
        logger.error("this silo abstains: it has no records")
    except (Exception, SystemExit) as error:
        log_failure("this silo abstains: its records cannot be used", error)
    return None


def _source(request: Message, context: Context, asked: SiloRequest) -> RandomSource:
    seed = record_of(request, wire.RECORD_RECORD_LEVEL).get(wire.NOISE_SEED, "")
    if seed == "":
        return SecureSource()
    if not inside_simulation(context):
        raise Refusal(ErrorCode.SEED_REFUSED)
    partition = str(context.node_config.get("partition-id", ""))
    return SeededSource(str(seed), wire.PURPOSE_RECORD_LEVEL, asked.server_round, partition)


def arrays_of(request: Message, name: str) -> dict[str, np.ndarray]:
    """Arrays of a record of the request, or refuse."""
    record = request.content.get(name)
    if not isinstance(record, ArrayRecord):
        raise Refusal(ErrorCode.BAD_REQUEST)
    return {key: array.numpy() for key, array in record.items()}


def _weights(request: Message, arrays: dict[str, np.ndarray]) -> tuple[ArrayLayout, np.ndarray, np.ndarray]:
    """Layout of the model, the model and the centre of its ball, flat; refuses what is not finite."""
    try:
        layout = ArrayLayout.of(arrays)
        start = layout.flatten(arrays)
        around = arrays_of(request, "center") if "center" in request.content else None
        center = np.zeros_like(start) if around is None else layout.flatten(around)
    except InvalidArgument as error:
        raise Refusal(ErrorCode.BAD_REQUEST) from error
    if not (np.isfinite(start).all() and np.isfinite(center).all()):
        raise Refusal(ErrorCode.BAD_REQUEST)
    return layout, start, center


def _name(record: ConfigRecord, key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str) or not 0 < len(value) <= 200:
        raise Refusal(ErrorCode.BAD_REQUEST)
    return value


def _details(asked: SiloRequest) -> dict[str, str | float | int]:
    steps = asked.steps
    return {
        "mechanism": "DP-SGD steps on the silo's records",
        "sampling rate": steps.sampling_rate,
        "clipping norm": steps.codec.clipping_norm,
        "noise multiplier (on the clip)": steps.noise_multiplier,
        "steps": steps.steps,
    }
