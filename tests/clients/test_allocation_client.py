"""A client's own bin: drawn once, kept over restarts, used once per epoch, and never told."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from client_helpers import LENGTH, arrays, ask, payload_of, refusal, update_record
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from scipy import stats

from fedpriv import wire
from fedpriv.clients import client_level_dp_mod
from fedpriv.clients.allocation import in_its_bin
from fedpriv.secure_sum import Refusal
from fedpriv.testing import LocalGrid
from fedpriv.wire import ErrorCode

FLAKE = 1e-9
BINS, EPOCHS = 4, 3


def allocation_record(**changes: Any) -> ConfigRecord:
    values: dict[str, Any] = {
        wire.ALLOCATION_NAME: "run-1",
        wire.ALLOCATION_BINS: BINS,
        wire.ALLOCATION_EPOCHS: EPOCHS,
        wire.ALLOCATION_REDRAWN: False,
        wire.ALLOCATION_BEGINS: True,
        wire.ALLOCATION_SIMULATION_FOLDER: "",
    }
    values |= {key.replace("_", "-"): value for key, value in changes.items()}
    return ConfigRecord({key: value for key, value in values.items() if value is not None})


def request(server_round: int, **changes: Any) -> RecordDict:
    content = payload_of(wire.RECORD_UPDATE, update_record(round=server_round), arrays())
    content[wire.RECORD_ALLOCATION] = allocation_record(**changes)
    return content


class Trainer:
    """A ClientApp that moves the model by the clip, and remembers when its function ran."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.app = ClientApp()
        self.app.train(mods=[client_level_dp_mod])(self.train)

    def train(self, msg: Message, context: Context) -> Message:
        self.calls.append(0)
        return Message(RecordDict({"arrays": arrays(*[-1.0] + [0.0] * (LENGTH - 1))}), reply_to=msg)


def contributed(grid: LocalGrid, server_round: int, **changes: Any) -> bool:
    total = ask(grid, request(server_round, **changes), wire.PURPOSE_ALLOCATION)
    assert total.tolist() in ([1000, 0, 0, 0], [0, 0, 0, 0])
    return bool(total[0])


def rounds_of(grid: LocalGrid, rounds: range, **changes: Any) -> list[int]:
    return [r for r in rounds if contributed(grid, r, **changes)]


def bare(node_config: dict[str, Any] | None = None) -> Context:
    config = {"partition-id": 0, wire.CONFIG_SIMULATION: True} | (node_config or {})
    return Context(1, 2, config, RecordDict(), {})


def message(content: RecordDict) -> Message:
    return Message(content, dst_node_id=2, message_type="train")


@pytest.fixture(autouse=True)
def _task_identity() -> None:
    LocalGrid(ClientApp(), 1)  # sets what Flower needs to make a Message


# -- when a client takes part ----------------------------------------------------------------------------------


def test_every_round_is_answered_and_one_per_epoch_has_the_update() -> None:
    trainer = Trainer()
    found = rounds_of(LocalGrid(trainer.app, 1), range(1, 13))
    assert len(found) == EPOCHS
    assert {(r - 1) % BINS for r in found} == {(found[0] - 1) % BINS}  # kept bins
    assert len(trainer.calls) == 12  # idle rounds train too, and throw the result away


def test_idle_rounds_may_skip_the_training() -> None:
    trainer = Trainer()
    grid = LocalGrid(trainer.app, 1)
    for server_round in range(1, 5):
        content = request(server_round)
        content[wire.RECORD_UPDATE] = ConfigRecord(update_record(round=server_round, idle_trains=False))
        ask(grid, content, wire.PURPOSE_ALLOCATION)
    assert len(trainer.calls) == 1


def test_redrawn_bins_are_drawn_once_per_epoch() -> None:
    seen = set()
    for _ in range(15):
        found = rounds_of(LocalGrid(Trainer().app, 1), range(1, 9), redrawn=True, epochs=2)
        assert len(found) == 2 and found[0] <= 4 < found[1]
        seen.add((found[0] - 1, found[1] - 5))
    assert any(first != second for first, second in seen)  # chance of failure 4^-15


