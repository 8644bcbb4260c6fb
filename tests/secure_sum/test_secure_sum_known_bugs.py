"""What goes wrong with secure sums elsewhere, as small inputs with the right answer."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from secure_sum_helpers import Federation, code_of, losses

from fedpriv import wire
from fedpriv.secure_sum import SecureSum, SecureSumClient, SecureSumSettings, secure_sum_mod
from fedpriv.testing import LocalGrid
from fedpriv.wire import ErrorCode


def test_1025_clients_at_the_top_of_the_range_are_refused_and_the_largest_number_is_named() -> None:
    """Elsewhere the sum wraps to the opposite sign."""
    secure_sum = SecureSum(LocalGrid(ClientApp(), 1), SecureSumSettings(min_survivors=2))
    with pytest.raises(ValueError, match="1025 nodes could wrap around at modulus_bits = 32; at most 1023"):
        secure_sum.run(range(1, 1026), RecordDict(), 1, "update", magnitude_limit=2**21)


def test_the_largest_number_that_fits_does_not_wrap() -> None:
    limit = (2**31 - 1) // 3
    federation = Federation(np.full((3, 1), limit))
    assert federation.sum(magnitude_limit=limit).total.tolist() == [3 * limit]
    with pytest.raises(ValueError, match="at most 3 nodes fit"):
        Federation(np.full((4, 1), limit)).sum(magnitude_limit=limit)


@pytest.mark.parametrize(
    "message_type", ["train.vote", "query.x", "query", "evaluate", "evaluate.secure_sum"]
)
def test_an_unexpected_message_type_is_an_error_and_never_an_answer_in_the_clear(message_type: str) -> None:
    """Elsewhere the mod passes the reply through unmasked."""
    called: list[str] = []

    def produce(msg: Message, context: Context) -> np.ndarray:
        called.append("produce")
        return np.array([1, 2])

    app = ClientApp()
    group, _, action = message_type.partition(".")
    register = getattr(app, group)

    @register(*([action] if action else []), mods=[secure_sum_mod(produce)])
    def private(msg: Message, context: Context) -> Message:
        called.append("function")
        content = RecordDict(
            {"arrays": ArrayRecord([np.array([1, 2])]), "metrics": MetricRecord({"loss": 0.5})}
        )
        return Message(content, reply_to=msg)

    grid = LocalGrid(app, 3, raise_client_errors=True)
    federation = Federation(np.ones((3, 2), np.int64))
    federation.sum()
    for stage in (wire.STAGE_KEYS, wire.STAGE_MASKED_INPUT, wire.STAGE_SIMULATED):
        source = federation.grid.request_to(0, wire.STAGE_MASKED_INPUT).content
        content = RecordDict(dict(source.items()))
        content[wire.RECORD_SECURE_SUM][wire.FIELD_STAGE] = stage
        for node in grid.get_node_ids():
            (reply,) = grid.send_and_receive([Message(content, dst_node_id=node, message_type=message_type)])
            assert code_of(reply) == ErrorCode.WRONG_MESSAGE_TYPE
    assert called == []


def test_a_plain_train_message_is_an_error_and_never_an_answer_in_the_clear() -> None:
    federation = Federation(np.ones((3, 2), np.int64))
    content = RecordDict({"arrays": ArrayRecord([np.zeros(2)])})
    assert code_of(federation.ask(0, content=content)) == ErrorCode.NO_RECORD
    assert federation.produced == []


def test_the_handler_form_answers_like_the_mod() -> None:
    half = SecureSumClient(lambda msg, context: np.array([int(context.node_config["partition-id"])]))
    app = ClientApp()

    @app.train()
    def train(msg: Message, context: Context) -> Message:
        return half.handle(msg, context)

    grid = LocalGrid(app, 4, raise_client_errors=True)
    result = SecureSum(grid, SecureSumSettings(3)).run(grid.get_node_ids(), RecordDict(), 1, "count")
    assert result.total.tolist() == [6]


@pytest.mark.parametrize("stage", [wire.STAGE_KEYS, wire.STAGE_SHARES])
def test_a_client_lost_before_its_vector_does_not_end_the_round(stage: str) -> None:
    """Elsewhere the round ends with too few shares."""
    federation = Federation(np.ones((10, 1), np.int64), drop=losses({(stage, 3): "error"}))
    assert federation.sum(min_survivors=9).total.tolist() == [9]


@pytest.mark.parametrize("neighbours", [3, 4, 5, 6])
def test_an_odd_or_even_number_of_neighbours_is_the_same_on_both_sides(neighbours: int) -> None:
    """Elsewhere the server changes an even number after it told the clients."""
    federation = Federation(np.ones((9, 1), np.int64))
    result = federation.sum(neighbours=neighbours)
    assert result.neighbours == neighbours + neighbours % 2
    assert result.total.tolist() == [9]


def test_the_client_half_needs_neither_torch_nor_the_server_half() -> None:
    """Every message may start a fresh process."""
    code = (
        "import sys; import flwr.clientapp, numpy; before = set(sys.modules);"
        "import fedpriv.secure_sum.client, fedpriv.wire;"
        "new = {name.split('.')[0] for name in set(sys.modules) - before};"
        "assert new <= {'fedpriv', 'hmac', 'cryptography', 'Crypto', 'cffi', '_cffi_backend'}, new;"
        "assert not {'torch', 'scipy', 'pandas'} & {name.split('.')[0] for name in sys.modules};"
        "assert 'fedpriv.secure_sum.server' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
