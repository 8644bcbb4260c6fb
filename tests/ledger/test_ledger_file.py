"""The file: chain, torn lines, durability, locks, what a failed write leaves behind."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpriv.accounting import VIEWS, Gaussian, InvalidArgument
from fedpriv.ledger import Ledger, LedgerCorrupted, LedgerError, LedgerLocked, LedgerMismatch, read_ledger
from fedpriv.ledger import journal as journal_module
from fedpriv.ledger.records import GENESIS, encode_line, jsonable, parse

ROUND = dict.fromkeys(VIEWS, Gaussian(2.0))


def small_ledger(path: Path) -> bytes:
    """Header, session, two releases (one committed)."""
    with Ledger.open(path, unit="client", adjacency="add_or_remove", run="one") as ledger:
        ledger.reserve("train", 1, ROUND, {"clip": 1.0}).commit({"shares": 5})
        ledger.reserve("train", 2, ROUND)
    return path.read_bytes()


def test_a_new_ledger_is_private_and_starts_with_its_definitions(path, open_ledger):
    usual = os.umask(0)
    try:
        open_ledger().close()
    finally:
        os.umask(usual)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    header = json.loads(path.read_text().splitlines()[0])
    assert {k: header[k] for k in ("seq", "type", "version", "unit", "adjacency", "run")} == {
        "seq": 0,
        "type": "header",
        "version": 1,
        "unit": "client",
        "adjacency": "add_or_remove",
        "run": "one",
    }


def test_the_chain_is_what_the_documentation_says(path):
    previous = "0" * 64
    lines = small_ledger(path).decode().splitlines()
    assert len(lines) == 5
    for seq, line in enumerate(lines):
        body, _, tail = line.rpartition(',"hash":"')
        previous = hashlib.sha256((previous + body).encode()).hexdigest()
        assert tail == previous + '"}'
        record = json.loads(line)
        assert record["seq"] == seq
        assert {"type", "time", "run"} <= set(record)


def test_every_single_byte_change_is_found_with_its_line(tmp_path):
    good = small_ledger(tmp_path / "good.jsonl")
    broken = tmp_path / "broken.jsonl"
    last_line = good.rstrip(b"\n").rfind(b"\n") + 1
    rng = np.random.default_rng(0)
    for position in rng.choice(last_line - 1, size=150, replace=False):
        changed = bytearray(good)
        changed[position] ^= 1
        broken.write_bytes(changed)
        with pytest.raises(LedgerCorrupted) as caught:
            read_ledger(broken)
        assert caught.value.line == 1 + good[:position].count(b"\n")
        assert f"line {caught.value.line}:" in str(caught.value)


@pytest.mark.parametrize("removed", [1, 2, 3])
def test_a_removed_line_is_found(path, removed):
    lines = small_ledger(path).splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:removed] + lines[removed + 1 :]))
    with pytest.raises(LedgerCorrupted, match=f"line {removed + 1}: the hash does not continue"):
        read_ledger(path)


def test_a_forged_line_with_a_good_hash_still_has_to_follow_the_rules(path):
    good = small_ledger(path)
    head = parse(good, path).head
    for forged in (
        {"seq": 5, "type": "void", "run": "one", "of": 2, "reason": "was committed"},
        {"seq": 5, "type": "mystery", "run": "one"},
        {
            "seq": 5,
            "type": "reserve",
            "run": "one",
            "stage": "train",
            "round": 3,
            "events": {},
            "details": {},
        },
        {"seq": 5, "type": "header", "run": "one"},
        {"seq": 6, "type": "void", "run": "one", "of": 4, "reason": "gap"},
    ):
        path.write_bytes(good + encode_line(forged, head)[0])
        with pytest.raises(LedgerCorrupted, match="line 6"):
            read_ledger(path)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_cut_at_any_byte_the_rest_reads_as_its_whole_lines(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("cut") / "ledger.jsonl"
    good = small_ledger(path)
    size = data.draw(st.integers(0, len(good)))
    path.write_bytes(good[:size])
    whole = good[:size].count(b"\n") + (size < len(good) and good[size : size + 1] == b"\n")
    if whole == 0:
        with pytest.raises(LedgerCorrupted, match="no complete line"):
            read_ledger(path)
    else:
        found = read_ledger(path)
        assert found.num_lines == whole
        assert len(found.entries) == (whole > 2) + (whole > 4)
        torn = size - len(b"".join(good.splitlines(keepends=True)[:whole]))
        assert any(f"torn ({torn} bytes)" in note for note in found.notes) == (torn > 0)
    # A writer goes on from the same prefix and leaves a clean chain.
    with Ledger.open(path, unit="client", adjacency="add_or_remove", run="two") as ledger:
        before = len(ledger.entries)
        ledger.reserve("train", 3, ROUND)
    found = read_ledger(path)
    assert len(found.entries) == before + 1
    assert before == max(0, (whole > 2) + (whole > 4))


def test_a_torn_line_is_dropped_recorded_and_never_left_in_the_middle(path, open_ledger):
    small_ledger(path)
    with path.open("ab") as file:
        file.write(b'{"seq":5,"type":"reser')
    with open_ledger() as ledger:
        assert [note for note in ledger.notes if "22 bytes of a torn last line were dropped" in note]
        ledger.reserve("train", 3, ROUND)
    assert len(read_ledger(path).entries) == 3


def test_zeros_after_a_power_failure_count_as_torn(path, open_ledger):
    small_ledger(path)
    with path.open("ab") as file:
        file.write(b"\0" * 512)
    with open_ledger() as ledger:
        assert len(ledger.entries) == 2


def test_a_last_line_without_its_newline_is_kept(path, open_ledger):
    path.parent.mkdir()
    good = small_ledger(path)
    path.write_bytes(good.rstrip(b"\n"))
    with open_ledger() as ledger:
        assert len(ledger.entries) == 2
    assert path.read_bytes().startswith(good)


@pytest.mark.parametrize(
    "content", [b"my diary", b"my diary\n", b"\x89PNG\r\n", b'{"seq":0,"type":"other"}\n']
)
def test_another_kind_of_file_is_refused_and_left_alone(path, open_ledger, content):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(LedgerCorrupted, match="not a fedpriv ledger"):
        open_ledger()
    assert path.read_bytes() == content


def test_an_unknown_format_version_is_refused(path, open_ledger):
    path.parent.mkdir()
    header = {"seq": 0, "type": "header", "format": "fedpriv-ledger", "version": 2, "unit": "client"}
    path.write_bytes(encode_line(header | {"adjacency": "replace_one"}, GENESIS)[0])
    with pytest.raises(LedgerCorrupted, match="version 2"):
        open_ledger()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"adjacency": "replace_one"}, ["add_or_remove", "replace_one"]),
        ({"unit": "record"}, ["'client'", "'record'"]),
    ],
)
def test_another_unit_or_adjacency_is_refused_by_name(path, open_ledger, arguments, words):
    open_ledger().close()
    before = path.read_bytes()
    with pytest.raises(LedgerMismatch) as caught:
        open_ledger(**arguments)
    assert all(word in str(caught.value) for word in words)
    assert path.read_bytes() == before
    open_ledger().close()  # the refused attempt left no lock


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"unit": "patient"}, "unit"),
        ({"adjacency": "swap"}, "adjacency"),
        ({"run": ""}, "run"),
        ({"delta": 1}, "delta"),
    ],
)
def test_bad_arguments_are_named_and_create_nothing(path, open_ledger, arguments, name):
    with pytest.raises(InvalidArgument, match=name):
        open_ledger(**arguments)
    assert not path.exists()


def test_reserve_returns_only_when_the_line_is_on_the_disk(path, open_ledger, monkeypatch):
    synced: list[tuple[str, bytes]] = []
    real = os.fsync

    def recording(descriptor: int) -> None:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        synced.append(("file" if is_file else "directory", path.read_bytes() if path.exists() else b""))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    ledger = open_ledger()
    # The directory is synced after the header, so that the name survives too.
    kinds = [kind for kind, _ in synced]
    assert "directory" in kinds[kinds.index("file") :]
    for act in (
        lambda: ledger.reserve("train", 1, ROUND),
        lambda: ledger.reserve("train", 2, ROUND).commit(),
        lambda: ledger.reserve("train", 3, ROUND).void("nobody answered"),
    ):
        synced.clear()
        act()
        assert synced[-1] == ("file", path.read_bytes())
    ledger.close()


def test_after_a_failed_write_nothing_more_is_accepted_and_reopening_counts(path, open_ledger, monkeypatch):
    ledger = open_ledger()
    ledger.reserve("train", 1, ROUND)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(journal_module, "sync_file", full)
        with pytest.raises(LedgerError, match="No space left"):
            ledger.reserve("train", 2, ROUND)
    with pytest.raises(LedgerError, match="failed earlier"):
        ledger.reserve("train", 3, ROUND)
    ledger.close()
    assert len(read_ledger(path).entries) == 2  # the line may have reached the disk: it counts


def test_half_a_write_is_dropped_on_reopening(path, open_ledger, monkeypatch):
    ledger = open_ledger()
    real = os.pwrite

    def half(descriptor: int, data: memoryview, offset: int) -> int:
        real(descriptor, data[: len(data) // 2], offset)
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", half)
        with pytest.raises(LedgerError, match="must not be made"):
            ledger.reserve("train", 1, ROUND)
    ledger.close()
    with open_ledger() as ledger:
        assert ledger.entries == ()
        ledger.reserve("train", 1, ROUND)
    assert len(read_ledger(path).entries) == 1


def test_short_writes_are_completed(path, open_ledger, monkeypatch):
    real = os.pwrite
    with monkeypatch.context() as patched, open_ledger() as ledger:
        patched.setattr(os, "pwrite", lambda fd, data, offset: real(fd, data[:7], offset))
        ledger.reserve("train", 1, ROUND)
    assert len(read_ledger(path).entries) == 1


def test_a_moved_replaced_or_touched_file_stops_the_run(path, open_ledger):
    for harm, words in (
        (lambda: path.rename(path.with_suffix(".old")), "moved or deleted"),
        (lambda: (path.rename(path.with_suffix(".old")), path.write_bytes(b"x")), "replaced"),
        (lambda: path.open("ab").write(b"x"), "changed by somebody else"),
    ):
        with open_ledger() as ledger:
            harm()
            with pytest.raises(LedgerError, match=words):
                ledger.reserve("train", 1, ROUND)
        path.unlink(missing_ok=True)


def test_a_closed_ledger_is_refused(open_ledger):
    ledger = open_ledger()
    reservation = ledger.reserve("train", 1, ROUND)
    ledger.close()
    for act in (
        lambda: ledger.reserve("train", 2, ROUND),
        reservation.commit,
        lambda: reservation.void("late"),
    ):
        with pytest.raises(LedgerError, match="was closed"):
            act()
    assert [entry.status for entry in ledger.entries] == ["reserved"]


def test_one_writer_in_a_process(open_ledger):
    with open_ledger(), pytest.raises(LedgerLocked, match="another run"):
        open_ledger(run="two")
    open_ledger(run="two").close()


HOLDER = """
import sys, time
from fedpriv.accounting import VIEWS, Gaussian
from fedpriv.ledger import Ledger, LedgerLocked
try:
    ledger = Ledger.open(sys.argv[1], unit="client", adjacency="add_or_remove", run="child")
