"""Who adds the noise, what is guaranteed, and what is refused before anything runs."""

import math

import pytest

from fedpriv.accounting import Gaussian, NonPrivate
from fedpriv.accounting.validators import InvalidArgument
from fedpriv.mechanisms.noise import MAX_SHARE_UNITS, MIN_SHARE_UNITS
from fedpriv.plans import NoiseModel


def test_distributed_noise_guarantees_the_counted_shares_only() -> None:
    noise = NoiseModel("distributed", 900.0, min_survivors=12, colluders=2)
    assert noise.share_std_units == pytest.approx(900.0 / 3)
    assert noise.shares.counted_shares == 9
    event = noise.gaussian(300.0)
    assert event == Gaussian(3.0)
    assert noise.realised_std_units(25) == pytest.approx(1500.0)
    assert noise.infinite_views == ()
    assert noise.server_event(event) is event


def test_central_noise_promises_nothing_to_the_server() -> None:
    noise = NoiseModel("central", 900.0, min_survivors=12)
    assert noise.share_std_units == 0.0
    assert noise.realised_std_units(25) == 900.0
    assert noise.infinite_views == ("server",)
    assert isinstance(noise.server_event(noise.gaussian(300.0)), NonPrivate)
    assert noise.gaussian(300.0) == Gaussian(3.0)


@pytest.mark.parametrize("kind", ["distributed", "central"])
def test_no_noise_is_not_a_gaussian(kind: str) -> None:
    assert isinstance(NoiseModel(kind, 0.0, 5).gaussian(10.0), NonPrivate)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("local", 1.0, 5), "noise"),
        (("distributed", 1.0, 1), "min_survivors"),
        (("distributed", 1.0, 5, 4), "min_survivors"),
        (("distributed", -1.0, 5), "total_std"),
        (("central", math.nan, 5), "total_std_units"),
        (("central", math.inf, 5), "total_std_units"),
        (("central", 100.0, 0), "min_survivors"),
        (("central", 100.0, 2.5), "min_survivors"),
        (("central", 100.0, 5, -1), "colluders"),
    ],
)
def test_bad_noise_is_refused(arguments: tuple, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        NoiseModel(*arguments)


def test_survivors_out_of_reach_are_refused() -> None:
    NoiseModel("distributed", 100.0, 10).check(10)
    with pytest.raises(InvalidArgument, match=r"min_survivors: 10 is above 9"):
        NoiseModel("distributed", 100.0, 10).check(9)


def test_noise_that_cannot_be_drawn_is_refused() -> None:
    NoiseModel("central", MIN_SHARE_UNITS, 5).check(5)
    NoiseModel("central", MAX_SHARE_UNITS, 5).check(5)
    NoiseModel("distributed", 2 * MIN_SHARE_UNITS, 5).check(5)
    for noise in (
        NoiseModel("central", MIN_SHARE_UNITS * 0.99, 5),
        NoiseModel("distributed", 2 * MIN_SHARE_UNITS * 0.99, 5),
        NoiseModel("central", MAX_SHARE_UNITS * 1.01, 5),
    ):
        with pytest.raises(InvalidArgument, match="grid steps"):
            noise.check(5)


def test_seeded_noise_is_a_hypothesis_that_fails() -> None:
    def entropy(seeded: bool) -> str:
        found = NoiseModel("distributed", 100.0, 5, seeded=seeded).hypotheses()
        return next(h.status for h in found if "entropy" in h.name)

    assert (entropy(True), entropy(False)) == ("fails", "holds")


def test_what_is_not_counted_is_said() -> None:
    found = NoiseModel("distributed", 100.0, 12, colluders=2).hypotheses()[0]
    assert found.status == "assumed"
    assert "9 shares are counted" in found.name
    assert "at least 12 clients" in found.detail
    assert "no guarantee" in NoiseModel("central", 100.0, 12).hypotheses()[0].detail
