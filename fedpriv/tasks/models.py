"""Small honest models. None has BatchNorm: its running statistics cannot be averaged privately."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn

# Float32 rounding of the norm and of the product stays far below this relative margin, so that the clipped
# norm is at most the public bound in exact arithmetic too, and the smoothness constant derived from the bound
# holds.
_ROUNDING_MARGIN = 1e-4


class ClippedLogisticRegression(nn.Module):
    """Multinomial logistic regression on features clipped to a public norm.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one example; it is flattened.
    num_classes : int
        Number of classes; also 2 for binary tasks, so that one loss serves all.
    feature_norm : float
        Public bound B on the L2 norm of the flattened features. Longer ones are scaled down inside the model,
        so that no example can break the bound.

    Notes
    -----
    The weights start at zero: the loss is convex, and training is then the same on every machine.
    The bound is a plain number, not a buffer, so that the state dict holds weight and bias only.
    """

    def __init__(self, *, input_shape: tuple[int, ...], num_classes: int, feature_norm: float) -> None:
        super().__init__()
        if not (math.isfinite(feature_norm) and feature_norm > 0):
            raise ValueError(f"feature_norm must be finite and > 0, got {feature_norm!r}")
        self.feature_norm = float(feature_norm)
        self.linear = nn.Linear(math.prod(input_shape), num_classes)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def clip_features(self, x: torch.Tensor) -> torch.Tensor:
        """Flatten (n, ...) to (n, d) and scale rows longer than `feature_norm` down to it."""
        flat = x.flatten(1)
        norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        bound = self.feature_norm * (1.0 - _ROUNDING_MARGIN)
        return flat * (bound / norm.clamp_min(bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, num_classes)."""
        return self.linear(self.clip_features(x))

    @torch.no_grad()
    def gradients(self, features: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """Return the gradients of the mean cross-entropy in weight and bias, in closed form.

        With p the softmax of the logits and t the targets they are ``(p - t)^T z / n`` and the mean of ``p -
        t``. Ten times faster than building a graph for a few examples, which is what a client's vote spends
        its time on.

        Parameters
        ----------
        features : torch.Tensor
            From :meth:`clip_features`, shape (n, d).
        targets : torch.Tensor
            One-hot labels, shape (n, num_classes).
        """
        residual = torch.softmax(torch.addmm(self.linear.bias, features, self.linear.weight.t()), dim=1)
        residual.sub_(targets).div_(len(features))
        return [residual.t() @ features, residual.sum(0)]


class MLP(nn.Module):
    """One hidden layer with ReLU.

    Parameters
    ----------
    input_shape : tuple of int
        Shape of one example; it is flattened.
    num_classes : int
        Number of classes.
    feature_norm : float
        Unused; all builders share one signature.
    width : int
        Hidden units.
    """

    def __init__(
        self, *, input_shape: tuple[int, ...], num_classes: int, feature_norm: float = 1.0, width: int = 64
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(math.prod(input_shape), width)
        self.output = nn.Linear(width, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, num_classes)."""
        return self.output(torch.relu(self.hidden(x.flatten(1))))


class GroupNormCNN(nn.Module):
    """Blocks of 3x3 convolution, GroupNorm, ReLU and 2x2 max-pooling, then one linear layer.

    GroupNorm normalises within one example, so that no example touches another and nothing has to be averaged
    but weights (Hsieh et al. 2020 show that it also copes with skewed labels where BatchNorm fails).

    Parameters
    ----------
    input_shape : tuple of int
        (channels, height, width).
    num_classes : int
        Number of classes.
    feature_norm : float
        Unused; all builders share one signature.
    width : int
        Channels of the first block, a multiple of 4; every further block has twice as many.
    blocks : int
        Number of blocks; height and width must be at least ``2 ** blocks``.
    """

    def __init__(
        self,
        *,
        input_shape: tuple[int, ...],
        num_classes: int,
        feature_norm: float = 1.0,
        width: int = 16,
        blocks: int = 2,
    ) -> None:
        super().__init__()
        channels, height, size = input_shape
        if width % 4 != 0 or width <= 0:
            raise ValueError(f"width must be a positive multiple of 4, got {width!r}")
        if blocks < 1 or min(height, size) < 2**blocks:
            raise ValueError(
                f"blocks must be at least 1 and 2**blocks at most {min(height, size)}, got {blocks!r}"
            )
        layers: list[nn.Module] = []
        for block in range(blocks):
            out = width * 2**block
            layers += [
                nn.Conv2d(channels, out, 3, padding=1),
                nn.GroupNorm(4, out),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
            channels = out
        self.features = nn.Sequential(*layers)
        self.output = nn.Linear(channels * (height // 2**blocks) * (size // 2**blocks), num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (n, num_classes)."""
        return self.output(self.features(x).flatten(1))


def _language(part: str) -> Callable[..., nn.Module]:
    def build(*, backbone: str, **sizes: object) -> nn.Module:
        from fedpriv.tasks import language_models

        # build_model has seeded torch's generator: parts that need random numbers follow from it
        return language_models.build(part, backbone, int(torch.randint(2**31, ()).item()))

    return build


#: Model name -> class. Every class takes ``input_shape``, ``num_classes``, ``feature_norm`` and its own
#: sizes.
MODEL_BUILDERS: Mapping[str, Callable[..., nn.Module]] = {
    "logistic": ClippedLogisticRegression,
    "mlp": MLP,
    "cnn": GroupNormCNN,
    "head": ClippedLogisticRegression,
    **{part: _language(part) for part in ("readout", "last-block", "last-block-all", "lora", "all")},
}
