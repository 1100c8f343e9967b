"""The flight recorder: reports of any size reach other processes whole."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from mpiwatch.places import file_label, frames_in, place_in
from mpiwatch.processes import FLIGHT_RECORDER
from mpiwatch.recorder import (
    ERROR_BYTES,
    FILE_BYTES,
    HISTORY_CALLS,
    NAME_BYTES,
    ORIGIN_BYTES,
    PLACE_BYTES,
    PURPOSE_BYTES,
    REPORT_BYTES_PER_RANK,
    Call,
    FlightRecorder,
    WaitingIn,
    fit,
    write_members,
)
from mpiwatch.report import Activity, Reason, Report
from mpiwatch.snapshot import take_snapshot


def fill(recorder: FlightRecorder, character: str) -> Report:
    """Return the largest report: every field of every rank is full, of one character as far as it is text."""
    text = character * ERROR_BYTES
    name = fit(text, NAME_BYTES)
    huge = (1 << 63) - 1
    for slot in recorder.slots:
        slot.calls_noted = HISTORY_CALLS
        slot.waiting_in = WaitingIn.MESSAGE
        slot.message_operation, slot.message_peer, slot.message_tag = name, huge, huge
        slot.message_purpose = fit(text, PURPOSE_BYTES)
        slot.place, slot.error = fit(text, PLACE_BYTES), fit(text, ERROR_BYTES)
        slot.failed_call, slot.message_rival = fit(text, ERROR_BYTES), fit(text, ORIGIN_BYTES)
        for i in range(HISTORY_CALLS):
            row = len(recorder.rows) - 1
            recorder.rows[row].made_by = name
            write_members(recorder.rows[row], range(0, recorder.size, 2))
            numbers = ((1 << 28) - 1, row, huge, huge, huge)
            slot.history[i] = Call(*numbers, name, b"complex256", b"REPLACE", fit(text, FILE_BYTES))
    report = take_snapshot(recorder, Reason.TIMED_OUT, 1e300 / 3, range(recorder.size), 0)
    # No rank of these has an error: add what a rank that raised would have.
    error = recorder.slots[0].error.decode()
    return replace(report, ranks=tuple(replace(rank, error=error) for rank in report.ranks))


@pytest.mark.parametrize("character", ["x", '"', "\x01", "é", "漢", "🙂"])
@pytest.mark.parametrize("recorder", [1, 64], indirect=True)
def test_the_largest_report_reaches_other_processes_whole(recorder: FlightRecorder, character: str) -> None:
    report = fill(recorder, character)
    assert len(report.to_json()) < recorder.size * REPORT_BYTES_PER_RANK
    words = bytes(recorder.memory[recorder.words_offset :])
    with recorder.locked():
        recorder.publish(report)
    assert FlightRecorder(recorder.path).last_report() == report
    assert bytes(recorder.memory[recorder.words_offset :]) == words


def test_a_link_of_another_user_is_not_followed(recorder: FlightRecorder, tmp_path: Path) -> None:
    """All users can write to /dev/shm and /tmp, and see the name of a new file there."""
    link = tmp_path / "link"
    link.symlink_to(recorder.path)
    with pytest.raises(OSError, match="symbolic links"):
        FlightRecorder(str(link))


def test_a_stack_names_its_file_whatever_that_is_called(tmp_path: Path) -> None:
    path, text = (
        str(tmp_path / "größe-漢字-🙂 | x.py"),
        "import faulthandler\nfaulthandler.dump_traceback(file, False)",
    )
    with (tmp_path / "stack").open("w+b") as file:
        exec(compile(text, path, "exec"), {"file": file})
        assert frames_in(file)[0] == (path, 2)


def test_a_full_disk_is_an_error_in_one_folder_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make = tempfile.mkstemp

    def only_there(**options: str) -> tuple[int, str]:
        if options["dir"] == "/dev/shm":
            raise OSError(errno.ENOSPC, "No space left on device")
        return make(**options)

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", only_there)
        made = Path(FlightRecorder.create(3))
    size = made.stat()
    assert made.parent == tmp_path and 512 * size.st_blocks >= size.st_size  # not left sparse
    FlightRecorder(str(made)).remove()
    before = set(Path("/dev/shm").glob(f"{FLIGHT_RECORDER}{os.getpid()}-*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))  # no file may be larger
    try:
        with pytest.raises(OSError, match=r"cannot create \d+ bytes of shared memory: .*File too large"):
            FlightRecorder.create(3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert set(Path("/dev/shm").glob(f"{FLIGHT_RECORDER}{os.getpid()}-*")) == before
    assert not list(tmp_path.iterdir())


def test_the_file_grows_with_the_number_of_ranks_and_not_with_its_square() -> None:
    sizes = {}
    for ranks in (4, 64, 1024):
        path = Path(FlightRecorder.create(ranks))
        sizes[ranks] = path.stat().st_size
        path.unlink()
    assert sizes[64] < 17 * sizes[4] and sizes[1024] < 17 * sizes[64]


def test_a_report_is_never_read_while_it_is_written(recorder: FlightRecorder) -> None:
    program = """
