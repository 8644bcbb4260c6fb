"""Perturbation in place: right distance, right quotient, every bit restored."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms import perturbation as module
from fedpriv.mechanisms.directions import BLOCK, Directions
from fedpriv.mechanisms.parameter_grid import check_resolution, rounding_of_perturbation
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
@pytest.mark.parametrize("kept", [True, False])
def test_every_bit_is_restored(dtype: torch.dtype, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEPT_COORDINATES", 2**22 if kept else 0)
    held = parameters(dtype)
    size = sum(p.numel() for p in held)
    perturbation = Perturbation(held, Directions(SEED, size, 3), 0.25)
    before = [p.clone() for p in held]

    def restored() -> bool:
        return all(torch.equal(p, b) for p, b in zip(held, before, strict=True))

    for index in range(3):
        with perturbation.along(index) as move:
            for sign in (+1, -1, 0, -1, +1):
                move(sign)
                assert restored() == (sign == 0)
        assert restored()
    with pytest.raises(RuntimeError, match="loss"), perturbation.along(0) as move:
        move(-1)
        raise RuntimeError("loss")
    assert restored()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_signs_move_alike_whether_rounded_once_or_everywhere(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(p.numel() for p in parameters(dtype))
    moved: dict[bool, list[list[torch.Tensor]]] = {}
    for kept in (True, False):  # what is kept is rounded coordinate by coordinate
        monkeypatch.setattr(module, "KEPT_COORDINATES", 2**22 if kept else 0)
        held = parameters(dtype)
        perturbation = Perturbation(held, Directions(SEED, size, 2, "signs"), 0.25)
        assert (perturbation._moves is None) == (kept or dtype == torch.bfloat16)
        before = [p.clone() for p in held]
        for index in range(2):
            with perturbation.along(index) as move:
                for sign in (+1, -1, 0, -1, +1):
                    move(sign)
                    moved.setdefault(kept, []).append([p.clone() for p in held])
            assert all(torch.equal(p, b) for p, b in zip(held, before, strict=True))
    for one, other in zip(moved[True], moved[False], strict=True):
        assert all(torch.equal(p, q) for p, q in zip(one, other, strict=True))


def test_sign_blocks_are_the_signs_of_the_blocks() -> None:
    directions = Directions(SEED, BLOCK + 100, 2, "signs")
    for (start, block), (at, signs) in zip(directions.blocks(1), directions.sign_blocks(1), strict=True):
        assert start == at and np.array_equal(np.sign(block), signs) and set(np.abs(signs)) == {1.0}
    with pytest.raises(InvalidArgument, match="no direction of signs"):
        next(Directions(SEED, 10, 1).sign_blocks(0))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=12),
    st.floats(1e-6, 1e3),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_restored_for_any_values(values: list[float], smoothing: float, dtype: torch.dtype) -> None:
    held = [torch.tensor(values, dtype=dtype)]
    perturbation = Perturbation(held, Directions(SEED, len(values), 1), smoothing)
    before = held[0].clone()
    for _ in range(3):
        with perturbation.along(0) as move:
            move(+1)
            move(-1)
    assert torch.equal(held[0], before)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=12),
    st.floats(1e-6, 1e3),
    st.sampled_from([(torch.float32, 21), (torch.float64, 50)]),
)
def test_the_grid_is_fine_and_a_fixed_point(
    values: list[float], smoothing: float, kind: tuple[torch.dtype, int]
) -> None:
    dtype, bits = kind
    held = [torch.tensor(values, dtype=dtype)]
    given_values = held[0].clone().double()
    Perturbation(held, Directions(SEED, len(values), 1), smoothing)
    rounded = held[0].clone()
    top = max(float(given_values.abs().max()), smoothing)
    assert float((rounded.double() - given_values).abs().max()) <= top * 2.0**-bits
    Perturbation(held, Directions(SEED, len(values), 1), smoothing)
    assert torch.equal(held[0], rounded)


def test_a_magnitude_just_below_a_power_of_two_keeps_the_grid_a_fixed_point() -> None:
    for bits in range(18, 25):
        held = [torch.tensor([2.0 - 2.0**-bits, 1.0 + 3 * 2.0**-21, 2.0**-21, -(2.0**-20)])]
        Perturbation(held, Directions(SEED, 4, 1), 1e-3)
        once = held[0].clone()
        Perturbation(held, Directions(SEED, 4, 1), 1e-3)
        assert torch.equal(held[0], once), bits


def test_the_distance_is_the_smoothing_and_follows_the_direction_over_tensors_and_blocks() -> None:
    held = [torch.zeros(BLOCK - 5), torch.zeros(40, 3), torch.zeros(0), torch.zeros(10 * BLOCK)]
    size = sum(p.numel() for p in held)
    directions = Directions(SEED, size, 1)
    perturbation = Perturbation(held, directions, 0.25)
    with perturbation.along(0) as move:
        move(-1)
        flat = torch.cat([p.reshape(-1) for p in held]).double().numpy()
    assert np.allclose(flat, -0.25 * directions.direction(0), atol=1e-6)
    assert np.linalg.norm(flat) == pytest.approx(0.25, rel=1e-5)


def test_a_perturbation_that_the_parameters_cannot_hold_is_refused_with_one_that_they_can() -> None:
    arrays = {"w": np.full(10_000, 100.0, dtype=np.float32)}
    with pytest.raises(InvalidArgument, match=r"smoothing: 0\.001 .* use at least") as refused:
        check_resolution(arrays, 1e-3)
    enough = float(str(refused.value).rsplit(" ", 1)[1])
    check_resolution(arrays, enough * 1.1)
    check_resolution({"w": arrays["w"].astype(np.float64)}, 1e-3)
    assert rounding_of_perturbation([arrays["w"].astype(np.float16)], 1.0) > 0.5


def test_the_stated_rounding_is_that_of_the_perturbation() -> None:
    values = np.random.default_rng(0).normal(size=50_000).astype(np.float32)
    directions = Directions(SEED, values.size, 1)
    held = [torch.from_numpy(values.copy())]
    perturbation = Perturbation(held, directions, 0.01)
    base = held[0].double().numpy()
    with perturbation.along(0) as move:
        move(+1)
        error = np.linalg.norm(held[0].double().numpy() - base - 0.01 * directions.direction(0)) / 0.01
    assert rounding_of_perturbation([values], 0.01) == pytest.approx(error, rel=0.05)


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
    tied = torch.zeros(2, 3)
    for wrong in ([tied, tied], [tied.t()]):
        with pytest.raises(InvalidArgument, match="contiguous, and tied"):
            Perturbation(wrong, Directions(SEED, sum(p.numel() for p in wrong), 1), 0.1)
