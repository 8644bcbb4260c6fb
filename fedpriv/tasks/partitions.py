"""Spread labelled examples over clients with flwr-datasets' partitioners, and draw the result.

The partitioners know nothing of privacy: which client holds which example is a fact of the simulation, fixed
by a seed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from fedpriv.accounting.validators import check_choice, check_integer, check_positive
from fedpriv.tasks.seeds import derive_seed

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

PartitionKind = Literal["iid", "dirichlet"]
PARTITION_KINDS: tuple[str, ...] = get_args(PartitionKind)

#: flwr-datasets gives up a Dirichlet partition after eleven draws; it is started again this often, with new
#: seeds.
MAX_RESTARTS = 9

IndexArray = npt.NDArray[np.int64]


class PartitionError(ValueError):
    """The data cannot be spread as asked; the message says what to change."""


@dataclass(frozen=True)
class PartitionSettings:
    """How examples are spread over clients.

    Parameters
    ----------
    kind : {"iid", "dirichlet"}
        Uniformly at random in equal parts, or with the share of every class over the clients drawn from a
        symmetric Dirichlet distribution (Yurochkin et al. 2019, arXiv:1905.12022).
    num_partitions : int
        Number of clients, at least 1.
    alpha : float
        Concentration of the Dirichlet distribution, > 0: 0.1 gives clients with one or two classes, 100 is
        nearly iid. Ignored for "iid".
    seed : int
        The same seed gives the same partition.
    min_size : int
        Every client gets at least this many examples. 2 leaves one to train and one to validate.

    Raises
    ------
    ValueError
        If a value is out of its range.
    """

    kind: PartitionKind = "dirichlet"
    num_partitions: int = 10
    alpha: float = 0.5
    seed: int = 0
    min_size: int = 2

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check_choice(PARTITION_KINDS, kind=self.kind)
        check_integer(1, num_partitions=self.num_partitions)
        check_positive(alpha=self.alpha)
        check_integer(0, seed=self.seed, min_size=self.min_size)


def partition_indices(labels: npt.ArrayLike, settings: PartitionSettings) -> list[IndexArray]:
    """Spread positions 0 to n - 1 over partitions.

    Parameters
    ----------
    labels : array_like of int
        Class of every example, shape (n,).
    settings : PartitionSettings
        Kind, number of partitions, alpha, seed, smallest size.

    Returns
    -------
    list of np.ndarray of int64
        One array of positions per partition, in random order; every position is in exactly one of them.

    Raises
    ------
    PartitionError
        If there are too few examples, or no draw gave every partition `min_size`
        examples.
    """
    classes = np.asarray(labels)
    if classes.ndim != 1:
        raise ValueError(f"labels must have one dimension, got shape {classes.shape}")
    needed = settings.num_partitions * max(settings.min_size, 1)
    if len(classes) < needed:
        raise PartitionError(
            f"{len(classes)} examples cannot give {settings.num_partitions} clients at least "
            f"{max(settings.min_size, 1)} each: use at most {len(classes) // max(settings.min_size, 1)} "
            "clients, a lower min_size, or a task with more examples"
        )
    parts = _iid(len(classes), settings) if settings.kind == "iid" else _dirichlet(classes, settings)
    if not np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(classes))):
        raise PartitionError("the partitioner did not place every example exactly once; please report this")
    return parts


def _iid(num_examples: int, settings: PartitionSettings) -> list[IndexArray]:
    from flwr_datasets.partitioner import IidPartitioner

    from datasets import Dataset  # type: ignore[attr-defined]  # mypy takes our own folder datasets/ for it

    # IidPartitioner cuts consecutive pieces; data sets come sorted by class or in order of collection.
    order = np.random.default_rng(derive_seed(settings.seed, "iid")).permutation(num_examples)
    partitioner = IidPartitioner(num_partitions=settings.num_partitions)
    partitioner.dataset = Dataset.from_dict({"position": order})
    return _positions(partitioner)


def _dirichlet(labels: np.ndarray, settings: PartitionSettings) -> list[IndexArray]:
    from flwr_datasets.partitioner import DirichletPartitioner

    from datasets import Dataset  # type: ignore[attr-defined]  # mypy takes our own folder datasets/ for it

    dataset = Dataset.from_dict({"label": labels, "position": np.arange(len(labels))})

    def partitioner(restart: int, min_size: int) -> DirichletPartitioner:
        result = DirichletPartitioner(
            num_partitions=settings.num_partitions,
            partition_by="label",
            alpha=float(settings.alpha),
            min_partition_size=min_size,
            self_balancing=False,
            seed=derive_seed(settings.seed, "dirichlet", restart),
        )
        result.dataset = dataset
        return result

    for restart in range(MAX_RESTARTS):
        candidate = partitioner(restart, settings.min_size)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # one long warning per draw that is too small
                _ = candidate.num_partitions  # draws, up to eleven times
        except ValueError as error:
            if "attempts" not in str(error):
                raise
            continue
        return _positions(candidate)
    smallest = min(len(part) for part in _positions(partitioner(0, 0)))
    raise PartitionError(
        f"none of {MAX_RESTARTS * 11} Dirichlet draws with alpha={settings.alpha:g} gave each of "
        f"{settings.num_partitions} clients min_size={settings.min_size} of {len(labels)} examples (in "
        f"the first draw one client got {smallest}): raise alpha, lower min_size, or use fewer clients"
    )


def _positions(partitioner: Partitioner) -> list[IndexArray]:
    # The numpy format reads a column in one piece instead of example by example.
    parts = (partitioner.load_partition(i).with_format("numpy") for i in range(partitioner.num_partitions))
    return [np.asarray(part["position"][:], dtype=np.int64) for part in parts]


def partition_counts(
    labels: npt.ArrayLike, parts: Sequence[IndexArray], num_classes: int
) -> npt.NDArray[np.int64]:
    """Count classes per partition.

    Parameters
    ----------
    labels : array_like of int
        Class of every example, shape (n,).
    parts : sequence of np.ndarray
        Positions per partition.
    num_classes : int
        Number of classes.

    Returns
    -------
    np.ndarray of int64
        Shape (partitions, classes).
    """
    classes = np.asarray(labels, dtype=np.int64)
    return np.stack([np.bincount(classes[part], minlength=num_classes) for part in parts]).astype(np.int64)


def plot_partition(
    counts: npt.ArrayLike, path: str | Path, title: str = "", class_names: Sequence[str] = ()
) -> None:
    """Draw how many examples of each class every client holds, as a PNG.

    Up to 40 clients are stacked bars; more are a heat map (darker is more) under a bar chart of the sizes.

    Parameters
    ----------
    counts : array_like of int
        Shape (partitions, classes), from :func:`partition_counts`.
    path : str or Path
        Where the picture goes; its folder must exist.
    title : str
        First line of the picture.
    class_names : sequence of str
        Names of the classes; numbers if empty.

    Notes
    -----
    A simulation's picture: in a federation nobody can know these counts, and showing them there would be a
    leak.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    table = np.asarray(counts)
    num_partitions, num_classes = table.shape
    names = list(class_names) or [str(c) for c in range(num_classes)]
    wide = num_partitions > 40
    figure = Figure(figsize=(10, 4.6 if not wide else 6.0), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    clients = np.arange(num_partitions)
    if wide:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[1, 2])
        top.bar(clients, table.sum(1), width=1.0, color="#4c72b0")
        top.set_ylabel("examples")
        image = bottom.imshow(
            np.ma.masked_equal(table.T, 0),
            aspect="auto",
            cmap="viridis_r",
            interpolation="nearest",
            origin="lower",
            norm=PowerNorm(0.5),
        )
        bottom.set_yticks(range(num_classes), names)
        bottom.set_ylabel("class")
        bottom.set_xlabel("client")
        bar = figure.colorbar(image, ax=[top, bottom], shrink=0.8, pad=0.01)
        bar.set_label("examples of the class (white: none)")
        first = top
    else:
        first = figure.subplots()
        palette = _colours(num_classes)
        base = np.zeros(num_partitions)
        for c in range(num_classes):
            first.bar(clients, table[:, c], bottom=base, width=0.85, color=palette[c], label=names[c])
            base += table[:, c]
        first.set_xlabel("client")
        first.set_ylabel("examples")
        first.legend(
            title="class", loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", reverse=True
        )
        first.set_xlim(-0.6, num_partitions - 0.4)
        if num_partitions <= 25:
            first.set_xticks(clients)
    sizes = table.sum(1)
    summary = (
        f"{num_partitions} clients, {sizes.sum():,} examples; per client {sizes.min():,} to {sizes.max():,}"
    )
    for axes in figure.axes[: 2 if wide else 1]:
        axes.spines[["top", "right"]].set_visible(False)
    first.set_title(f"{title}\n{summary}" if title else summary, fontsize=12, fontweight="bold", loc="left")
    figure.savefig(Path(path), format="png")


def _colours(num_classes: int) -> list[tuple[float, ...]]:
    from matplotlib import colormaps

    if num_classes <= 10:
        return [tuple(colormaps["tab10"](c)) for c in range(num_classes)]
    return [tuple(colormaps["turbo"](c / (num_classes - 1))) for c in range(num_classes)]
