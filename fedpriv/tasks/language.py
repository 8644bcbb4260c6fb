"""A causal language model as a classifier by prompt, and the frozen part's activations, cached on disk.

A sentence becomes "<sentence> It was", and the two classes are how likely " terrible" and " great" come next. What
is trained decides how much of the model has to run in a step: a read-out or head sees the last token's final hidden
state (`LAST_TOKEN`), adapters in the last block see its input (`BLOCK_INPUT`), and anything deeper sees the tokens
(`TOKENS`). The frozen prefix runs once per sentence and its output is kept.

transformers is imported inside functions: it takes seconds.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedpriv.tasks.sources.cache import MissingDataset, find_dataset, partition_folder

PROMPT = " It was"
#: Words of class 0 and class 1.
VERBALISER = (" terrible", " great")
DEFAULT_MODEL = "smollm2"
#: Tokens that are kept of a prompt, its end: 99 % of the movie-review sentences fit.
MAX_TOKENS = 64
PAD = -1

Representation = Literal["tokens", "block-input", "last-token"]
TOKENS: Representation = "tokens"
BLOCK_INPUT: Representation = "block-input"
LAST_TOKEN: Representation = "last-token"

_CHUNK, _BATCH = 256, 32

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


@dataclass(frozen=True, eq=False)
class Backbone:
    """A loaded language model.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        In evaluation mode, float32, without gradients.
    tokenizer : transformers.PreTrainedTokenizerBase
        Its tokenizer.
    identity : str
        Hash of where it came from, for cached files.
    """

    model: Any
    tokenizer: Any
    identity: str

    @property
    def words(self) -> list[int]:
        """Token of each class's word; the first one where a word has several."""
        return [self.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in VERBALISER]


@dataclass(frozen=True)
class Anchors:
    """Public constants of a model's features.

    Parameters
    ----------
    center : np.ndarray
        Mean final hidden state of the public sentences, shape (h,).
    scale : float
        Their root-mean-square distance from it, over ``sqrt(h)``... divided so that features have norm about 1.
    weight : np.ndarray
        Rows of the output matrix for the two words, shape (2, h).
    bias : np.ndarray
        What makes the two words equally likely after content-free inputs, shape (2,).
    """

    center: np.ndarray
    scale: float
    weight: np.ndarray
    bias: np.ndarray


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


@functools.lru_cache(maxsize=2)
def load_backbone(name: str = DEFAULT_MODEL) -> Backbone:
    """Load a model once per process.

    Parameters
    ----------
    name : str
        `smollm2`, a folder, or a name such as ``facebook/opt-1.3b`` where there is a network.

    Raises
    ------
    ImportError
        Without transformers; the message has the command.
    MissingDataset
        When the model cannot be had; the message says what is allowed.
    """
    source = model_source(name)
    if Path(source).is_dir():
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ImportError("the sentiment task needs: pip install 'fedpriv[language]'") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    except (OSError, ValueError) as error:
        raise MissingDataset(
            f"language.model = {name!r}: no such folder, and the hub cannot be reached or has no such causal model; "
            f"allowed: {DEFAULT_MODEL!r} (fedpriv data fetch sentiment), a folder, or a hub name with a network"
        ) from error
    model.requires_grad_(False)
    identity = hashlib.sha256(f"{source}:{model.config.to_json_string()}".encode()).hexdigest()[:16]
    return Backbone(model.eval(), tokenizer, identity)


def tokenise(backbone: Backbone, sentences: Sequence[str]) -> np.ndarray:
    """Prompts as token ids, shape (n, MAX_TOKENS), int32, padded at the end with `PAD`.

    A long prompt loses its beginning, never the question at its end.
    """
    found = np.full((len(sentences), MAX_TOKENS), PAD, dtype=np.int32)
    for row, ids in enumerate(backbone.tokenizer([s + PROMPT for s in sentences])["input_ids"]):
        kept = ids[-MAX_TOKENS:]
        found[row, : len(kept)] = kept
    return found