except LedgerLocked:
    print("locked", flush=True)
    sys.exit()
print("open", flush=True)
ledger.reserve("train", 1, dict.fromkeys(VIEWS, Gaussian(2.0)))
sys.stdin.readline()
"""


def test_two_processes_never_hold_one_ledger_and_a_killed_one_lets_go(path, open_ledger):
    children = [
        subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        said = [child.stdout.readline().strip() for child in children]
        assert sorted(said) == ["locked", "open"]
        with pytest.raises(LedgerLocked):
            open_ledger()
        holder = children[said.index("open")]
        holder.kill()
        holder.wait(timeout=30)
        open_ledger().close()
    finally:
        for child in children:
            child.kill()
            child.communicate(timeout=30)


def test_a_forked_copy_of_the_writer_is_refused(open_ledger):
    with open_ledger() as ledger:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                ledger.reserve("train", 1, ROUND)
            except LedgerError:
                code = 0
            finally:
                os._exit(code)  # never back into the test runner
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        ledger.reserve("train", 1, ROUND)
        assert len(ledger.entries) == 1


def test_threads_take_turns(path, open_ledger):
    with open_ledger() as ledger:

        def work(stage: str) -> None:
            for number in range(10):
                ledger.reserve(stage, number, ROUND).commit()

        threads = [threading.Thread(target=work, args=(f"stage-{i}",)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = read_ledger(path)
    assert len(found.entries) == 60
    assert found.totals()["server"].events == {Gaussian(2.0): 60}


def test_details_are_plain_data(path, open_ledger):
    details = {
        "clip": np.float64(1.5),
        "shares": np.int64(3),
        "tallies": np.array([1, -2]),
        "limit": float("inf"),
    }
    with open_ledger() as ledger:
        ledger.reserve("tune", 1, ROUND, details)
        before = path.read_bytes()
        with pytest.raises(TypeError, match=r"details\['model'\]\[1\] is a object"):
            ledger.reserve("tune", 2, ROUND, {"model": [1, object()]})
        assert path.read_bytes() == before
    assert read_ledger(path).entries[0].details == {
        "clip": 1.5,
        "shares": 3,
        "tallies": [1, -2],
        "limit": "inf",
    }
    assert jsonable((None, True), "x") == [None, True]
