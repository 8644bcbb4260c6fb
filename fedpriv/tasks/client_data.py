"""One client's data in a simulation: its partition, cut into a training and a validation part."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedpriv.tasks.base import Split, Task, check_fraction
from fedpriv.tasks.partition_store import stored_partition_indices
from fedpriv.tasks.partitions import PartitionSettings, partition_counts
from fedpriv.tasks.seeds import derive_seed

IndexArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ClientData:
    """What one client holds.

    Attributes
    ----------
    train : Split
        Examples that it trains on.
    validation : Split
        Examples that it scores candidates on; empty if the client has a single example or
        `validation_fraction` is 0. A client with an empty validation part abstains from a vote.
    """

    train: Split
    validation: Split


@functools.lru_cache(maxsize=8)
def _partition(
    task: Task, settings: PartitionSettings, holdout_fraction: float, seed: int
) -> tuple[tuple[IndexArray, ...], IndexArray]:
    """Global rows of every client and of the hold-out; cached per process."""
    pool, holdout = task.public_holdout(holdout_fraction, seed)
    parts = stored_partition_indices(task.labels[pool], settings)
    return tuple(pool[part] for part in parts), holdout


def client_rows(
    task: Task,
    settings: PartitionSettings,
    partition_id: int,
    holdout_fraction: float,
    validation_fraction: float,
    seed: int,
) -> tuple[IndexArray, IndexArray]:
    """Return the global row numbers of a client's training and validation part; see :func:`client_split`."""
    if not 0 <= partition_id < settings.num_partitions:
        raise ValueError(f"partition_id must be in 0 to {settings.num_partitions - 1}, got {partition_id!r}")
    check_fraction(validation_fraction=validation_fraction)
    parts, _ = _partition(task, settings, holdout_fraction, seed)
    rows = np.random.default_rng(derive_seed(seed, "validation", partition_id)).permutation(
        parts[partition_id]
    )
    held = 0
    if validation_fraction > 0 and len(rows) >= 2:
        held = min(max(round(validation_fraction * len(rows)), 1), len(rows) - 1)
    return rows[held:], rows[:held]


@functools.lru_cache(maxsize=1024)
def client_split(
    task: Task,
    settings: PartitionSettings,
    partition_id: int,
    holdout_fraction: float,
    validation_fraction: float,
    seed: int,
) -> ClientData:
    """Return the data of one client, the same in every process; cached per process.

    Parameters
    ----------
    task : Task
        The data set.
    settings : PartitionSettings
        How it is spread; its own `seed` decides who gets what.
    partition_id : int
        0 to ``num_partitions - 1``.
    holdout_fraction : float
        Public hold-out taken out before partitioning, in [0, 1); see :meth:`Task.public_holdout`.
    validation_fraction : float
        Part of the client's examples for validation, in [0, 1). A client with at least two examples has at
        least one in each part, unless the fraction is 0.
    seed : int
        Decides the hold-out and the cut into training and validation.

    Raises
    ------
    ValueError
        If an argument is out of its range, or the data cannot be spread as asked (``PartitionError``).
    """
    train, validation = client_rows(task, settings, partition_id, holdout_fraction, validation_fraction, seed)
    return ClientData(train=task.take(train), validation=task.take(validation))


@functools.lru_cache(maxsize=8)
def public_split(task: Task, holdout_fraction: float, seed: int) -> Split:
    """Return the public hold-out that belongs to no client, the same in every process; cached per process.

    Parameters
    ----------
    task : Task
        The data set.
    holdout_fraction : float
        In [0, 1); 0 gives an empty split.
    seed : int
        The `seed` that is passed to :func:`client_split`, or the two may overlap.
    """
    _, holdout = task.public_holdout(holdout_fraction, seed)
    return task.take(holdout)


def client_counts(
    task: Task, settings: PartitionSettings, holdout_fraction: float, seed: int
) -> npt.NDArray[np.int64]:
    """Return examples per client and class, shape (num_partitions, num_classes), for a picture."""
    parts, _ = _partition(task, settings, holdout_fraction, seed)
    return partition_counts(task.labels, parts, task.num_classes)
