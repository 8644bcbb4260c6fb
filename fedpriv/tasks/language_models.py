"""What can be trained of a language model: read-out, adapters, the last block, everything. Each is an ordinary module.

A module's state holds its trainable parameters only; the frozen rest is shared within the process and never
travels. Inputs are what :func:`fedpriv.tasks.language_features.represent` makes, as float32 tensors; outputs are two
logits per sentence, on the input's device. Every part computes the model's own prediction (with the public bias) before
it is trained.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fedpriv.tasks.language import PAD, Backbone, load_backbone
from fedpriv.tasks.language_blocks import blocks_of
from fedpriv.tasks.language_features import FEATURE_SCALE, anchors, last_block

LORA_RANK = 8
_BATCH = 64

#: Hooks are on modules that all models of a process share, so only one of them may run at a time.
_one_forward = threading.RLock()


class _Frozen:
    """Keeps modules and tensors out of the state of the module that holds them."""

    def __init__(self, held: Any) -> None:
        self.held = held


class _Words:
    """From final hidden states to the logits of the two words, with the public bias."""

    def __init__(self, backbone: Backbone) -> None:
        public = anchors(backbone)
        self.weight, self.bias = torch.from_numpy(public.weight), torch.from_numpy(public.bias)

    def __call__(self, state: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 2) of states (n, h)."""
        found: torch.Tensor = state @ self.weight.T.to(state) + self.bias.to(state)
        return found


class ReadOut(nn.Module):
    """A linear correction of what the model itself says, from the last token's features.

    The logits are ``(W_words f + b) + (W x + w)``: the first part is the rows of the output matrix for the two words on
    the final hidden state f, with the public bias, and is frozen; W and w start at zero, so that a ball around the
    origin is a ball around the model as it is.

    Parameters
    ----------
    backbone : Backbone
        The frozen model.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        public, words = anchors(backbone), _Words(backbone)
        center = torch.from_numpy(public.center)
        # x = (f - center) * FEATURE_SCALE / scale
        self._start = _Frozen((words.weight * (public.scale / FEATURE_SCALE), words(center)))
        self.linear = nn.Linear(words.weight.shape[1], 2)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 2) from features (n, h)."""
        weight, bias = self._start.held
        logits: torch.Tensor = self.linear(x) + x @ weight.T.to(x) + bias.to(x)
        return logits


class _Adapter(nn.Module):
    """Low-rank update ``B A`` of one projection: A is random and fixed, B is trained and starts at zero.

    Hu et al. 2022 (arXiv:2106.09685) train both; with two-point quotients that stalls, since both factors move at
    once. B alone also halves what travels (Zhang et al. 2023, arXiv:2308.03303).
    """

    def __init__(self, shape: torch.Size, generator: torch.Generator) -> None:
        super().__init__()
        outputs, inputs = shape
        self.b = nn.Parameter(torch.zeros(outputs, LORA_RANK))
        self._a = _Frozen(torch.randn(LORA_RANK, inputs, generator=generator) / inputs**0.5)

    def update(self) -> torch.Tensor:
        """Return the update of the matrix, (outputs, inputs)."""
        found: torch.Tensor = self.b @ self._a.held.to(self.b)
        return found

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the update's part of the projection of x."""
        found: torch.Tensor = (x @ self._a.held.T.to(x)) @ self.b.T.to(x)
        return found


class LastBlock(nn.Module):
    """Adapters on queries and values of the last block, which sees what its last token attends to, cached.

    Parameters
    ----------
    backbone : Backbone
        Of a kind in :data:`fedpriv.tasks.language_blocks.SUPPORTED`.
    generator : torch.Generator
        Of the adapters' fixed part.
    """

    def __init__(self, backbone: Backbone, generator: torch.Generator) -> None:
        super().__init__()
        parts = last_block(backbone)
        self._parts, self._words = _Frozen(parts), _Words(backbone)
        for name in ("q", "v"):
            self.add_module(name, _Adapter(parts.weights[name].shape, generator))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 2) from what :func:`~fedpriv.tasks.language_blocks.pack_attended` packs."""
        parts = self._parts.held
        hidden = parts.hidden
        weights = {**parts.weights, **{k: parts.weights[k] + getattr(self, k).update() for k in ("q", "v")}}
        normed = x[:, :-1, :hidden]
        keys = x[:, :-1, hidden:].unflatten(-1, (parts.key_heads, parts.head_size))
        return self._words(
            parts.last_state(weights, normed, keys, residual=x[:, -1, :hidden], lengths=x[:, -1, hidden])
        )


class WholeLastBlock(nn.Module):
    """Every parameter of the last block and of the final norm, on the block's cached input.

    Parameters
    ----------
    backbone : Backbone
        Of a kind in :data:`fedpriv.tasks.language_blocks.SUPPORTED`.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        parts = last_block(backbone)
        self._parts, self._words = _Frozen(parts), _Words(backbone)
        self.weights = nn.ParameterDict(parts.weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 2) from the block's input (n, T, h + 1), last channel 1 for tokens and 0 for padding."""
        parts, weights = self._parts.held, dict(self.weights.items())
        states, lengths = x[..., :-1], x[..., -1].sum(dim=1)
        last = (lengths.long() - 1)[:, None, None].expand(-1, 1, states.shape[-1])
        normed = parts.norm(states, weights["input_norm"])
        keys = parts.keys(weights, normed)
        residual = states.gather(1, last).squeeze(1)
        return self._words(parts.last_state(weights, normed, keys, residual, lengths))


