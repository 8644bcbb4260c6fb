"""The silo's own account: durable before anything is touched, over all runs, never under-counted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fedpriv import wire
from fedpriv.accounting import Accountant, Gaussian
from fedpriv.clients.silo_account import SiloAccount, SiloLimits, account_path
from fedpriv.ledger import Budget, BudgetExceeded, LedgerError, LedgerMismatch, read_ledger
from fedpriv.secure_sum import Refusal
from fedpriv.wire import ErrorCode

EVENT = Gaussian(2.0)
DELTA = 1e-5


def context(**node_config: Any) -> Context:
    config = {key.replace("_", "-"): value for key, value in node_config.items()}
    return Context(1, 7, config, RecordDict(), {})


def account(path: Path, **changes: Any) -> SiloAccount:
    values: dict[str, Any] = {"adjacency": "add_or_remove", "run": "first"}
    return SiloAccount(path / "silo" / "account.jsonl", **(values | changes))


def spend(of: SiloAccount, rounds: int, start: int = 1) -> int:
    """Rounds that the account paid for."""
    for number in range(start, start + rounds):
        try:
            with of.paying("train", number, EVENT, {}) as reserved:
                reserved.commit()
        except BudgetExceeded:
            return number - start
    return rounds


def epsilon(rounds: int) -> float:
    return Accountant("add_or_remove", "record").compose(EVENT, rounds).epsilon(DELTA).epsilon


def test_the_account_is_an_ordinary_ledger_of_records(tmp_path: Path) -> None:
    spend(account(tmp_path), 3)
    ledger = read_ledger(tmp_path / "silo" / "account.jsonl")
    assert (ledger.unit, ledger.adjacency, ledger.runs) == ("record", "add_or_remove", ("first",))
    for view in ("server", "participants", "release"):
        assert ledger.epsilon(view, DELTA).epsilon == epsilon(3)
    assert ledger.path.stat().st_mode & 0o777 == 0o600


def test_a_release_is_on_the_disk_before_the_work_begins_and_stays_when_it_dies(tmp_path: Path) -> None:
    of = account(tmp_path)
    child = os.fork()
    if child == 0:  # the silo's process
        try:
            with of.paying("train", 1, EVENT, {}):
                os._exit(9)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert read_ledger(of.path).epsilon("server", DELTA).epsilon == epsilon(1)
    # the round is asked again: charged again
    spend(of, 1)
    assert read_ledger(of.path).epsilon("server", DELTA).epsilon == epsilon(2)


def test_a_failure_of_the_work_stays_charged_and_a_void_does_not(tmp_path: Path) -> None:
    of = account(tmp_path)
    with pytest.raises(ZeroDivisionError), of.paying("train", 1, EVENT, {}):
        raise ZeroDivisionError
    with of.paying("train", 2, EVENT, {}) as reserved:
        reserved.void("no data")
    assert read_ledger(of.path).epsilon("server", DELTA).epsilon == epsilon(1)


def test_the_silos_limit_spans_runs(tmp_path: Path) -> None:
    own = Budget(epsilon(4), DELTA, "server")
    assert spend(account(tmp_path, own=own), 3) == 3
    assert spend(account(tmp_path, own=own, run="second"), 3) == 1
    assert spend(account(tmp_path, own=own, run="third"), 1) == 0
    # a limit that was lowered later counts at once
    assert spend(account(tmp_path, own=Budget(epsilon(1), DELTA, "server"), run="fourth"), 1) == 0


def test_the_runs_limit_covers_that_run_alone_and_the_smaller_one_counts(tmp_path: Path) -> None:
    limits = {"own": Budget(epsilon(6), DELTA, "server"), "of_run": Budget(epsilon(4), DELTA, "server")}
    assert spend(account(tmp_path, **limits), 9) == 4
    # resumed under its name: the same run
    assert spend(account(tmp_path, **limits), 1, start=5) == 0
    assert spend(account(tmp_path, run="second", **limits), 9) == 2


def test_another_adjacency_or_a_broken_file_ends_in_an_error(tmp_path: Path) -> None:
    spend(account(tmp_path), 1)
    with pytest.raises(LedgerMismatch):
        account(tmp_path, adjacency="replace_one").check()
    path = account(tmp_path).path
    path.write_bytes(path.read_bytes().replace(b"train", b"trail"))
    with pytest.raises(LedgerError), account(tmp_path).paying("train", 2, EVENT, {}):
        raise AssertionError("the work must not begin")


def test_limits_of_a_silo() -> None:
    limits = SiloLimits.of(
        context(max_epsilon=2, delta=1e-6, min_noise_multiplier=0.5, max_sampling_rate=0.1)
    )
    assert limits == SiloLimits(Budget(2.0, 1e-6, "server"), 0.5, 0.1)
    limits.check(0.5, 0.1)
    for noise, rate, code in [
        (0.49, 0.1, ErrorCode.SILO_NOISE_TOO_SMALL),
        (0.5, 0.11, ErrorCode.SILO_RATE_TOO_LARGE),
    ]:
        with pytest.raises(Refusal) as refused:
            limits.check(noise, rate)
        assert refused.value.code == code
    assert SiloLimits.of(context()) == SiloLimits(None, 0.0, 1.0)


@pytest.mark.parametrize(
    "config",
    [
        {"max_epsilon": 1.0},
        {"max_epsilon": 1.0, "delta": 0.0},
        {"max_epsilon": 1.0, "delta": 1.0},
        {"max_epsilon": 0.0, "delta": 1e-5},
        {"max_epsilon": -1.0, "delta": 1e-5},
        {"max_epsilon": "2", "delta": 1e-5},
        {"max_epsilon": True, "delta": 1e-5},
        {"delta": 2.0},
        {"min_noise_multiplier": -0.1},
        {"min_noise_multiplier": float("nan")},
        {"max_sampling_rate": 0.0},
        {"max_sampling_rate": 1.5},
    ],
)
def test_limits_that_are_none_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        SiloLimits.of(context(**config))
    assert refused.value.code == ErrorCode.SILO_MISCONFIGURED


def test_where_the_account_is(tmp_path: Path) -> None:
    simulated: dict[str, Any] = {wire.CONFIG_SIMULATION: True, "partition-id": 4}
    at_home = Context(1, 7, {wire.CONFIG_STATE_PATH: str(tmp_path / "home")}, RecordDict(), {})
    assert account_path(at_home, "/elsewhere") == tmp_path / "home" / "account.jsonl"
    in_simulation = Context(1, 7, simulated, RecordDict(), {})
    assert account_path(in_simulation, str(tmp_path)) == tmp_path / "silo-4" / "account.jsonl"
    with pytest.raises(Refusal):
        account_path(in_simulation, "")
    # a server cannot tell a real silo where to write
    with pytest.raises(Refusal):
        account_path(Context(1, 7, {"partition-id": 4}, RecordDict(), {}), str(tmp_path))
