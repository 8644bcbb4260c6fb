"""``fedpriv curve``: the values are those of ``fedpriv eps``, and the picture is written."""

import json

import pytest
from typer.testing import CliRunner

from fedpriv.accounting import gaussian_epsilon
from fedpriv.cli import curve

DPSGD = "dpsgd-dc --rounds 1 --update-lipschitz 1.05 --sensitivity 0.03 --noise-std 0.1 --diameter 0.4"


def run(arguments, folder, name="curve.png"):
    return CliRunner().invoke(curve.app, [*arguments, "--output", str(folder / name)])


def answer(arguments, folder):
    result = run([*arguments, "--json"], folder)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_against_rounds_with_several_mechanisms(tmp_path):
    data = answer(
        ["--stop", "300", "--points", "5", "-m", "gaussian --noise-multiplier 4", "-m", DPSGD], tmp_path
    )
    assert data["values"][0] == 1
    assert data["values"][-1] == 300
    gaussian, server, release = data["curves"]
    assert gaussian["views"] == ["server", "participants", "release"]
    expected = [gaussian_epsilon(4 / rounds**0.5, 1e-5) for rounds in data["values"]]
    assert gaussian["epsilon"] == pytest.approx(expected)
    assert (server["views"], release["views"]) == (["server", "participants"], ["release"])
    assert release["epsilon"][-1] < server["epsilon"][-1]
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_against_delta_and_noise(tmp_path):
    text = "gaussian --noise-multiplier 2"
    data = answer(
        ["--against", "delta", "--start", "1e-8", "--stop", "1e-2", "--points", "3", "-m", text], tmp_path
    )
    assert data["values"] == pytest.approx([1e-8, 1e-5, 1e-2])
    assert data["curves"][0]["epsilon"] == pytest.approx([gaussian_epsilon(2.0, d) for d in data["values"]])
    data = answer(
        ["--against", "noise", "--start", "1", "--stop", "4", "--points", "3", "-m", text], tmp_path
    )
    assert data["curves"][0]["epsilon"] == pytest.approx([gaussian_epsilon(z, 1e-5) for z in (1.0, 2.0, 4.0)])


def test_one_view_only(tmp_path):
    data = answer(["--points", "2", "--stop", "200", "--view", "release", "-m", DPSGD], tmp_path)
    assert [line["views"] for line in data["curves"]] == [["release"]]


def test_text_shows_values_views_and_assumptions(tmp_path):
    result = run(["--points", "2", "-m", DPSGD], tmp_path, "nested/curve.svg")
    assert "epsilon at delta 1e-05" in result.stdout
    assert "view server, participants" in result.stdout
    assert "release: only the final model is released" in result.stdout
    assert (tmp_path / "nested" / "curve.svg").exists()


def test_infinite_values_are_words_and_do_not_break_the_picture(tmp_path):
    data = answer(["--points", "2", "-m", "gaussian --noise-multiplier 0"], tmp_path)
    assert data["curves"][0]["epsilon"] == ["infinity", "infinity"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--against", "sigma", "-m", DPSGD], ["--against", "rounds, delta, noise", "sigma"]),
        (["-m", "laplace --noise 1"], ["--mechanism", "gaussian", "laplace"]),
        (["-m", "pac --mutual-information 1"], ["--mechanism", "gaussian", "pac"]),
        (["-m", ""], ["--mechanism", "gaussian"]),
        (["-m", "gaussian --noise-multiplier -2"], ["noise_multiplier", ">= 0", "-2.0"]),
        (["-m", "gaussian --noise-multiplier 'x"], ["--mechanism", "quotation"]),
        (["-m", "gaussian"], ["--noise-multiplier"]),
        (["--start", "5", "--stop", "2", "-m", DPSGD], ["--stop", "5", "2"]),
        (["--start", "0.1", "-m", DPSGD], ["--start", ">= 1", "0.1"]),
        (["--start", "0", "-m", DPSGD], ["--start", "> 0", "0"]),
        (["--against", "delta", "--stop", "1", "-m", DPSGD], ["--stop", "[0, 1)", "1.0"]),
        (["--points", "1", "-m", DPSGD], ["--points", ">= 2", "1"]),
        (["--delta", "2", "-m", DPSGD], ["--delta", "[0, 1)", "2.0"]),
        (["--view", "me", "-m", DPSGD], ["--view", "release", "me"]),
    ],
)
def test_bad_values_are_one_line_with_exit_code_two(arguments, parts, tmp_path):
    result = run(arguments, tmp_path)
    assert result.exit_code == 2
    [line] = result.stderr.strip().splitlines()
    for part in parts:
        assert part in line
    assert not list(tmp_path.iterdir())


def test_unknown_picture_formats_are_refused(tmp_path):
    result = run(["-m", DPSGD], tmp_path, "curve.txt")
    assert result.exit_code == 2
    assert "--output must be one of .png, .svg, .pdf" in result.stderr