def test_a_bin_is_uniform_over_all_rounds_also_for_who_comes_late() -> None:
    """A client that is first asked in the third of four rounds is there with probability 1/4, not 1/2."""
    counts = np.zeros(2)
    for _ in range(1000):
        context = bare()
        counts += [in_its_bin(message(request(r)), context) for r in (3, 4)]
    for count in counts:
        assert stats.binom.ppf(FLAKE, 1000, 0.25) <= count <= stats.binom.isf(FLAKE, 1000, 0.25)


def test_the_same_round_never_gets_a_second_contribution() -> None:
    grid = LocalGrid(Trainer().app, 1)
    (own,) = rounds_of(grid, range(1, 5))
    assert not contributed(grid, own)
    assert contributed(grid, own + BINS)
    assert not contributed(grid, own + BINS)
    assert not contributed(grid, own)  # a server that went back to an old checkpoint


def test_a_draw_that_has_passed_is_silence() -> None:
    for _ in range(20):
        grid = LocalGrid(Trainer().app, 1)
        contributed(grid, 5, redrawn=True)
        assert not rounds_of(grid, range(1, 5), redrawn=True)


# -- what it survives ------------------------------------------------------------------------------------------


def test_the_bin_is_on_the_disk_before_the_function_runs(tmp_path: Path) -> None:
    """A client that dies in its first round, at any later instant, has the same bin ever after."""
    seen = []
    app = ClientApp()

    @app.train(mods=[client_level_dp_mod])
    def train(msg: Message, context: Context) -> Message:
        (file,) = tmp_path.glob("allocation-*.json")
        seen.append(json.loads(file.read_text())["bin"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        raise SystemExit

    grid = LocalGrid(app, 1, node_config={"state-path": str(tmp_path)})
    ask(grid, request(1), wire.PURPOSE_ALLOCATION)
    grid.restart_node(0)
    ask(grid, request(2), wire.PURPOSE_ALLOCATION)
    assert len(seen) == 2 and seen[0] == seen[1]


@pytest.mark.parametrize("redrawn", [False, True])
def test_restarts_after_every_round_never_draw_again(tmp_path: Path, redrawn: bool) -> None:
    for attempt in range(8):
        grid = LocalGrid(Trainer().app, 1, node_config={"state-path": str(tmp_path / str(attempt))})
        found = []
        for server_round in range(1, 13):
            found += [server_round] * contributed(grid, server_round, redrawn=redrawn)
            grid.restart_node(0)
        assert [(r - 1) // BINS for r in found] == [0, 1, 2]


def test_without_a_disk_a_client_that_may_have_lost_its_bin_is_silent() -> None:
    grid = LocalGrid(Trainer().app, 1)
    contributed(grid, 1)
    grid.restart_node(0)
    assert not rounds_of(grid, range(2, 13), begins=False)
    # with its state it goes on
    other = LocalGrid(Trainer().app, 1)
    first = rounds_of(other, range(1, 3))
    assert len(first + rounds_of(other, range(3, 13), begins=False)) == EPOCHS
    # a disk tells: nothing stored means nothing was ever used
    assert not grid.contexts[grid.node_of(0)].state.get("fedpriv.silo-file")


def test_a_disk_shows_that_a_late_joiner_is_new(tmp_path: Path) -> None:
    grid = LocalGrid(Trainer().app, 1, node_config={"state-path": str(tmp_path)})
    assert len(rounds_of(grid, range(5, 13), begins=False)) == 2


def test_a_simulation_may_keep_bins_in_a_folder_per_client(tmp_path: Path) -> None:
    grid = LocalGrid(Trainer().app, 3)
    totals = np.zeros(3, dtype=int)
    for server_round in range(1, 9):
        content = request(server_round, simulation_folder=str(tmp_path), begins=server_round == 1)
        for index, node in enumerate(grid.get_node_ids()):
            context = grid.contexts[node]
            totals[index] += in_its_bin(Message(content, dst_node_id=node, message_type="train"), context)
        for index in range(3):
            grid.restart_node(index)
    assert totals.tolist() == [2, 2, 2]
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"partition-{i}" for i in range(3)]


def test_a_silo_ignores_the_folder_that_a_server_names(tmp_path: Path) -> None:
    silo, named = tmp_path / "silo", tmp_path / "named"
    context = bare({wire.CONFIG_SIMULATION: False, "state-path": str(silo)})
    in_its_bin(message(request(1, simulation_folder=str(named))), context)
    assert silo.exists() and not named.exists()
    grid = LocalGrid(Trainer().app, 1, simulation=False, node_config={wire.CONFIG_SIMULATION: False})
    with pytest.raises(Refusal) as caught:
        in_its_bin(message(request(1, simulation_folder=str(named))), grid.contexts[grid.node_of(0)])
    assert caught.value.code == ErrorCode.NO_STATE_PATH
    assert not named.exists()


def test_runs_have_bins_of_their_own(tmp_path: Path) -> None:
    context = bare({"state-path": str(tmp_path)})
    for name in ("a", "b", "../../c"):
        in_its_bin(message(request(1, allocation=name)), context)
    assert len(list(tmp_path.glob("allocation-*.json"))) == 3


# -- what it refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"bins": 0},
        {"bins": None},
        {"bins": 4.0},
        {"epochs": 0},
        {"redrawn": "no"},
        {"redrawn": None},
        {"allocation": ""},
        {"allocation": None},
        {"simulation_folder": 5},
    ],
    ids=str,
)
def test_a_malformed_request_is_refused(changes: dict[str, Any]) -> None:
    grid = LocalGrid(Trainer().app, 1)
    assert refusal(grid, request(1, **changes), wire.PURPOSE_ALLOCATION) == ErrorCode.BAD_REQUEST


