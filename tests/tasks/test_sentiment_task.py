"""The task sentiment through the interface of every other task, on a tiny model and made sentences."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_language import write_model, write_sentences

from fedpriv.settings import resolve_settings
from fedpriv.stages.facts import training_facts
from fedpriv.stages.run import initial_model
from fedpriv.tasks import get_task, language_features, task_of
from fedpriv.tasks.client_data import public_split
from fedpriv.tasks.federated import client_data, count_correct, train_locally, train_trial
from fedpriv.tasks.language import Backbone, load_backbone
from fedpriv.tasks.sentiment import FEATURE_NORM, PARTS, sentences_of, sentiment_task
from fedpriv.tasks.sources.cache import MissingDataset
from fedpriv.tasks.training import LocalTraining
from fedpriv.tasks.zeroth_order import client_objective


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sentiment")
    return {
        "language-model": str(write_model(folder / "model")),
        "language-data": str(write_sentences(folder / "reviews.csv", 160)),
    }


def settings_of(places: dict[str, str], **changes: Any) -> Any:
    config = {"task": "sentiment", "num-clients": 3, "partition": "iid", "stages": "train", **places}
    return resolve_settings(config | {key.replace("_", "-"): value for key, value in changes.items()})


@pytest.mark.parametrize("part", PARTS)
def test_every_part_trains_and_is_counted_like_any_model(places: dict[str, str], part: str) -> None:
    settings = settings_of(places, model=part)
    start = {name: array.numpy() for name, array in initial_model(settings, task_of(settings)).items()}
    local = LocalTraining(learning_rate=0.1, local_steps=2, batch_size=8)
    trained = train_locally(settings, 0, start, local, server_round=1)
    again = train_locally(settings, 0, start, local, server_round=1)
    assert list(trained) == list(start)
    assert all(np.array_equal(trained[name], again[name]) for name in start)
    assert any(not np.array_equal(trained[name], start[name]) for name in start)
    found = count_correct(settings, 0, trained)
    assert found.num_examples == len(client_data(settings, 0).validation) > 0
    losses = client_objective(settings, 0, trained).losses()
    assert losses.shape == (len(client_data(settings, 0).train),) and np.isfinite(losses).all()


def test_a_head_on_a_frozen_model_learns_and_its_smoothness_is_known(places: dict[str, str]) -> None:
    settings = settings_of(places, model="head", **{"train.learning-rate": 3.0, "train.local-steps": 50})
    task = task_of(settings)
    start = {name: array.numpy() for name, array in initial_model(settings, task).items()}
    assert all(not array.any() for array in start.values())
    trained = train_locally(
        settings, 0, start, LocalTraining(learning_rate=3.0, local_steps=400), server_round=1
    )
    model = task.build_model("head", 0)
    model.load_state_dict({name: torch.from_numpy(array) for name, array in trained.items()})
    data = client_data(settings, 0).train
    before = float(task.loss(task.build_model("head", 0), data).detach())
    assert float(task.loss(model, data).detach()) < 0.8 * before
    assert task.smoothness("head") == (FEATURE_NORM**2 + 1) / 2
    # rounding is bounded by the number of features, which the task knows from its model only
    facts = training_facts(settings, initial_model(settings, task))
    assert facts.linear_features == 17 and facts.smoothness_proved
    assert (
        training_facts(settings_of(places, model="readout"), initial_model(settings, task)).linear_features
        is None
    )


def test_a_vote_can_try_a_candidate(places: dict[str, str]) -> None:
    settings = settings_of(places, stages="tune,train", **{"tune.proxy-rounds": 1})
    assert np.isfinite(train_trial(settings, 0))


def test_features_have_public_centre_and_scale(places: dict[str, str]) -> None:
    """They do not move with the data: a sentence has the same features in any data set."""
    task = task_of(settings_of(places))
    alone = language_features.represent(
        load_backbone(places["language-model"]), sentences_of(places["language-data"])[0][5:6], "last-token"
    )
    np.testing.assert_array_equal(task.take([5]).x.numpy(), alone)
    public = language_features.represent(
        Backbone(places["language-model"]), list(language_features.PUBLIC_SENTENCES), "last-token"
    )
    assert np.abs(public.mean(axis=0)).max() < 1e-5
    assert np.sqrt((public**2).sum(axis=1).mean()) == pytest.approx(1.0, rel=1e-5)


def test_the_holdout_belongs_to_no_client_and_max_examples_shortens(places: dict[str, str]) -> None:
    settings = settings_of(places, max_examples=60)
    task = task_of(settings)
    assert len(task.labels) == 60
    held = len(public_split(task, 0.2, 0))
    parts = [client_data(settings, partition) for partition in range(3)]
    assert held == 12 and sum(len(data.train) + len(data.validation) for data in parts) == 48
    assert (
        task is task_of(settings) and task_of(settings_of(places, model="readout", max_examples=60)) is task
    )


def test_labels_are_known_without_the_model(places: dict[str, str], tmp_path: Path) -> None:
    task = sentiment_task("readout", "hub/no-such-model", places["language-data"])
    assert len(task.labels) == 160 and set(task.labels) == {0, 1}


def test_a_client_that_has_seen_its_sentences_loads_no_model(places: dict[str, str]) -> None:
    """Neither transformers nor the weights: both would take seconds in every process."""
    for part in ("readout", "head", "last-block", "last-block-all"):
        task = task_of(settings_of(places, model=part))
        task.take(range(20)), task.build_model(part, 0)
    code = (
        "import sys\nfrom fedpriv.tasks.sentiment import sentiment_task\n"
        "for part in ('readout', 'head', 'last-block', 'last-block-all'):\n"
        f"    task = sentiment_task(part, {places['language-model']!r}, {places['language-data']!r})\n"
        "    assert task.build_model(part, 0)(task.take(range(20)).x).shape == (20, 2)\n"
        "print([name for name in ('transformers', 'tokenizers', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "[]", done.stderr


def test_activations_are_kept_by_content(places: dict[str, str], tmp_path: Path) -> None:
    first, moved = Path(places["language-model"]), tmp_path / "moved"
    shutil.copytree(first, moved)
    assert Backbone(str(moved)).identity == Backbone(str(first)).identity
    write_model(moved, seed=5)
    assert Backbone(str(moved)).identity != Backbone(str(first)).identity


def test_what_was_interrupted_goes_on(
    places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    backbone = Backbone(places["language-model"])
    sentences = sentences_of(places["language-data"])[0]
    distinct = len(set(sentences))
    forward, calls = language_features.final_states, []

    def interrupted(model: Any, tokens: torch.Tensor) -> Any:
        calls.append(len(tokens))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return forward(model, tokens)

    monkeypatch.setattr(language_features, "final_states", interrupted)
    with pytest.raises(KeyboardInterrupt):
        language_features.represent(backbone, sentences, "attended")
    with sqlite3.connect(backbone.cache / "activations.sqlite") as store:
        assert store.execute("SELECT count(*) FROM rows").fetchone()[0] == calls[0]
    found = language_features.represent(backbone, sentences, "attended")
    assert sum(calls[2:]) == distinct - calls[0]  # nothing twice
    np.testing.assert_array_equal(found, language_features.represent(backbone, sentences, "attended"))
    assert sum(calls[2:]) == distinct - calls[0]


def test_unknown_names_say_what_is_allowed(
    places: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"model must be one of readout, head, .*, got 'logistic'"):
        sentiment_task("logistic")
    with pytest.raises(ValueError, match=r"model must be one of readout for task 'sentiment', got 'lora'"):
        sentiment_task("readout", *places.values()).build_model("lora", 0)
    monkeypatch.setenv("FEDPRIV_DATA", str(tmp_path))
    with pytest.raises(MissingDataset, match=r"fetch it with: fedpriv data fetch sentiment$"):
        _ = get_task("sentiment").labels
    with pytest.raises(MissingDataset, match=r"fetch it with: fedpriv data fetch sentiment$"):
        Backbone("smollm2")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        MissingDataset, match=r"language-model = '.*empty': should be '' \(SmolLM2, .*a folder"
    ):
        _ = Backbone(str(tmp_path / "empty")).model


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("sentence,label\n", "the file has no rows"),
        ("text,label\nfine,1\n", "row 1"),
        ("sentence,label\nfine,1\nflat,2\n", "row 2"),
        ("sentence,label\nfine,1\nflat,0\n,1\n", "row 3"),
    ],
)
def test_a_file_of_sentences_is_checked(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "mine.csv").write_text(text)
    with pytest.raises(ValueError, match=f"language-data = .*mine.csv.*sentence .* label .*see {where}"):
        sentences_of(str(tmp_path / "mine.csv"))


def test_names_on_the_hub_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offline as the hub's own variable says it; in a process of its own, since it is read at import."""
    code = (
        "from fedpriv.tasks.language import Backbone\nfrom fedpriv.tasks.sentiment import sentences_of\n"
        "for act in (lambda: Backbone('facebook/opt-1.3b').model, lambda: sentences_of('sst2')):\n"
        "    try:\n        act()\n"
        "    except FileNotFoundError as error:\n        print(error)\n"
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    model, data = done.stdout.strip().splitlines()
    assert "language-model = 'facebook/opt-1.3b': should be ''" in model and "HF_HUB_OFFLINE is set" in model
    assert "language-data = 'sst2': should be ''" in data and "CSV file" in data
