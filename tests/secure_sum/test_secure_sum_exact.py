"""The sum is exact, whoever is lost whenever; or the session ends cleanly, exactly where it must."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from secure_sum_helpers import Federation, losses

from fedpriv import wire
from fedpriv.secure_sum import SecureSumAborted
from fedpriv.secure_sum.graph import default_threshold

PROTOCOL = (wire.STAGE_KEYS, wire.STAGE_SHARES, wire.STAGE_MASKED_INPUT, wire.STAGE_UNMASK)
KINDS = ("silent", "error", "raise", "silent-after", "late")


def random_vectors(seed: int, nodes: int, length: int, bits: int) -> np.ndarray:
    """All signs, with the extremes of the range among them."""
    limit = (1 << (bits - 1)) - 1
    values = np.random.default_rng(seed).integers(-limit, limit, (nodes, length), endpoint=True)
    values[0, 0], values[-1, -1] = limit, -limit
    return values


def predicted_end(
    nodes: int, lost: dict[tuple[str, int], str], min_survivors: int
) -> tuple[set[int], str | None]:
    """Survivors, and the stage that aborts, for a complete graph and the default threshold."""
    left = set(range(nodes))
    threshold = 0
    for stage in PROTOCOL:
        answered = {node for node in left if (stage, node) not in lost}
        if stage == wire.STAGE_UNMASK:
            return left, stage if len(answered) < threshold else None
        left = answered
        if stage == wire.STAGE_KEYS:
            threshold = default_threshold(len(left))
        enough = min_survivors if stage == wire.STAGE_KEYS else max(min_survivors, threshold)
        if len(left) < enough:
            return set(), stage
    raise AssertionError


@st.composite
def plans(draw: st.DrawFn) -> tuple[int, dict[tuple[str, int], str], int]:
    nodes = draw(st.integers(3, 11))
    pairs = st.tuples(st.sampled_from(PROTOCOL), st.integers(0, nodes - 1))
    lost = draw(st.dictionaries(pairs, st.sampled_from(KINDS), max_size=nodes // 2))
    return nodes, lost, draw(st.integers(2, max(2, nodes - 2)))


@given(plan=plans(), length=st.integers(1, 40), bits=st.integers(2, 64), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_exact_or_aborted_where_predicted(
    plan: tuple[int, dict[tuple[str, int], str], int], length: int, bits: int, seed: int
) -> None:
    nodes, lost, min_survivors = plan
    federation = Federation(random_vectors(seed, nodes, length, bits), drop=losses(lost))
    survivors, aborts = predicted_end(nodes, lost, min_survivors)
    seen: list[list[int]] = []
    try:
        result = federation.sum(min_survivors=min_survivors, modulus_bits=bits, before_unmask=seen.append)
    except SecureSumAborted as aborted:
        assert aborted.stage == aborts
        assert aborted.released == (aborts == wire.STAGE_UNMASK) == bool(seen)
        return
    assert aborts is None
    assert federation.partitions(result.survivors) == survivors
    assert seen == [list(result.survivors)]
    np.testing.assert_array_equal(result.total, federation.expected(result, bits))
    gone: set[int] = set()
    for stage in PROTOCOL:
        asked = set(range(nodes)) - gone
        expected = {node for node in asked if (stage, node) in lost}
        assert federation.partitions(result.dropped.get(stage, ())) == expected
        gone |= expected


@given(seed=st.integers(0, 2**32 - 1), lost=st.sets(st.integers(0, 23), max_size=3), data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
def test_exact_on_a_sparse_graph(seed: int, lost: set[int], data: st.DataObject) -> None:
    plan = {(data.draw(st.sampled_from(PROTOCOL)), node): "silent-after" for node in lost}
    federation = Federation(random_vectors(seed, 24, 5, 32), drop=losses(plan))
    result = federation.sum(neighbours=10, share_threshold=7, min_survivors=20)
    assert (result.neighbours, result.share_threshold) == (10, 7)
    np.testing.assert_array_equal(result.total, federation.expected(result))
    before = {node for stage, node in plan if stage != wire.STAGE_UNMASK}
    assert federation.partitions(result.survivors) == set(range(24)) - before


def test_default_graph_above_sixteen_nodes_is_sparse_and_exact() -> None:
    federation = Federation(random_vectors(5, 30, 17, 40))
    result = federation.sum(modulus_bits=40, min_survivors=25)
    assert result.neighbours < 29
    np.testing.assert_array_equal(result.total, federation.expected(result, 40))


@pytest.mark.parametrize("stage", PROTOCOL)
@pytest.mark.parametrize("kind", KINDS)
def test_one_loss_of_each_kind_in_each_stage(stage: str, kind: str) -> None:
    federation = Federation(random_vectors(1, 6, 3, 32), drop=losses({(stage, 2): kind}))
    result = federation.sum()
    assert federation.partitions(result.dropped[stage]) == {2}
    summed = set(range(6)) if stage == wire.STAGE_UNMASK else {0, 1, 3, 4, 5}
    assert federation.partitions(result.survivors) == summed
    np.testing.assert_array_equal(result.total, federation.expected(result))
    assert all(error.node_id in (None, federation.grid.node_of(2)) for error in result.errors)


def test_a_dead_node_of_the_simulation_engine_is_named_though_its_reply_carries_another_id() -> None:
    federation = Federation(random_vectors(1, 5, 3, 32), drop=losses({(wire.STAGE_SHARES, 4): "error"}))
    (error,) = federation.sum().errors
    assert error.node_id == federation.grid.node_of(4)
    assert (error.code, error.message) == (5, "the node is unavailable")


def test_a_long_vector_crosses_the_keystream_chunks() -> None:
    federation = Federation(
        random_vectors(3, 3, 200_001, 32), drop=losses({(wire.STAGE_MASKED_INPUT, 1): "silent"})
    )
    result = federation.sum(share_threshold=2)
    np.testing.assert_array_equal(result.total, federation.expected(result))


def test_sessions_follow_one_another_and_leave_nothing_behind() -> None:
    federation = Federation(random_vectors(4, 4, 6, 32))
    for _ in range(3):
        result = federation.sum()
        np.testing.assert_array_equal(result.total, federation.expected(result))
    for partition in range(4):
        assert set(federation.state(partition)) == {wire.STATE_SEEN}
    assert sorted(federation.produced) == sorted(list(range(4)) * 3)


def test_a_lost_session_does_not_hinder_the_next() -> None:
    plan = {(wire.STAGE_MASKED_INPUT, node): "silent-after" for node in range(4)}
    federation = Federation(random_vectors(6, 5, 2, 32), drop=losses(plan))
    with pytest.raises(SecureSumAborted):
        federation.sum()
    federation.grid.drop = None
    result = federation.sum()
    assert len(result.survivors) == 5
    np.testing.assert_array_equal(result.total, federation.expected(result))


@pytest.mark.parametrize("bits", [2, 7, 32, 33, 64])
@pytest.mark.parametrize("lost", [(), (1,), (0, 3)])
def test_simulated_is_bit_identical(bits: int, lost: tuple[int, ...]) -> None:
    vectors = random_vectors(bits, 6, 11, bits)
    protocol = Federation(vectors, drop=losses({(wire.STAGE_MASKED_INPUT, node): "error" for node in lost}))
    simulated = Federation(vectors, drop=losses({(wire.STAGE_SIMULATED, node): "error" for node in lost}))
    calls: list[list[int]] = []
    a = protocol.sum(modulus_bits=bits, share_threshold=4)
    b = simulated.sum(modulus_bits=bits, mode="simulated", before_unmask=calls.append)
    np.testing.assert_array_equal(a.total, b.total)
    assert a.total.dtype == b.total.dtype == np.int64
    assert a.survivors == b.survivors and calls == [list(b.survivors)]
    assert (a.mode, b.mode) == ("protocol", "simulated")


def test_simulated_aborts_below_min_survivors_with_nothing_charged() -> None:
    plan = {(wire.STAGE_SIMULATED, node): "silent" for node in range(3)}
    federation = Federation(random_vectors(2, 4, 2, 32), drop=losses(plan))
    with pytest.raises(SecureSumAborted) as caught:
        federation.sum(mode="simulated", before_unmask=lambda _: pytest.fail("called"))
    assert caught.value.released is False
