"""A client's masked vector is indistinguishable from uniform, whatever its input."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from scipy import stats
from secure_sum_helpers import Federation, losses

from fedpriv import wire
from fedpriv.secure_sum import SecureSumSettings

SESSIONS, LENGTH = 150, 64
SMALLEST_P = 1e-7  # a right mask fails one run in ten million


def masked_vectors(value: int, bits: int = 32, mode: str = "protocol") -> np.ndarray:
    """Masked vectors of node 0 over many sessions, whose input is ``value`` in every coordinate."""
    federation = Federation(np.full((3, LENGTH), value, dtype=np.int64))
    stage = wire.STAGE_MASKED_INPUT if mode == "protocol" else wire.STAGE_SIMULATED
    rows = []
    for _ in range(SESSIONS):
        result = federation.sum(modulus_bits=bits, mode=mode)
        assert (result.total == federation.expected(result, bits)).all()
        rows.append(federation.grid.reply_of(0, stage).content[wire.RECORD_RESULT][wire.RESULT_ARRAY].numpy())
    return np.stack(rows)


def byte_counts(vectors: np.ndarray) -> np.ndarray:
    return np.bincount(np.frombuffer(vectors.tobytes(), np.uint8), minlength=256)


def test_bytes_are_uniform_for_two_votes_and_do_not_tell_them_apart() -> None:
    zero, one = masked_vectors(0), masked_vectors(2**31 - 1)
    for vectors in (zero, one):
        assert stats.chisquare(byte_counts(vectors)).pvalue > SMALLEST_P
        # no coordinate and no session stands out: the mean of n uniform words is normal
        words = vectors.astype(np.float64) / 2**32
        for axis in (0, 1):
            z = (words.mean(axis=axis) - 0.5) * np.sqrt(12 * words.shape[axis])
            assert 2 * stats.norm.sf(np.abs(z).max()) * z.size > SMALLEST_P
    both = np.stack([byte_counts(zero), byte_counts(one)])
    assert stats.chi2_contingency(both).pvalue > SMALLEST_P
    assert len(np.unique(np.concatenate([zero, one]), axis=0)) == 2 * SESSIONS


def test_the_same_test_sees_an_unmasked_vector() -> None:
    assert stats.chisquare(byte_counts(masked_vectors(5, mode="simulated"))).pvalue < SMALLEST_P


@pytest.mark.parametrize("bits", [2, 7, 20])
def test_every_residue_of_a_small_modulus_is_drawn_equally_often(bits: int) -> None:
    vectors = masked_vectors(1, bits)
    assert int(vectors.max()) < 1 << bits
    cells = min(bits, 7)
    counts = np.bincount((vectors >> (bits - cells)).ravel(), minlength=1 << cells)
    assert counts.size == 1 << cells and counts.all()
    assert stats.chisquare(counts).pvalue > SMALLEST_P
    for bit in range(bits):
        ones = int(((vectors >> bit) & 1).sum())
        assert stats.binomtest(ones, vectors.size).pvalue > SMALLEST_P


def test_global_seeds_do_not_reach_a_mask_or_the_graph() -> None:
    seen: Counter[bytes] = Counter()
    neighbours = set()
    for _ in range(3):
        np.random.seed(0)  # noqa: NPY002
        random.seed(0)
        federation = Federation(np.zeros((20, 8), np.int64))
        federation.sum(neighbours=4)
        for partition in range(20):
            content = federation.grid.reply_of(partition, wire.STAGE_MASKED_INPUT).content
            seen[content[wire.RECORD_RESULT][wire.RESULT_ARRAY].data] += 1
            content = federation.grid.reply_of(partition, wire.STAGE_KEYS).content[wire.RECORD_SECURE_SUM]
            seen[content[wire.FIELD_MASK_KEY]] += 1
        request = federation.grid.request_to(0, wire.STAGE_SHARES).content[wire.RECORD_SECURE_SUM]
        neighbours.add(tuple(request[wire.FIELD_NEIGHBOURS]))
    assert set(seen.values()) == {1}
    assert len(neighbours) > 1


def test_a_reply_that_comes_too_late_stays_masked_from_a_server_with_every_share() -> None:
    """The self mask protects a vector whose node was declared lost: the key shares alone do not open it."""
    from fedpriv.secure_sum import keys, shamir

    federation = Federation(
        np.zeros((5, LENGTH), np.int64), drop=losses({(wire.STAGE_MASKED_INPUT, 2): "late"})
    )
    late: list[np.ndarray] = []
    inner = federation.grid.send_and_receive

    def keep(messages, *, timeout=None):  # type: ignore[no-untyped-def]
        replies = inner(messages, timeout=timeout)
        for reply in replies:
            if wire.stage_of(reply) == wire.STAGE_MASKED_INPUT and reply.metadata.src_node_id == node:
                late.append(reply.content[wire.RECORD_RESULT][wire.RESULT_ARRAY].numpy().copy())
        return replies

    node = federation.grid.node_of(2)
    federation.grid.send_and_receive = keep  # type: ignore[method-assign]
    federation.sum(**{"min_survivors": SecureSumSettings(2).min_survivors})
    (vector,) = late

    holders = sorted(federation.grid.get_node_ids())
    shares = []
    for holder in holders:
        if holder == node:
            continue
        reply = federation.grid.reply_of(federation.grid.partition_of(holder), wire.STAGE_UNMASK)
        record = reply.content[wire.RECORD_SECURE_SUM]
        assert list(record[wire.FIELD_DEAD]) == [node] and node not in list(record[wire.FIELD_ALIVE])
        shares.append((holders.index(holder) + 1, bytes(record[wire.FIELD_KEY_SHARES])))
    opening = federation.grid.request_to(2, wire.STAGE_KEYS).content[wire.RECORD_SECURE_SUM]
    session = keys.Session(bytes(opening[wire.FIELD_SESSION]), "test", LENGTH, 32)
    private = keys.mask_private_key(shamir.recover(shares), session, node)
    announced = federation.grid.reply_of(2, wire.STAGE_KEYS).content[wire.RECORD_SECURE_SUM][
        wire.FIELD_MASK_KEY
    ]
    assert keys.public_bytes(private) == announced  # every pairwise mask of the node is known now
    for peer in holders:
        if peer == node:
            continue
        partition = federation.grid.partition_of(peer)
        public = federation.grid.reply_of(partition, wire.STAGE_KEYS).content[wire.RECORD_SECURE_SUM]
        key = keys.pair_mask_key(private, bytes(public[wire.FIELD_MASK_KEY]), session, node, peer)
        keys.add_mask(vector, key, -keys.pair_sign(node, peer))
    assert np.count_nonzero(vector) > LENGTH - 5  # its input was all zeros: the self mask is still on