def test_a_request_outside_the_schedule_or_without_records_is_refused() -> None:
    grid = LocalGrid(Trainer().app, 1)
    assert refusal(grid, request(13), wire.PURPOSE_ALLOCATION) == ErrorCode.BAD_REQUEST
    assert refusal(grid, request(0), wire.PURPOSE_ALLOCATION) == ErrorCode.BAD_REQUEST
    content = payload_of(wire.RECORD_UPDATE, update_record(), arrays())
    assert refusal(grid, content, wire.PURPOSE_ALLOCATION) == ErrorCode.BAD_REQUEST


def test_another_schedule_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """A server that changed the schedule in the middle would shift every bin."""
    grid = LocalGrid(Trainer().app, 1, node_config={"state-path": str(tmp_path)})
    contributed(grid, 1)
    for changes in ({"bins": 5}, {"epochs": 4}, {"redrawn": True}):
        assert refusal(grid, request(2, **changes), wire.PURPOSE_ALLOCATION) == ErrorCode.BAD_REQUEST


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"bins": 4, "epochs": 3, "redrawn": false, "draw": 0, "bin": 4}']
)
def test_a_spoilt_file_is_an_error_and_not_a_fresh_bin(tmp_path: Path, content: str) -> None:
    grid = LocalGrid(Trainer().app, 1, node_config={"state-path": str(tmp_path)})
    contributed(grid, 1)
    (file,) = tmp_path.glob("allocation-*.json")
    file.write_text(content)
    assert refusal(grid, request(2), wire.PURPOSE_ALLOCATION) == ErrorCode.STATE_UNREADABLE
    assert file.read_text() == content


def test_a_silo_needs_a_disk() -> None:
    app = Trainer().app
    grid = LocalGrid(app, 3, simulation=False, node_config={wire.CONFIG_SIMULATION: False})
    code = refusal(grid, request(1), wire.PURPOSE_ALLOCATION, mode="protocol")
    assert code == ErrorCode.NO_STATE_PATH


def test_a_floor_on_the_clients_own_noise_refuses_central_noise() -> None:
    grid = LocalGrid(Trainer().app, 1, node_config={"min-noise-share": 0.1})
    assert refusal(grid, request(1), wire.PURPOSE_ALLOCATION) == ErrorCode.NOISE_TOO_SMALL


def test_nothing_that_leaves_tells_the_bin() -> None:
    replies: list[Message] = []

    def intercept(client: int, sent: Message, reply: Message) -> list[Message]:
        replies.append(reply)
        return [reply]

    grid = LocalGrid(Trainer().app, 4, intercept=intercept)
    ask(grid, request(1), wire.PURPOSE_ALLOCATION, mode="protocol")
    for reply in replies:
        assert set(reply.content) <= {wire.RECORD_SECURE_SUM, wire.RECORD_RESULT}
        assert "bin" not in reply.content[wire.RECORD_SECURE_SUM]
