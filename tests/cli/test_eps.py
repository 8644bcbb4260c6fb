"""``fedpriv eps``: numbers, JSON, one line for every bad value."""

import json
import math

import numpy as np
import pytest
from typer.testing import CliRunner

from fedpriv.accounting import Accountant, FixedSizeGaussian, Gaussian, PoissonGaussian, gaussian_epsilon
from fedpriv.cli import eps

MODEL_SPACE = (
    "dpsgd-dc --rounds 400 --update-lipschitz 1.05 --sensitivity 0.03 --noise-std 0.06 --diameter 0.4"
)
TRAINING = (
    "dpsgd-dc --rounds 200 --learning-rate 0.05 --smoothness 0.5 --clipping-norm 1 --noise-multiplier 4"
    " --radius 0.02 --cohort 20"
)
ZEROTH_ORDER = (
    "zeroth-order --rounds 5000 --dimension 100 --directions 50 --learning-rate 0.5 --clip 1 --contributors 50"
    " --noise-std 1 --radius 0.05 --smoothness 1 --strong-convexity 0.5 --lipschitz 1"
)


def invoke(text):
    return CliRunner().invoke(eps.app, text.split())


def answer(text):
    result = invoke(f"{text} --json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def epsilons(data):
    return {view: entry["epsilon"] for view, entry in data["views"].items()}


def test_sampled_gaussian_is_the_accountants():
    data = answer("gaussian --noise-multiplier 1.1 --rounds 100 --sampling-rate 0.1 --delta 1e-5")
    expected = Accountant("add_or_remove").compose(PoissonGaussian(0.1, 1.1), 100).epsilon(1e-5)
    assert data["views"]["server"] == {
        "epsilon": expected.epsilon,
        "bound": "pld",
        "order": expected.order,
        "epsilon_rdp": expected.rdp_epsilon,
        "epsilon_pld": expected.pld_epsilon,
    }
    assert set(data["views"]) == {"server", "participants", "release"}
    assert (data["epsilon_rdp"], data["epsilon_pld"]) == (expected.rdp_epsilon, expected.pld_epsilon)
    assert (data["delta"], data["adjacency"]) == (1e-5, "add_or_remove")
    assert "the view cannot see who takes part in a round" in data["assumptions"]
    assert "epsilon" not in data
    assert "view" not in data


def test_a_view_adds_its_epsilon_with_its_name():
    data = answer("gaussian --noise-multiplier 2 --view participants")
    assert data["view"] == "participants"
    assert data["epsilon"] == pytest.approx(gaussian_epsilon(2.0, 1e-5))
    assert not any("cannot see" in text for text in data["assumptions"])


def test_noise_multiplier_is_relative_to_the_clip():
    data = answer("gaussian --noise-multiplier 1 --adjacency replace_one")
    assert data["views"]["server"]["epsilon"] == pytest.approx(9.997, abs=5e-4)
    fixed = answer(
        "gaussian --noise-multiplier 4 --rounds 20 --population 100 --sample-size 5 --adjacency replace_one"
    )
    expected = Accountant("replace_one").compose(FixedSizeGaussian(100, 5, 2.0), 20).rdp_epsilon(1e-5)
    assert fixed["views"]["release"]["epsilon"] == pytest.approx(expected)
    assert fixed["epsilon_pld"] is None


def test_vote_uses_the_sensitivity_of_a_ballot():
    replaced = answer("vote --votes 5 --noise-std 12.5 --adjacency replace_one")
    assert replaced["views"]["server"]["epsilon"] == pytest.approx(0.9384698395, rel=1e-9)
    removed = answer("vote --votes 5 --noise-std 12.5")
    assert removed["views"]["server"]["epsilon"] == pytest.approx(gaussian_epsilon(12.5 / math.sqrt(5), 1e-5))
    full = answer("vote --votes 3 --candidates 3 --noise-std 1 --adjacency replace_one")
    assert full["views"]["server"]["epsilon"] == 0
    twice = answer("vote --votes 1 --noise-std 5 --rounds 4")
    assert twice["views"]["server"]["epsilon"] == pytest.approx(gaussian_epsilon(2.5, 1e-5))


def test_dpsgd_dc_amplifies_the_release_only():
    data = answer(MODEL_SPACE)
    composed = Accountant("add_or_remove").compose(Gaussian(2.0), 400).epsilon(1e-5)
    found = epsilons(data)
    assert found["server"] == found["participants"] == pytest.approx(composed.epsilon)
    assert found["release"] < 0.5 * found["server"]
    assert data["views"]["release"]["bound"] == "amplification_by_iteration"
    assert data["epsilon_rdp"]["release"] < data["epsilon_rdp"]["server"]
    assert any(text.startswith("release: only the final model") for text in data["assumptions"])
    longer = answer(MODEL_SPACE.replace("--rounds 400", "--rounds 4000"))
    assert epsilons(longer)["release"] == pytest.approx(found["release"], rel=1e-9)


def test_dpsgd_dc_from_training_settings_equals_model_space():
    derived = answer(TRAINING)
    direct = answer(
        "dpsgd-dc --rounds 200 --update-lipschitz 1.025 --sensitivity 0.0025 --noise-std 0.01 --diameter 0.04"
    )
    assert epsilons(derived)["server"] == pytest.approx(epsilons(direct)["server"], rel=1e-9)
    # The training form also knows a sure bound on how far a round moves, so it may only be smaller.
    assert epsilons(derived)["release"] <= epsilons(direct)["release"] * (1 + 1e-9)
    assert epsilons(derived)["release"] < epsilons(derived)["server"]


def test_dpsgd_dc_sampled():
    data = answer(f"{TRAINING} --sampling-rate 0.2 --num-clients 100")
    composed = Accountant("add_or_remove").compose(PoissonGaussian(0.2, 4.0), 200).epsilon(1e-5)
    assert epsilons(data)["server"] == pytest.approx(composed.epsilon, rel=1e-6)
    assert epsilons(data)["release"] <= epsilons(data)["server"] * (1 + 1e-9)


def test_dpsgd_dc_without_rounds_or_noise():
    assert epsilons(answer(MODEL_SPACE.replace("--rounds 400", "--rounds 0")))["release"] == 0
    assert epsilons(answer(MODEL_SPACE.replace("--noise-std 0.06", "--noise-std 0")))["release"] == "infinity"
    assert epsilons(answer(MODEL_SPACE.replace("--sensitivity 0.03", "--sensitivity 0")))["server"] == 0


def test_zeroth_order_views():
    data = answer(ZEROTH_ORDER)
    found = epsilons(data)
    # Sensitivity 1/50 against the noise each view sees.
    server = Accountant("add_or_remove").compose(Gaussian(50 * math.sqrt(0.5)), 5000).epsilon(1e-5).epsilon
    participants = (
        Accountant("add_or_remove").compose(Gaussian(50 * math.sqrt(0.75)), 5000).epsilon(1e-5).epsilon
    )
    assert found["server"] == pytest.approx(server)
    assert found["participants"] == pytest.approx(participants)
    assert found["release"] < found["participants"] < found["server"]
    assert data["views"]["release"]["bound"].startswith("zeroth_order")
    no_direction_noise = answer(f"{ZEROTH_ORDER} --direction-share 0")
    assert epsilons(no_direction_noise)["server"] == "infinity"
    rough = answer(ZEROTH_ORDER.replace(" --smoothness 1 --strong-convexity 0.5", ""))
    assert epsilons(rough)["release"] == epsilons(rough)["participants"]
    assert any("no smoothness constant" in text for text in rough["assumptions"])


def test_allocation_against_the_vector():
    data = answer("allocation --bins 100 --noise-multiplier 1 --delta 1e-5")
    assert epsilons(data)["server"] == pytest.approx(0.62094, abs=1e-3)
    assert data["epsilon_rdp"] > epsilons(data)["server"]
    assert any("cannot see" in text for text in data["assumptions"])
    assert any("no analysis" in note for note in data["notes"])


def test_allocation_variants():
    def epsilon(flags):
        return epsilons(answer(f"allocation --bins 20 --noise-multiplier 2 --epochs 4 {flags}"))["release"]

    one = epsilons(answer("allocation --bins 20 --noise-multiplier 1"))["release"]
    assert epsilon("--fixed") == pytest.approx(one, rel=1e-3)
    assert epsilon("--redraw") < epsilon("--fixed")
    assert epsilon("--matrix bsr --band 2") > epsilon("--fixed")


def test_pac_is_information_and_never_an_epsilon():
    data = answer("pac --mutual-information 0.01")
    assert data["mutual_information"] == 0.01
    assert data["mia_success"] == pytest.approx(0.57059, abs=5e-6)
    assert "epsilon" not in data
    assert "views" not in data
    assert "not differential privacy" in data["privacy"]
    assert answer("pac --mutual-information 0.33")["noise_std"] == pytest.approx(1.01538, abs=1e-5)
    shared = answer("pac --mutual-information 0.1 --rounds 10")
    assert shared["noise_std"] == pytest.approx(7.035738, abs=1e-5)
    assert answer("pac --mutual-information 0")["noise_std"] == "infinity"
    assert answer("pac --mutual-information 1")["mia_success"] == 1.0
    text = invoke("pac --mutual-information 0.01").stdout
    assert "0.57059" in text
    assert "not differential privacy" in text


def test_infinite_epsilon_is_a_word_in_json_and_text():
    data = answer("gaussian --noise-multiplier 0")
    assert data["views"]["server"]["epsilon"] == "infinity"
    assert np.isinf(float(data["views"]["server"]["epsilon"]))
    assert "infinity" in invoke("gaussian --noise-multiplier 0").stdout


def test_text_is_a_small_table_with_assumptions_under_it():
    lines = invoke(f"{MODEL_SPACE} --view release").stdout.splitlines()
    assert lines[0].startswith("dpsgd-dc: update-lipschitz 1.05")
    assert lines[1] == "adjacency add_or_remove, delta 1e-05"
    header, *rows = lines[3:7]
    assert header.split()[:3] == ["view", "epsilon", "bound"]
    assert [row.split()[0] for row in rows] == ["server", "participants", "release"]
    assert rows[2].split()[1] == "*"
    assert lines.index("Assumptions") > 6
    assert max(map(len, lines)) < 130


@pytest.mark.parametrize("name", ["gaussian", "vote", "dpsgd-dc", "zeroth-order", "allocation", "pac"])
def test_help_shows_an_example(name):
    result = invoke(f"{name} --help")
    assert result.exit_code == 0
    assert f"fedpriv eps {name}" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gaussian --noise-multiplier -1", ["--noise-multiplier", ">= 0", "-1.0"]),
        ("gaussian --noise-multiplier nan", ["--noise-multiplier", "finite", "nan"]),
        ("gaussian --noise-multiplier abc", ["--noise-multiplier", "abc", "float"]),
        ("gaussian", ["--noise-multiplier"]),
        ("gaussian --noise-multiplier 1 --delta 1", ["--delta", "[0, 1)", "1.0"]),
        ("gaussian --noise-multiplier 1 --delta nan", ["--delta", "[0, 1)", "nan"]),
        ("gaussian --noise-multiplier 1 --rounds -3", ["--rounds", ">= 0", "-3"]),
        ("gaussian --noise-multiplier 1 --sampling-rate 1.5", ["--sampling-rate", "[0, 1]", "1.5"]),
        ("gaussian --noise-multiplier 1 --adjacency zero", ["--adjacency", "add_or_remove", "zero"]),
        ("gaussian --noise-multiplier 1 --view all", ["--view", "server", "all"]),
        (
            "gaussian --noise-multiplier 1 --sampling-rate 0.1 --adjacency replace_one",
            ["--sampling-rate", "replace_one", "0.1"],
        ),
        (
            "gaussian --noise-multiplier 1 --population 10 --sample-size 3",
            ["--sample-size", "replace_one", "3"],
        ),
        ("gaussian --noise-multiplier 1 --population 10 --adjacency replace_one", ["--sample-size", "given"]),
        (
            "gaussian --noise-multiplier 1 --population 10 --sample-size 30 --adjacency replace_one",
            ["--sample-size", "10", "30"],
        ),
        ("gaussian --noise-multiplier 1 --typo 3", ["--typo"]),
        ("vote --noise-std -1", ["--noise-std", ">= 0", "-1.0"]),
        ("vote --noise-std 1 --votes 0", ["--votes", ">= 1", "0"]),
        ("vote --noise-std 1 --votes 5 --candidates 4", ["--votes", "4", "5"]),
        (MODEL_SPACE.replace("--diameter 0.4", "--diameter 0"), ["--diameter", "> 0", "0.0"]),
        (MODEL_SPACE.replace(" --diameter 0.4", ""), ["--diameter", "given"]),
        (f"{MODEL_SPACE} --radius 1", ["--radius", "left out", "1.0"]),
        (f"{TRAINING} --sampling-rate 0.2", ["--num-clients", "given"]),
        (f"{TRAINING} --local-steps 3", ["--local-learning-rate", "given"]),
        (
            f"{MODEL_SPACE} --sampling-rate 0.2 --adjacency replace_one",
            ["--sampling-rate", "replace_one", "0.2"],
        ),
        (ZEROTH_ORDER.replace("--directions 50", "--directions 101"), ["--directions", "100", "101"]),
        (f"{ZEROTH_ORDER} --direction-share 2", ["--direction-share", "[0, 1]", "2.0"]),
        ("pac --mutual-information -1", ["--mutual-information", ">= 0", "-1.0"]),
        ("pac --mutual-information 1 --rounds 0", ["--rounds", ">= 1", "0"]),
        ("allocation --noise-multiplier 1 --bins 0", ["--bins", ">= 1", "0"]),
        ("allocation --noise-multiplier 1 --bins 9 --matrix dense", ["--matrix", "bandmf", "dense"]),
        (
            "allocation --noise-multiplier 1 --bins 9 --adjacency replace_one",
            ["--adjacency", "add_or_remove"],
        ),
    ],
)
def test_bad_values_are_one_line_with_exit_code_two(text, parts):
    result = invoke(text)
    assert result.exit_code == 2
    assert result.stdout == ""
    [line] = result.stderr.strip().splitlines()
    for part in parts:
        assert part in line
