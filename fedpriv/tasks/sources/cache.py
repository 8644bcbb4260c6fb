"""Where fetched data sets lie, and reading them back.

A data set is a folder with ``x.npy``, ``y.npy`` (memory-mapped when read, so that many processes share one
copy) and ``manifest.json``. Folders are looked for in ``$FEDPRIV_DATA`` if it is set, and otherwise in
``datasets/cache`` of the checkout and in the user's cache. The user's cache matters because Flower runs a
*copy* of the project: a server started by ``flwr run`` does not see the checkout's folder, so ``fetch``
leaves a link to it there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

#: Raised when the meaning of the stored arrays changes, so that an old cache is fetched again and never
#: misread.
CACHE_FORMAT = 1

DATA_VARIABLE = "FEDPRIV_DATA"


class MissingDataset(FileNotFoundError):
    """The data set is not on this machine; the message has the command that fetches it."""


def _checkout_cache() -> Path | None:
    root = Path(__file__).resolve().parents[3]
    is_checkout = (root / "pyproject.toml").is_file() and (root / "datasets").is_dir()
    return root / "datasets" / "cache" if is_checkout else None


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fedpriv" / "datasets"


def search_folders() -> list[Path]:
    """Return the folders that are searched for data sets, first match wins."""
    if chosen := os.environ.get(DATA_VARIABLE):
        return [Path(chosen).expanduser().absolute()]
    checkout = _checkout_cache()
    return [checkout, _user_cache()] if checkout else [_user_cache()]


def storage_folder() -> Path:
    """Return the folder that ``fetch`` writes to: the first that is searched."""
    return search_folders()[0]


def partition_folder() -> Path:
    """Return the folder for partitions that were computed already; it may be deleted at any time."""
    chosen = os.environ.get(DATA_VARIABLE)
    return (Path(chosen).expanduser().absolute() if chosen else _user_cache().parent) / "partitions"


def find_dataset(name: str) -> Path | None:
    """Return the folder of a data set in this cache format, or None."""
    for folder in search_folders():
        manifest = folder / name / "manifest.json"
        if manifest.is_file() and json.loads(manifest.read_text()).get("format") == CACHE_FORMAT:
            return folder / name
    return None


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what was noted down when the data set was fetched."""
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


def read_arrays(name: str) -> tuple[np.ndarray, np.ndarray, int | None, str]:
    """Return features (memory-mapped), labels, the length of the official training part, and the source.

    Raises
    ------
    MissingDataset
        If it was not fetched yet.
    """
    folder = find_dataset(name)
    if folder is None:
        looked = " and ".join(str(path) for path in search_folders())
        raise MissingDataset(
            f"data set {name!r} is not on this machine (looked in {looked}); "
            f"fetch it with: fedpriv data fetch {name}"
        )
    manifest = read_manifest(folder)
    x = np.load(folder / "x.npy", mmap_mode="r")
    y = np.load(folder / "y.npy")
    if len(x) != len(y) or len(y) != manifest["num_examples"]:
        raise MissingDataset(
            f"data set {name!r} in {folder} is damaged; "
            f"fetch it again with: fedpriv data fetch {name} --force"
        )
    return x, y, manifest["num_train"], manifest["source"]


def store_dataset(
    name: str, x: np.ndarray, y: np.ndarray, num_train: int | None, source: str, sums: dict[str, str]
) -> Path:
    """Write a data set so that readers see all of it or nothing, and return its folder.

    Parameters
    ----------
    name : str
        Data set.
    x, y : np.ndarray
        Features and int64 labels, official training part first.
    num_train : int or None
        Length of the official training part.
    source : str
        Where it came from, for a report.
    sums : dict
        SHA-256 of the files it was read from.
    """
    root = storage_folder()
    root.mkdir(parents=True, exist_ok=True)
    manifest = {
        "format": CACHE_FORMAT,
        "name": name,
        "source": source,
        "num_examples": len(y),
        "num_train": num_train,
        "sha256": sums,
    }
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        np.save(new / "x.npy", x)
        np.save(new / "y.npy", y.astype(np.int64))
        return _put_in_place(new, root / name, manifest)


def store_model(name: str, folder: Path, source: str, sums: dict[str, str]) -> Path:
    """Move the folder of a language model into the cache, all or nothing, and return where it is.

    Parameters
    ----------
    name : str
        Model.
    folder : Path
        What transformers loads; on the cache's own file system.
    source : str
        Where it came from, for a report.
    sums : dict
        SHA-256 of the files it was made from.
    """
    manifest = {
        "format": CACHE_FORMAT,
        "name": name,
        "source": source,
        "num_examples": 0,
        "num_train": None,
        "sha256": sums,
    }
    return _put_in_place(folder, storage_folder() / name, manifest)


def _put_in_place(new: Path, target: Path, manifest: dict[str, Any]) -> Path:
    (new / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        target.rename(new.with_name("old"))
    new.rename(target)
    _link_from_user_cache(target)
    return target


def _link_from_user_cache(target: Path) -> None:
    if os.environ.get(DATA_VARIABLE) or target.parent == _user_cache():
        return
    link = _user_cache() / target.name
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink():
            link.unlink()
        elif link.is_dir():
            shutil.rmtree(link)
        link.symlink_to(target, target_is_directory=True)
    except OSError as error:
        raise OSError(
            f"the data set is in {target}, but {link} could not be written ({error.strerror}); Flower runs a "
            f"copy of the project and will not find it: set {DATA_VARIABLE}={target.parent} where the "
            "SuperLink and the SuperNodes start"
        ) from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 digest of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
