"""Streamed rows of C^-1 Z: the dense matrix, their covariance, resume, and that no row is given twice."""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from fedpriv.accounting.matrices import StrategyMatrix, bandmf, bisr, blt, bsr, identity, toeplitz
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms.correlated_noise import KEY_BYTES, CorrelatedNoise, new_noise_key
from fedpriv.mechanisms.noise import KeyedSource, SeededSource, gaussian, rounded_gaussian_around

FLAKE = 1e-9  # chance that a statistical test fails although the code is right
ROWS = 12
MATRICES = [
    identity(ROWS),
    bsr(ROWS, 4),
    bisr(ROWS, 4),
    bandmf(ROWS, 4),
    blt(6, 2, 3),
    bandmf(ROWS, 40),
    bisr(ROWS, ROWS),
    toeplitz((2.0, 1.0), ROWS),
    toeplitz((1.0,) * 20, ROWS),
]
NAMES = [f"{m.kind}-{m.memory}" for m in MATRICES]
matrices = pytest.mark.parametrize("matrix", MATRICES, ids=NAMES)


def all_rows(noise: CorrelatedNoise) -> np.ndarray:
    return np.stack([noise.row(index) for index in range(noise.rows)])


@matrices
def test_rows_are_those_of_the_dense_inverse_up_to_rounding(matrix: StrategyMatrix) -> None:
    key, std, length = new_noise_key(), 5e4, 50
    rows = all_rows(CorrelatedNoise(matrix, length, std, key))
    first = matrix.column()[0]
    # the same key streams as continuous draws
    z = np.stack([gaussian(std, length, KeyedSource(key, t)) for t in range(ROWS)])
    dense = np.linalg.solve(matrix.dense(), z)
    # every row is rounded once, and later rows compensate for it: C n - Z is the rounding alone
    assert np.abs(matrix.dense() @ rows - z).max() <= 0.5 * first + 1e-6
    assert np.abs(rows - dense).max() <= 0.5 * first * np.abs(matrix.inverse_column()).sum() + 1e-6
    assert rows.dtype == np.int64


@matrices
def test_covariance_over_coordinates_is_that_of_the_inverse(matrix: StrategyMatrix) -> None:
    std, length = 1e3, 40_000
    rows = all_rows(CorrelatedNoise(matrix, length, std, new_noise_key())) / std
    inverse = np.linalg.inv(matrix.dense())
    expected = inverse @ inverse.T
    observed = rows @ rows.T / length
    # an entry of an empirical covariance has variance (e_ij^2 + e_ii e_jj) / d; C n has independent rows
    spread = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / length)
    assert np.abs((observed - expected) / spread).max() < stats.norm.isf(FLAKE / 2 / expected.size)
    whitened = matrix.dense() @ rows
    assert stats.kstest(whitened[:, ::4].ravel(), "norm").pvalue > FLAKE


@matrices
@pytest.mark.parametrize("stop", [1, 5, 11])
def test_a_checkpoint_continues_the_same_rows(matrix: StrategyMatrix, stop: int) -> None:
    key = new_noise_key()
    whole = all_rows(CorrelatedNoise(matrix, 7, 1e4, key))
    first = CorrelatedNoise(matrix, 7, 1e4, key)
    before = [first.row(index) for index in range(stop)]
    saved = {name: value.copy() for name, value in first.state().items()}
    first.row(stop)  # the process goes on and dies: the row is recomputed, not drawn again
    second = CorrelatedNoise(matrix, 7, 1e4, key)
    second.load_state(saved)
    after = [second.row(index) for index in range(stop, ROWS)]
    assert np.array_equal(np.stack(before + after), whole)
    # without any checkpoint the key alone gives the same rows
    third = CorrelatedNoise(matrix, 7, 1e4, key)
    third.pass_over(stop - 1)
    assert np.array_equal(third.row(stop), whole[stop])
    assert third.next_row == stop + 1


