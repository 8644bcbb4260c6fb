"""A silo's own data: a CSV or Parquet file that its node config names, checked column by column.

What is wrong is said in the silo's own log, by file, column and row and without a value; a server learns no more
than that the data cannot be used.
"""

from __future__ import annotations

import csv
import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedpriv.tasks import get_task
from fedpriv.tasks.base import Split, check_fraction
from fedpriv.tasks.client_data import ClientData
from fedpriv.tasks.seeds import derive_seed
from fedpriv.tasks.silo_schema import SCHEMAS, Schema

if TYPE_CHECKING:
    import pandas as pd

logger = logging.getLogger(__name__)

DATA_PATH = "data-path"
PARTITION = "partition-id"
_LONGEST_LIST = 10


class SiloDataError(ValueError):
    """A silo's data cannot be used; the message names file, column and row, and no value."""


def data_place(node_config: Mapping[str, Any]) -> int | str:
    """Where a client's data is: the path of its own file, or the number of its part of the built-in data.

    Parameters
    ----------
    node_config : mapping
        ``data-path`` (a CSV or Parquet file), or ``partition-id`` (a simulation sets it).

    Raises
    ------
    SiloDataError
        When there is neither, or a value of the wrong type.
    """
    path, partition = node_config.get(DATA_PATH, ""), node_config.get(PARTITION)
    if isinstance(path, str) and path:
        return str(Path(path).expanduser())
    if isinstance(path, str) and isinstance(partition, int) and not isinstance(partition, bool):
        return partition
    wrong = SiloDataError(
        f"node config: {DATA_PATH!r} must be the path of the silo's CSV or Parquet file, or {PARTITION!r} the number "
        "of its part of the built-in data"
    )
    logger.error("%s", wrong)
    raise wrong


def silo_data(
    path: str | Path, task_name: str, min_rows: int, validation_fraction: float, seed: int
) -> ClientData:
    """Training and validation part of a silo's own file.

    Parameters
    ----------
    path : path
        The file; read again when it has changed.
    task_name : str
        Task whose columns it must have.
    min_rows : int
        Fewest rows.
    validation_fraction : float
        Part of the rows for validation, in [0, 1); at least one row each where there are two.
    seed : int
        Of the cut.

    Raises
    ------
    SiloDataError
        Also written to the log.
    """
    check_fraction(validation_fraction=validation_fraction)
    file = Path(path)
    try:
        try:
            status = file.stat()
        except OSError as error:
            raise SiloDataError(f"{file}: cannot be read ({error.strerror})") from None
        split = _read(str(file), task_name, min_rows, status.st_mtime_ns, status.st_size)
    except SiloDataError as error:
        logger.error("%s", error)
        raise
    rows = np.random.default_rng(derive_seed(seed, "validation", len(split))).permutation(len(split))
    held = 0
    if validation_fraction > 0 and len(rows) >= 2:
        held = min(max(round(validation_fraction * len(rows)), 1), len(rows) - 1)
    train, validation = torch.from_numpy(rows[held:].copy()), torch.from_numpy(rows[:held].copy())
    return ClientData(
        train=Split(split.x[train], split.y[train]),
        validation=Split(split.x[validation], split.y[validation]),
    )


@functools.lru_cache(maxsize=8)
def _read(path: str, task_name: str, min_rows: int, changed: int, size: int) -> Split:
    """All rows of a file, as the task's features; cached until the file changes."""
    file, task = Path(path), get_task(task_name)
    if task_name not in SCHEMAS:
        raise SiloDataError(
            f"{file}: task {task_name!r} is no table; {DATA_PATH!r} works for {', '.join(SCHEMAS)}"
        )
    schema = SCHEMAS[task_name]()
    table = _table(file, schema)
    if len(table) < min_rows:
        raise SiloDataError(f"{file}: holds {len(table)} rows, at least {min_rows} are needed")
    features, labels, problems = schema.read(table)
    if problems:
        listed = [str(problem) for problem in problems[:_LONGEST_LIST]]
        if len(problems) > _LONGEST_LIST:
            listed.append(f"{len(problems) - _LONGEST_LIST} more columns")
        raise SiloDataError(f"{file}: " + "; ".join(listed))
    scaled = (np.asarray(features, np.float32) - np.float32(task.offset)) * np.float32(task.scale)
    return Split(x=torch.from_numpy(scaled.reshape(-1, *task.input_shape)), y=torch.from_numpy(labels))


def _table(file: Path, schema: Schema) -> pd.DataFrame:
    """The columns of the schema, as they are in the file."""
    if file.suffix.lower() == ".csv":
        return _csv_table(file, schema)
    if file.suffix.lower() in (".parquet", ".pq"):
        return _parquet_table(file, schema)
    raise SiloDataError(f"{file}: should be a .csv or .parquet file")


def _csv_table(file: Path, schema: Schema) -> pd.DataFrame:
    """By the csv module: pandas drops surplus fields without a word, and a stray comma would shift numbers."""
    import pandas as pd

    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            lines = csv.reader(stream, skipinitialspace=True)
            names = [name.strip() for name in next(lines, [])]
            _check_names(file, names, schema)
            wanted = [names.index(name) for name in schema.names]
            columns: list[list[str]] = [[] for _ in wanted]
            for row, fields in enumerate((fields for fields in lines if fields), start=1):
                if len(fields) != len(names):
                    raise SiloDataError(
                        f"{file}: row {row} has {len(fields)} fields, the header has {len(names)}"
                    )
                for column, index in zip(columns, wanted, strict=True):
                    column.append(fields[index])
    except UnicodeDecodeError:
        raise SiloDataError(f"{file}: is not text in UTF-8") from None
    except (OSError, csv.Error) as error:
        raise SiloDataError(f"{file}: cannot be read ({type(error).__name__})") from None
    return pd.DataFrame(dict(zip(schema.names, columns, strict=True)), dtype=object)


def _parquet_table(file: Path, schema: Schema) -> pd.DataFrame:
    import pandas as pd
    import pyarrow
    import pyarrow.parquet

    try:
        _check_names(file, list(pyarrow.parquet.read_schema(file).names), schema)
        return pd.read_parquet(file, columns=schema.names).reset_index(drop=True)
    except (OSError, pyarrow.ArrowException) as error:
        raise SiloDataError(f"{file}: cannot be read as Parquet ({type(error).__name__})") from None


def _check_names(file: Path, names: list[str], schema: Schema) -> None:
    if not names:
        raise SiloDataError(f"{file}: is empty")
    missing = [name for name in schema.names if name not in names]
    if missing:
        raise SiloDataError(f"{file}: lacks the column(s) {', '.join(map(repr, missing))}")
    twice = [name for name in schema.names if names.count(name) > 1]
    if twice:
        raise SiloDataError(f"{file}: has the column(s) {', '.join(map(repr, twice))} more than once")
