"""A silo's own file: read as the built-in task reads the same rows, or refused by column and row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fedpriv.settings import resolve_settings
from fedpriv.tasks import get_task
from fedpriv.tasks.federated import client_data
from fedpriv.tasks.silo_data import SiloDataError, data_place, silo_data
from fedpriv.tasks.silo_schema import BREAST_CANCER_COLUMNS
from fedpriv.tasks.sources import adult

ROWS = {
    "age": [25, 61, 40, 19],
    "workclass": ["Private", "?", "Never-worked", " State-gov"],
    "fnlwgt": [1, 2, 3, 4],
    "education": ["11th", "9th", "x", "y"],
    "education-num": [7, 9, 10, 16],
    "marital-status": ["Never-married", "Divorced", "Widowed", "Separated"],
    "occupation": ["Sales", "?", "Other-service", "Tech-support"],
    "relationship": ["Wife", "Husband", "Unmarried", "Own-child"],
    "race": ["White", "Black", "Other", "White"],
    "sex": ["Male", "Female", "Male", "Female"],
    "capital-gain": [0, 99999, 10, 0],
    "capital-loss": [0, 0, 1902, 0],
    "hours-per-week": [40, 1, 99, 38],
    "native-country": ["United-States", "Cuba", "?", "United-States"],
    "income": ["<=50K", ">50K.", ">50K", "<=50K."],
}


def table() -> pd.DataFrame:
    return pd.DataFrame(ROWS)


Write = Callable[[pd.DataFrame, Path], None]
FORMATS: dict[str, Write] = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
}


def read(path: Path, task: str = "adult", min_rows: int = 1, validation: float = 0.0) -> Any:
    return silo_data(path, task, min_rows, validation, seed=0)


def by_content(x: torch.Tensor, y: torch.Tensor) -> list[tuple]:
    return sorted((*row, label) for row, label in zip(x.tolist(), y.tolist(), strict=True))


@pytest.mark.parametrize("kind", FORMATS)
def test_rows_of_adult_are_encoded_as_the_built_in_task_does(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"patients.{kind}"
    FORMATS[kind](table(), path)
    found = read(path).train
    clean = table().map(lambda value: value.strip() if isinstance(value, str) else value)
    expected = torch.from_numpy(adult.encode(clean))
    assert found.x.shape == (4, len(adult.COLUMN_NAMES)) and found.x.dtype == torch.float32
    assert by_content(found.x, found.y) == by_content(expected, torch.tensor([0, 1, 1, 0]))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("labels", ["words", "numbers", "floats"])
def test_breast_cancer_from_a_file_is_the_built_in_data(tmp_path: Path, kind: str, labels: str) -> None:
    from sklearn.datasets import load_breast_cancer

    frame = load_breast_cancer(as_frame=True).frame.iloc[:40]
    assert list(frame.columns[:-1]) == list(BREAST_CANCER_COLUMNS)
    if labels == "words":
        frame = frame.assign(target=frame["target"].map({0: "malignant", 1: "benign"}))
    elif labels == "floats":
        frame = frame.assign(target=frame["target"].astype(float)) if kind == "parquet" else frame
    path = tmp_path / f"clinic.{kind}"
    FORMATS[kind](frame.sample(frac=1, axis=1, random_state=0), path)  # the order of columns is free
    found, built_in = read(path, "breast-cancer").train, get_task("breast-cancer").take(np.arange(40))
    assert by_content(found.x, found.y) == by_content(built_in.x, built_in.y)


def test_a_validation_part_is_cut_off_and_the_cut_repeats(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    pd.concat([table()] * 5).to_csv(path, index=False)
    first, second = read(path, validation=0.25), read(path, validation=0.25)
    assert (len(first.train), len(first.validation)) == (15, 5)
    assert torch.equal(first.train.x, second.train.x)
    alone = tmp_path / "one.csv"
    table().iloc[:1].to_csv(alone, index=False)
    assert len(read(alone, validation=0.5).train) == 1


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    table().to_csv(path, index=False)
    assert len(read(path).train) == 4
    table().iloc[:3].to_csv(path, index=False)
    assert len(read(path).train) == 3


def change(column: str, row: int, value: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def apply(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype(object)
        frame.loc[row, column] = value
        return frame

    return apply


SECRET = "pneumonia"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f.drop(columns=["sex", "income"]), r"lacks the column\(s\) 'sex', 'income'$"),
        (change("age", 2, SECRET), r"column 'age', row 3: should be a number of at least 0$"),
        (change("age", 0, -999), r"column 'age', row 1: should be a number of at least 0$"),
        (change("capital-gain", 1, ""), r"column 'capital-gain', row 2: should be a number"),
        (change("age", 3, "inf"), r"column 'age', row 4"),
        (change("race", 1, SECRET), r"column 'race', row 2: should be one of White, .* or \? where unknown$"),
        (change("income", 3, SECRET), r"column 'income', row 4: should be one of <=50K, >50K"),
        (lambda f: f.assign(age="old"), r"column 'age', row 1 \(and 3 more rows\)"),
        (lambda f: f.assign(age="old", sex="?", race="none"), r"'age', row 1 .*; column 'race', row 1"),
        (lambda f: f.iloc[:0], r"holds 0 rows, at least 2 are needed$"),
        (lambda f: f.iloc[:1], r"holds 1 rows, at least 2 are needed$"),
    ],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_what_is_wrong_is_named_without_a_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, edit: Any, message: str
) -> None:
    path, frame = tmp_path / f"ward.{kind}", edit(table())
    FORMATS[kind](frame.astype(str) if kind == "parquet" else frame, path)
    with pytest.raises(SiloDataError, match=message) as error:
        read(path, min_rows=2)
    assert str(path) in str(error.value)
    assert str(error.value) in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("gone.csv", None, "cannot be read"),
        ("empty.csv", b"", "is empty"),
        ("empty.parquet", b"", "cannot be read as Parquet"),
        ("text.parquet", b"age,sex\n", "cannot be read as Parquet"),
        ("latin.csv", "âge,sexe\n".encode("latin-1"), "UTF-8"),
        ("nul.csv", b"age\0,sex\n1,2\n", "lacks|cannot be read"),
        ("table.xlsx", b"PK", "should be a .csv or .parquet"),
        ("twice.csv", (",".join([*ROWS, "age"]) + "\n").encode(), r"'age' more than once"),
        ("short.csv", (",".join(ROWS) + "\n\n1,2\n").encode(), "row 1 has 2 fields, the header has 15"),
        (
            "ragged.csv",
            (",".join(ROWS) + "\n" + ",".join(["1"] * 20) + "\n").encode(),
            "row 1 has 20 fields, the header has 15",
        ),
    ],
)
def test_files_that_are_no_table(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SiloDataError, match=message):
        read(tmp_path / name)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(SiloDataError, match="cannot be read"):
        read(tmp_path / "a.csv")


def test_a_task_that_is_no_table(tmp_path: Path) -> None:
    table().to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(SiloDataError, match="'digits' is no table"):
        read(tmp_path / "a.csv", "digits")


def test_where_a_clients_data_is(tmp_path: Path) -> None:
    assert data_place({"partition-id": 3}) == 3
    assert data_place({"partition-id": 3, "data-path": "/data/a.csv"}) == "/data/a.csv"
    for bad in ({}, {"data-path": ""}, {"data-path": 5, "partition-id": 1}, {"partition-id": True}):
        with pytest.raises(SiloDataError, match=r"'data-path'.*'partition-id'"):
            data_place(bad)


def test_a_client_of_the_app_takes_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    pd.concat([table()] * 5).to_csv(path, index=False)
    settings = resolve_settings({"task": "adult", "validation-fraction": 0.2})
    found = client_data(settings, str(path))
    assert (len(found.train), len(found.validation)) == (16, 4)
    with pytest.raises(SiloDataError, match="at least 30"):
        client_data(resolve_settings({"task": "adult", "min-partition-size": 30}), str(path))


def test_the_command_checks_a_file_as_a_run_does(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from fedpriv.cli.data import app

    table().to_csv(tmp_path / "a.csv", index=False)
    arguments = ["check", str(tmp_path / "a.csv"), "--task", "adult", "--min-rows"]
    good = CliRunner().invoke(app, [*arguments, "4"])
    assert good.exit_code == 0 and "4 rows fit task adult" in good.output
    bad = CliRunner().invoke(app, [*arguments, "5"])
    assert bad.exit_code == 1 and "holds 4 rows, at least 5 are needed" in bad.output
