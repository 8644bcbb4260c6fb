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

They are kept under digests of the model's content and of the sentence (never of a path), float32 as computed, without
the padding, batch by batch, so that what was interrupted goes on. One process computes at a time; others wait and read.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import logging
import os
import sqlite3
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

#: Root-mean-square norm of the public sentences' features.
FEATURE_SCALE = 1.0
#: Sentences per query and per forward pass; seconds to wait for another process that writes.
_CHUNK, _BATCH, _PATIENCE = 256, 32, 600.0


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
    if not len(sentences):
        raise ValueError("sentences must have at least one")
    rows = _stored(backbone, list(sentences), representation)
    found = _padded(rows, representation)
    if representation == LAST_TOKEN:
        public = anchors(backbone)
        found = ((found - public.center) * (FEATURE_SCALE / public.scale)).astype(np.float32)
    return found


class LazyRows:
    """Sentences as an array whose rows are made when they are asked for.

    Parameters
    ----------
    backbone : Backbone
        The frozen model.
    sentences : sequence of str
        One per row.
    representation : {"tokens", "block-input", "attended", "last-token"}
        What a row is.
    """

    def __init__(self, backbone: Backbone, sentences: Sequence[str], representation: Representation) -> None:
        self._backbone, self._sentences, self._representation = backbone, sentences, representation

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self._sentences)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of all rows together; makes the first one."""
        return (len(self), *self[np.zeros(1, dtype=np.int64)].shape[1:])

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows at an index array."""
        if not len(rows):
            return np.zeros((0, *self.shape[1:]), dtype=np.float32)
        return represent(self._backbone, [self._sentences[row] for row in rows], self._representation)


def _stored(backbone: Backbone, sentences: list[str], representation: Representation) -> list[np.ndarray]:
    """The rows of each sentence, without padding; those that are not in the file are computed and put there."""
    kind = np.dtype(np.int32 if representation == TOKENS else np.float32)
    keys = [hashlib.sha256(f"{representation}:{sentence}".encode()).digest() for sentence in sentences]
    with contextlib.closing(_open(backbone)) as store:
        found = _read(store, keys)
        if len(found) < len(set(keys)):
            with _alone(backbone):  # which may have waited for another process that computed the same
                found = _read(store, keys)
                missing = {k: s for k, s in zip(keys, sentences, strict=True) if k not in found}
                if missing:
                    logger.info(
                        "%s of %d sentences, once, kept in %s", representation, len(missing), backbone.cache
                    )
                    tokens = tokenise(backbone, list(missing.values()))
                    names = list(missing)
                    for places, parts in _compute(backbone, tokens, representation):
                        made = {
                            names[place]: (len(part), np.ascontiguousarray(part, dtype=kind).tobytes())
                            for place, part in zip(places, parts, strict=True)
                        }
                        with store:
                            store.executemany(
                                "INSERT OR REPLACE INTO rows VALUES (?, ?, ?)",
                                [(key, *value) for key, value in made.items()],
                            )
                        found |= made
    return [np.frombuffer(found[key][1], dtype=kind).reshape(found[key][0], -1) for key in keys]


def _open(backbone: Backbone) -> sqlite3.Connection:
    backbone.cache.mkdir(parents=True, exist_ok=True)
    store = sqlite3.connect(backbone.cache / "activations.sqlite", timeout=_PATIENCE)
    store.execute("CREATE TABLE IF NOT EXISTS rows (key BLOB PRIMARY KEY, count INTEGER, data BLOB)")
    return store


def _read(store: sqlite3.Connection, keys: list[bytes]) -> dict[bytes, tuple[int, bytes]]:
    found: dict[bytes, tuple[int, bytes]] = {}
    for start in range(0, len(keys), _CHUNK):
        part = keys[start : start + _CHUNK]
        marks = ", ".join("?" * len(part))
        query = f"SELECT key, count, data FROM rows WHERE key IN ({marks})"
        found |= {key: (count, data) for key, count, data in store.execute(query, part)}
    return found


@torch.no_grad()
def _compute(
    backbone: Backbone, tokens: np.ndarray, representation: Representation
) -> Iterator[tuple[np.ndarray, list[np.ndarray]]]:
    """(places, the rows of each of these sentences without padding), in batches of similar length."""
    lengths = (tokens != PAD).sum(axis=1)
    if representation == TOKENS:
        yield (
            np.arange(len(tokens)),
            [row[:length, None] for row, length in zip(tokens, lengths, strict=True)],
        )
        return
    parts = LastBlockParts.of(backbone.model) if representation in (ATTENDED, BLOCK_INPUT) else None
    order = np.argsort(lengths, kind="stable")
    for start in range(0, len(order), _BATCH):
        places = order[start : start + _BATCH]
        batch = torch.from_numpy(tokens[places, : lengths[places].max()].astype(np.int64))
        last, block = final_states(backbone.model, batch)
        if representation == LAST_TOKEN:
            yield places, [state[None].float().numpy() for state in last]
            continue
        states = [block[at, : lengths[place]].float() for at, place in enumerate(places)]
        if representation == ATTENDED and parts is not None:
            states = [pack_attended(parts, state) for state in states]
        yield places, [state.numpy() for state in states]


def _padded(rows: list[np.ndarray], representation: Representation) -> np.ndarray:
    """Sentences of one shape: see the table of the module."""
    width = rows[0].shape[1]
    if representation == LAST_TOKEN:
        return np.concatenate(rows)
    if representation == TOKENS:
        found = np.full((len(rows), MAX_TOKENS), PAD, dtype=np.int32)
    elif representation == ATTENDED:
        found = np.zeros((len(rows), MAX_TOKENS + 1, width), dtype=np.float32)
    else:
        found = np.zeros((len(rows), MAX_TOKENS, width + 1), dtype=np.float32)
    for sentence, part in enumerate(rows):
        if representation == TOKENS:
            found[sentence, : len(part)] = part[:, 0]
        elif representation == ATTENDED:
            found[sentence, : len(part) - 1] = part[:-1]
            found[sentence, -1] = part[-1]
        else:
            found[sentence, : len(part), :-1] = part
            found[sentence, : len(part), -1] = 1.0
    return found


def _last_states(backbone: Backbone, tokens: np.ndarray) -> np.ndarray:
    """Final hidden states of the last tokens, shape (n, h)."""
    found: dict[int, np.ndarray] = {}
    for places, rows in _compute(backbone, tokens, LAST_TOKEN):
        found |= dict(zip(places.tolist(), rows, strict=True))
    return np.concatenate([found[place] for place in range(len(tokens))])


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
