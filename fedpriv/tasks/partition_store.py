"""Partitions that were computed already, kept in the cache folder.

flwr-datasets takes four seconds to import. Under Flower's deployment engine every message to a client starts
a fresh process, so without this each of them would pay that to arrive at the same partition again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedpriv.tasks.partitions import IndexArray, PartitionSettings, partition_indices
from fedpriv.tasks.sources.cache import partition_folder


def stored_partition_indices(labels: npt.ArrayLike, settings: PartitionSettings) -> list[IndexArray]:
    """Return :func:`~fedpriv.tasks.partitions.partition_indices`, from the cache folder if it is there.

    The file's name is a digest of the labels, the settings and the versions of flwr-datasets and numpy. What
    is read is checked to be a partition of the examples; a file that is damaged, or a folder that cannot be
    written, costs the time to compute it again and nothing else.

    Parameters
    ----------
    labels : array_like of int
        Class of every example, shape (n,).
    settings : PartitionSettings
        Kind, number of partitions, alpha, seed, smallest size.

    Raises
    ------
    PartitionError
        As ``partition_indices``.
    """
    classes = np.ascontiguousarray(labels, dtype=np.int64)
    path = partition_folder() / f"{_digest(classes, settings)}.npz"
    parts = _read(path, len(classes), settings)
    if parts is None:
        parts = partition_indices(classes, settings)
        with contextlib.suppress(OSError):
            _write(path, parts)
    return parts


def _digest(classes: IndexArray, settings: PartitionSettings) -> str:
    digest = hashlib.sha256(classes.tobytes())
    digest.update(repr((settings, version("flwr-datasets"), version("numpy"))).encode())
    return digest.hexdigest()


def _read(path: Path, num_examples: int, settings: PartitionSettings) -> list[IndexArray] | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            order, sizes = stored["order"].astype(np.int64), stored["sizes"].astype(np.int64)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if (
        len(sizes) != settings.num_partitions
        or sizes.min(initial=0) < 0
        or sizes.sum() != num_examples
        or not np.array_equal(np.sort(order), np.arange(num_examples))
    ):
        return None
    return np.split(order, np.cumsum(sizes)[:-1])


def _write(path: Path, parts: list[IndexArray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, order=np.concatenate(parts), sizes=np.array([len(part) for part in parts]))
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