class _Whole(nn.Module):
    """Runs all of a model on token ids."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self._words = _Words(backbone)

    def _run(self, base: Any, x: torch.Tensor, output: torch.Tensor | None = None) -> torch.Tensor:
        """Logits of tokens; `output` holds the rows of the two words where they are trained."""
        if not torch.is_grad_enabled() and len(x) > _BATCH:
            return torch.cat([self._run(base, part, output) for part in x.split(_BATCH)])
        tokens = x.long().to(next(base.parameters()).device)
        lengths = (tokens != PAD).sum(dim=1)
        tokens = tokens[:, : int(lengths.max())]
        hidden = base(tokens.clamp_min(0), use_cache=False).last_hidden_state
        last = hidden[torch.arange(len(tokens), device=tokens.device), lengths - 1]
        logits = self._words(last) if output is None else last @ output.T + self._words.bias.to(last)
        return logits.to(x.device)


class AllAdapters(_Whole):
    """Adapters on queries and values of every block.

    Parameters
    ----------
    backbone : Backbone
        Shared and frozen, on the accelerator where there is one.
    generator : torch.Generator
        Of the adapters' fixed part.
    """

    def __init__(self, backbone: Backbone, generator: torch.Generator) -> None:
        super().__init__(backbone)
        model = backbone.model
        self._frozen = _Frozen(model)
        projections = {}
        for index, block in enumerate(blocks_of(model)):
            for name in ("q_proj", "v_proj"):
                if not hasattr(block.self_attn, name):
                    raise ValueError(
                        f"run config: model = 'lora': should go with a language-model with {name}, got "
                        f"{type(model).__name__}; use readout, head or all"
                    )
                projections[f"{index}_{name[0]}"] = getattr(block.self_attn, name)
        self._projections = _Frozen(projections)
        self.adapters = nn.ModuleDict(
            {key: _Adapter(linear.weight.shape, generator) for key, linear in projections.items()}
        ).to(next(model.parameters()).device)

    @contextmanager
    def _attached(self) -> Iterator[None]:
        with _one_forward:
            hooks = [
                linear.register_forward_hook(
                    lambda module, args, output, adapter=self.adapters[key]: output + adapter(args[0])
                )
                for key, linear in self._projections.held.items()
            ]
            try:
                yield
            finally:
                for hook in hooks:
                    hook.remove()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 2) from token ids (n, T)."""
        with self._attached():
            return self._run(self._frozen.held.base_model, x)


class AllParameters(_Whole):
    """Every parameter of the model; an output matrix that is tied to the embedding counts once.

    Of an output matrix of its own only the rows of the two words are trained: the others have no part in the loss.

    Parameters
    ----------
    backbone : Backbone
        Copied, on the accelerator where there is one.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        model = backbone.model
        self.base = copy.deepcopy(model.base_model).requires_grad_(True)
        rows = model.get_output_embeddings().weight
        self._ids = backbone.words
        self.output: nn.Parameter | None = None
        if rows is not model.get_input_embeddings().weight:
            self.output = nn.Parameter(rows[self._ids].detach().clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 2) from token ids (n, T)."""
        output = self.base.get_input_embeddings().weight[self._ids] if self.output is None else self.output
        return self._run(self.base, x, output)


def build(part: str, backbone_name: str, seed: int) -> nn.Module:
    """Build a trainable part.

    Parameters
    ----------
    part : {"readout", "last-block", "last-block-all", "lora", "all"}
        What is trained.
    backbone_name : str
        The language model.
    seed : int
        Of the adapters' fixed part; everyone in a run has the same.

    Raises
    ------
    ValueError
        For another part, or one that the model's architecture does not allow.
    """
    backbone = load_backbone(backbone_name)
    generator = torch.Generator().manual_seed(seed)
    if part == "readout":
        return ReadOut(backbone)
    if part == "last-block":
        return LastBlock(backbone, generator)
    if part == "last-block-all":
        return WholeLastBlock(backbone)
    if part == "lora":
        return AllAdapters(backbone, generator)
    if part == "all":
        return AllParameters(backbone)
    raise ValueError(f"part must be one of readout, last-block, last-block-all, lora, all, got {part!r}")
