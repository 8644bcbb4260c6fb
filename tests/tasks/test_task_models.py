import numpy as np
import pytest
import torch
from torch.nn import functional

from fedpriv.tasks import get_task
from fedpriv.tasks.base import Split
from fedpriv.tasks.models import MODEL_BUILDERS, ClippedLogisticRegression, GroupNormCNN


def hessian_norm(task, model, split):
    """Largest eigenvalue of the Hessian of the mean loss in all parameters, by autograd in float64."""
    model = model.double()
    names = [name for name, _ in model.named_parameters()]
    shapes = [p.shape for p in model.parameters()]
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])

    def loss(vector):
        pieces = torch.split(vector, [s.numel() for s in shapes])
        state = {n: piece.view(s) for n, piece, s in zip(names, pieces, shapes, strict=True)}
        return functional.cross_entropy(
            torch.func.functional_call(model, state, (split.x.double(),)), split.y
        )

    return float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, flat)).max())


@pytest.mark.parametrize("name", ["digits", "breast-cancer"])
@pytest.mark.parametrize("scale", [0.0, 0.1, 3.0])
def test_the_hessian_never_exceeds_the_stated_smoothness(name, scale):
    task = get_task(name)
    generator = torch.Generator().manual_seed(5)
    model = task.build_model("logistic", 0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(scale * torch.randn(p.shape, generator=generator))
    split = task.take(np.arange(0, 60, 3))
    huge = Split(split.x * 1000, split.y)  # every row is clipped to the public norm
    for data in (split, huge):
        assert hessian_norm(task, model, data) <= task.smoothness("logistic")


def test_the_smoothness_is_reached_so_it_is_no_loose_number():
    # Two classes with equal probabilities and features at the bound: the top eigenvalue is 1/2 (B^2 + 1).
    task = get_task("breast-cancer")
    split = Split(torch.full((1, 30), 100.0), torch.tensor([0]))
    reached = hessian_norm(task, task.build_model("logistic", 0), split)
    assert 0.999 * task.smoothness("logistic") < reached <= task.smoothness("logistic")


def test_smoothness_is_unknown_for_networks_and_other_names_are_refused():
    task = get_task("digits")
    assert task.smoothness("mlp") is None and task.smoothness("cnn") is None
    assert task.smoothness("logistic") == (task.feature_norm**2 + 1) / 2 == 8.5
    with pytest.raises(
        ValueError, match="model must be one of logistic, mlp, cnn for task 'digits', got 'resnet'"
    ):
        task.smoothness("resnet")


def test_features_are_clipped_to_the_norm_and_short_ones_left_alone():
    model = ClippedLogisticRegression(input_shape=(2,), num_classes=2, feature_norm=5.0)
    rows = torch.tensor([[3.0, 0.0], [30.0, 40.0], [0.0, 0.0], [1e30, 1e30], [-6e18, 8e18]])
    clipped = model.clip_features(rows)
    assert torch.equal(clipped[0], rows[0]) and torch.equal(clipped[2], rows[2])
    assert clipped[1].tolist() == pytest.approx([3.0, 4.0], rel=2e-4)
    exact = clipped.double().square().sum(1).sqrt()
    assert (exact[torch.isfinite(exact)] <= 5.0).all()


def test_random_features_never_exceed_the_norm_in_exact_arithmetic():
    model = ClippedLogisticRegression(input_shape=(300,), num_classes=2, feature_norm=1.0)
    rows = torch.randn(2000, 300, generator=torch.Generator().manual_seed(1)) * 10
    norms = model.clip_features(rows).double().norm(dim=1)
    assert norms.max() <= 1.0 and norms.min() > 0.999


def test_closed_form_gradients_equal_autograd():
    task = get_task("digits")
    model = task.build_model("logistic", 0)
    with torch.no_grad():
        model.linear.weight.normal_(generator=torch.Generator().manual_seed(2))
    split = task.take(range(25))
    targets = functional.one_hot(split.y, 10).float()
    closed = model.gradients(model.clip_features(split.x), targets)
    automatic = torch.autograd.grad(task.loss(model, split), list(model.parameters()))
    for mine, theirs in zip(closed, automatic, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_logistic_regression_starts_at_zero_and_holds_weight_and_bias_only():
    state = get_task("digits").build_model("logistic", 3).state_dict()
    assert sorted(state) == ["linear.bias", "linear.weight"]
    assert all(not value.any() for value in state.values())


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_initial_weights_depend_on_the_seed_only(name):
    task = get_task("digits")
    torch.manual_seed(0)
    first = task.build_model(name, 1).state_dict()
    torch.manual_seed(99)
    same, other = task.build_model(name, 1).state_dict(), task.build_model(name, 2).state_dict()
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_building_a_model_leaves_the_global_generator_alone():
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    get_task("digits").build_model("cnn", 1)
    assert torch.equal(torch.rand(3), expected)


def test_the_default_model_has_two_names():
    task = get_task("cifar10")
    assert isinstance(task.build_model("", 0), GroupNormCNN) and isinstance(
        task.build_model("default", 0), GroupNormCNN
    )


@pytest.mark.parametrize("name", ["digits", "fashion-mnist", "mnist", "cifar10", "adult", "breast-cancer"])
def test_every_model_maps_a_batch_to_logits_and_no_example_touches_another(name):
    task = get_task(name)
    x = torch.rand(5, *task.input_shape, generator=torch.Generator().manual_seed(0))
    for model_name in task.models:
        model = task.build_model(model_name, 0).train()
        together = model(x)
        assert together.shape == (5, task.num_classes)
        apart = torch.cat([model(row[None]) for row in x])
        assert torch.allclose(together, apart, atol=1e-5)


def test_builders_refuse_sizes_that_cannot_work():
    with pytest.raises(ValueError, match="width must be a positive multiple of 4, got 6"):
        GroupNormCNN(input_shape=(1, 8, 8), num_classes=2, width=6)
    with pytest.raises(ValueError, match="2\\*\\*blocks at most 8, got 4"):
        GroupNormCNN(input_shape=(1, 8, 8), num_classes=2, blocks=4)
    for norm in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="feature_norm must be"):
            MODEL_BUILDERS["logistic"](input_shape=(2,), num_classes=2, feature_norm=norm)