def test_no_row_is_given_twice_or_after_it_was_passed_over() -> None:
    noise = CorrelatedNoise(bandmf(ROWS, 4), 3, 1e3, new_noise_key())
    noise.row(0)
    with pytest.raises(InvalidArgument, match="row 0 was drawn before"):
        noise.row(0)
    noise.row(4)
    noise.pass_over(2)  # is behind already
    with pytest.raises(InvalidArgument, match="row 3 was drawn before"):
        noise.row(3)
    noise.pass_over(6)
    with pytest.raises(InvalidArgument, match="row 6 was drawn before"):
        noise.row(6)
    for wrong in (ROWS, ROWS + 5):
        with pytest.raises(InvalidArgument, match="12 rows"):
            noise.row(wrong)
    with pytest.raises(InvalidArgument, match="12 rows"):
        noise.pass_over(ROWS)
    saved = noise.state()
    noise.row(7)
    with pytest.raises(InvalidArgument, match="behind row 8"):
        noise.load_state(saved)


def test_rows_and_keys_have_streams_of_their_own() -> None:
    key, other = new_noise_key(), new_noise_key()
    rows = all_rows(CorrelatedNoise(identity(ROWS), 2000, 1e6, key)) / 1e6
    again = all_rows(CorrelatedNoise(identity(ROWS), 2000, 1e6, other)) / 1e6
    together = np.corrcoef(np.concatenate([rows, again]))
    limit = stats.norm.isf(FLAKE / 1000) / np.sqrt(2000)
    assert np.abs(together - np.eye(2 * ROWS)).max() < limit
    names = {CorrelatedNoise(identity(2), 1, 1e3, k).stream for k in (key, other, key)}
    assert len(names) == 2
    assert key.hex()[:16] not in names


def test_epochs_restart_the_matrix_with_fresh_noise() -> None:
    matrix, length = bandmf(4, 3), 30_000
    noise = CorrelatedNoise(matrix, length, 1e3, new_noise_key(), epochs=3)
    assert noise.rows == 12
    rows = all_rows(noise) / 1e3
    inverse = np.linalg.inv(matrix.dense())
    expected = np.kron(np.eye(3), inverse @ inverse.T)
    observed = rows @ rows.T / length
    assert np.abs(observed - expected).max() < 2 * stats.norm.isf(FLAKE / 1000) / np.sqrt(length)
    # a resume in the middle of an epoch
    key = new_noise_key()
    whole = all_rows(CorrelatedNoise(matrix, 3, 1e3, key, epochs=3))
    first = CorrelatedNoise(matrix, 3, 1e3, key, epochs=3)
    first.pass_over(5)
    second = CorrelatedNoise(matrix, 3, 1e3, key, epochs=3)
    second.load_state(first.state())
    assert np.array_equal(np.stack([second.row(i) for i in range(6, 12)]), whole[6:])


@matrices
def test_state_is_as_large_as_the_band_or_the_buffers(matrix: StrategyMatrix) -> None:
    noise = CorrelatedNoise(matrix, 5, 1e3, new_noise_key())
    all_rows(noise)
    vectors = noise.state()["noise-vectors"]
    assert vectors.shape == (min(matrix.memory, ROWS - 1), 5)


def test_a_state_of_another_matrix_is_refused() -> None:
    key = new_noise_key()
    saved = CorrelatedNoise(bandmf(ROWS, 4), 5, 1e3, key).state()
    for matrix, length in ((bandmf(ROWS, 3), 5), (bandmf(ROWS, 4), 6)):
        with pytest.raises(InvalidArgument, match="noise-vectors"):
            CorrelatedNoise(matrix, length, 1e3, key).load_state(saved)
    saved["noise-next"] = np.array([ROWS + 1])
    with pytest.raises(InvalidArgument, match="at row 13"):
        CorrelatedNoise(bandmf(ROWS, 4), 5, 1e3, key).load_state(saved)


