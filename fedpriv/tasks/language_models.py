"""What can be trained of a language model: read-out, head, adapters, everything. Each is an ordinary module.

A module's state holds its trainable parameters only; the frozen rest is shared within the process and never
travels. Inputs are what `fedpriv.tasks.language.represent` makes, as float32 tensors; outputs are two logits.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from fedpriv.tasks.language import PAD, Backbone, anchors, blocks_of, load_backbone
from fedpriv.tasks.seeds import derive_seed

LORA_RANK = 8


def _device() -> torch.device:
    """Where a whole model runs."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class ReadOut(nn.Module):
    """A linear read-out of the last token's features that starts at the model's own words.

    Parameters
    ----------
    backbone : Backbone
        Gives the rows of its output matrix for the two words, and the public bias between them.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        public = anchors(backbone)
        weight, center = torch.from_numpy(public.weight), torch.from_numpy(public.center)
        self.linear = nn.Linear(weight.shape[1], 2)
        with torch.no_grad():
            self.linear.weight.copy_(weight * public.scale)
            self.linear.bias.copy_(weight @ center + torch.from_numpy(public.bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 2)."""
        logits: torch.Tensor = self.linear(x)
        return logits


class _Frozen:
    """Keeps a module out of the state of the one that holds it."""

    def __init__(self, module: Any) -> None:
        self.module = module


class _Adapters(nn.Module):
    """Low-rank updates of the query and value projections of some blocks; only B is trained (LoRA-FA).

    ``W x`` becomes ``W x + B A x / r`` with a fixed random A and B = 0 at the start (Hu et al. 2022).
    """

    def __init__(self, blocks: list[Any], seed: int) -> None:
        super().__init__()
        self._blocks = _Frozen(blocks)
        self.b = nn.ParameterDict()
        generator = torch.Generator().manual_seed(derive_seed(seed, "adapters") & (2**63 - 1))
        self._a: dict[str, torch.Tensor] = {}
        for index, block in enumerate(blocks):
            for name in ("q_proj", "v_proj"):
                projection = getattr(block.self_attn, name)
                key = f"{name}_{index}"
                self.b[key] = nn.Parameter(torch.zeros(projection.out_features, LORA_RANK))
                a = torch.randn(LORA_RANK, projection.in_features, generator=generator)
                self._a[key] = a / projection.in_features**0.5

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Within the context the blocks compute with the adapters."""
        hooks = [
            getattr(block.self_attn, name).register_forward_hook(self._hook(f"{name}_{index}"))
            for index, block in enumerate(self._blocks.module)
            for name in ("q_proj", "v_proj")
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _hook(self, key: str) -> Any:
        def add(module: Any, args: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            x, b = args[0], self.b[key]
            a = self._a[key].to(device=x.device, dtype=x.dtype)
            return output + (x @ a.T) @ b.to(device=x.device, dtype=x.dtype).T / LORA_RANK

        return add


class LastBlock(nn.Module):
    """Adapters in the last block, which sees its cached input; the words are read out as they are.

    Parameters
    ----------
    backbone : Backbone
    seed : int
        Of the adapters' fixed part.
    """

    def __init__(self, backbone: Backbone, seed: int) -> None:
        super().__init__()
        model = backbone.model
        self._frozen = _Frozen((blocks_of(model)[-1], _last_norm(model), _rotary(model)))
        self.adapters = _Adapters([blocks_of(model)[-1]], seed)
        public = anchors(backbone)
        self._words = torch.from_numpy(public.weight)
        self._bias = torch.from_numpy(public.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 2) from (n, T, h + 1)."""
        block, norm, rotary = self._frozen.module
        hidden, lengths = x[..., :-1], x[..., -1].sum(dim=1).long()
        longest = int(lengths.max())
        hidden = hidden[:, :longest]
        positions = torch.arange(longest).unsqueeze(0)
        mask = torch.full((longest, longest), torch.finfo(hidden.dtype).min).triu(1)
        with self.adapters.attached():
            output = block(
                hidden,
                attention_mask=mask[None, None].expand(len(x), 1, -1, -1),
                position_ids=positions,
                position_embeddings=rotary(hidden, positions),
            )
        output = output[0] if isinstance(output, tuple) else output
        last = norm(output[torch.arange(len(x)), lengths - 1])
        logits: torch.Tensor = last @ self._words.T + self._bias
        return logits


class _Whole(nn.Module):
    """Runs all of a model on token ids."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self._words_of = backbone.words
        self._bias = torch.from_numpy(anchors(backbone).bias)

    def _logits(self, base: Any, output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        device = next(base.parameters()).device
        tokens = x.long().to(device)
        lengths = (tokens != PAD).sum(dim=1)
        tokens = tokens[:, : int(lengths.max())]
        hidden = base(tokens.clamp_min(0), use_cache=False).last_hidden_state
        last = hidden[torch.arange(len(tokens), device=device), lengths - 1]
        logits: torch.Tensor = last @ output[self._words_of].T + self._bias.to(device)
        return logits


class AllAdapters(_Whole):
    """Adapters in every block.

    Parameters
    ----------
    backbone : Backbone
        Moved to the accelerator where there is one.
    seed : int
        Of the adapters' fixed part.
    """

    def __init__(self, backbone: Backbone, seed: int) -> None:
        super().__init__(backbone)
        self._frozen = _Frozen(backbone.model.to(_device()))
        self.adapters = _Adapters(list(blocks_of(backbone.model)), seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 2) from token ids (n, T)."""
        model = self._frozen.module
        with self.adapters.attached():
            return self._logits(model.base_model, model.get_output_embeddings().weight, x)


class AllParameters(_Whole):
    """Every parameter of the model; an output matrix that is tied to the embedding counts once.

    Parameters
    ----------
    backbone : Backbone
        Copied.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone)
        self.base = copy.deepcopy(backbone.model.base_model).to(_device()).requires_grad_(True)
        embedding = backbone.model.get_input_embeddings().weight
        output = backbone.model.get_output_embeddings().weight
        self.output: nn.Parameter | None = None
        if output is not embedding:
            self.output = nn.Parameter(output.detach().clone().to(_device()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, 2) from token ids (n, T)."""
        output = self.base.get_input_embeddings().weight if self.output is None else self.output
        return self._logits(self.base, output, x)


def _last_norm(model: Any) -> Any:
    base = model.base_model
    for owner in (base, getattr(base, "decoder", None)):
        for name in ("norm", "final_layer_norm"):
            if owner is not None and getattr(owner, name, None) is not None:
                return getattr(owner, name)
    raise ValueError(f"language.model: {type(model).__name__} has no final norm that is known here")


def _rotary(model: Any) -> Any:
    rotary = getattr(model.base_model, "rotary_emb", None)
    if rotary is None:
        raise ValueError(
            f"model = 'last-block' needs rotary positions, which {type(model).__name__} has not; use readout, head, "
            "lora or all"
        )
    return rotary


def build(part: str, backbone_name: str, seed: int) -> nn.Module:
    """Build a trainable part: ``readout``, ``last-block``, ``lora`` or ``all``."""
    backbone = load_backbone(backbone_name)
    if part == "readout":
        return ReadOut(backbone)
    if part == "last-block":
        return LastBlock(backbone, seed)
    if part == "lora":
        return AllAdapters(backbone, seed)
    if part == "all":
        return AllParameters(backbone)
    raise ValueError(f"part must be one of readout, last-block, lora, all, got {part!r}")
