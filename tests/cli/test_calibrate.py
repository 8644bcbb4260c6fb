"""``fedpriv calibrate``: the target is met in the named view, and hardly less noise would meet it."""

import json

import pytest
from typer.testing import CliRunner

from fedpriv.accounting import gaussian_noise_multiplier
from fedpriv.cli import calibrate, eps

FAMILIES = {
    "gaussian --rounds 50 --sampling-rate 0.1": "noise_multiplier",
    "gaussian --rounds 10 --population 50 --sample-size 5 --adjacency replace_one": "noise_multiplier",
    "vote --votes 5 --adjacency replace_one": "noise_std",
    "dpsgd-dc --view release --rounds 300 --update-lipschitz 1.05 --sensitivity 0.03 --diameter 0.4": "noise_std",
    "dpsgd-dc --rounds 30 --learning-rate 0.1 --smoothness 1 --clipping-norm 1 --radius 1 --cohort 9": (
        "noise_multiplier"
    ),
    "zeroth-order --view release --rounds 3000 --dimension 100 --directions 50 --learning-rate 0.5 --clip 1"
    " --contributors 50 --radius 0.05 --smoothness 1 --strong-convexity 0.5 --lipschitz 1": "noise_std",
    "allocation --bins 50": "noise_multiplier",
}


def answer(app, text):
    result = CliRunner().invoke(app, [*text.split(), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("text", FAMILIES)
def test_the_answer_meets_the_target_and_less_noise_does_not(text):
    noise = FAMILIES[text]
    found = answer(calibrate.app, f"{text} --target-epsilon 1.5 --delta 1e-6")
    assert found["solved_for"] == noise
    assert found["epsilon"] == found["views"][found["view"]]["epsilon"] <= 1.5
    view = "" if "--view" in text else f" --view {found['view']}"
    flag = f"--{noise.replace('_', '-')}"
    same = answer(eps.app, f"{text}{view} --delta 1e-6 {flag} {found[noise]!r}")
    assert same["epsilon"] == pytest.approx(found["epsilon"], rel=1e-9)
    less = answer(eps.app, f"{text}{view} --delta 1e-6 {flag} {found[noise] * 0.999!r}")
    assert less["epsilon"] > 1.5


def test_a_vote_agrees_with_the_analytic_inverse():
    found = answer(calibrate.app, "vote --target-epsilon 1 --votes 5 --adjacency replace_one")
    assert found["noise_std"] == pytest.approx(gaussian_noise_multiplier(1.0, 1e-5) * 10**0.5, rel=2e-4)
    assert found["bound"] == "analytic"


def test_pac_by_success_and_by_equal_posterior():
    by_success = answer(calibrate.app, "pac --target-success 0.6 --rounds 7")
    assert by_success["mia_success"] == pytest.approx(0.6, rel=1e-12)
    by_epsilon = answer(calibrate.app, "pac --target-epsilon 1")
    assert by_epsilon["comparison_pure_dp_epsilon"] == pytest.approx(1.0, rel=1e-9)
    again = answer(eps.app, f"pac --mutual-information {by_success['mutual_information']!r} --rounds 7")
    assert again["noise_std"] == by_success["noise_std"]


def test_text_names_the_noise_the_target_and_the_view():
    result = CliRunner().invoke(calibrate.app, ["gaussian", "--target-epsilon", "2", "--view", "release"])
    assert "smallest noise-multiplier: " in result.stdout
    assert "(target epsilon 2 in the release view)" in result.stdout
    assert "Assumptions" in result.stdout


@pytest.mark.parametrize("name", ["gaussian", "vote", "dpsgd-dc", "zeroth-order", "allocation", "pac"])
def test_help_shows_an_example(name):
    result = CliRunner().invoke(calibrate.app, [name, "--help"])
    assert f"fedpriv calibrate {name} --target-epsilon" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gaussian --target-epsilon 0", ["--target-epsilon", "> 0", "0.0"]),
        ("gaussian --target-epsilon inf", ["--target-epsilon", "> 0", "inf"]),
        ("gaussian", ["--target-epsilon"]),
        ("gaussian --target-epsilon 1 --delta 0", ["--delta", "> 0", "0.0"]),
        ("gaussian --target-epsilon 1 --delta 1.5", ["--delta", "[0, 1)", "1.5"]),
        ("gaussian --target-epsilon 1 --view everyone", ["--view", "release", "everyone"]),
        ("dpsgd-dc --target-epsilon 1 --rounds 3", ["--update-lipschitz", "given"]),
        (
            "zeroth-order --target-epsilon 1 --rounds 3 --dimension 9 --learning-rate 1 --clip 1 --contributors 5"
            " --radius 1 --direction-share 0",
            ["--target-epsilon", "reachable"],
        ),
        ("pac", ["--target-success", "--target-epsilon"]),
        ("pac --target-success 0.6 --target-epsilon 1", ["--target-success", "--target-epsilon"]),
        ("pac --target-success 0.4", ["--target-success", "(0.5, 1]", "0.4"]),
        ("pac --target-epsilon 0", ["--target-epsilon", "> 0", "0.0"]),
        ("allocation --target-epsilon -1 --bins 5", ["--target-epsilon", "> 0", "-1.0"]),
    ],
)
def test_bad_values_are_one_line_with_exit_code_two(text, parts):
    result = CliRunner().invoke(calibrate.app, text.split())
    assert result.exit_code == 2
    [line] = result.stderr.strip().splitlines()
    for part in parts:
        assert part in line
