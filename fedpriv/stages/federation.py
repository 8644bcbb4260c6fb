"""Waiting for the federation, and saying what to type when it is not the one that was configured."""

from __future__ import annotations

import time
from collections.abc import Callable

from flwr.serverapp import Grid

from fedpriv.settings import SettingsError

_POLL_SECONDS = 1.0
#: Flower's simulation engine registers all its virtual nodes before the ServerApp starts.
_SIMULATION_SECONDS = 3.0


def is_simulation(grid: Grid) -> bool:
    """Whether the grid is Flower's simulation engine or an in-process one (nodes never come later)."""
    return type(grid).__name__ in ("InMemoryGrid", "LocalGrid")


def wait_for_clients(grid: Grid, expected: int, seconds: float, say: Callable[[str], None]) -> list[int]:
    """Wait until exactly ``expected`` clients are online and return their node ids, sorted.

    Raises
    ------
    SettingsError
        When the federation has another size; the message has the command to type.
    """
    simulated = is_simulation(grid)
    noun = "clients" if simulated else "silos"
    deadline = time.monotonic() + (min(seconds, _SIMULATION_SECONDS) if simulated else seconds)
    told = -1
    while True:
        clients = sorted(grid.get_node_ids())
        if len(clients) == expected:
            return clients
        if len(clients) > expected or time.monotonic() >= deadline:
            break
        if len(clients) != told:
            told = len(clients)
            say(f"waiting for {expected - told} of {expected} {noun}: {told} online")
        time.sleep(_POLL_SECONDS if not simulated else 0.2)
    if simulated:
        advice = (
            "type: flwr run . local --stream --federation-config "
            f'"num-supernodes={expected} client-resources-num-cpus=1"  (or: fedpriv run)'
        )
    else:
        advice = (
            f"start the missing SuperNodes (flwr supernode ls shows those online), or type: "
            f"flwr run . --stream -c 'num-clients={len(clients)}'"
        )
    raise SettingsError(
        f"run config: num-clients = {expected}, but the federation has {len(clients)} clients; {advice}"
    )
