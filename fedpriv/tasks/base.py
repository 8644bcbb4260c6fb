"""What a task is: examples, models, a loss, a public hold-out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.tasks.models import MODEL_BUILDERS, ClippedLogisticRegression
from fedpriv.tasks.seeds import derive_seed

IndexArray = npt.NDArray[np.int64]


def check_fraction(**arguments: float) -> None:
    """Require numbers in [0, 1).

    Raises
    ------
    InvalidArgument
        When a value is outside; the message names the argument.
    """
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < 1:
            raise InvalidArgument(f"{name} must be a number in [0, 1), got {value!r}")


@dataclass(frozen=True)
class Split:
    """Some examples.

    Attributes
    ----------
    x : torch.Tensor
        float32 features of shape (n, *input_shape).
    y : torch.Tensor
        int64 class labels of shape (n,).
    """

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.y)


class Rows(Protocol):
    """An array, or what makes its rows when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, rows: Any, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class Examples:
    """All examples of a data set as they are stored.

    Attributes
    ----------
    x : np.ndarray or Rows
        Raw features (n, ...): uint8 images or float32 columns. May be a memory map, or anything with a shape that
        an index array picks rows of.
    y : np.ndarray
        Labels (n,), 0 to num_classes - 1.
    num_train : int or None
        The first `num_train` rows are the official training part, the others the official test part; None
        where the data set has no official split.
    source : str
        Where the examples came from, for a report.
    """

    x: Rows
    y: np.ndarray
    num_train: int | None
    source: str


