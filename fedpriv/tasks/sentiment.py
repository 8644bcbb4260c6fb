"""The task `sentiment`: polarity of movie-review sentences by a prompted language model."""

from __future__ import annotations

import functools

import numpy as np

from fedpriv.tasks.base import Examples, Task
from fedpriv.tasks.language import (
    BLOCK_INPUT,
    DEFAULT_MODEL,
    LAST_TOKEN,
    TOKENS,
    Representation,
    load_backbone,
    represent,
)
from fedpriv.tasks.sources.cache import MissingDataset, read_arrays

#: What may be trained, and what each part needs to see.
PARTS: dict[str, Representation] = {
    "readout": LAST_TOKEN,
    "head": LAST_TOKEN,
    "last-block": BLOCK_INPUT,
    "lora": TOKENS,
    "all": TOKENS,
}
DEFAULT_PART = "readout"
LOCAL_DATA = "movie-reviews"
#: Features of the public sentences have norm 1 on average; nearly all sentences are within this public bound.
FEATURE_NORM = 2.0


def sentences_of(data: str) -> tuple[list[str], np.ndarray, str]:
    """Sentences, labels and their source.

    Parameters
    ----------
    data : str
        ``movie-reviews`` (fetched by ``fedpriv data fetch sentiment``), or the name of a set on the Hugging Face hub
        with columns ``sentence`` and ``label``, such as ``sst2``.
    """
    if data in ("", LOCAL_DATA):
        x, y, _, source = read_arrays("sentiment")
        return [bytes(row).decode() for row in x], np.asarray(y), source
    from datasets import load_dataset  # type: ignore[attr-defined]  # the data cards beside it have no code

    name = {"sst2": "stanfordnlp/sst2"}.get(data, data)
    try:
        rows = load_dataset(name, split="train")
        return list(rows["sentence"]), np.asarray(rows["label"], dtype=np.int64), f"{name} (Hugging Face)"
    except (OSError, ValueError, KeyError) as error:
        raise MissingDataset(
            f"language-data = {data!r}: not on this machine and not to be had (or without columns sentence and label); "
            f"allowed: {LOCAL_DATA!r} (fedpriv data fetch sentiment), or a hub name with a network"
        ) from error


@functools.lru_cache(maxsize=8)
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
    """
    chosen = part if part not in ("", "default") else DEFAULT_PART
    backbone = model or DEFAULT_MODEL
    if chosen not in PARTS:
        raise ValueError(f"model must be one of {', '.join(PARTS)} for task 'sentiment', got {part!r}")

    def read() -> Examples:
        sentences, labels, source = sentences_of(data)
        count = max_examples or len(sentences)
        x = represent(load_backbone(backbone), sentences[:count], PARTS[chosen], data or LOCAL_DATA)
        return Examples(x, labels[:count], None, f"{source}; features of {backbone}")

    return Task(
        name="sentiment",
        title="Movie-review sentences (SST-2-like)",
        num_classes=2,
        input_shape=(),
        feature_norm=FEATURE_NORM,
        models=tuple(PARTS),
        default_model=chosen,
        read=read,
        class_names=("negative", "positive"),
        model_options={name: {"backbone": backbone} for name in PARTS if name != "head"},
    )
