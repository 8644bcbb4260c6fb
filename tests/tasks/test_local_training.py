import copy
import math

import pytest
import torch
from made_tasks import make_task
from torch.nn import functional

from fedpriv.tasks import get_task
from fedpriv.tasks.base import Split
from fedpriv.tasks.training import LocalTraining, batch_order, evaluate, train

EMPTY = Split(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))


def trained(model, split, local, seed=0):
    model = copy.deepcopy(model)
    train(model, split, local, seed)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize("model_name", ["logistic", "mlp"])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.5, "weight_decay": 0.01}]
)
@pytest.mark.parametrize("batch_size", [None, 7])
def test_is_torch_sgd(model_name, options, batch_size):
    task = make_task()
    split, model = task.load(), task.build_model(model_name, 1)
    local = LocalTraining(0.05, local_steps=25, batch_size=batch_size, **options)
    reference = copy.deepcopy(model)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, **options)
    for rows in batch_order(len(split), local, 11):
        rows = slice(None) if rows is None else rows
        optimizer.zero_grad()
        functional.cross_entropy(reference(split.x[rows]), split.y[rows]).backward()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in reference.parameters()])
    assert torch.allclose(trained(model, split, local, 11), expected, atol=1e-5)


def test_order_comes_from_the_seed_and_from_nothing_else():
    task = get_task("digits")
    split, model = task.take(range(40)), task.build_model("cnn", 0)
    local = LocalTraining(0.1, local_steps=6, batch_size=8)
    torch.manual_seed(0)
    first = trained(model, split, local, 5)
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    assert torch.equal(trained(model, split, local, 5), first)
    assert torch.equal(torch.rand(2), expected)  # and the global generator was not touched
    assert not torch.equal(trained(model, split, local, 6), first)


def test_full_batches_do_not_depend_on_the_seed():
    task = make_task()
    for batch_size in (None, 60, 1000):
        local = LocalTraining(0.1, local_steps=5, batch_size=batch_size)
        model, split = task.build_model("mlp", 0), task.load()
        assert torch.equal(trained(model, split, local, 1), trained(model, split, local, 2))


@pytest.mark.parametrize(("steps", "sizes"), [(1, [4]), (3, [4, 4, 2]), (5, [4, 4, 2, 4, 4])])
def test_batches_are_passes_over_all_examples(steps, sizes):
    batches = list(batch_order(10, LocalTraining(0.1, local_steps=steps, batch_size=4), 3))
    assert [len(batch) for batch in batches] == sizes
    first_pass = torch.cat(batches[:3]).tolist()
    assert len(set(first_pass)) == len(first_pass)


def test_seed_of_63_bits_and_more_is_accepted():
    for seed in (2**63 - 1, 2**64 + 5, 0):
        assert len(list(batch_order(10, LocalTraining(0.1, local_steps=2, batch_size=4), seed))) == 2


def test_an_empty_split_changes_nothing():
    model = make_task().build_model("mlp", 0)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.equal(trained(model, EMPTY, LocalTraining(0.1, local_steps=3, batch_size=2)), before)


def test_frozen_parameters_stay():
    model, split = make_task().build_model("mlp", 0), make_task().load()
    model.hidden.weight.requires_grad_(False)
    frozen, moving = model.hidden.weight.clone(), model.output.weight.detach().clone()
    train(model, split, LocalTraining(0.1, local_steps=3), 0)
    assert torch.equal(model.hidden.weight, frozen) and not torch.equal(model.output.weight, moving)
    logistic = make_task().build_model("logistic", 0)
    logistic.linear.weight.requires_grad_(False)
    train(logistic, split, LocalTraining(0.1, local_steps=3), 0)
    assert not logistic.linear.weight.any() and logistic.linear.bias.any()


def test_mode_is_put_back():
    model, split = make_task().build_model("mlp", 0), make_task().load()
    for mode in (True, False):
        model.train(mode)
        train(model, split, LocalTraining(0.1), 0)
        assert model.training is mode
        evaluate(model, split)
        assert model.training is mode


def test_divergence_ends_in_non_finite_numbers_and_not_in_an_exception():
    task = make_task()
    split = Split(task.load().x * 1e20, task.load().y)
    model = task.build_model("mlp", 0)
    train(model, split, LocalTraining(1e30, local_steps=5), 0)
    assert math.isnan(evaluate(model, split).loss)


def test_evaluation_by_hand_and_in_chunks():
    model = make_task(num_classes=2).build_model("logistic", 0)
    with torch.no_grad():
        model.linear.bias.copy_(torch.tensor([0.0, math.log(3.0)]))
    split = Split(torch.zeros(5, 4), torch.tensor([0, 1, 1, 1, 0]))
    for chunk in (1, 2, 5, 100):
        result = evaluate(model, split, chunk=chunk)
        assert result.accuracy == 0.6 and result.num_examples == 5
        assert result.loss == pytest.approx((3 * math.log(4 / 3) + 2 * math.log(4)) / 5, rel=1e-6)


def test_evaluation_of_nothing():
    result = evaluate(make_task().build_model("logistic", 0), EMPTY)
    assert result.num_examples == 0 and math.isnan(result.loss) and math.isnan(result.accuracy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be a finite number > 0, got 0.0"),
        ({"learning_rate": float("inf")}, "learning_rate must be a finite number > 0, got inf"),
        ({"learning_rate": 0.1, "local_steps": 0}, "local_steps must be an integer >= 1, got 0"),
        ({"learning_rate": 0.1, "momentum": 1.0}, "momentum must be a number in [0, 1), got 1.0"),
        ({"learning_rate": 0.1, "batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"learning_rate": 0.1, "weight_decay": -1.0}, "weight_decay must be a finite number >= 0, got -1.0"),
    ],
)
def test_settings_out_of_range(arguments, message):
    with pytest.raises(ValueError) as caught:
        LocalTraining(**arguments)
    assert message in str(caught.value)
