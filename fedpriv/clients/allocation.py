"""Client half of random allocation: the client's own secret bin, kept across restarts.

The bin is drawn from the operating system's entropy and written to the silo's own disk (node config ``state-path``)
before it is used for the first time. After a crash at any instant the client finds the same bin, or none was ever
used. A bin drawn a second time could make the client take part twice, which costs more than is charged.

In a simulation without a disk the bin is kept in ``Context.state``, which dies with the run. A client that may have
lost its bin that way is silent until bins are drawn again.
"""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass

from flwr.app import ConfigRecord, Context, Message

from fedpriv import wire
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.clients.noise_share import integer, record_of
from fedpriv.clients.silo_state import silo_file, silo_folder
from fedpriv.mechanisms import RandomAllocationSchedule
from fedpriv.secure_sum import Refusal, inside_simulation
from fedpriv.wire import ErrorCode

logger = logging.getLogger(__name__)

_FILE = "allocation"


@dataclass(frozen=True)
class OwnBin:
    """What a client remembers of one allocation.

    Parameters
    ----------
    bins, epochs, redrawn
        The schedule that the bin was drawn for.
    draw : int
        Number of the draw.
    bin : int
        0 to bins - 1.
    last_round : int
        Last round in which the client took part; 0 for none. It never takes part in that round or an earlier one
        again.
    """

    bins: int
    epochs: int
    redrawn: bool
    draw: int
    bin: int
    last_round: int = 0


def in_its_bin(request: Message, context: Context) -> bool:
    """Whether the round of a request is the client's own; draws and stores a bin where there is none.

    Parameters
    ----------
    request : Message
        With the records of an update and of an allocation.
    context : Context
        Node config key ``state-path`` names the silo's folder.

    Returns
    -------
    bool
        False outside the bin, in a draw that has passed, in a round the client took part in before, and where the
        client may have lost its bin.

    Raises
    ------
    Refusal
        For a malformed request, another schedule under the same name, no ``state-path`` outside a simulation, or a
        file that cannot be read (a fresh bin would break the guarantee).
    """
    record = record_of(request, wire.RECORD_ALLOCATION)
    server_round = integer(record_of(request, wire.RECORD_UPDATE), wire.UPDATE_ROUND, 1, 2**31)
    schedule = _schedule(record, server_round)
    name, folder = record.get(wire.ALLOCATION_NAME), record.get(wire.ALLOCATION_SIMULATION_FOLDER, "")
    if not isinstance(name, str) or not name or not isinstance(folder, str):
        raise Refusal(ErrorCode.BAD_REQUEST)
    durable = silo_folder(context, folder) is not None
    with silo_file(context, _FILE, name, folder).locked() as file:
        stored = _read(file.read())
        if stored is None and not durable and record.get(wire.ALLOCATION_BEGINS) is not True:
            logger.warning("the client's bin may have been lost with its state: it contributes zeros")
            return False
        kept = _drawn(stored, schedule, server_round)
        here = (
            schedule.draw_of(server_round) == kept.draw
            and schedule.bin_of(server_round) == kept.bin
            and server_round > kept.last_round
        )
        if here:
            kept = OwnBin(**{**asdict(kept), "last_round": server_round})
        # At a silo it is written in every round: the time of a write must not tell the bin.
        if kept != stored or not inside_simulation(context):
            file.write(json.dumps(asdict(kept)).encode())
    return here


def _schedule(record: ConfigRecord, server_round: int) -> RandomAllocationSchedule:
    bins = integer(record, wire.ALLOCATION_BINS, 1, 2**31)
    epochs = integer(record, wire.ALLOCATION_EPOCHS, 1, 2**31)
    redrawn = record.get(wire.ALLOCATION_REDRAWN)
    if not isinstance(redrawn, bool) or server_round > bins * epochs:
        raise Refusal(ErrorCode.BAD_REQUEST)
    return RandomAllocationSchedule(bins, epochs, redrawn)


def _read(content: bytes | None) -> OwnBin | None:
    if content is None:
        return None
    try:
        kept = OwnBin(**json.loads(content))
        RandomAllocationSchedule(kept.bins, kept.epochs, kept.redrawn)
        if not 0 <= kept.bin < kept.bins or kept.draw < 0 or kept.last_round < 0:
            raise ValueError("out of range")
    except (ValueError, TypeError, InvalidArgument) as error:
        raise Refusal(ErrorCode.STATE_UNREADABLE) from error
    return kept


def _drawn(stored: OwnBin | None, schedule: RandomAllocationSchedule, server_round: int) -> OwnBin:
    number = schedule.draw_of(server_round)
    if stored is not None:
        if (stored.bins, stored.epochs, stored.redrawn) != (
            schedule.bins,
            schedule.epochs,
            schedule.redrawn,
        ):
            raise Refusal(ErrorCode.BAD_REQUEST)
        if number <= stored.draw:
            return stored
    last = 0 if stored is None else stored.last_round
    return OwnBin(schedule.bins, schedule.epochs, schedule.redrawn, number, schedule.draw(), last)
