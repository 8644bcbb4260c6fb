"""UCI Adult (census income): from the published files to 48 columns, with public constants only.

Nothing here is computed from rows: the categories come from ``adult.names``, the file that documents the data
set, and centres and widths are round numbers that anyone would pick without seeing a row (a working week has
40 hours). A mean or standard deviation taken from private rows would be a release of its own.

======================  ================================================================================
column                  becomes
======================  ================================================================================
age                     (age - 40) / 15
education-num           (years - 10) / 3
hours-per-week          (hours - 40) / 12
capital-gain            min(gain, 20,000) / 5,000
capital-loss            min(loss, 4,000) / 1,000
6 categorical columns   one column per documented category; all zero for "?" (unknown)
native-country          1 for United-States, else 0
fnlwgt                  dropped: a census sampling weight, not a property of a person
education               dropped: education-num says the same
======================  ================================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

RAW_COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)

#: column -> (largest value that counts, centre, width).
NUMERIC: dict[str, tuple[float, float, float]] = {
    "age": (100, 40, 15),
    "education-num": (16, 10, 3),
    "hours-per-week": (100, 40, 12),
    "capital-gain": (20_000, 0, 5_000),
    "capital-loss": (4_000, 0, 1_000),
}

CATEGORIES: dict[str, tuple[str, ...]] = {
    "workclass": (
        "Private",
        "Self-emp-not-inc",
        "Self-emp-inc",
        "Federal-gov",
        "Local-gov",
        "State-gov",
        "Without-pay",
        "Never-worked",
    ),
    "marital-status": (
        "Married-civ-spouse",
        "Divorced",
        "Never-married",
        "Separated",
        "Widowed",
        "Married-spouse-absent",
        "Married-AF-spouse",
    ),
    "occupation": (
        "Tech-support",
        "Craft-repair",
        "Other-service",
        "Sales",
        "Exec-managerial",
        "Prof-specialty",
        "Handlers-cleaners",
        "Machine-op-inspct",
        "Adm-clerical",
        "Farming-fishing",
        "Transport-moving",
        "Priv-house-serv",
        "Protective-serv",
        "Armed-Forces",
    ),
    "relationship": ("Wife", "Own-child", "Husband", "Not-in-family", "Other-relative", "Unmarried"),
    "race": ("White", "Asian-Pac-Islander", "Amer-Indian-Eskimo", "Other", "Black"),
    "sex": ("Female", "Male"),
    "native-country": ("United-States",),
}

COLUMN_NAMES: tuple[str, ...] = (
    *NUMERIC,
    *(f"{column}={value}" for column, values in CATEGORIES.items() for value in values),
)


def read_table(path: Path) -> pd.DataFrame:
    """Read ``adult.data`` or ``adult.test`` (which starts with a line that is no row and dots its labels)."""
    import pandas as pd

    with path.open(encoding="utf-8") as file:
        skip = 1 if file.readline().startswith("|") else 0
    table = pd.read_csv(path, names=list(RAW_COLUMNS), skipinitialspace=True, skiprows=skip, na_filter=False)
    table["income"] = table["income"].str.rstrip(".")
    unknown = set(table["income"]) - {"<=50K", ">50K"}
    if unknown or table.empty:
        raise ValueError(f"{path.name}: expected rows that end in <=50K or >50K, got {sorted(unknown)[:3]}")
    return table


def encode(table: pd.DataFrame) -> np.ndarray:
    """Return float32 features of shape (rows, 48), one column per entry of :data:`COLUMN_NAMES`."""
    columns = [
        (np.clip(table[name].to_numpy(dtype=np.float64), 0, largest) - centre) / width
        for name, (largest, centre, width) in NUMERIC.items()
    ]
    columns += [
        (table[name] == value).to_numpy(dtype=np.float64)
        for name, values in CATEGORIES.items()
        for value in values
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def read_adult(folder: Path) -> tuple[np.ndarray, np.ndarray, int | None]:
    """Read both files: features, labels (1 for above 50,000 dollars), rows of ``adult.data``."""
    tables = [read_table(folder / "adult.data"), read_table(folder / "adult.test")]
    labels = np.concatenate([(table["income"] == ">50K").to_numpy() for table in tables]).astype(np.int64)
    return np.concatenate([encode(table) for table in tables]), labels, len(tables[0])
