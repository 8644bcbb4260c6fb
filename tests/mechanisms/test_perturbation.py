"""Perturbation in place: right distance, right quotient, every bit restored."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms.directions import BLOCK, Directions
from fedpriv.mechanisms.parameter_grid import on_grid
from fedpriv.mechanisms.perturbation import Perturbation, two_point_quotients

SEED = bytes(range(16))


class Quadratic:
    """l_i(w) = 0.5 |w|^2 + <a_i, w>: the two-point quotient is <w + a_i, u>, exactly."""

    def __init__(self, parameters: list[torch.Tensor], slopes: np.ndarray) -> None:
        self.parameters, self.slopes, self.num_records = parameters, slopes, len(slopes)

    def losses(self, records: np.ndarray | None = None) -> np.ndarray:
        flat = torch.cat([p.detach().reshape(-1) for p in self.parameters]).double().numpy()
        chosen = self.slopes if records is None else self.slopes[records]
        return 0.5 * flat @ flat + chosen @ flat


def parameters(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(5, 7), (), (11,), (0,), (3, 1, 2)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_every_bit_is_restored(dtype: torch.dtype) -> None:
    held = parameters(dtype)
    size = sum(p.numel() for p in held)
    perturbation = Perturbation(held, Directions(SEED, size, 3), 1e-3)
    before = [p.clone() for p in held]
    for index in range(3):
        for sign in (+1, -1):
            with perturbation.moved(index, sign):
                assert any(not torch.equal(p, b) for p, b in zip(held, before, strict=True))
            assert all(torch.equal(p, b) for p, b in zip(held, before, strict=True))
    with pytest.raises(RuntimeError, match="loss"), perturbation.moved(0, +1):
        raise RuntimeError("loss")
    assert all(torch.equal(p, b) for p, b in zip(held, before, strict=True))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=12),
    st.floats(1e-6, 1e3),
)
def test_restored_for_any_values(values: list[float], smoothing: float) -> None:
    held = [torch.tensor(values, dtype=torch.float32)]
    perturbation = Perturbation(held, Directions(SEED, len(values), 1), smoothing)
    before = held[0].clone()
    for _ in range(3):
        for sign in (+1, -1):
            with perturbation.moved(0, sign):
                pass
    assert torch.equal(held[0], before)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=12), st.floats(1e-6, 1e3))
def test_the_grid_is_fine_and_a_fixed_point(values: list[float], smoothing: float) -> None:
    array = np.array(values, dtype=np.float32)
    rounded = on_grid(array, smoothing)
    top = max(np.abs(array.astype(np.float64)).max(), smoothing)
    assert np.abs(rounded.astype(np.float64) - array).max() <= top * 2.0**-21
    assert np.array_equal(on_grid(rounded, smoothing), rounded)
    held = [torch.from_numpy(array.copy())]
    Perturbation(held, Directions(SEED, array.size, 1), smoothing)
    assert np.array_equal(held[0].numpy(), rounded)


def test_a_magnitude_just_below_a_power_of_two_keeps_the_grid_a_fixed_point() -> None:
    for bits in range(18, 25):
        array = np.array([2.0 - 2.0**-bits, 1.0 + 3 * 2.0**-21, 2.0**-21, -(2.0**-20)], dtype=np.float32)
        once = on_grid(array, 1e-3)
        assert np.array_equal(on_grid(once, 1e-3), once), bits


def test_the_distance_is_the_smoothing_and_follows_the_direction_over_tensors_and_blocks() -> None:
    held = [torch.zeros(BLOCK - 5), torch.zeros(40, 3), torch.zeros(BLOCK)]
    size = sum(p.numel() for p in held)
    directions = Directions(SEED, size, 1)
    perturbation = Perturbation(held, directions, 0.25)
    with perturbation.moved(0, -1):
        flat = torch.cat([p.reshape(-1) for p in held]).double().numpy()
    assert np.allclose(flat, -0.25 * directions.direction(0), atol=1e-6)
    assert np.linalg.norm(flat) == pytest.approx(0.25, rel=1e-5)


def test_quotients_of_a_quadratic_are_exact() -> None:
    held = [torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))]
    slopes = np.random.default_rng(2).normal(size=(9, 24))
    objective = Quadratic(held, slopes)
    directions = Directions(SEED, 24, 5)
    found = two_point_quotients(objective, directions, 0.05)
    w = held[0].reshape(-1).numpy()
    frame = np.stack([directions.direction(k) for k in range(5)]).astype(np.float64)
    assert np.allclose(found, frame @ (w + slopes).T, rtol=1e-4, atol=1e-4)
    some = two_point_quotients(objective, directions, 0.05, np.array([7, 2]))
    assert np.allclose(some, found[:, [7, 2]], rtol=1e-9)


def test_quotients_that_are_not_finite_are_zero() -> None:
    objective = Quadratic([torch.ones(4)], np.ones((3, 4)))
    objective.losses = lambda records=None: np.array([np.nan, np.inf, 1.0])  # type: ignore[method-assign]
    assert np.array_equal(two_point_quotients(objective, Directions(SEED, 4, 1), 0.1), np.zeros((1, 3)))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidArgument, match="parameters: 3 coordinates, the directions have 4"):
        Perturbation([torch.zeros(3)], Directions(SEED, 4, 1), 0.1)
    with pytest.raises(InvalidArgument, match="smoothing"):
        Perturbation([torch.zeros(4)], Directions(SEED, 4, 1), 0.0)
    with pytest.raises(InvalidArgument, match="not finite"):
        Perturbation([torch.tensor([1.0, float("nan")])], Directions(SEED, 2, 1), 0.1)
