"""The task `sentiment`: polarity of sentences by a prompted language model."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

import numpy as np

from fedpriv.tasks.base import Examples, Task
from fedpriv.tasks.language import DEFAULT_MODEL, load_backbone
from fedpriv.tasks.language_features import (
    ATTENDED,
    BLOCK_INPUT,
    LAST_TOKEN,
    TOKENS,
    LazyRows,
    Representation,
)
from fedpriv.tasks.sources.cache import MissingDataset, read_arrays

#: What may be trained, and what each part needs to see.
PARTS: dict[str, Representation] = {
    "readout": LAST_TOKEN,
    "head": LAST_TOKEN,
    "last-block": ATTENDED,
    "last-block-all": BLOCK_INPUT,
    "lora": TOKENS,
    "all": TOKENS,
}
DEFAULT_PART = "readout"
LOCAL_DATA = "movie-reviews"
#: Public bound on the norm of a feature vector for the head: twice that of the public sentences.
FEATURE_NORM = 2.0
#: What the hub calls them.
_HUB_NAMES = {"sst2": "stanfordnlp/sst2"}


def sentences_of(data: str) -> tuple[list[str], np.ndarray, str]:
    """Sentences, labels (1 for positive) and their source.

    Parameters
    ----------
    data : str
        "" or ``movie-reviews`` (fetched by ``fedpriv data fetch sentiment``), a CSV file with columns ``sentence`` and
        ``label``, or the name of a set on the Hugging Face hub with such columns, for instance ``sst2``.

    Raises
    ------
    MissingDataset
        When it is not on this machine and cannot be had; the message says what is allowed.
    ValueError
        When a file has other columns or labels.
    """
    if data in ("", LOCAL_DATA):
        x, y, _, source = read_arrays("sentiment")
        return [bytes(row).decode() for row in x], np.asarray(y), source
    if Path(data).expanduser().is_file():
        return _from_file(Path(data).expanduser())
    return _from_hub(_HUB_NAMES.get(data, data), data)


def _from_file(path: Path) -> tuple[list[str], np.ndarray, str]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    good = [row.get("label") in ("0", "1") and bool(row.get("sentence")) for row in rows]
    if not rows or not all(good):
        where = f"row {good.index(False) + 1}" if rows else "the file has no rows"
        raise ValueError(
            f"run config: language-data = {str(path)!r}: should have columns sentence (not empty) and label (0 or 1); "
            f"see {where}"
        )
    return [row["sentence"] for row in rows], np.array([int(row["label"]) for row in rows]), path.name


def _from_hub(name: str, asked: str) -> tuple[list[str], np.ndarray, str]:
    from datasets import load_dataset  # type: ignore[attr-defined]  # the data cards beside it have no code

    try:
        rows = load_dataset(name, split="train")
        sentences, labels = list(rows["sentence"]), np.asarray(rows["label"], dtype=np.int64)
    except (OSError, ValueError, KeyError) as error:
        raise MissingDataset(
            f"run config: language-data = {asked!r}: should be '' (movie reviews, from: fedpriv data fetch sentiment), "
            "a CSV file with columns sentence and label, or the name of a set with these columns on the Hugging Face "
            f"hub where a network reaches it; found {type(error).__name__}"
        ) from error
    # sets on the hub are often ordered, and max-examples takes the first ones
    order = np.random.default_rng(0).permutation(len(labels))
    return [sentences[row] for row in order], labels[order], f"{name} (Hugging Face)"


def sentiment_task(part: str = "", model: str = "", data: str = "", max_examples: int = 0) -> Task:
    """The task for one trainable part: its examples are what that part needs to see.

    Parameters
    ----------
    part : str
        One of `PARTS`; "" for the read-out.
    model : str
        Language model: "" or ``smollm2``, a folder, or a hub name.
    data : str
        See :func:`sentences_of`.
    max_examples : int
        Only the first ones, in their fixed shuffled order; 0 for all.

    Returns
    -------
    Task
        The same object for the same choice within a process. It offers this one part as its model.

    Raises
    ------
    ValueError
        For a part that does not exist.
    """
    chosen = part if part not in ("", "default") else DEFAULT_PART
    if chosen not in PARTS:
        raise ValueError(f"model must be one of {', '.join(PARTS)} for task 'sentiment', got {part!r}")
    return _task(chosen, model or DEFAULT_MODEL, data or LOCAL_DATA, max_examples)


@functools.lru_cache(maxsize=8)
def _task(part: str, backbone: str, data: str, max_examples: int) -> Task:
    def read() -> Examples:
        sentences, labels, source = sentences_of(data)
        count = max_examples or len(sentences)
        x = LazyRows(load_backbone(backbone), sentences[:count], PARTS[part])
        return Examples(x, labels[:count], None, f"{source}; {PARTS[part]} of {backbone}")

    return Task(
        name="sentiment",
        title="Movie-review sentences (SST-2-like)"
        if data == LOCAL_DATA
        else f"Sentences of {Path(data).name}",
        num_classes=2,
        input_shape=(),
        feature_norm=FEATURE_NORM,
        models=(part,),
        default_model=part,
        read=read,
        class_names=("negative", "positive"),
        model_options={} if part == "head" else {part: {"backbone": backbone}},
    )
