"""The simulation benchmark's contenders play, and its tables say what was measured."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.simulation import scale
from benchmarks.simulation.__main__ import BASE, to_markdown
from benchmarks.simulation.contenders import CONTENDERS, initial, measure, places
from benchmarks.simulation.setting import make_settings

SMALL = {"task": "digits", "model": "mlp", "train.local-steps": 1, "train.batch-size": 8}


@pytest.mark.parametrize("name", CONTENDERS)
def test_a_contender_changes_the_model_and_is_timed(name: str) -> None:
    settings = make_settings(**SMALL)
    found = measure(name, 2, settings)
    assert len(found["seconds"]) == 2 and min(found["seconds"]) > 0 and found["peak"] > 50
    start = initial(settings)
    trained = CONTENDERS[name](settings)(1, start)
    assert any(np.any(trained[key].numpy() != start[key].numpy()) for key in start)


def test_a_profile_accounts_for_the_whole_round() -> None:
    found = places("fedpriv, distributed noise, real secure sum", 1, make_settings(**SMALL))
    parts = found["local training"] + found["clients, beside it"] + found["messages"]
    assert min(found.values()) > 0 and parts <= found["whole"]


def test_ratios_are_those_of_one_repeat() -> None:
    def runs(*medians: float) -> list[dict[str, Any]]:
        return [{"seconds": [median], "peak": 100.0} for median in medians]

    measured = {BASE: runs(1.0, 2.0, 4.0), "ours": runs(1.1, 2.4, 4.4)}
    text = to_markdown(
        measured, {"ours": {"whole": 2.0, "local training": 1.0, "clients, beside it": 0.5, "messages": 0.25}}
    )
    assert "| ours | 2.40 | 0.42 | 1.10 | 1.10 to 1.20 | 100 | 1.00 |" in text
    assert "| ours | 50.0 | 25.0 | 12.5 | 12.5 |" in text


def test_the_slopes_are_those_of_a_line() -> None:
    rows = [{"neighbours": k, "value": 3.0 + 2.0 * k} for k in (4, 10, 30)]
    assert scale.fit(rows, lambda row: row["value"]) == pytest.approx((3.0, 2.0))


def test_a_round_in_steady_state_has_half_the_messages() -> None:
    found = scale.measure(20)
    assert (found["full"]["messages"], found["steady"]["messages"], found["neighbours"]) == (4, 2, 16)
    assert found["steady"]["up"] < found["full"]["up"] and found["steady"]["down"] < found["full"]["down"]
    text, data = scale.tables([found, {**found, "neighbours": 17}])
    assert "1,000,000" in text and set(data["slopes"]) == {"up", "down", "client", "server"}
