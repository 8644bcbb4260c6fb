"""Run configuration: every error names key, value and what is allowed; what is resolved can be read back."""

import json
import tomllib
import typing

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedpriv.settings import RunSettings, SettingsError, TrainSettings, TuneSettings, resolve_settings
from fedpriv.settings.resolve import TABLES, default_run_config, known_keys
from fedpriv.settings.table import settings_table
from fedpriv.settings.train import TUNABLE
from fedpriv.settings.tune import parse_grid


def flat(text: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in tomllib.loads(text).items():
        found |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return found


# -- values ----------------------------------------------------------------------------------------------------

BAD_VALUES = [
    ("num-clients", 0, "greater than or equal to 1"),
    ("num-clients", 2.5, "integer"),
    ("num-clients", "50", "integer"),
    ("num-clients", True, "integer"),
    ("alpha", 0.0, "greater than 0"),
    ("alpha", float("inf"), "finite"),
    ("alpha", float("nan"), "greater than 0|finite"),
    ("alpha", "0.5", "number"),
    ("partition", "pathological", "'iid' or 'dirichlet'"),
    ("holdout-fraction", 1.0, "less than 1"),
    ("target-epsilon", 0.0, "greater than 0"),
    ("target-epsilon", -1, "greater than 0"),
    ("delta", 1.0, "less than 1"),
    ("adjacency", "zero-out", "'add_or_remove' or 'replace_one'"),
    ("budget-view", "client", "'server', 'participants' or 'release'"),
    ("tune-share", 1.0, "less than 1"),
    ("secure-sum", "off", "'protocol' or 'simulated'"),
    ("noise", "local", "'distributed' or 'central'"),
    ("sampling", "poisson", "'full', 'self' or 'server'"),
    ("sampling-rate", 0.0, "greater than 0"),
    ("sampling-rate", 1.01, "less than or equal to 1"),
    ("timeout", 0, "greater than 0"),
    ("seeded-noise", 1, "boolean"),
    ("seeded-noise", "true", "boolean"),
    ("evaluate", "yes", "'public', 'private', 'clear' or 'none'"),
    ("stages", "", "at least one stage"),
    ("stages", "train,train", "at most once"),
    ("stages", 3, "string"),
    ("train.rounds", 0, "greater than or equal to 1"),
    ("train.momentum", 1.0, "less than 1"),
    ("train.clip-norm", -1.0, "greater than 0"),
    ("train.server-optimizer", "lamb", "'sgd' or 'adam'"),
    ("train.radius", -0.5, "greater than or equal to 0"),
    ("train.idle-work", "sleep", "'train' or 'skip'"),
    ("tune.votes", -1, "greater than or equal to 0"),
    ("tune.proxy-rounds", 0, "greater than or equal to 1"),
    ("tune.grid", "{", "JSON"),
]


@pytest.mark.parametrize(("key", "value", "allowed"), BAD_VALUES)
def test_errors_name_key_value_and_what_is_allowed(key: str, value: object, allowed: str) -> None:
    with pytest.raises(SettingsError, match=allowed) as refused:
        resolve_settings({key: value})
    assert f"{key} = {value!r}: should be" in str(refused.value)


def test_all_bad_values_of_a_table_are_named_at_once() -> None:
    with pytest.raises(SettingsError) as refused:
        resolve_settings({"num-clients": 0, "alpha": -1.0})
    assert "num-clients = 0" in str(refused.value)
    assert "alpha = -1.0" in str(refused.value)


def test_unknown_keys_are_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(SettingsError, match=r"'train\.round'; did you mean 'train\.rounds'\?"):
        resolve_settings({"train.round": 3})
    with pytest.raises(SettingsError, match=r"unknown key 'zzz'$"):
        resolve_settings({"zzz": 3})


def test_an_integer_is_a_number_and_nothing_else_is_converted() -> None:
    settings = resolve_settings({"alpha": 1, "train.learning-rate": 2})
    assert (settings.run.alpha, settings.train.learning_rate) == (1.0, 2.0)
    assert isinstance(settings.run.alpha, float)


BAD_COMBINATIONS = [
    ({"sampling": "self", "sampling-rate": 0.5, "adjacency": "replace_one"}, "adjacency"),
    ({"sampling": "full", "sampling-rate": 0.5}, "sampling-rate = 0.5"),
    ({"noise": "central"}, "budget-view"),
    ({"seeded-noise": True}, "secure-sum"),
    ({"min-survivors": 51}, "min-survivors = 51.*50"),
    ({"tune.votes": 13}, "tune.votes = 13.*12"),
    ({"stages": "train,tune"}, "stages"),
]


@pytest.mark.parametrize(("values", "words"), BAD_COMBINATIONS)
def test_values_that_do_not_go_together_are_refused(values: dict, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        resolve_settings(values)


@pytest.mark.parametrize(
    "values",
    [
        {"sampling": "self", "sampling-rate": 0.5},
        {"sampling": "server", "sampling-rate": 0.5, "adjacency": "replace_one"},
        {"noise": "central", "budget-view": "release"},
        {"seeded-noise": True, "secure-sum": "simulated"},
        {"min-survivors": 50},
        {"tune.votes": 12},
        {"stages": "train"},
        {"stages": "train", "tune.votes": 99},
    ],
)
def test_their_neighbours_are_accepted(values: dict) -> None:
    resolved = resolve_settings(values).to_run_config()
    assert {key: resolved[key] for key in values} == values


def test_unset_choices_are_resolved() -> None:
    run = resolve_settings({}).run
    assert run.resolved_delta == pytest.approx(50**-1.5)
    assert run.resolved_max_epsilon == run.target_epsilon
    assert run.stage_names == ("tune", "train")
    run = resolve_settings({"delta": 1e-6, "max-epsilon": 3.0, "stages": " train , "}).run
    assert (run.resolved_delta, run.resolved_max_epsilon, run.stage_names) == (1e-6, 3.0, ("train",))
    assert resolve_settings({}).tune.resolved_votes == 3
    assert resolve_settings({"tune.votes": 5}).tune.resolved_votes == 5
    assert TuneSettings(grid='[{"momentum": 0.5}]').resolved_votes == 1


# -- what is written -------------------------------------------------------------------------------------------


def test_resolved_toml_reads_back_as_the_same_settings() -> None:
    settings = resolve_settings({"alpha": 1e-7, "train.rounds": 3, "seeded-noise": False})
    assert flat(settings.to_toml()) == settings.to_run_config()
    assert resolve_settings(flat(settings.to_toml())) == settings
    assert set(flat(settings.to_toml())) == set(known_keys())


@hypothesis_settings(max_examples=150, deadline=None)
@given(
    st.text(alphabet=st.characters(exclude_categories=["Cs"])),
    st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False),
    st.integers(0, 2**62),
)
def test_any_text_and_number_survives_the_toml(text: str, number: float, integer: int) -> None:
    settings = resolve_settings({"account": text, "alpha": number, "seed": integer})
    assert resolve_settings(flat(settings.to_toml())) == settings


def test_a_grid_over_several_lines_survives_the_toml() -> None:
    grid = '{\n  "learning-rate": [0.1,\t0.3]\n}\n'
    settings = resolve_settings({"tune.grid": grid})
    assert flat(settings.to_toml())["tune.grid"] == grid


def test_defaults_are_those_of_the_models() -> None:
    defaults = default_run_config()
    assert list(defaults) == known_keys()
    for table in TABLES:
        for key, field in table.keys().items():
            assert defaults[key] == table.model_fields[field].default
            assert type(defaults[key]) in (int, float, bool, str)  # what Flower's run config can hold


def test_the_table_has_a_row_for_every_key() -> None:
    rows = [line for line in settings_table().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == known_keys()
    for row, key in zip(rows, known_keys(), strict=True):
        cells = row.replace("\\|", "").strip("|").split("|")
        assert len(cells) == 4, key
        assert all(cell.strip() for cell in cells), key
    table = settings_table()
    assert "| `sampling-rate` | `1.0` | number > 0 ≤ 1 |" in table
    assert '| `noise` | `"distributed"` | `distributed`, `central` |' in table
    assert "| `seeded-noise` | `false` | true, false |" in table


# -- candidates ------------------------------------------------------------------------------------------------


def test_a_grid_is_a_product_or_a_list() -> None:
    assert parse_grid('{"learning-rate": [0.1, 1], "local-steps": [2, 3]}') == [
        {"learning-rate": 0.1, "local-steps": 2},
        {"learning-rate": 0.1, "local-steps": 3},
        {"learning-rate": 1, "local-steps": 2},
        {"learning-rate": 1, "local-steps": 3},
    ]
    assert parse_grid('{"learning-rate": 0.1}') == [{"learning-rate": 0.1}]
    listed = [{"learning-rate": 0.1}, {"momentum": 0.0, "batch-size": 8}, {}]
    assert parse_grid(json.dumps(listed)) == listed
    assert len(resolve_settings({}).tune.candidates) >= 12


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ("", "JSON"),
        ("[0.1]", "list of objects"),
        ('"text"', "object of lists"),
        ("[]", "at least one candidate"),
        ("{}", "at least one candidate"),
        ('{"learning-rate": []}', "at least one candidate"),
        ('{"rounds": [3]}', "'rounds' is not one of them"),
        ('{"noise-multiplier": [1.0]}', "'noise-multiplier' is not one of them"),
        ('{"learning-rate": [0]}', "positive float values; got 0"),
        ('{"learning-rate": [true]}', "positive float values; got True"),
        ('{"learning-rate": [NaN]}', "positive float values; got nan"),
        ('{"learning-rate": [Infinity]}', "positive float values; got inf"),
        ('{"learning-rate": [1e999]}', "positive float values; got inf"),
        ('{"learning-rate": ["0.1"]}', "positive float values"),
        ('{"local-steps": [2.0]}', "positive int values; got 2.0"),
        ('{"batch-size": [0]}', "positive int values; got 0"),
        ('{"momentum": [1.0]}', r"momentum in \[0, 1\)"),
        ('{"momentum": [NaN]}', r"momentum in \[0, 1\)"),
        ('{"clip-norm": [-1]}', "positive float"),
        ('[{"momentum": 0.5}, {"momentum": 0.5}]', "twice"),
        ('{"learning-rate": [1, 1.0]}', "twice"),
    ],
)
def test_bad_grids_are_refused(grid: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_grid(grid)
    if grid:
        with pytest.raises(SettingsError, match=r"tune\.grid"):
            resolve_settings({"tune.grid": grid})


def test_every_tunable_value_is_a_valid_setting() -> None:
    values = {"learning-rate": 2, "momentum": 0.5, "local-steps": 7, "batch-size": 3, "clip-norm": 0.25}
    assert set(values) == set(TUNABLE)
    settings = resolve_settings({"train.rounds": 3}).with_candidate(values)
    assert settings.train == TrainSettings(
        rounds=3, learning_rate=2.0, momentum=0.5, local_steps=7, batch_size=3, clip_norm=0.25
    )
    assert settings.run == resolve_settings({}).run
    assert resolve_settings({}).with_candidate({}) == resolve_settings({})


def test_all_annotations_are_of_kinds_that_the_table_can_print() -> None:
    for table in TABLES:
        for field in table.model_fields.values():
            literal = typing.get_origin(field.annotation) is typing.Literal
            assert literal or field.annotation in (int, float, bool, str)
            assert field.description
            assert field.description.endswith(".")


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        RunSettings().num_clients = 3  # type: ignore[misc]