def final_states(model: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Final hidden states and input of the last block.

    Parameters
    ----------
    model : transformers causal language model
    tokens : torch.Tensor
        int64, (n, T), padded with `PAD`.

    Returns
    -------
    last : torch.Tensor
        (n, h): final hidden state (after the last norm) of every prompt's last token.
    block : torch.Tensor
        (n, T, h): what the last block is given.
    """
    kept: list[torch.Tensor] = []
    hook = blocks_of(model)[-1].register_forward_pre_hook(
        lambda module, args, kwargs: kept.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    try:
        hidden = model.base_model(tokens.clamp_min(0), use_cache=False).last_hidden_state
    finally:
        hook.remove()
    lengths = (tokens != PAD).sum(dim=1)
    return hidden[torch.arange(len(tokens)), lengths - 1], kept[0]


def blocks_of(model: Any) -> Any:
    """The list of transformer blocks of a causal model of the LLaMA or OPT kind."""
    base = model.base_model
    for owner in (base, getattr(base, "decoder", None)):
        if owner is not None and hasattr(owner, "layers"):
            return owner.layers
    raise ValueError(f"language.model: {type(model).__name__} is neither of the LLaMA nor of the OPT kind")


def anchors(backbone: Backbone) -> Anchors:
    """Public constants of a model's features, computed once and kept."""
    path = _cache_folder(backbone) / "anchors.npz"
    if not path.exists():
        with torch.no_grad():
            public = _last_states(backbone, tokenise(backbone, PUBLIC_SENTENCES))
            free = _last_states(backbone, tokenise(backbone, CONTENT_FREE))
        center = public.mean(axis=0)
        scale = float(np.sqrt(((public - center) ** 2).sum(axis=1).mean()))
        output = backbone.model.get_output_embeddings().weight.detach()
        weight = output[backbone.words].float().numpy()
        _write(path, center=center, scale=scale, weight=weight, bias=-(weight @ free.mean(axis=0)))
    with np.load(path) as stored:
        return Anchors(stored["center"], float(stored["scale"]), stored["weight"], stored["bias"])


def represent(
    backbone: Backbone, sentences: Sequence[str], representation: Representation, name: str
) -> np.ndarray:
    """Sentences as what a trainable part needs, from the cache where it is.

    Parameters
    ----------
    backbone : Backbone
    sentences : sequence of str
    representation : {"tokens", "block-input", "last-token"}
    name : str
        Of the data set, for the cache's folder.

    Returns
    -------
    np.ndarray
        *tokens*: int32 (n, T). *block-input*: float32 (n, T, h + 1), the last channel 1 for tokens and 0 for
        padding. *last-token*: float32 (n, h), centred and scaled by public constants.
    """
    chunks = []
    for start in range(0, len(sentences), _CHUNK):
        part = list(sentences[start : start + _CHUNK])
        digest = hashlib.sha256("\n".join(part).encode()).hexdigest()[:16]
        path = _cache_folder(backbone) / f"{name}-{representation}-{digest}.npy"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(f".{os.getpid()}.part")
            with temporary.open("wb") as file:
                np.save(file, _represented(backbone, part, representation))
            temporary.replace(path)
        chunks.append(np.load(path))
    return np.concatenate(chunks)


def _represented(backbone: Backbone, sentences: list[str], representation: Representation) -> np.ndarray:
    tokens = tokenise(backbone, sentences)
    if representation == TOKENS:
        return tokens
    if representation == LAST_TOKEN:
        public = anchors(backbone)
        with torch.no_grad():
            return ((_last_states(backbone, tokens) - public.center) / public.scale).astype(np.float32)
    found = []
    with torch.no_grad():
        for start in range(0, len(tokens), _BATCH):
            batch = torch.from_numpy(tokens[start : start + _BATCH].astype(np.int64))
            _, block = final_states(backbone.model, batch)
            mask = (batch != PAD).to(block.dtype).unsqueeze(-1)
            found.append(torch.cat([block * mask, mask], dim=-1).numpy())
    return np.concatenate(found)


def _last_states(backbone: Backbone, tokens: np.ndarray) -> np.ndarray:
    """Final hidden states of the last tokens, shape (n, h), in batches of similar length."""
    lengths = (tokens != PAD).sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    found: np.ndarray | None = None
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        batch = torch.from_numpy(tokens[rows, : lengths[rows].max()].astype(np.int64))
        last, _ = final_states(backbone.model, batch)
        if found is None:
            found = np.zeros((len(tokens), last.shape[1]), dtype=np.float32)
        found[rows] = last.float().numpy()
    assert found is not None
    return found


def _cache_folder(backbone: Backbone) -> Path:
    return partition_folder().parent / "language" / backbone.identity


def _write(path: Path, **arrays: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.npz")
    np.savez(temporary, **arrays)
    temporary.replace(path)
