"""The built-in tasks."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedpriv.tasks import TASK_NAMES
from fedpriv.tasks.base import Examples, Task
from fedpriv.tasks.sources import adult
from fedpriv.tasks.sources.cache import read_arrays

_DIGITS = tuple(str(digit) for digit in range(10))
_FASHION = (
    "T-shirt",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

# Ranges that scikit-learn's description of the data set prints (load_breast_cancer().DESCR), rounded
# outwards. They are published, so they are public constants here; a clinic would write down what its
# instrument can measure.
_BREAST_CANCER_LOW = (
    *(6, 9, 40, 140, 0.04, 0, 0, 0, 0.1, 0.04),
    *(0,) * 10,
    *(7, 12, 50, 180, 0.07, 0, 0, 0, 0.15, 0.05),
)
_BREAST_CANCER_HIGH = (
    *(30, 40, 190, 2600, 0.17, 0.35, 0.43, 0.21, 0.31, 0.1),
    *(3, 5, 22, 550, 0.032, 0.14, 0.4, 0.053, 0.08, 0.03),
    *(37, 50, 260, 4300, 0.23, 1.1, 1.3, 0.3, 0.67, 0.21),
)


def _bundled_table(file_name: str) -> np.ndarray | None:
    """Read a table that scikit-learn ships, without importing it: that takes 2 s in every client process."""
    spec = importlib.util.find_spec("sklearn")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "datasets" / "data" / file_name
        if path.is_file():
            skip = 0 if file_name.endswith(".gz") else 1
            return np.loadtxt(path, delimiter=",", skiprows=skip)
    return None


def _read_digits() -> Examples:
    table = _bundled_table("digits.csv.gz")
    if table is None or table.shape != (1797, 65):
        from sklearn.datasets import load_digits

        bunch = load_digits()
        table = np.column_stack([bunch.data, bunch.target])
    images = table[:, :-1].astype(np.uint8).reshape(-1, 1, 8, 8)
    return Examples(images, table[:, -1].astype(np.int64), None, "scikit-learn, load_digits()")


def _read_breast_cancer() -> Examples:
    table = _bundled_table("breast_cancer.csv")
    if table is None or table.shape != (569, 31):
        from sklearn.datasets import load_breast_cancer

        bunch = load_breast_cancer()
        table = np.column_stack([bunch.data, bunch.target])
    features = breast_cancer_features(table[:, :-1])
    return Examples(features, table[:, -1].astype(np.int64), None, "scikit-learn, load_breast_cancer()")


def breast_cancer_features(measures: np.ndarray) -> np.ndarray:
    """Scale the 30 measures, shape (rows, 30), by public constants; float32."""
    low, high = np.asarray(_BREAST_CANCER_LOW, float), np.asarray(_BREAST_CANCER_HIGH, float)
    # To [-1, 1], then by 3 because the values bunch at the low end: round numbers, not fitted.
    columns = 3.0 * (2.0 * (measures - low) / (high - low) - 1.0) + 1.5
    found: np.ndarray = columns.astype(np.float32)
    return found


def _fetched(name: str) -> Callable[[], Examples]:
    return lambda: Examples(*read_arrays(name))


@functools.cache
def _tasks() -> dict[str, Task]:
    image_models = ("logistic", "mlp", "cnn")
    tasks = (
        Task(
            name="digits",
            title="Handwritten digits, 8x8",
            num_classes=10,
            input_shape=(1, 8, 8),
            feature_norm=4.0,
            models=image_models,
            default_model="logistic",
            read=_read_digits,
            class_names=_DIGITS,
            scale=1 / 16,
        ),
        Task(
            name="fashion-mnist",
            title="Fashion-MNIST",
            num_classes=10,
            input_shape=(1, 28, 28),
            feature_norm=10.0,
            models=image_models,
            default_model="logistic",
            read=_fetched("fashion-mnist"),
            class_names=_FASHION,
            scale=1 / 255,
        ),
        Task(
            name="mnist",
            title="MNIST",
            num_classes=10,
            input_shape=(1, 28, 28),
            feature_norm=10.0,
            models=image_models,
            default_model="logistic",
            read=_fetched("mnist"),
            class_names=_DIGITS,
            scale=1 / 255,
        ),
        Task(
            name="cifar10",
            title="CIFAR-10",
            num_classes=10,
            input_shape=(3, 32, 32),
            feature_norm=30.0,
            models=image_models,
            default_model="cnn",
            read=_fetched("cifar10"),
            class_names=_CIFAR,
            offset=127.5,
            scale=1 / 63.75,
            model_options={"cnn": {"width": 32, "blocks": 3}, "mlp": {"width": 128}},
        ),
        Task(
            name="adult",
            title="UCI Adult: income above 50,000 dollars",
            num_classes=2,
            input_shape=(len(adult.COLUMN_NAMES),),
            feature_norm=4.0,
            models=("logistic", "mlp"),
            default_model="logistic",
            read=_fetched("adult"),
            class_names=("<=50K", ">50K"),
        ),
        Task(
            name="breast-cancer",
            title="Breast cancer Wisconsin (diagnostic)",
            num_classes=2,
            input_shape=(30,),
            feature_norm=6.0,
            models=("logistic", "mlp"),
            default_model="logistic",
            read=_read_breast_cancer,
            class_names=("malignant", "benign"),
        ),
    )
    return {task.name: task for task in tasks}


@functools.lru_cache(maxsize=16)
def _shortened(name: str, max_examples: int) -> Task:
    task = _tasks()[name]

    def read() -> Examples:
        examples = task.examples
        rows = np.sort(np.random.default_rng(max_examples).permutation(len(examples.y))[:max_examples])
        official = None if examples.num_train is None else int((rows < examples.num_train).sum())
        return Examples(examples.x[rows], examples.y[rows], official, examples.source)

    return dataclasses.replace(task, read=read)


def find_task(name: str, max_examples: int = 0) -> Task:
    """Return the task called `name`; see :func:`fedpriv.tasks.get_task`.

    Parameters
    ----------
    name : str
        One of the task names.
    max_examples : int
        Keep only so many examples, a fixed random part; 0 for all.
    """
    if name == "sentiment":
        from fedpriv.tasks.sentiment import sentiment_task

        return sentiment_task(max_examples=max_examples)
    tasks = _tasks()
    if name not in tasks:
        raise ValueError(f"task must be one of {', '.join(TASK_NAMES)}, got {name!r}")
    return _shortened(name, max_examples) if max_examples else tasks[name]
