"""Named arrays to one vector and back, and which arrays are refused."""

import numpy as np
import pytest

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import ArrayLayout, check_private_arrays


def test_round_trip_keeps_names_shapes_and_dtypes() -> None:
    arrays = {
        "z.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a.bias": np.array([7.0]),
        "t": np.array(8.0, dtype=np.float16),
        "empty": np.zeros((0, 3)),
    }
    layout = ArrayLayout.of(arrays)
    assert layout.size == 8
    assert layout.flatten(arrays).tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
    back = layout.unflatten(layout.flatten(arrays))
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        assert np.array_equal(back[name], array)


def test_flatten_follows_the_layout_not_the_order_that_is_given() -> None:
    layout = ArrayLayout.of({"a": np.zeros(1), "b": np.zeros(2)})
    assert layout.flatten({"b": np.array([2.0, 3.0]), "a": np.array([1.0])}).tolist() == [1, 2, 3]


def test_other_names_and_shapes_are_refused_by_name() -> None:
    layout = ArrayLayout.of({"a": np.zeros(2)})
    with pytest.raises(InvalidArgument, match=r"missing \['a'\], unexpected \['b'\]"):
        layout.flatten({"b": np.zeros(2)})
    with pytest.raises(InvalidArgument, match=r"'a' has shape \(2, 1\), expected \(2,\)"):
        layout.flatten({"a": np.zeros((2, 1))})


@pytest.mark.parametrize("name", ["bn.running_mean", "bn.running_var", "layer.0.num_batches_tracked"])
def test_batch_norm_statistics_are_refused_with_advice(name: str) -> None:
    with pytest.raises(InvalidArgument, match=r"BatchNorm.*GroupNorm"):
        check_private_arrays({"w": np.zeros(2), name: np.zeros(2)})


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "complex64"])
def test_arrays_that_are_not_real_are_refused_with_advice(dtype: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"'counts' has dtype {dtype}.*out of the exchanged arrays"):
        check_private_arrays({"counts": np.zeros(2, dtype=dtype)})


def test_no_arrays_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="no arrays"):
        check_private_arrays({})


def test_a_torch_model_with_batch_norm_is_refused_and_with_group_norm_is_not() -> None:
    import torch

    def state(norm: torch.nn.Module) -> dict[str, np.ndarray]:
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), norm)
        return {name: tensor.numpy() for name, tensor in model.state_dict().items()}

    with pytest.raises(InvalidArgument, match="GroupNorm"):
        ArrayLayout.of(state(torch.nn.BatchNorm2d(4)))
    assert ArrayLayout.of(state(torch.nn.GroupNorm(2, 4))).size == 4 * 9 + 4 + 4 + 4
