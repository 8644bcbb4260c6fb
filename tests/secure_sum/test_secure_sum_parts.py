"""Keys, shares, masks and the graph, each against something independent."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from itertools import pairwise

import numpy as np
import pytest
from Crypto.Cipher import AES
from Crypto.Protocol.SecretSharing import Shamir
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fedpriv.secure_sum import graph, keys, shamir
from fedpriv.secure_sum.keys import Session


def new_session(bits: int = 32, length: int = 5, purpose: str = "test") -> Session:
    return Session(keys.new_session_id(), purpose, length, bits)


# -- Shamir ------------------------------------------------------------------------------------------------


@given(secret=st.binary(min_size=16, max_size=16), holders=st.integers(1, 14), data=st.data())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_recover_agrees_with_pycryptodome(secret: bytes, holders: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, holders))
    shares = list(enumerate(shamir.split(secret, threshold, holders), start=1))
    chosen = data.draw(st.permutations(shares))[:threshold]
    assert shamir.recover(chosen) == secret == Shamir.combine(chosen)
    for x, share in shares:
        assert shamir.recover(chosen, at=x) == share


def test_fewer_shares_than_the_threshold_do_not_recover() -> None:
    secret = secrets.token_bytes(16)
    shares = list(enumerate(shamir.split(secret, 4, 6), start=1))
    assert shamir.recover(shares[:3]) != secret


@pytest.mark.parametrize("points", [(1, 1), (0, 2), (-1, 2)])
def test_repeated_or_small_points_are_refused(points: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="distinct and at least 1"):
        shamir.recover([(x, bytes(16)) for x in points])


# -- keys --------------------------------------------------------------------------------------------------


def hkdf_sha256(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 for one block."""
    extracted = hmac.new(salt, secret, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def test_derive_key_is_hkdf_with_the_session_as_salt_and_the_ordered_pair_in_the_info() -> None:
    session = new_session()
    info = (
        b"fedpriv/secure-sum|"
        + keys.USE_SHARE
        + b"|"
        + (3).to_bytes(8, "big")
        + (2**64 - 1).to_bytes(8, "big")
    )
    expected = hkdf_sha256(b"secret", session.digest, info)
    assert keys.derive_key(b"secret", session, keys.USE_SHARE, 3, 2**64 - 1) == expected


def test_keys_differ_by_session_use_pair_and_direction() -> None:
    one, other = new_session(), new_session()
    redescribed = [
        Session(one.session_id, "other", 5, 32),
        Session(one.session_id, "test", 6, 32),
        Session(one.session_id, "test", 5, 33),
    ]
    uses = (keys.USE_PAIR_MASK, keys.USE_SELF_MASK, keys.USE_MASK_KEY, keys.USE_SHARE)
    derived = [
        keys.derive_key(b"s", session, use, *pair)
        for session in (one, other, *redescribed)
        for use in uses
        for pair in ((1, 2), (2, 1), (1, 1))
    ]
    assert len(set(derived)) == len(derived)


def test_both_ends_derive_the_same_pair_key_and_masks_cancel() -> None:
    session = new_session(64, 1000)
    seeds = [keys.random_seed(), keys.random_seed()]
    a, b = (keys.mask_private_key(seed, session, node) for seed, node in zip(seeds, (7, 9), strict=True))
    key = keys.pair_mask_key(a, keys.public_bytes(b), session, 7, 9)
    assert key == keys.pair_mask_key(b, keys.public_bytes(a), session, 9, 7)
    vector = np.zeros(1000, session.dtype)
    keys.add_mask(vector, key, keys.pair_sign(7, 9))
    assert np.count_nonzero(vector) > 990
    keys.add_mask(vector, key, keys.pair_sign(9, 7))
    assert not vector.any()


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("length", [1, 1000, 70_001])
def test_a_mask_is_the_aes_256_counter_stream(bits: int, length: int) -> None:
    """Also where the vector is longer than one chunk of the keystream."""
    session, key = new_session(bits, length), secrets.token_bytes(32)
    vector = np.zeros(length, session.dtype)
    keys.add_mask(vector, key, 1)
    cipher = AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=0)
    assert vector.tobytes() == cipher.encrypt(bytes(vector.nbytes))


def test_low_order_and_malformed_public_keys_are_refused() -> None:
    private = X25519PrivateKey.generate()
    for public in (bytes(32), (1).to_bytes(32, "little"), b"short"):
        with pytest.raises(ValueError, match=r".+"):
            keys.agree(private, public)


def test_session_ids_grow_and_do_not_repeat() -> None:
    ids = [keys.new_session_id() for _ in range(500)]
    assert all(keys.session_sequence(a) < keys.session_sequence(b) for a, b in pairwise(ids))
    assert len({session_id[8:] for session_id in ids}) == 500


