"""The words of a privacy statement: views, adjacencies and units.

A guarantee is meaningless without all three. They are plain strings so that they go unchanged through run
configurations, ledgers and reports.
"""

from typing import Final, Literal, get_args

View = Literal["server", "participants", "release"]
"""What the adversary sees: every secure sum, every broadcast model, or the final model only."""

Adjacency = Literal["add_or_remove", "replace_one"]
"""How neighbouring inputs differ: a unit's contribution is replaced by zero, or by another contribution."""

Unit = Literal["client", "record"]
"""What is protected: all the data of one client, or one row inside one silo."""

VIEWS: Final[tuple[View, ...]] = get_args(View)
ADJACENCIES: Final[tuple[Adjacency, ...]] = get_args(Adjacency)
UNITS: Final[tuple[Unit, ...]] = get_args(Unit)
