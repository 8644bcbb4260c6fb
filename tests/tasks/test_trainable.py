import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from fedpriv.tasks import check_trainable, get_task
from fedpriv.tasks.trainable import UntrainableState


@pytest.mark.parametrize("name", ["digits", "cifar10", "adult", "breast-cancer"])
def test_every_built_in_model_passes_in_every_form(name):
    task = get_task(name)
    for model_name in task.models:
        model = task.build_model(model_name, 0)
        check_trainable(model)
        check_trainable(model.state_dict())
        check_trainable({key: value.numpy() for key, value in model.state_dict().items()})


def test_refuses_a_batchnorm_layer_and_says_what_to_use():
    with pytest.raises(UntrainableState, match=r"BatchNorm layers '1' .*use GroupNorm"):
        check_trainable(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)))


def test_refuses_batchnorm_without_running_statistics_too():
    with pytest.raises(UntrainableState, match=r"use GroupNorm"):
        check_trainable(nn.BatchNorm1d(4, track_running_stats=False))


@pytest.mark.parametrize("name", ["bn.running_mean", "running_var", "a.b.num_batches_tracked"])
def test_refuses_running_statistics_by_name_in_arrays(name):
    with pytest.raises(UntrainableState, match=rf"'{name}' holds running statistics .*use GroupNorm"):
        check_trainable({"w": np.zeros(3, np.float32), name: np.zeros(3, np.float32)})


def test_refuses_running_statistics_of_other_layers():
    with pytest.raises(UntrainableState, match=r"running_mean"):
        check_trainable(nn.InstanceNorm1d(4, track_running_stats=True))


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, np.complex64, "U3"])
def test_refuses_what_is_not_floating_point(dtype):
    with pytest.raises(UntrainableState, match=r"'steps' is not of a floating-point type"):
        check_trainable({"steps": np.zeros((), dtype=dtype)})


def test_refuses_integer_buffers_of_a_module_unless_they_are_not_in_its_state():
    module = nn.Linear(2, 2)
    module.register_buffer("position", torch.arange(3), persistent=False)
    check_trainable(module)
    module.register_buffer("kept", torch.arange(3))
    with pytest.raises(UntrainableState, match=r"'kept' is not of a floating-point type.*persistent=False"):
        check_trainable(module)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_accepts_every_floating_type(dtype):
    check_trainable({"w": torch.zeros(2, dtype=dtype)})


def test_long_lists_are_cut():
    with pytest.raises(UntrainableState, match=r"and 2 more"):
        check_trainable({f"n{i}": np.zeros(1, np.int64) for i in range(5)})


def test_refuses_other_arguments():
    with pytest.raises(TypeError, match=r"expected a module or a mapping"):
        check_trainable([np.zeros(3)])


def test_importing_tasks_and_checking_arrays_needs_neither_torch_nor_flower():
    code = (
        "import sys, numpy, fedpriv.tasks as t; t.check_trainable({'w': numpy.zeros(2)}); t.derive_seed(1);"
        "print([m for m in ('torch', 'flwr', 'sklearn', 'pandas', 'datasets', 'scipy') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
