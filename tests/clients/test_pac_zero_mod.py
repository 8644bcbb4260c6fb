"""The client half of PACZero: what a server may ask wrongly, what an objective and a disk may do wrong."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from client_helpers import payload_of, plain_message
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedpriv import wire
from fedpriv.clients import pac_zero_mod
from fedpriv.clients import silo_state as disk
from fedpriv.mechanisms import sign_release as mechanism
from fedpriv.mechanisms.directions import Directions
from fedpriv.mechanisms.model_identity import model_identity
from fedpriv.testing import LocalGrid
from fedpriv.wire import ErrorCode

D, RECORDS = 5, 8
START = {"w": np.zeros(D, dtype=np.float32)}
SLOPES = np.random.default_rng(0).normal(size=(RECORDS, D))


class Silo:
    """One silo whose objective can be made to misbehave."""

    def __init__(self) -> None:
        self.slopes, self.error, self.losses_error = SLOPES, None, None  # type: ignore[var-annotated]
        self.fingerprint, self.made = b"first", 0
        self.app = ClientApp()

        @self.app.train(mods=[pac_zero_mod(self.objective)])
        def never(msg: Message, context: Context) -> Message:
            raise AssertionError("reached the train function")

    def objective(self, arrays: dict[str, np.ndarray], context: Context) -> Any:
        self.made += 1
        if self.error is not None:
            raise self.error
        silo = self

        class Linear:
            parameters = (torch.from_numpy(arrays["w"].copy()),)
            num_records = len(silo.slopes)
            fingerprint = silo.fingerprint

            def losses(self, records: np.ndarray | None = None) -> np.ndarray:
                if silo.losses_error is not None:
                    raise silo.losses_error
                return silo.slopes @ self.parameters[0].double().numpy()

        return Linear()


def request(server_round: int = 1, **changes: Any) -> RecordDict:
    directions = Directions(server_round.to_bytes(16, "little"), D, 1)
    values: dict[str, Any] = {
        wire.PAC_RUN: "run",
        wire.PAC_VARIANT: "mi",
        wire.PAC_SUBSETS: 8,
        wire.PAC_NATS: 0.3,
        wire.PAC_ROUNDS: 20,
        wire.PAC_DIAGNOSTICS: "",
        wire.SILO_SIMULATION_FOLDER: "",
        wire.ZEROTH_ORDER_SEED: directions.seed,
        wire.ZEROTH_ORDER_KIND: "orthonormal",
        wire.ZEROTH_ORDER_FINGERPRINT: directions.fingerprint(),
        wire.ZEROTH_ORDER_NORMS: list(directions.norms),
        wire.ZEROTH_ORDER_SMOOTHING: 0.1,
        wire.ZEROTH_ORDER_CLIP: 10.0,
        wire.ZEROTH_ORDER_BATCH: 0,
        wire.UPDATE_SAMPLING_RATE: 1.0,
        wire.UPDATE_ROUND: server_round,
        wire.NOISE_SEED: "",
    }
    values |= {key.replace("_", "-"): value for key, value in changes.items()}
    content = payload_of(
        wire.RECORD_PAC_ZERO,
        {key: value for key, value in values.items() if value is not None},
        ArrayRecord({n: Array(a) for n, a in START.items()}),
    )
    content[wire.RECORD_MODEL] = ConfigRecord(
        {
            wire.MODEL_ID: model_identity(START),
            wire.MODEL_KEEP: False,
            wire.MODEL_HISTORY: bytes(16),
            wire.MODEL_POSITION: 0,
            wire.MODEL_SEEDS: b"",
            wire.MODEL_COEFFICIENTS: [],
            wire.MODEL_NORMS: [],
            wire.ZEROTH_ORDER_KIND: "orthonormal",
        }
    )
    return content


def at_disk(silo: Silo, folder: Path, **node_config: Any) -> LocalGrid:
    return LocalGrid(
        silo.app, 1, node_config={wire.CONFIG_STATE_PATH: str(folder), **node_config}, simulation=False
    )


def answer(grid: LocalGrid, content: RecordDict | None = None) -> int:
    """+1 or -1, or the code of the refusal."""
    (reply,) = plain_message(grid, wire.MESSAGE_TYPE, request() if content is None else content)
    if reply.has_error():
        return int(reply.error.code)
    record = reply.content[wire.RECORD_PAC_ZERO]
    assert isinstance(record, ConfigRecord)
    assert list(record) == [wire.PAC_BIT]  # nothing else leaves
    assert list(reply.content) == [wire.RECORD_PAC_ZERO]
    return int(record[wire.PAC_BIT])  # type: ignore[arg-type]


def stored(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("paczero-*.json")
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    "changes",
    [
        {"run": None},
        {"run": ""},
        {"variant": "other"},
        {"nats": 0.0},
        {"nats": -0.1},
        {"nats": float("nan")},
        {"variant": "zpl"},
        {"subsets": 7},
        {"subsets": 1},
        {"rounds": 0},
        {"smoothing": 0.0},
        {"clip": 0.0},
        {"simulation_folder": 3},
    ],
)
def test_bad_requests_are_refused_and_leave_no_secret(changes: dict[str, Any], tmp_path: Path) -> None:
    assert answer(at_disk(Silo(), tmp_path / "good"), request()) in (
        1,
        -1,
    )  # it is the change that is refused
    folder = tmp_path / "bad"
    assert answer(at_disk(Silo(), folder), request(**changes)) == ErrorCode.BAD_REQUEST
    assert not list(folder.glob("*.json"))


def test_a_seed_is_refused_outside_a_simulation(tmp_path: Path) -> None:
    assert answer(at_disk(Silo(), tmp_path), request(noise_seed="5")) == ErrorCode.SEED_REFUSED
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.parametrize(
    ("limit", "expected"), [(0.1, ErrorCode.BUDGET_TOO_LARGE), ("much", ErrorCode.MISCONFIGURED)]
)
def test_a_silo_has_a_limit_of_its_own(limit: Any, expected: ErrorCode, tmp_path: Path) -> None:
    assert answer(at_disk(Silo(), tmp_path, **{wire.CONFIG_MAX_NATS: limit})) == expected


def test_a_folder_and_diagnostics_of_the_server_are_ignored_outside_a_simulation(tmp_path: Path) -> None:
    content = request(simulation_folder=str(tmp_path / "theirs"), diagnostics=str(tmp_path))
    assert answer(at_disk(Silo(), tmp_path / "own"), content) in (1, -1)
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_the_same_round_twice_is_one_draw_even_over_a_restart(tmp_path: Path) -> None:
    silo = Silo()
    first = answer(at_disk(silo, tmp_path))
    made = silo.made
    assert [answer(at_disk(silo, tmp_path)) for _ in range(8)] == [first] * 8
    assert silo.made == made
    assert stored(tmp_path)["release"]["round"] == 1


def test_the_same_round_with_another_direction_is_another_draw_and_accounted_for(tmp_path: Path) -> None:
    grid = at_disk(Silo(), tmp_path)
    for number in range(1, 6):
        assert answer(grid, request(number, round=1)) in (1, -1)
    after = stored(tmp_path)["release"]
    assert after["round"] == 5
    assert 0 < after["used"] <= 0.3 * 5 / 20 * (1 + 1e-9)


def test_a_bit_that_is_not_on_disk_does_not_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silo = Silo()
    assert answer(at_disk(silo, tmp_path)) in (1, -1)
    before = stored(tmp_path)

    def full(self: Any, content: bytes) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(disk._DiskFile, "write", full)
    assert answer(at_disk(silo, tmp_path), request(2)) == ErrorCode.INTERNAL
    assert stored(tmp_path) == before


def test_state_is_written_before_the_bit_leaves(tmp_path: Path) -> None:
    """Whoever kills the silo after it has answered finds the answer in the file."""
    bit = answer(at_disk(Silo(), tmp_path))
    assert stored(tmp_path)["last-bit"] == bit


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[:-30],
        lambda text: "[]",
        lambda text: text.replace('"schema": 1', '"schema": 99'),
        lambda text: text.replace('"secret"', '"other"'),
        lambda text: text.replace('"log-weights": [', '"log-weights": [NaN, '),
        lambda text: text.replace('"secret": ', '"secret": 10'),
        lambda text: text.replace('"secret": ', '"secret": -'),
        lambda text: text.replace('"last-bit": ', '"last-bit": 7'),
        lambda text: text.replace('"variant": "mi"', '"variant": "other"'),
    ],
)
def test_a_file_that_cannot_be_used_is_a_refusal_and_stays(damage: Any, tmp_path: Path) -> None:
    assert answer(at_disk(Silo(), tmp_path)) in (1, -1)
    (path,) = tmp_path.glob("paczero-*.json")
    known = json.loads(path.read_text())
    known["release"]["secret"] = 1  # so that every damage is one
    path.write_text(damage(json.dumps(known)))
    damaged = path.read_text()
    assert answer(at_disk(Silo(), tmp_path), request(2)) == ErrorCode.STATE_UNREADABLE
    assert path.read_text() == damaged


@pytest.mark.parametrize("change", ["records", "fingerprint", "nats", "rounds", "subsets"])
def test_what_a_secret_was_drawn_for_must_not_change(change: str, tmp_path: Path) -> None:
    silo = Silo()
    assert answer(at_disk(silo, tmp_path)) in (1, -1)
    before, content = stored(tmp_path), request(2)
    if change == "records":
        silo.slopes = np.vstack([SLOPES, SLOPES[:1]])
    elif change == "fingerprint":
        silo.fingerprint = b"second"
    else:
        content = request(2, **{change: {"nats": 0.6, "rounds": 40, "subsets": 10}[change]})
    assert answer(at_disk(silo, tmp_path), content) == ErrorCode.UNIVERSE_CHANGED
    assert stored(tmp_path) == before


@pytest.mark.parametrize("where", ["error", "losses_error"])
@pytest.mark.parametrize("error", [ValueError("record 3 is bad"), SystemExit(1), MemoryError()])
def test_a_failing_objective_is_a_coin_and_moves_nothing(
    where: str, error: BaseException, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    silo = Silo()
    grid = at_disk(silo, tmp_path)
    assert answer(grid) in (1, -1)
    before = stored(tmp_path)["release"]
    setattr(silo, where, error)
    with caplog.at_level(logging.INFO):
        bits = {answer(grid, request(number)) for number in range(2, 40)}
    assert bits == {1, -1}
    assert stored(tmp_path)["release"] == before
    assert "record 3" not in caplog.text  # an exception's text may hold data


@pytest.mark.parametrize("slopes", [SLOPES[:1], SLOPES[:0]])
def test_too_few_records_are_a_coin(slopes: np.ndarray, tmp_path: Path) -> None:
    silo = Silo()
    silo.slopes = slopes
    grid = at_disk(silo, tmp_path)
    assert {answer(grid, request(number)) for number in range(1, 40)} == {1, -1}
    assert not list(tmp_path.glob("*.json"))


def test_rounds_beyond_the_plan_spend_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = at_disk(Silo(), tmp_path)
    for number in range(1, 4):
        assert answer(grid, request(number, rounds=2)) in (1, -1)
    after = stored(tmp_path)["release"]
    assert after["round"] == 2
    assert after["used"] <= 0.3 * (1 + 1e-12)
    assert "rounds are over" in caplog.text


def test_zpl_answers_the_same_whatever_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal coins give equal bits for every secret, through messages and state."""

    def bits(secret: int) -> list[int]:
        monkeypatch.setattr(mechanism, "uniform_below", lambda bound, source: secret)
        grid = LocalGrid(Silo().app, 1)
        options = {"variant": "zpl", "nats": 0.0, "noise_seed": "7"}
        return [answer(grid, request(number, **options)) for number in range(1, 9)]

    found = [bits(secret) for secret in range(8)]
    assert all(one == found[0] for one in found)
    assert set(found[0]) == {1, -1}
