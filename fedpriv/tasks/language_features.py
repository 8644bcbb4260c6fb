"""Activations of a frozen language model, computed once per sentence and kept on disk.

What is trained decides how much of the model has to run in a step, and so what a sentence is turned into:

==============  =================================================  ==============================================
representation  for parts that                                     shape of one sentence, float32 (tokens: int32)
==============  =================================================  ==============================================
last-token      read the last token's final hidden state           (h,)
attended        change queries and values of the last block        (MAX_TOKENS + 1, h + k), see `pack_attended`
block-input     change anything in the last block                  (MAX_TOKENS, h + 1), last channel 1 for a token
tokens          change anything                                    (MAX_TOKENS,), padded with `PAD`
==============  =================================================  ==============================================

Files are named by the model's content and the sentences' (never by a path), hold float32 as computed, without the
padding, and are written whole or not at all. One process computes at a time; the others wait and read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

from fedpriv.tasks.language import (
    CONTENT_FREE,
    MAX_TOKENS,
    PAD,
    PUBLIC_SENTENCES,
    Anchors,
    Backbone,
    tokenise,
)
from fedpriv.tasks.language_blocks import LastBlockParts, blocks_of, pack_attended

logger = logging.getLogger(__name__)

Representation = Literal["tokens", "block-input", "attended", "last-token"]
TOKENS: Representation = "tokens"
BLOCK_INPUT: Representation = "block-input"
ATTENDED: Representation = "attended"
LAST_TOKEN: Representation = "last-token"

#: Public sentences have features of this root-mean-square norm, a good scale for the learning rates of the other tasks.
FEATURE_SCALE = 3.0
_CHUNK, _BATCH = 256, 32


def final_states(model: Any, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Final hidden states and input of the last block.

    Parameters
    ----------
    model : transformers causal language model
        On any device.
    tokens : torch.Tensor
        int64, (n, T), padded at the end with `PAD`. Causal attention keeps padding out of what is before it.

    Returns
    -------
    last : torch.Tensor
        (n, h): final hidden state (after the last norm) of every prompt's last token, on the CPU.
    block : torch.Tensor
        (n, T, h): what the last block is given, on the CPU.
    """
    kept: list[torch.Tensor] = []
    hook = blocks_of(model)[-1].register_forward_pre_hook(
        lambda module, args, kwargs: kept.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    tokens = tokens.to(next(model.parameters()).device)
    try:
        hidden = model.base_model(tokens.clamp_min(0), use_cache=False).last_hidden_state
    finally:
        hook.remove()
    lengths = (tokens != PAD).sum(dim=1)
    last = hidden[torch.arange(len(tokens), device=tokens.device), lengths - 1]
    return last.cpu(), kept[0].cpu()


def anchors(backbone: Backbone) -> Anchors:
    """Public constants of a model; computed once and kept."""
    path = backbone.cache / "anchors.npz"
    if not path.exists():
        with _alone(backbone):
            public = _last_states(backbone, tokenise(backbone, PUBLIC_SENTENCES))
            free = _last_states(backbone, tokenise(backbone, CONTENT_FREE))
            center = public.mean(axis=0)
            scale = np.sqrt(((public - center) ** 2).sum(axis=1).mean())
            output = backbone.model.get_output_embeddings().weight
            weight = output[backbone.words].float().cpu().numpy()
            bias = -(weight @ free.mean(axis=0))
            _write(path, {"center": center, "scale": scale, "weight": weight, "bias": bias})
    with np.load(path) as stored:
        return Anchors(stored["center"], float(stored["scale"]), stored["weight"], stored["bias"])


def last_block(backbone: Backbone) -> LastBlockParts:
    """The model's last block; taken out once and kept, so that the model itself need not be loaded for it.

    Raises
    ------
    ValueError
        For a model whose blocks are computed otherwise.
    """
    path = backbone.cache / "last-block.npz"
    if not path.exists():
        with _alone(backbone):
            parts = LastBlockParts.of(backbone.model)
            fields = dataclasses.asdict(parts)
            weights = {f"weights.{name}": tensor for name, tensor in fields.pop("weights").items()}
            _write(path, {name: np.asarray(value) for name, value in {**fields, **weights}.items()})
    with np.load(path) as stored:
        arrays = {name: torch.from_numpy(stored[name]) for name in stored.files}
    return LastBlockParts(
        weights={k.removeprefix("weights."): v for k, v in arrays.items() if k.startswith("weights.")},
        inverse_frequencies=arrays["inverse_frequencies"],
        rotary_scale=float(arrays["rotary_scale"]),
        heads=int(arrays["heads"]),
        key_heads=int(arrays["key_heads"]),
        epsilon=float(arrays["epsilon"]),
    )


def represent(backbone: Backbone, sentences: Sequence[str], representation: Representation) -> np.ndarray:
    """Sentences as what a trainable part needs, from disk where they were seen before.

    Parameters
    ----------
    backbone : Backbone
        The frozen model; loaded only for sentences that are not on disk.
    sentences : sequence of str
        At least one.
    representation : {"tokens", "block-input", "attended", "last-token"}
        See the table of the module.

    Returns
    -------
    np.ndarray
        Shape (n, *one sentence). *last-token* is centred and scaled by public constants.
    """
    found: np.ndarray | None = None
    for start in range(0, len(sentences), _CHUNK):
        chunk = list(sentences[start : start + _CHUNK])
        part = _padded(*_stored(backbone, chunk, representation), representation)
        if found is None:
            found = np.zeros((len(sentences), *part.shape[1:]), dtype=part.dtype)
        found[start : start + len(part)] = part
    if found is None:
        raise ValueError("sentences must have at least one")
    if representation == LAST_TOKEN:
        public = anchors(backbone)
        found = ((found - public.center) * (FEATURE_SCALE / public.scale)).astype(np.float32)
    return found


def _stored(
    backbone: Backbone, sentences: list[str], representation: Representation
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of all sentences one below the other, and how many rows each has."""
    digest = hashlib.sha256(repr(sentences).encode()).hexdigest()[:32]
    path = backbone.cache / f"{representation}-{digest}.npz"
    if not path.exists():
        with _alone(backbone):
            if not path.exists():
                logger.info("computing %s of %d sentences, kept in %s", representation, len(sentences), path)
                rows = _compute(backbone, tokenise(backbone, sentences), representation)
                _write(path, {"rows": np.concatenate(rows), "counts": np.array([len(part) for part in rows])})
    with np.load(path) as stored:
        return stored["rows"], stored["counts"]


@torch.no_grad()
def _compute(backbone: Backbone, tokens: np.ndarray, representation: Representation) -> list[np.ndarray]:
    """The rows of each sentence, without padding."""
    lengths = (tokens != PAD).sum(axis=1)
    if representation == TOKENS:
        return [row[:length] for row, length in zip(tokens, lengths, strict=True)]
    found: list[np.ndarray] = [np.zeros(0)] * len(tokens)
    parts = LastBlockParts.of(backbone.model) if representation in (ATTENDED, BLOCK_INPUT) else None
    for rows, last, block in _batches(backbone, tokens):
        for place, row in enumerate(rows):
            states = block[place, : lengths[row]].float()
            if representation == LAST_TOKEN:
                found[row] = last[place : place + 1].float().numpy()
            elif representation == ATTENDED and parts is not None:
                found[row] = pack_attended(parts, states).numpy()
            else:
                found[row] = states.numpy()
    return found


def _padded(rows: np.ndarray, counts: np.ndarray, representation: Representation) -> np.ndarray:
    """Sentences of one shape: see the table of the module."""
    if representation == LAST_TOKEN:
        return rows
    if representation == TOKENS:
        found = np.full((len(counts), MAX_TOKENS), PAD, dtype=np.int32)
    elif representation == ATTENDED:
        found = np.zeros((len(counts), MAX_TOKENS + 1, rows.shape[1]), dtype=np.float32)
    else:
        found = np.zeros((len(counts), MAX_TOKENS, rows.shape[1] + 1), dtype=np.float32)
    for sentence, part in enumerate(np.split(rows, np.cumsum(counts)[:-1])):
        if representation == TOKENS:
            found[sentence, : len(part)] = part
        elif representation == ATTENDED:
            found[sentence, : len(part) - 1] = part[:-1]
            found[sentence, -1] = part[-1]
        else:
            found[sentence, : len(part), :-1] = part
            found[sentence, : len(part), -1] = 1.0
    return found


def _batches(
    backbone: Backbone, tokens: np.ndarray
) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
    """(rows, final states, inputs of the last block) in batches of similar length, so that little is padding."""
    lengths = (tokens != PAD).sum(axis=1)
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), _BATCH):
        rows = order[start : start + _BATCH]
        batch = torch.from_numpy(tokens[rows, : lengths[rows].max()].astype(np.int64))
        yield rows, *final_states(backbone.model, batch)


@torch.no_grad()
def _last_states(backbone: Backbone, tokens: np.ndarray) -> np.ndarray:
    """Final hidden states of the last tokens, shape (n, h)."""
    return np.concatenate(_compute(backbone, tokens, LAST_TOKEN))


@contextlib.contextmanager
def _alone(backbone: Backbone) -> Iterator[None]:
    """One process at a time: many clients of a simulation ask for the same at the same moment."""
    backbone.cache.mkdir(parents=True, exist_ok=True)
    with (backbone.cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write(path: Any, arrays: dict[str, np.ndarray]) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.part")
    try:
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
