import numpy as np
import pytest
import torch
from made_tasks import make_task

from fedpriv.tasks.base import Examples, Split, Task


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.2, 0.5, 0.9])
def test_holdout_and_pool_are_all_examples_once(fraction):
    task = make_task(200)
    pool, holdout = task.public_holdout(fraction, 3)
    assert np.array_equal(np.sort(np.concatenate([pool, holdout])), np.arange(200))
    assert len(holdout) == round(fraction * 200)


def test_holdout_is_stratified_up_to_rounding():
    task = make_task(500, num_classes=4)
    _, holdout = task.public_holdout(0.2, 3)
    found = np.bincount(task.labels[holdout], minlength=4)
    assert np.all(np.abs(found - 0.2 * np.bincount(task.labels, minlength=4)) < 1)


def test_holdout_depends_on_the_seed_and_on_no_global_state():
    task = make_task(200)
    np.random.seed(0)  # noqa: NPY002 - the global generator is what must not matter
    first = task.public_holdout(0.2, 3)[1]
    np.random.seed(1)  # noqa: NPY002
    assert np.array_equal(first, task.public_holdout(0.2, 3)[1])
    assert not np.array_equal(first, task.public_holdout(0.2, 4)[1])


def test_official_test_part_is_the_holdout_and_the_training_part_the_pool():
    task = make_task(200, num_train=150)
    pool, holdout = task.public_holdout(0.1, 3)
    assert np.array_equal(pool, np.arange(150))
    assert len(holdout) == 20 and holdout.min() >= 150 and len(np.unique(holdout)) == 20
    _, everything = task.public_holdout(0.9, 3)
    assert np.array_equal(everything, np.arange(150, 200))


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 2, float("nan"), "0.2", True])
def test_holdout_refuses_fractions_out_of_range(fraction):
    with pytest.raises(ValueError, match="holdout_fraction must be a number in \\[0, 1\\), got"):
        make_task().public_holdout(fraction, 0)


def test_take_scales_by_public_constants_only():
    raw = np.array([[[0, 255]], [[51, 102]]], dtype=np.uint8)
    task = Task(
        name="t",
        title="t",
        num_classes=2,
        input_shape=(1, 2),
        feature_norm=1.0,
        models=("logistic",),
        default_model="logistic",
        read=lambda: Examples(raw, np.array([1, 0]), None, "made"),
        offset=51.0,
        scale=0.5,
    )
    split = task.take([1, 0, 1])
    assert split.x.dtype == torch.float32 and split.y.dtype == torch.int64
    assert split.x[:, 0].tolist() == [[0.0, 25.5], [-25.5, 102.0], [0.0, 25.5]]
    assert split.y.tolist() == [0, 1, 0]
    assert len(task.load()) == 2 and task.load() is task.load()
    assert len(task.take([])) == 0 and task.take([]).x.shape == (0, 1, 2)


def test_examples_are_read_once():
    reads = []

    def read():
        reads.append(1)
        return Examples(np.zeros((3, 4), np.float32), np.zeros(3, np.int64), None, "made")

    task = Task(
        name="t",
        title="t",
        num_classes=2,
        input_shape=(4,),
        feature_norm=1.0,
        models=("logistic",),
        default_model="logistic",
        read=read,
    )
    task.load(), task.labels, task.public_holdout(0.1, 0)
    assert len(reads) == 1


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 5), np.float32), np.zeros(3, np.int64), "shape"),
        (np.zeros((3, 4), np.float32), np.array([0, 1, 2]), "labels must lie in 0 to 1"),
        (np.zeros((3, 4), np.float32), np.array([0, -1, 1]), "labels must lie in 0 to 1"),
    ],
)
def test_wrong_arrays_are_refused(x, y, message):
    task = Task(
        name="t",
        title="t",
        num_classes=2,
        input_shape=(4,),
        feature_norm=1.0,
        models=("logistic",),
        default_model="logistic",
        read=lambda: Examples(x, y, None, "made"),
    )
    with pytest.raises(ValueError, match=message):
        task.load()


def test_loss_is_the_mean_and_is_refused_on_nothing():
    task = make_task()
    model = task.build_model("logistic", 0)
    assert task.loss(model, task.load()).item() == pytest.approx(np.log(3), rel=1e-6)
    with pytest.raises(ValueError, match="empty split"):
        task.loss(model, Split(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)))
