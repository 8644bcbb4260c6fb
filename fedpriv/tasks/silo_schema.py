"""What columns a silo's own table must have, and how they become features: declared, never inferred from rows.

pandas is imported where a table is read; messages name columns and rows and never repeat a value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpriv.tasks.sources import adult

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Problem:
    """A column that does not fit, and the first row where it does not.

    Parameters
    ----------
    column : str
        Name of the column.
    row : int
        First bad row, counted from 1 without the header.
    count : int
        Number of bad rows.
    expected : str
        What is allowed.
    """

    column: str
    row: int
    count: int
    expected: str

    def __str__(self) -> str:
        more = f" (and {self.count - 1} more rows)" if self.count > 1 else ""
        return f"column {self.column!r}, row {self.row}{more}: should be {self.expected}"


@dataclass(frozen=True)
class NumberColumn:
    """A column of finite numbers.

    Parameters
    ----------
    name : str
        Name of the column.
    minimum : float
        Smallest value that the quantity can have; codes for missing values such as -999 are below it.
    """

    name: str
    minimum: float = 0.0

    def read(self, column: pd.Series) -> tuple[pd.Series, Problem | None]:
        """Numbers of the column, and what is wrong."""
        import pandas as pd

        numbers = pd.to_numeric(column, errors="coerce").astype(np.float64)
        good = np.isfinite(numbers.to_numpy()) & (numbers.to_numpy() >= self.minimum)
        return numbers, _problem(self.name, good, f"a number of at least {self.minimum:g}")


@dataclass(frozen=True)
class CategoryColumn:
    """A column of documented words.

    Parameters
    ----------
    name : str
        Name of the column.
    values : tuple of str
        Documented words.
    missing : tuple of str
        Words for "unknown", which give no feature.
    others : bool
        Whether any other word is fine too (and gives no feature either).
    """

    name: str
    values: tuple[str, ...]
    missing: tuple[str, ...] = ("?", "")
    others: bool = False

    def read(self, column: pd.Series) -> tuple[pd.Series, Problem | None]:
        """Words of the column, and what is wrong."""
        words = _words(column)
        known = words.isin([*self.values, *self.missing]).to_numpy()
        good = np.ones(len(words), dtype=bool) if self.others else known
        return words, _problem(self.name, good, f"one of {', '.join(self.values)}, or ? where unknown")


@dataclass(frozen=True)
class LabelColumn:
    """The column of classes.

    Parameters
    ----------
    name : str
        Name of the column.
    classes : mapping of str to int
        Every accepted word and its class.
    """

    name: str
    classes: Mapping[str, int]

    def read(self, column: pd.Series) -> tuple[NDArray[np.int64], Problem | None]:
        """Classes of the rows (0 where unknown), and what is wrong."""
        found = _words(column).map(dict(self.classes))
        good = found.notna().to_numpy()
        labels: NDArray[np.int64] = found.fillna(0).to_numpy().astype(np.int64)
        return labels, _problem(self.name, good, f"one of {', '.join(self.classes)}")


@dataclass(frozen=True)
class Schema:
    """Columns of a task's table.

    Parameters
    ----------
    columns : tuple
        All columns that are read, in any order in the file; others are ignored.
    label : LabelColumn
        The classes.
    encode : callable
        From a table of read columns to raw features as the task stores them, shape (rows, ...).
    """

    columns: tuple[NumberColumn | CategoryColumn, ...]
    label: LabelColumn
    encode: Callable[[pd.DataFrame], np.ndarray] = field(repr=False)

    @property
    def names(self) -> list[str]:
        """Names of all columns that a file must have."""
        return [*(column.name for column in self.columns), self.label.name]

    def read(self, table: pd.DataFrame) -> tuple[np.ndarray, NDArray[np.int64], list[Problem]]:
        """Features, labels and problems of a table of raw columns; features only where there is no problem."""
        import pandas as pd

        read, problems = {}, []
        for column in self.columns:
            read[column.name], problem = column.read(table[column.name])
            problems += [problem] if problem else []
        labels, problem = self.label.read(table[self.label.name])
        problems += [problem] if problem else []
        features = np.zeros(0) if problems else self.encode(pd.DataFrame(read))
        return features, labels, problems


def _words(column: pd.Series) -> pd.Series:
    """Trimmed text of a column; whole numbers without a decimal point, missing values empty."""
    import pandas as pd

    if pd.api.types.is_bool_dtype(column.dtype):
        return column.astype(int).astype(str)
    if pd.api.types.is_float_dtype(column.dtype):
        return column.map(lambda v: "" if pd.isna(v) else str(int(v)) if float(v).is_integer() else str(v))
    return column.map(lambda v: "" if pd.isna(v) else str(v).strip()).astype(object)


def _problem(name: str, good: NDArray, expected: str) -> Problem | None:
    bad = np.flatnonzero(~good)
    return Problem(name, int(bad[0]) + 1, len(bad), expected) if len(bad) else None


def _adult() -> Schema:
    numbers = tuple(NumberColumn(name) for name in adult.NUMERIC)
    words = tuple(
        CategoryColumn(name, values, others=name == "native-country")
        for name, values in adult.CATEGORIES.items()
    )
    classes = {"<=50K": 0, ">50K": 1, "<=50K.": 0, ">50K.": 1}
    return Schema((*numbers, *words), LabelColumn("income", classes), adult.encode)


_MEASURES = (
    "radius",
    "texture",
    "perimeter",
    "area",
    "smoothness",
    "compactness",
    "concavity",
    "concave points",
    "symmetry",
    "fractal dimension",
)

#: As scikit-learn names them, in the order of the task's features.
BREAST_CANCER_COLUMNS = (
    *(f"mean {name}" for name in _MEASURES),
    *(f"{name} error" for name in _MEASURES),
    *(f"worst {name}" for name in _MEASURES),
)


def _breast_cancer() -> Schema:
    from fedpriv.tasks.registry import breast_cancer_features

    classes = {"malignant": 0, "benign": 1, "0": 0, "1": 1}
    return Schema(
        tuple(NumberColumn(name) for name in BREAST_CANCER_COLUMNS),
        LabelColumn("target", classes),
        lambda table: breast_cancer_features(table[list(BREAST_CANCER_COLUMNS)].to_numpy()),
    )


#: Task -> its schema; tasks that are not tables have none.
SCHEMAS: dict[str, Callable[[], Schema]] = {"adult": _adult, "breast-cancer": _breast_cancer}