@pytest.mark.parametrize("matrix", [bandmf(40, 6), bisr(40, 6), blt(10, 4, 3)], ids=["bandmf", "bisr", "blt"])
def test_float64_feedback_stays_within_the_bound(matrix: StrategyMatrix) -> None:
    """The recursion of the same integers in exact rational arithmetic, against the float64 one."""
    noise = CorrelatedNoise(matrix, 2, 1e6, new_noise_key())
    c = [Fraction(value) for value in matrix.coefficients]
    past: list[list[Fraction]] = []
    buffers = [[Fraction(0), Fraction(0)] for _ in matrix.decays]
    worst = 0.0
    for index in range(matrix.rounds):
        if matrix.kind == "blt":
            exact = [
                -sum((Fraction(w) * b[i] for w, b in zip(matrix.weights, buffers, strict=True)), Fraction(0))
                for i in range(2)
            ]
        elif matrix.kind == "bisr":
            exact = [
                sum((c[j] * past[-j][i] for j in range(1, min(6, index + 1))), Fraction(0)) for i in (0, 1)
            ]
        else:
            terms = range(1, min(6, index + 1))
            exact = [-sum((c[j] / c[0] * past[-j][i] for j in terms), Fraction(0)) for i in (0, 1)]
        vectors = noise._vectors
        feedback = np.zeros(2)
        for weight, vector in zip(noise._weights, vectors, strict=True):
            feedback += weight * vector
        worst = max(worst, *(abs(float(Fraction(float(feedback[i])) - exact[i])) for i in (0, 1)))
        row = [Fraction(int(value)) for value in noise.row(index)]
        if matrix.kind == "blt":
            buffers = [
                [Fraction(d) * b[i] + row[i] for i in (0, 1)]
                for d, b in zip(matrix.decays, buffers, strict=True)
            ]
        elif matrix.kind == "bisr":
            past.append([(row[i] - exact[i]) / c[0] for i in (0, 1)])
        else:
            past.append(row)
    assert 0 < worst <= noise._feedback_error()
    assert noise.total_variation() == pytest.approx(
        0.5 * noise._feedback_error() * np.sqrt(80) / (1e6 / matrix.column()[0])
    )


def test_the_bound_is_negligible_at_the_size_of_a_long_run() -> None:
    for matrix in (bsr(2000, 16), bisr(2000, 16), blt(20, 5, 3)):
        assert CorrelatedNoise(matrix, 10**5, 1e4, new_noise_key()).total_variation() < 1e-8


def test_bad_arguments_name_what_is_wrong() -> None:
    key = new_noise_key()
    assert len(key) == KEY_BYTES
    for arguments, message in (
        ((identity(3), 0, 1e3, key), "length"),
        ((identity(3), 2, 0.0, key), "std"),
        ((identity(3), 2, 1e3, b"short"), "key: 5 bytes"),
        ((identity(3), 2, 1e15, key), "coarser grid"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            CorrelatedNoise(*arguments)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="epochs"):
        CorrelatedNoise(identity(3), 2, 1e3, key, epochs=0)


def test_seeded_rows_repeat_and_say_so() -> None:
    def rows(seed: str) -> np.ndarray:
        noise = CorrelatedNoise(bandmf(4, 2), 5, 1e3, new_noise_key(), seed=seed)
        assert not noise.secure
        return all_rows(noise)

    assert np.array_equal(rows("7"), rows("7"))
    assert not np.array_equal(rows("7"), rows("8"))
    assert CorrelatedNoise(bandmf(4, 2), 5, 1e3, new_noise_key()).secure


# -- the draw around a centre ----------------------------------------------------------------------------------


class Words:
    """A source of given words."""

    secure = False

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def words(self, count: int) -> np.ndarray:
        taken, self.left = self.left[:count], self.left[count:]
        assert len(taken) == count
        return np.array(taken, dtype=np.uint64)


def test_draws_around_a_centre_have_its_law() -> None:
    center = np.linspace(-3.7, 5.2, 50_000)
    draws = rounded_gaussian_around(center, 100.0)
    # a draw minus its centre is Gaussian up to a rounding error of a hundredth of its deviation
    assert stats.kstest((draws - center) / 100.0, "norm").pvalue > FLAKE
    same = [rounded_gaussian_around(np.full(9, shift), 50.0, SeededSource("a")) for shift in (0.25, 1000.25)]
    assert np.array_equal(same[0] + 1000, same[1])


def test_a_draw_on_the_edge_between_two_integers_is_decided_exactly() -> None:
    word = 2**61 + 12345
    x = float(gaussian(1.0, 1, Words(word))[0])  # type: ignore[arg-type]
    center = np.array([7.5 - 100.0 * x])  # within float64's error of the edge between 7 and 8
    values = []
    for low_bits in (0, 2**64 - 1):
        source = Words(word, low_bits)
        values.append(int(rounded_gaussian_around(center, 100.0, source)[0]))  # type: ignore[arg-type]
        assert not source.left  # 64 more bits were drawn
    assert set(values) <= {7, 8}
    mirrored = Words(word | 2**63, 0)
    assert int(rounded_gaussian_around(-center, 100.0, mirrored)[0]) in (-8, -7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="center"):
        rounded_gaussian_around(np.array([2.0**52]), 100.0)