@dataclass(frozen=True, eq=False)
class Task:
    """A data set with the models offered for it, cross-entropy as its loss and accuracy as its metric.

    Parameters
    ----------
    name, title : str
        Short name (a run-config value) and a name for people.
    num_classes : int
        Number of classes.
    input_shape : tuple of int
        Shape of one example, (channels, height, width) or (columns,); () for whatever the examples have.
    feature_norm : float
        Public bound B that logistic regression clips every feature vector to.
    models : tuple of str
        Names for :meth:`build_model`.
    default_model : str
        One of `models`.
    read : Callable[[], Examples]
        Reads the examples; called once per process.
    class_names : tuple of str
        Names of the classes, for pictures.
    offset, scale : float
        Public constants: a feature is ``(raw - offset) * scale``. Never statistics of the data.
    model_options : mapping
        Keyword arguments per model name (widths).

    Notes
    -----
    Tasks compare and hash by identity, so that they can key caches. To bring your own data, build
    a ``Task`` whose `read` returns your arrays and pass it wherever a task is expected.
    """

    name: str
    title: str
    num_classes: int
    input_shape: tuple[int, ...]
    feature_norm: float
    models: tuple[str, ...]
    default_model: str
    read: Callable[[], Examples] = field(repr=False)
    class_names: tuple[str, ...] = ()
    offset: float = 0.0
    scale: float = 1.0
    model_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @functools.cached_property
    def examples(self) -> Examples:
        """All examples as stored; read once per process.

        Raises
        ------
        MissingDataset
            If the data set is not on this machine; the message has the command that fetches it.
        """
        examples = self.read()
        expected = (len(examples.y), *self.input_shape)
        # rows that are made on demand have their shape only once one is made
        if self.input_shape and examples.x.shape != expected:
            raise ValueError(
                f"task {self.name!r}: features have shape {examples.x.shape}, expected {expected}"
            )
        if len(examples.y) and not (examples.y.min() >= 0 and examples.y.max() < self.num_classes):
            raise ValueError(f"task {self.name!r}: labels must lie in 0 to {self.num_classes - 1}")
        return examples

    @property
    def example_shape(self) -> tuple[int, ...]:
        """Shape of one example: `input_shape`, or what the examples have where it is left open."""
        return self.input_shape or tuple(self.examples.x.shape[1:])

    @property
    def labels(self) -> IndexArray:
        """Labels of all examples, shape (n,)."""
        return np.asarray(self.examples.y, dtype=np.int64)

    def take(self, indices: npt.ArrayLike) -> Split:
        """Return the examples at `indices` (global row numbers) as float32 features and int64 labels."""
        rows = np.asarray(indices, dtype=np.int64)
        raw = np.asarray(self.examples.x[rows], dtype=np.float32)
        return Split(
            x=torch.from_numpy((raw - np.float32(self.offset)) * np.float32(self.scale)),
            y=torch.from_numpy(self.labels[rows]),
        )

    @functools.cached_property
    def _all(self) -> Split:
        return self.take(np.arange(len(self.examples.y)))

    def load(self) -> Split:
        """Return all examples, official training part first. Converted once per process.

        For large image sets this holds everything as float32 (220 MB for Fashion-MNIST); :meth:`take`
        converts only the rows asked for.
        """
        return self._all

    def public_holdout(self, fraction: float, seed: int) -> tuple[IndexArray, IndexArray]:
        """Take a public hold-out out of the data before it is spread over clients.

        Parameters
        ----------
        fraction : float
            Size of the hold-out as a part of all examples, in [0, 1).
        seed : int
            The same seed gives the same hold-out.

        Returns
        -------
        pool : np.ndarray of int64
            Row numbers that clients may get, ascending.
        holdout : np.ndarray of int64
            Row numbers of the hold-out, ascending, disjoint from the pool. Stratified: every class has its
            share up to rounding.

        Notes
        -----
        Without an official test part the hold-out comes out of all examples and the pool is the
        rest. With one, the pool is the whole official training part and the hold-out a subset of the test
        part, all of it if `fraction` asks for more than there is; test rows that are not in the hold-out go
        to nobody.

        Raises
        ------
        ValueError
            If `fraction` is not in [0, 1).
        """
        check_fraction(holdout_fraction=fraction)
        labels = self.labels
        size = round(fraction * len(labels))
        num_train = self.examples.num_train
        candidates = np.arange(len(labels)) if num_train is None else np.arange(num_train, len(labels))
        rng = np.random.default_rng(derive_seed(seed, "public holdout", self.name))
        holdout = candidates[
            _stratified(labels[candidates], min(size, len(candidates)), self.num_classes, rng)
        ]
        if num_train is None:
            return np.setdiff1d(candidates, holdout), holdout
        return np.arange(num_train), holdout

    def build_model(self, model_name: str, seed: int) -> torch.nn.Module:
        """Build a model with initial weights that depend on `seed` only.

        torch's global generators are left as they were. Logistic regression starts at zero whatever the seed.

        Parameters
        ----------
        model_name : str
            One of `models`; ``""`` or ``"default"`` for `default_model`.
        seed : int
            Seed of the initial weights.

        Raises
        ------
        ValueError
            If the task does not offer that model.
        """
        name = self._model(model_name)
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed: it would reseed accelerators too, which fork_rng does not put back here.
            torch.default_generator.manual_seed(derive_seed(seed, "initial weights") & (2**63 - 1))
            return MODEL_BUILDERS[name](
                input_shape=self.example_shape,
                num_classes=self.num_classes,
                feature_norm=self.feature_norm,
                **self.model_options.get(name, {}),
            )

    def loss(self, model: torch.nn.Module, split: Split) -> torch.Tensor:
        """Return the mean cross-entropy of `model` on `split`, a scalar with gradient.

        Raises
        ------
        ValueError
            If the split is empty: it has no mean.
        """
        if len(split) == 0:
            raise ValueError("the mean loss of an empty split is not defined")
        return functional.cross_entropy(model(split.x), split.y)

    def smoothness(self, model_name: str) -> float | None:
        """Return a proven smoothness constant L of :meth:`loss` in the parameters, or None without a proof.

        For multinomial logistic regression the Hessian of the loss of one example is ``(diag(p) - p p^T) kron
        z z^T`` with z the clipped features and a last entry 1 for the bias. ``diag(p) - p p^T`` has
        eigenvalues at most 1/2 (Boehning 1992, Ann. Inst. Statist. Math. 44), and ``||z||^2 <= B^2 + 1``,
        hence L = (B^2 + 1)/2 for every example and so for every mean of them. L follows from the public bound
        B, never from data. The networks have ReLUs: no such constant exists. Weight decay w adds w to L.

        Parameters
        ----------
        model_name : str
            One of `models`.
        """
        if MODEL_BUILDERS[self._model(model_name)] is not ClippedLogisticRegression:
            return None
        return (self.feature_norm**2 + 1.0) / 2.0

    def _model(self, name: str) -> str:
        if name in ("", "default"):
            return self.default_model
        if name not in self.models:
            raise ValueError(
                f"model must be one of {', '.join(self.models)} for task {self.name!r}, got {name!r}"
            )
        return name


def _stratified(labels: IndexArray, size: int, num_classes: int, rng: np.random.Generator) -> IndexArray:
    """Positions of `size` labels with every class at its share of `size`, up to rounding; ascending."""
    if size == 0:
        return np.zeros(0, dtype=np.int64)
    counts = np.bincount(labels, minlength=num_classes)
    shares = counts * (size / len(labels))
    quota = np.floor(shares).astype(np.int64)
    # Largest remainders get the places that are left, so that the total is exact.
    order = np.argsort(-(shares - quota), kind="stable")
    quota[order[: size - int(quota.sum())]] += 1
    chosen = [rng.permutation(np.flatnonzero(labels == c))[: quota[c]] for c in range(num_classes)]
    return np.sort(np.concatenate(chosen)).astype(np.int64)
