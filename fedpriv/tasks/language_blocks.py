"""The last block of a language model, for its last token only.

A classifier by prompt reads nothing but the last token, so of the last block only that token's attention and
feed-forward are needed: less than a tenth of the work of the whole block. The formulas are those of LLaMA (Touvron et
al. 2023, arXiv:2302.13971): root-mean-square norms, rotary positions, grouped queries, a gated feed-forward. A test
compares them with transformers' own blocks.

With keys frozen, ``sum_t p_t (W_v x_t) = W_v (sum_t p_t x_t)``: :func:`pack_attended` holds normalised inputs and
rotated keys, is kept on disk, and a step multiplies no matrix by every token.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

#: Model types whose blocks compute what is computed here.
SUPPORTED = ("llama", "mistral", "qwen2")

Weights = Mapping[str, torch.Tensor]


def blocks_of(model: Any) -> Any:
    """The list of transformer blocks of a causal model of the LLaMA or OPT kind.

    Raises
    ------
    ValueError
        For another architecture.
    """
    base = model.base_model
    for owner in (base, getattr(base, "decoder", None)):
        if owner is not None and hasattr(owner, "layers"):
            return owner.layers
    raise ValueError(
        f"run config: language-model: should be of the LLaMA or OPT kind, got {type(model).__name__}"
    )


@dataclass(frozen=True, eq=False)
class LastBlockParts:
    """Weights of a last block and of the final norm.

    Attributes
    ----------
    weights : dict
        Name -> float32 tensor on the CPU: ``input_norm``, ``q``, ``k``, ``v``, ``o``, ``post_norm``, ``gate``, ``up``,
        ``down``, ``final_norm``, and ``q_bias`` and so on where the model has them.
    inverse_frequencies : torch.Tensor
        Of the rotary positions, shape (head size / 2,).
    rotary_scale : float
        Factor on their cosines and sines.
    heads, key_heads : int
        Query heads, and the heads of keys and values that they share.
    epsilon : float
        Of the norms.
    """

    weights: dict[str, torch.Tensor]
    inverse_frequencies: torch.Tensor
    rotary_scale: float
    heads: int
    key_heads: int
    epsilon: float

    @staticmethod
    def of(model: Any) -> LastBlockParts:
        """Take them out of a transformers model.

        Raises
        ------
        ValueError
            For a model whose blocks are not those of `SUPPORTED`.
        """
        config = model.config
        if config.model_type not in SUPPORTED or config.hidden_act not in ("silu", "swish"):
            raise ValueError(
                "run config: model = 'last-block' and 'last-block-all': should go with a language-model of type "
                f"{', '.join(SUPPORTED)}, got {config.model_type!r}; use readout, head, lora or all"
            )
        block, base = blocks_of(model)[-1], model.base_model
        linear = {
            **{name: getattr(block.self_attn, f"{name}_proj") for name in ("q", "k", "v", "o")},
            **{name: getattr(block.mlp, f"{name}_proj") for name in ("gate", "up", "down")},
        }
        weights = {
            "input_norm": block.input_layernorm.weight,
            "post_norm": block.post_attention_layernorm.weight,
            "final_norm": base.norm.weight,
            **{name: module.weight for name, module in linear.items()},
            **{f"{name}_bias": module.bias for name, module in linear.items() if module.bias is not None},
        }
        return LastBlockParts(
            weights={name: tensor.detach().float().cpu().clone() for name, tensor in weights.items()},
            inverse_frequencies=base.rotary_emb.inv_freq.detach().float().cpu().clone(),
            rotary_scale=float(base.rotary_emb.attention_scaling),
            heads=config.num_attention_heads,
            key_heads=config.num_key_value_heads,
            epsilon=config.rms_norm_eps,
        )

    @property
    def hidden(self) -> int:
        """Width h of the hidden states."""
        return int(self.weights["input_norm"].shape[0])

    @property
    def head_size(self) -> int:
        """Coordinates of a head."""
        return int(self.weights["q"].shape[0]) // self.heads

    def norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Divide by the root mean square of the last dimension, and weigh."""
        return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.epsilon) * weight

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotary positions of vectors (..., head size) at positions (...)."""
        angles = positions.unsqueeze(-1) * self.inverse_frequencies
        cosine, sine = angles.cos() * self.rotary_scale, angles.sin() * self.rotary_scale
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)

    def keys(self, weights: Weights, normed: torch.Tensor) -> torch.Tensor:
        """Rotated keys (..., T, key heads, head size) of normalised inputs (..., T, h) at positions 0 to T - 1."""
        flat = functional.linear(normed, weights["k"], weights.get("k_bias"))
        keys = flat.unflatten(-1, (self.key_heads, self.head_size))
        positions = torch.arange(normed.shape[-2], dtype=normed.dtype).unsqueeze(-1)
        return self.rotate(keys, positions.expand(normed.shape[-2], self.key_heads))

    def last_state(
        self,
        weights: Weights,
        normed: torch.Tensor,
        keys: torch.Tensor,
        residual: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        """Final hidden state of each sentence's last token.

        Parameters
        ----------
        weights : mapping
            As in the attribute; those given are used.
        normed : torch.Tensor
            (n, T, h), inputs after the first norm, zero beyond a sentence's end.
        keys : torch.Tensor
            (n, T, key heads, head size), from :meth:`keys`.
        residual : torch.Tensor
            (n, h), input of the block for the last token.
        lengths : torch.Tensor
            (n,), tokens of each sentence.

        Returns
        -------
        torch.Tensor
            (n, h).
        """
        tokens, size = normed.shape[1], self.head_size
        own = self.norm(residual, weights["input_norm"])
        query = functional.linear(own, weights["q"], weights.get("q_bias"))
        query = query.unflatten(-1, (self.heads, size))
        query = self.rotate(query, (lengths - 1).unsqueeze(-1).expand(-1, self.heads))
        query = query.unflatten(1, (self.key_heads, self.heads // self.key_heads))
        scores = torch.einsum("nkgd,ntkd->nkgt", query, keys) / math.sqrt(size)
        beyond = torch.arange(tokens) >= lengths.unsqueeze(-1)
        scores = scores.masked_fill(beyond[:, None, None, :], -torch.inf)
        mixed = torch.einsum("nkgt,nth->nkgh", scores.softmax(dim=-1), normed)
        values = weights["v"].unflatten(0, (self.key_heads, size))
        heads = torch.einsum("nkgh,kdh->nkgd", mixed, values)
        if "v_bias" in weights:  # attention weights sum to one
            heads = heads + weights["v_bias"].unflatten(0, (self.key_heads, 1, size))
        attended = functional.linear(heads.flatten(1), weights["o"], weights.get("o_bias"))
        state = residual + attended
        inner = self.norm(state, weights["post_norm"])
        gate = functional.silu(functional.linear(inner, weights["gate"], weights.get("gate_bias")))
        up = functional.linear(inner, weights["up"], weights.get("up_bias"))
        state = state + functional.linear(gate * up, weights["down"], weights.get("down_bias"))
        return self.norm(state, weights["final_norm"])


def pack_attended(parts: LastBlockParts, states: torch.Tensor) -> torch.Tensor:
    """What the last block attends to for its last token.

    Parameters
    ----------
    parts : LastBlockParts
        The frozen block.
    states : torch.Tensor
        (T, h), what the block is given for one sentence.

    Returns
    -------
    torch.Tensor
        (T + 1, h + k), k = key heads times head size. A row per token: normalised input, rotated keys. The last row:
        input for the last token, then the number of tokens, then zeros.
    """
    normed = parts.norm(states, parts.weights["input_norm"])
    keys = parts.keys(parts.weights, normed).flatten(-2)
    last = torch.zeros(1, normed.shape[1] + keys.shape[1])
    last[0, : parts.hidden] = states[-1]
    last[0, parts.hidden] = len(states)
    return torch.cat([torch.cat([normed, keys], dim=1), last])
