"""The fine-tuning benchmark's loop: every method learns what it should and spends what it says."""

import numpy as np
import pytest
import torch

from benchmarks.finetune.data import Sentences
from benchmarks.finetune.methods import METHODS, Method, dp_plan, noised_means, run
from fedpriv.accounting import Accountant
from fedpriv.tasks.base import Examples, Split, Task

N, D = 120, 6


@pytest.fixture(scope="module")
def data() -> Sentences:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, size=N)
    x = (rng.normal(size=(N, D)) + 1.5 * (2 * y[:, None] - 1)).astype(np.float32) / 3
    task = Task(
        name="made",
        title="made",
        num_classes=2,
        input_shape=(D,),
        feature_norm=3.0,
        models=("head",),
        default_model="head",
        read=lambda: Examples(x, y, None, "made"),
    )
    split = Split(torch.from_numpy(x), torch.from_numpy(y))
    return Sentences(task, "head", split, split, split)


@pytest.mark.parametrize(
    "method",
    [
        Method("mezo", "mezo", rates=(3.0,), batch=32),
        Method("sign", "sign", rates=(0.3,)),
        Method("zpl", "zpl", rates=(0.3,)),
        Method("mi", "mi", 0.5, rates=(0.3,)),
        Method("dp", "dp", 20.0, directions=2, rates=(3.0,)),
    ],
)
def test_every_kind_learns_and_spends_no_more_than_it_says(method: Method, data: Sentences) -> None:
    found = run(method, data, method.rates[0], 60, 8, 0, 1.0)
    assert found.test > 0.8
    assert found.spent <= method.budget * (1 + 1e-9)
    assert len(found.unanimous) == (60 if method.kind in ("zpl", "mi") else 0)


def test_the_noise_of_a_dp_row_is_that_of_its_budget(data: Sentences) -> None:
    method = Method("dp", "dp", 1.0, directions=3)
    plan = dp_plan(method, N, 2 * D + 2, 20, 0.5)
    accountant = Accountant("add_or_remove").compose(plan.events()["participants"], plan.releases)
    assert accountant.epsilon(1e-5).epsilon == pytest.approx(1.0, rel=1e-3)
    noise = np.concatenate([noised_means(np.zeros((3, N)), plan) for _ in range(400)])
    assert noise.std() == pytest.approx(plan.noise_std * 3**0.5, rel=0.15)


def test_methods_have_equal_effort() -> None:
    assert len({len(method.rates) for method in METHODS}) == 1
    assert len({method.name for method in METHODS}) == len(METHODS) == 15
