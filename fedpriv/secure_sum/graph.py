"""Who masks with whom: a random k-regular neighbour graph (Bell et al. 2020, section 3).

Nodes are put on a ring in a uniformly random order and each is joined to the k/2 next ones on either side.
With m = k + 1 holders per secret (the node and its neighbours), Shamir threshold t, n nodes of which at
most ``colluding`` are curious together with the server and at most ``lost`` drop out, two things break
privacy:

* some honest node has at least t colluding holders. The colluders among its k neighbours are
  hypergeometric, so by a union bound the probability is at most n P[Hyp(n - 1, colluding, k) >= t];
* the honest survivors fall into two parts without an edge between them, and the sum of a part is learnt. On
  the ring that takes two disjoint runs of k/2 consecutive nodes that are colluding or lost; by a union
  bound over pairs of positions at most n (n - 1) / 2 * prod_{i < k} (colluding + lost - i) / (n - i), which
  is zero for k > colluding + lost.

One thing ends the session, before anything is revealed: more than m - t of some node's holders are lost, at
most n P[Hyp(n, lost, m) > m - t].

:func:`neighbours_for` takes the smallest even k for which the first two add up to at most 2^-40 and the
third is at most 2^-10, with a third of the nodes colluding and a fifth lost; k grows like log n.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from functools import lru_cache
from math import comb

COMPLETE_UP_TO = 16
SECURITY_BITS = 40
CORRECTNESS_BITS = 10


def default_threshold(holders: int) -> int:
    """Two thirds of the holders plus one: floor(2m/3) + 1."""
    return 2 * holders // 3 + 1


@lru_cache(maxsize=64)
def neighbours_for(nodes: int, colluding: float = 1 / 3, lost: float = 1 / 5) -> int:
    """Neighbours per node, for the default threshold.

    Parameters
    ----------
    nodes : int
        Nodes in the graph.
    colluding, lost : float
        Largest tolerated fractions of the nodes.

    Returns
    -------
    int
        ``nodes - 1`` (complete graph) up to ``COMPLETE_UP_TO`` nodes, otherwise an even number of at least
        ``COMPLETE_UP_TO``, or ``nodes - 1`` where no smaller number is enough.
    """
    if nodes <= COMPLETE_UP_TO + 1:
        return max(nodes - 1, 0)
    curious, gone = int(colluding * nodes), int(lost * nodes)
    for k in range(COMPLETE_UP_TO, nodes - 1, 2):
        holders = k + 1
        threshold = default_threshold(holders)
        exposed = nodes * _tail(nodes - 1, curious, k, threshold)
        apart = nodes * (nodes - 1) / 2 * (comb(curious + gone, k) / comb(nodes, k))
        broken = nodes * _tail(nodes, gone, holders, holders - threshold + 1)
        if exposed + apart <= 2.0**-SECURITY_BITS and broken <= 2.0**-CORRECTNESS_BITS:
            return k
    return nodes - 1


def _tail(population: int, marked: int, drawn: int, at_least: int) -> float:
    """P[hypergeometric >= at_least]."""
    ways = sum(
        comb(marked, i) * comb(population - marked, drawn - i)
        for i in range(at_least, min(marked, drawn) + 1)
        if drawn - i <= population - marked
    )
    return ways / comb(population, drawn)


def neighbour_graph(nodes: Iterable[int], neighbours: int) -> dict[int, tuple[int, ...]]:
    """Draw the graph.

    Parameters
    ----------
    nodes : iterable of int
        Node ids.
    neighbours : int
        Neighbours per node; an odd number is rounded up. From ``len(nodes) - 1`` the graph is complete.

    Returns
    -------
    dict
        Sorted neighbour ids of every node, symmetric, without the node itself.
    """
    ring = list(nodes)
    secrets.SystemRandom().shuffle(ring)
    size = len(ring)
    half = (neighbours + 1) // 2
    if 2 * half >= size - 1:
        return {node: tuple(sorted(peer for peer in ring if peer != node)) for node in ring}
    offsets = [*range(-half, 0), *range(1, half + 1)]
    return {
        node: tuple(sorted(ring[(position + offset) % size] for offset in offsets))
        for position, node in enumerate(ring)
    }
