import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits

from fedpriv.tasks import TASK_NAMES, get_task, registry
from fedpriv.tasks.training import LocalTraining, evaluate, train


def test_names():
    assert [get_task(name).name for name in TASK_NAMES] == list(TASK_NAMES)
    assert TASK_NAMES[0] == "digits"
    assert get_task("digits") is get_task("digits")


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"task must be one of digits, .*sentiment, got 'imagenet'"):
        get_task("imagenet")


@pytest.mark.parametrize("name", TASK_NAMES)
def test_descriptions_are_complete(name):
    task = get_task(name)
    assert task.default_model in task.models
    assert len(task.class_names) == task.num_classes


def test_digits_are_those_of_scikit_learn():
    split, bunch = get_task("digits").load(), load_digits()
    assert np.array_equal(split.x.numpy().reshape(-1, 64) * 16, bunch.data)
    assert np.array_equal(split.y.numpy(), bunch.target)


def test_breast_cancer_is_that_of_scikit_learn_up_to_public_constants():
    split, bunch = get_task("breast-cancer").load(), load_breast_cancer()
    assert np.array_equal(split.y.numpy(), bunch.target)
    for column in range(30):  # an affine map of each column
        assert np.corrcoef(split.x[:, column].numpy(), bunch.data[:, column])[0, 1] > 1 - 1e-5
    # The constants cover the data: a value out of range would mean that they describe something else.
    assert split.x.min() >= -1.5 and split.x.max() <= 4.5


@pytest.mark.parametrize("reader", ["_read_digits", "_read_breast_cancer"])
def test_scikit_learn_itself_is_asked_when_its_files_lie_elsewhere(monkeypatch, reader):
    direct = getattr(registry, reader)()
    monkeypatch.setattr(registry, "_bundled_table", lambda file_name: None)
    imported = getattr(registry, reader)()
    assert np.array_equal(direct.x, imported.x) and np.array_equal(direct.y, imported.y)


@pytest.mark.parametrize(
    ("name", "model_name", "local", "least"),
    [
        ("digits", "logistic", LocalTraining(0.3, local_steps=400, momentum=0.9, batch_size=128), 0.95),
        ("digits", "mlp", LocalTraining(0.05, local_steps=400, momentum=0.9, batch_size=128), 0.95),
        ("digits", "cnn", LocalTraining(0.05, local_steps=150, momentum=0.9, batch_size=64), 0.95),
        ("breast-cancer", "logistic", LocalTraining(0.1, local_steps=200, momentum=0.9), 0.95),
        ("breast-cancer", "mlp", LocalTraining(0.05, local_steps=200, momentum=0.9), 0.95),
    ],
)
def test_models_learn_when_the_data_is_in_one_place(name, model_name, local, least):
    task = get_task(name)
    pool, holdout = task.public_holdout(0.2, 7)
    model = task.build_model(model_name, 0)
    train(model, task.take(pool), local, 0)
    assert evaluate(model, task.take(holdout)).accuracy >= least
