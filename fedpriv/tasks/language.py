"""A causal language model as a classifier by prompt: which model, its tokens, its public constants.

A sentence becomes "<sentence> It was", and the two classes are how likely " terrible" and " great" come next.

A :class:`Backbone` loads nothing before it must. What follows from a folder's model is kept on disk under a hash of
the folder's content (:mod:`fedpriv.tasks.language_features`), so that a client that trains a read-out imports neither
transformers nor the model once its sentences were seen: both take seconds.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedpriv.tasks.sources.cache import MissingDataset, find_dataset, partition_folder, sha256_of

PROMPT = " It was"
#: Words of class 0 and class 1.
VERBALISER = (" terrible", " great")
DEFAULT_MODEL = "smollm2"
#: Tokens that are kept of a prompt, its end: 99.9 % of the movie-review sentences fit.
MAX_TOKENS = 64
PAD = -1

#: Made-up sentences, public by construction: centre and scale of the features come from them, never from data.
PUBLIC_SENTENCES = tuple(
    f"{subject} {predicate}"
    for subject in ("The film", "This movie", "The story", "The acting", "The script", "The ending")
    for predicate in (
        "lasts about two hours.",
        "is set in a large city.",
        "came out last spring.",
        "is a joy from the first minute to the last.",
        "is clever, warm and very funny.",
        "is dull, long and badly made.",
        "is a waste of time.",
        "left me cold.",
        "moved me deeply.",
    )
)
#: Inputs without content, whose preference for one word is a bias of the model (Zhao et al. 2021).
CONTENT_FREE = ("N/A", "", "...", "A movie.", "A film.", "This is a review.")

#: Files of a model's folder that decide what comes out of it.
_CONTENT = ("*.json", "*.safetensors", "*.bin", "*.model", "*.txt")


def device() -> torch.device:
    """Where language models run: the first accelerator, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def model_source(name: str) -> str:
    """Where transformers finds a model: the cache for `smollm2`, a folder, or a name on the hub.

    Raises
    ------
    MissingDataset
        When the cached model was not fetched; the message has the command.
    """
    if name in ("", DEFAULT_MODEL):
        folder = find_dataset(DEFAULT_MODEL)
        if folder is None:
            raise MissingDataset(
                f"model {DEFAULT_MODEL!r} is not on this machine; fetch it with: fedpriv data fetch sentiment"
            )
        return str(folder)
    return str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name


class Backbone:
    """A language model and its tokenizer, each loaded when it is first used.

    Parameters
    ----------
    name : str
        `smollm2`, a folder, or a name such as ``facebook/opt-1.3b`` where there is a network.

    Raises
    ------
    MissingDataset
        When `smollm2` was not fetched.
    """

    def __init__(self, name: str) -> None:
        self.name, self.source = name, model_source(name)

    @functools.cached_property
    def model(self) -> Any:
        """The transformers model on :func:`device`: evaluation mode, float32, without gradients.

        Raises
        ------
        ImportError
            Without transformers; the message has the command.
        MissingDataset
            When the model cannot be had; the message says what is allowed.
        """
        model = self._load("AutoModelForCausalLM", dtype=torch.float32)
        return model.requires_grad_(False).eval().to(device())

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer; raises as :attr:`model` does."""
        return self._load("AutoTokenizer")

    def _load(self, kind: str, **options: Any) -> Any:
        try:
            import transformers
        except ImportError as error:
            raise ImportError("the sentiment task needs: pip install 'fedpriv[language]'") from error
        local, bars = Path(self.source).is_dir(), transformers.utils.logging.is_progress_bar_enabled()
        transformers.utils.logging.disable_progress_bar()
        try:
            return getattr(transformers, kind).from_pretrained(self.source, local_files_only=local, **options)
        except (OSError, ValueError) as error:
            raise MissingDataset(
                f"run config: language-model = {self.name!r}: should be '' (SmolLM2, from: fedpriv data fetch "
                "sentiment), a folder with a causal model of transformers and its tokenizer, or the name of one on the "
                f"Hugging Face hub where a network reaches it{_offline()}; found {type(error).__name__}"
            ) from error
        finally:
            if bars:
                transformers.utils.logging.enable_progress_bar()

    @functools.cached_property
    def identity(self) -> str:
        """Digest of the model and of the prompt, for what is kept on disk.

        Of a folder the content counts; of a hub name the commit.
        """
        folder = Path(self.source)
        local = folder.is_dir()
        content = _content_digest(folder) if local else f"{self.source}@{self.model.config._commit_hash}"
        recipe = (content, PROMPT, VERBALISER, MAX_TOKENS, PUBLIC_SENTENCES, CONTENT_FREE)
        return hashlib.sha256(repr(recipe).encode()).hexdigest()[:16]

    @property
    def words(self) -> list[int]:
        """Token of each class's word; the first one where a word has several."""
        return [self.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in VERBALISER]

    @property
    def cache(self) -> Path:
        """Folder of what was computed with this model; it may be deleted at any time."""
        return partition_folder().parent / "language" / self.identity


@functools.lru_cache(maxsize=2)
def load_backbone(name: str = DEFAULT_MODEL) -> Backbone:
    """The backbone called `name`, the same at every call within a process."""
    return Backbone(name)


def _offline() -> str:
    return " (HF_HUB_OFFLINE is set: only what was downloaded)" if os.environ.get("HF_HUB_OFFLINE") else ""


def _content_digest(folder: Path) -> str:
    """SHA-256 of a model's files; noted down by their sizes and times, since half a gigabyte takes a while."""
    files = sorted(
        {path for pattern in _CONTENT for path in folder.glob(pattern)} - {folder / "manifest.json"}
    )
    seen = repr([(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files])
    note = partition_folder().parent / "language" / "digests" / hashlib.sha256(seen.encode()).hexdigest()
    if note.exists():
        return note.read_text()
    digest = hashlib.sha256("".join(f"{p.name} {sha256_of(p)}\n" for p in files).encode()).hexdigest()
    note.parent.mkdir(parents=True, exist_ok=True)
    temporary = note.with_suffix(f".{os.getpid()}")
    temporary.write_text(digest)
    temporary.replace(note)
    return digest


def tokenise(backbone: Backbone, sentences: Sequence[str]) -> np.ndarray:
    """Prompts as token ids, shape (n, MAX_TOKENS), int32, padded at the end with `PAD`.

    A long prompt loses its beginning, never the question at its end.
    """
    found = np.full((len(sentences), MAX_TOKENS), PAD, dtype=np.int32)
    for row, ids in enumerate(backbone.tokenizer([s + PROMPT for s in sentences])["input_ids"]):
        kept = ids[-MAX_TOKENS:]
        found[row, : len(kept)] = kept
    return found


@dataclass(frozen=True)
class Anchors:
    """Public constants of a model.

    Attributes
    ----------
    center : np.ndarray
        Mean final hidden state of the public sentences, shape (h,).
    scale : float
        Root-mean-square distance of the public sentences from it.
    weight : np.ndarray
        Rows of the output matrix for the two words, shape (2, h).
    bias : np.ndarray
        Minus the mean logits of the two words after content-free inputs, shape (2,): with it they are equally
        likely there.
    """

    center: np.ndarray
    scale: float
    weight: np.ndarray
    bias: np.ndarray