def test_sealed_shares_are_bound_to_session_pair_direction_and_threshold() -> None:
    session, key, shares = new_session(), secrets.token_bytes(32), (b"a" * 16, b"b" * 16)
    sealed = keys.seal_shares(key, session, 1, 2, 3, shares)
    assert keys.open_shares(key, session, 1, 2, 3, sealed) == shares
    wrong = [
        (key, session, 2, 1, 3, sealed),
        (key, session, 1, 3, 3, sealed),
        (key, session, 1, 2, 4, sealed),
        (key, new_session(), 1, 2, 3, sealed),
        (secrets.token_bytes(32), session, 1, 2, 3, sealed),
        (key, session, 1, 2, 3, sealed[:-1] + bytes([sealed[-1] ^ 1])),
    ]
    assert [keys.open_shares(*arguments) for arguments in wrong] == [None] * len(wrong)
    assert sealed != keys.seal_shares(key, session, 1, 2, 3, shares)


def test_a_commitment_is_bound_to_seed_node_and_session() -> None:
    session, seed = new_session(), keys.random_seed()
    made = {
        keys.commit_seed(seed, session, 1),
        keys.commit_seed(seed, session, 2),
        keys.commit_seed(seed, new_session(), 1),
        keys.commit_seed(keys.random_seed(), session, 1),
    }
    assert len(made) == 4


# -- residues ----------------------------------------------------------------------------------------------


@given(bits=st.integers(2, 64), data=st.data())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_centring_undoes_residues(bits: int, data: st.DataObject) -> None:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    values = data.draw(
        st.lists(st.one_of(st.integers(low, high), st.sampled_from([low, high, 0])), min_size=1)
    )
    session = new_session(bits, len(values))
    residues = keys.to_residues(np.array(values, dtype=np.int64), session)
    assert residues.dtype == session.dtype
    assert [int(r) for r in residues] == [value % (1 << bits) for value in values]
    assert keys.centred(residues, bits).tolist() == values


# -- graph -------------------------------------------------------------------------------------------------


@given(nodes=st.integers(1, 40), neighbours=st.integers(1, 45))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_graph_is_regular_symmetric_and_without_loops(nodes: int, neighbours: int) -> None:
    ids = [5 * i + 1 for i in range(nodes)]
    peers = graph.neighbour_graph(ids, neighbours)
    assert set(peers) == set(ids)
    expected = min(neighbours + neighbours % 2, nodes - 1)
    for node, theirs in peers.items():
        assert node not in theirs and list(theirs) == sorted(set(theirs)) and len(theirs) == expected
        assert all(node in peers[peer] for peer in theirs)


def test_every_edge_of_the_graph_is_as_likely_as_any_other() -> None:
    draws, nodes, k = 600, 20, 4
    counts = np.zeros((nodes, nodes))
    for _ in range(draws):
        for node, theirs in graph.neighbour_graph(range(nodes), k).items():
            counts[node, list(theirs)] += 1
    edges = counts[np.triu_indices(nodes, 1)]
    probability = k / (nodes - 1)
    z = (edges - draws * probability) / np.sqrt(draws * probability * (1 - probability))
    assert 2 * stats.norm.sf(np.abs(z).max()) * z.size > 1e-7


@pytest.mark.parametrize("nodes", range(1, 18))
def test_small_cohorts_have_a_complete_graph(nodes: int) -> None:
    assert graph.neighbours_for(nodes) == nodes - 1


@pytest.mark.parametrize(("nodes", "neighbours"), [(20, 16), (30, 18), (50, 30), (100, 58), (1000, 180)])
def test_the_number_of_neighbours_meets_the_stated_probabilities_and_no_smaller_even_one_does(
    nodes: int, neighbours: int
) -> None:
    """Recomputed with scipy's hypergeometric distribution and products instead of exact integers."""
    assert graph.neighbours_for(nodes) == neighbours

    def good(k: int) -> bool:
        holders, curious, gone = k + 1, nodes // 3, nodes // 5
        threshold = graph.default_threshold(holders)
        exposed = nodes * stats.hypergeom(nodes - 1, curious, k).sf(threshold - 1)
        runs = np.arange(k)
        apart = nodes * (nodes - 1) / 2 * np.prod(np.clip(curious + gone - runs, 0, None) / (nodes - runs))
        broken = nodes * stats.hypergeom(nodes, gone, holders).sf(holders - threshold)
        return exposed + apart <= 2.0**-40 and broken <= 2.0**-10

    assert good(neighbours)
    assert neighbours == graph.COMPLETE_UP_TO or not good(neighbours - 2)


def test_neighbours_grow_like_the_logarithm_of_a_large_cohort() -> None:
    counts = [graph.neighbours_for(nodes) for nodes in (1600, 3200, 6400, 12_800)]
    steps = [after - before for before, after in pairwise(counts)]
    assert all(0 < step <= 30 for step in steps) and steps == sorted(steps, reverse=True)


@pytest.mark.parametrize(("holders", "threshold"), [(3, 3), (4, 3), (5, 4), (6, 5), (10, 7), (31, 21)])
def test_default_threshold_is_two_thirds_plus_one(holders: int, threshold: int) -> None:
    assert graph.default_threshold(holders) == threshold
    assert 2 * threshold > holders
