"""Client half of a secure sum: answers the server's stages, reveals a masked vector and nothing else.

The client keeps its secrets of the open session, and of the next one where that is opened ahead, in
``Context.state`` and drops them at the end, or as soon as it refuses a request. It refuses

* any message type but ``train`` and any message without the secure-sum record: the caller's function is not
  called and nothing leaves in the clear;
* a session id that is not newer than every one it has seen, a stage asked twice or out of order;
* a neighbourhood with fewer other clients than its own node config key ``min-neighbours`` (default 2) asks
  for, or a share threshold that is not above that number and above half of the neighbourhood: its value is
  only ever opened inside a sum with at least ``min-neighbours`` of its neighbours;
* an unmask request that names one peer both alive and dead, leaves a peer out, or has fewer survivors than
  the threshold;
* an unmasked sum outside a simulation.

What a message asks ahead for the next session is checked by the same rules; if it is refused, the next session
is dropped and the open one goes on.

Guarantee (Bell et al. 2020): against a server that follows the protocol and up to ``threshold - 1``
colluding holders of each client's secrets, all replies together depend on the values of the honest clients
only through the sum over the survivors. Assumed: X25519, HKDF-SHA256, AES-256 and the operating system's
random numbers; that the public keys passed on are the neighbours' own (a server that forges keys is out of
scope unless the nodes are authenticated); that the neighbour graph keeps the honest survivors connected
(``graph.py`` bounds the probability). Who takes part is not hidden, and a client can put any value into the
sum.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fedpriv import wire
from fedpriv.secure_sum import client_stages as stages
from fedpriv.secure_sum import client_state
from fedpriv.secure_sum.client_state import Refusal
from fedpriv.secure_sum.keys import Session
from fedpriv.wire import ErrorCode

__all__ = ["Produce", "Refusal", "SecureSumClient", "handle", "inside_simulation", "secure_sum_mod"]

Produce = Callable[[Message, Context], np.ndarray]

_logger = logging.getLogger("fedpriv.secure_sum")


class SecureSumClient:
    """The client half around one function.

    Parameters
    ----------
    produce : callable
        ``produce(msg, context) -> numpy.ndarray`` of signed integers, shape (length,): the client's encoded
        and noised contribution. Called once per session, for the masked-input request, whose content
        carries the server's payload records.

    Examples
    --------
    >>> from flwr.clientapp import ClientApp
    >>> app = ClientApp()
    >>> half = SecureSumClient(lambda msg, context: np.array([1, 2, 3]))
    >>> @app.train()
    ... def train(msg, context):
    ...     return half.handle(msg, context)
    """

    def __init__(self, produce: Produce) -> None:
        self.produce = produce

    def handle(self, msg: Message, context: Context) -> Message:
        """Answer one message; see :func:`handle`."""
        return handle(msg, context, self.produce)


def secure_sum_mod(produce: Produce) -> Callable[[Message, Context, Any], Message]:
    """Flower mod that answers every message by the client half.

    Use it as ``@app.train(mods=[secure_sum_mod(produce)])``. The decorated function is never called, whatever
    arrives, so that no reply of its can leave in the clear.

    Parameters
    ----------
    produce : callable
        As for :class:`SecureSumClient`.

    Returns
    -------
    callable
        ``mod(msg, context, call_next) -> Message``.
    """

    def mod(msg: Message, context: Context, call_next: Any) -> Message:
        return handle(msg, context, produce)

    return mod


def handle(msg: Message, context: Context, produce: Produce) -> Message:
    """Answer one message of a secure sum.

    Parameters
    ----------
    msg : Message
        The server's request.
    context : Context
        Its ``state`` keeps the session between requests, its ``node_config`` the client's floor.
    produce : callable
        As for :class:`SecureSumClient`; called for the masked-input request alone.

    Returns
    -------
    Message
        The stage's reply, or an error reply with one of ``wire.ErrorCode`` and fixed words: never an
        exception's text, never a value.
    """
    try:
        return Message(_answer(msg, context, produce), reply_to=msg)
    except Refusal as refusal:
        code, wipe = refusal.code, refusal.wipe
    except Exception as error:
        _log_failure("secure sum", error)
        code, wipe = int(ErrorCode.INTERNAL), True
    if wipe:
        client_state.wipe(context)
    _logger.warning("secure sum refused: %s", wire.error_words(code))
    return Message(Error(code=code, reason=wire.error_words(code)), reply_to=msg)


def _answer(msg: Message, context: Context, produce: Produce) -> RecordDict:
    record, stage, session_id = client_state.request_of(msg)
    me = msg.metadata.dst_node_id

    def values(session: Session, limit: int) -> np.ndarray:
        return _checked(_call(produce, msg, context), session, limit)

    if stage == wire.STAGE_KEYS:
        return stages.answer_keys(record, context, session_id, me)
    if stage == wire.STAGE_SIMULATED:
        if not inside_simulation(context):
            raise Refusal(ErrorCode.NOT_A_SIMULATION)
        return stages.answer_simulated(record, context, session_id, values)
    client_state.move_up(context, session_id)
    state = client_state.open_state(context, session_id, stage, me)
    if stage == wire.STAGE_SHARES:
        return stages.answer_shares(record, context, state, me)
    if stage == wire.STAGE_MASKED_INPUT:
        content = stages.answer_masked_input(record, state, me, values)
    else:
        content = stages.answer_unmask(record, context, state, me)
    if wire.RECORD_AHEAD in msg.content:
        _add_ahead(content, msg, stage, context)
    return content


def _add_ahead(content: RecordDict, msg: Message, stage: str, context: Context) -> None:
    """Answer what the message asks for the next session; the open one does not depend on it."""
    record = msg.content[wire.RECORD_AHEAD]
    try:
        if not isinstance(record, ConfigRecord):
            raise Refusal(ErrorCode.MALFORMED)
        content[wire.RECORD_AHEAD] = stages.answer_ahead(record, stage, context, msg.metadata.dst_node_id)
    except Refusal as refusal:
        client_state.forget_ahead(context)
        _logger.warning("the next secure sum cannot be opened ahead: %s", wire.error_words(refusal.code))


def _call(produce: Produce, msg: Message, context: Context) -> np.ndarray:
    try:
        return np.asarray(produce(msg, context))
    except Refusal:
        raise
    except Exception as error:
        _log_failure("produce", error)
        raise Refusal(ErrorCode.PRODUCE_FAILED) from None


def _checked(values: np.ndarray, session: Session, limit: int) -> np.ndarray:
    if values.dtype.kind not in "iu" or values.shape != (session.length,):
        raise Refusal(ErrorCode.BAD_VECTOR)
    if int(values.min()) < -limit or int(values.max()) > limit:
        raise Refusal(ErrorCode.OUT_OF_RANGE)
    return values


def inside_simulation(context: Context) -> bool:
    """Whether this client runs in a simulation.

    The node config key ``fedpriv-simulation`` decides where it is set (``fedpriv.testing`` sets it; a silo
    may set it to false). Otherwise only Flower's simulation engine counts: code inside a Ray actor. Neither
    is under the control of a server.

    Parameters
    ----------
    context : Context
        The client's context.

    Returns
    -------
    bool
    """
    declared = context.node_config.get(wire.CONFIG_SIMULATION)
    if declared is not None:
        return declared is True
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return False
    return ray.get_runtime_context().get_actor_id() is not None


def _log_failure(what: str, error: Exception) -> None:
    """Type and place only: an exception's text may hold data values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "unknown place"
    _logger.error("%s failed with %s at %s", what, type(error).__name__, place)