import sys
from mpiwatch.recorder import FlightRecorder
from mpiwatch.report import Activity, RankState, Reason, Report
recorder = FlightRecorder(sys.argv[1])
for length in range(1, 2000):
    with recorder.locked():
        ranks = tuple(RankState(rank, Activity.RUNNING, "x" * (length % 500)) for rank in range(3))
        recorder.publish(Report(Reason.STOPPED, float(length), ranks))
"""
    with subprocess.Popen([sys.executable, "-c", program, recorder.path]) as writer:
        seen = set()
        while writer.poll() is None:
            if (report := recorder.last_report()) is not None:
                seen.add(report.deadline_s)
                assert {len(rank.place) for rank in report.ranks} == {report.deadline_s % 500}
    assert writer.returncode == 0 and seen


def test_a_process_killed_while_it_publishes_leaves_no_half_report(recorder: FlightRecorder) -> None:
    memory = recorder.memory

    class Killed(BaseException):
        pass

    class Halfway:
        def __setitem__(self, where: slice, text: bytes) -> None:
            memory[where.start : where.start + len(text) // 2] = text[: len(text) // 2]
            raise Killed

    epoch = recorder.head.epoch
    recorder.memory = Halfway()  # type: ignore[assignment]
    with pytest.raises(Killed), recorder.locked():
        recorder.publish(Report(Reason.STOPPED, 2.0))
    recorder.memory = memory
    assert recorder.last_report() is None and recorder.head.epoch == epoch


def test_an_interrupt_that_comes_with_the_lock_gives_it_back(
    recorder: FlightRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = fcntl.lockf

    def interrupted(file: Any, operation: int) -> None:
        lock(file, operation)
        if operation == fcntl.LOCK_EX:
            raise KeyboardInterrupt

    monkeypatch.setattr("mpiwatch.recorder.fcntl.lockf", interrupted)
    with pytest.raises(KeyboardInterrupt), recorder.locked():
        pass
    monkeypatch.undo()
    program = "import fcntl, sys\nfcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    subprocess.run([sys.executable, "-c", program, recorder.path], check=True)


def test_text_that_does_not_fit_is_cut_between_characters() -> None:
    assert fit("é" * 100, 32) == "é".encode() * 15
    assert file_label("/home/" + "ü" * 40 + ".py").decode() == "ü" * 15
    assert fit("\udcff", 32) == b"\\udcff"  # a byte of a file's name that is not UTF-8
    assert place_in([]) == ""


def test_only_the_owner_can_read_it(recorder: FlightRecorder) -> None:
    files = list(Path(recorder.path).parent.glob(f"{Path(recorder.path).name}*"))
    assert {oct(path.stat().st_mode & 0o777) for path in files} == {"0o600"}
    assert len(files) == 1


def test_a_rank_that_notes_nothing_any_more_does_not_respond(recorder: FlightRecorder) -> None:
    """Its line may be an old one; also on another machine, whose notes arrive a little later."""
    _, recent, old = recorder.slots
    for slot in recent, old:
        slot.machine, slot.running_at = 1, b"x.py line 4"
    recent.sampled_s, old.sampled_s = monotonic() - 0.5, monotonic() - 60
    report = take_snapshot(recorder, Reason.STOPPED, 0.0, range(3), None)
    running = Activity.RUNNING
    assert [rank.activity for rank in report.ranks] == [running, running, Activity.UNRESPONSIVE]


@pytest.mark.parametrize(
    ("sampled", "label", "line", "place"),
    [
        ("x.py line 4: `f()`", "x.py", 4, "x.py line 7"),
        ("y.py line 9: `h()` via x.py line 4: `f()`", "x.py", 4, "x.py line 7"),
        ("x.py line 7: `g()`", "x.py", 7, "x.py line 7: `g()`"),
        ("y.py line 9: `say(' via x.py line 4: ')`", "y.py", 9, "y.py line 9: `say(' via x.py line 4: ')`"),
        ("cell line 4", "cell", 4, "cell line 4"),
        ("", "", 0, "x.py line 7"),
    ],
)
def test_a_call_that_has_just_begun_is_not_shown_at_the_line_before(
    recorder: FlightRecorder, sampled: str, label: str, line: int, place: str
) -> None:
    for slot in recorder.slots:
        slot.calls_noted, slot.running_at = 1, sampled.encode()
        slot.running_label, slot.running_line = label.encode(), line
        slot.history[0] = Call(1, 0, -1, -1, 7, b"Barrier", b"", b"", b"x.py")
    report = take_snapshot(recorder, Reason.STOPPED, 0.0, range(3), None)
    assert {(rank.activity, rank.place) for rank in report.ranks} == {(Activity.WAITING_IN_COLLECTIVE, place)}
