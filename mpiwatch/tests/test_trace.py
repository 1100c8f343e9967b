"""Recordings: what a log holds, how those of all ranks become one, and the Chrome trace of a program."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from mpiwatch.launch import HANG_EXIT_CODE
from mpiwatch.trace import Kind, RankLog, Trace, chrome_trace, merge, read, read_file
from mpiwatch.trace_files import log_file, write_trace
from mpiwatch.trace_log import ROW, LogWriter, end_log

WATCHED = [sys.executable, "-m", "mpiwatch"]
DEADLINE_S = 120
WORLD = "world#0:0,1"

RING = """\
import time
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
received = np.empty(4)
for step in range(2):
    request = comm.Irecv(received, (comm.rank - 1) % comm.size, step)
    comm.Send(np.ones(4), (comm.rank + 1) % comm.size, step)
    request.Wait()
comm.allreduce(1)
"""
DEADLOCK = """\
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
comm.Ssend(np.ones(4), (comm.rank + 1) % comm.size)
comm.Recv(np.ones(4), (comm.rank - 1) % comm.size)
"""


class Written:
    """The log of a rank, written by hand."""

    def __init__(self, path: Path, rank: int, size: int = 2, capacity: int = 100) -> None:
        self.path = path / f"log-{rank}"
        self.log = LogWriter(str(self.path), rank, size, 0.5, capacity)
        self.number = 0

    def call(  # noqa: PLR0917
        self,
        kind: Kind,
        operation: str,
        peer: int,
        begin_s: float,
        end_s: float,
        tag: int = 0,
        nbytes: int = 8,
        request: int = 0,
        number: int = 0,
        comm: str = WORLD,
    ) -> int:
        """Write a row; return its number."""
        self.number += 1
        row = self.log.row()
        if row:
            texts = self.log.text(operation), self.log.text(comm)
            line = self.log.text(f"program.py line {self.number}")
            names = *texts, peer, tag, -1, line
            sizes = nbytes, 1, request
            about = number or self.number, kind, b"d"
            ROW.pack_into(self.log.memory, row, *about, *names, *sizes, begin_s, end_s, b"\0" * 8)
        return number or self.number

    def read(self) -> RankLog:
        """Return what was written."""
        return read(self.log.content())


@pytest.fixture
def ranks(tmp_path: Path) -> list[Written]:
    return [Written(tmp_path, rank) for rank in range(2)]


def merged(ranks: list[Written]) -> Trace:
    for rank in ranks:
        rank.log.finish(10.0, 0.001)
    return merge([rank.read() for rank in ranks])


def test_a_log_is_read_as_it_was_written_also_from_its_file(ranks: list[Written]) -> None:
    rank = ranks[0]
    rank.call(Kind.SEND, "Send", 1, 1.0, 2.0, tag=5, nbytes=80)
    rank.call(Kind.RECEIVE, "Recv", 1, 3.0, 0.0)
    log = rank.read()
    sent, waiting = log.events
    assert (sent.operation, sent.peer, sent.tag, sent.nbytes) == ("Send", 1, 5, 80)
    assert (sent.begin_s, sent.end_s, sent.line) == (1.0, 2.0, "program.py line 1")
    assert waiting.end_s is None and log.end_s is None
    assert read_file(str(rank.path)) == log
    end_log(str(rank.path), 7.0)  # by the process that has ended the rank
    assert read_file(str(rank.path)).end_s == 7.0


def test_what_is_no_log_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the log of a rank that mpiwatch has recorded"):
        read(b"something else" * 10)


def test_events_for_which_there_is_no_room_are_counted(tmp_path: Path) -> None:
    rank = Written(tmp_path, 0, capacity=3)
    for _ in range(5):
        rank.call(Kind.SEND, "Send", 1, 1.0, 2.0)
    log = rank.read()
    assert len(log.events) == 3 and log.lost == 2
    assert merge([log]).lost == {0: 2}


def test_a_row_that_a_killed_rank_has_not_written_is_left_out(ranks: list[Written]) -> None:
    ranks[0].log.row()
    assert ranks[0].read().events == []


def test_messages_of_one_tag_are_matched_in_their_order(ranks: list[Written]) -> None:
    first = ranks[0].call(Kind.SEND, "Send", 1, 1.0, 2.0)
    ranks[0].call(Kind.SEND, "Send", 1, 2.0, 3.0, tag=9)
    second = ranks[0].call(Kind.SEND, "Send", 1, 3.0, 4.0)
    ranks[1].call(Kind.RECEIVE, "Recv", 0, 1.0, 5.0)
    ranks[1].call(Kind.RECEIVE, "Recv", 0, 5.0, 6.0)
    trace = merged(ranks)
    taken = [message for message in trace.messages if message.receive is not None]
    assert [message.send.number for message in taken if message.send] == [first, second]
    assert [message.arrived_s for message in taken] == [5.0, 6.0]
    (lost,) = (message for message in trace.messages if message.receive is None)
    assert lost.tag == 9 and lost.arrived_s is None
    assert trace.traffic() == [[(0, 0), (3, 24)], [(0, 0), (0, 0)]]


def test_a_request_that_is_waited_for_has_its_message(ranks: list[Written]) -> None:
    ranks[0].call(Kind.SEND, "Send", 1, 2.0, 2.5)
    started = ranks[1].call(Kind.START_RECEIVE, "Irecv", -1, 1.0, 1.1, tag=-1, nbytes=-1, request=1)
    wait = ranks[1].call(Kind.WAIT, "Wait", -1, 3.0, 4.0, request=started)
    ranks[1].call(Kind.COMPLETE, "Wait", 0, 4.0, 4.0, request=started, number=wait)
    (message,) = merged(ranks).messages
    assert (message.asked_s, message.left_s, message.arrived_s) == (1.0, 2.0, 4.0)
    assert message.completion is not None and message.completion.number == wait


def test_a_rank_waits_until_the_other_comes_and_then_transfers(ranks: list[Written]) -> None:
    ranks[0].call(Kind.SEND, "Send", 1, 4.0, 6.0)
    ranks[1].call(Kind.RECEIVE, "Recv", 0, 1.0, 5.0)
    ranks[0].call(Kind.COLLECTIVE, "Barrier", -1, 6.5, 9.1)
    ranks[1].call(Kind.COLLECTIVE, "Barrier", -1, 9.0, 9.1)
    trace = merged(ranks)
    spans = [(span.what, span.begin_s, span.end_s) for span in trace.spans(1)]
    assert spans[:3] == [("compute", 0.5, 1.0), ("wait", 1.0, 4.0), ("transfer", 4.0, 5.0)]
    assert [span.what for span in trace.spans(0)] == [
        "compute",
        "transfer",
        "compute",
        "wait",
        "transfer",
        "compute",
    ]
    for rank in range(2):
        for before, after in pairwise(trace.spans(rank)):
            assert before.end_s == after.begin_s
        assert trace.spans(rank)[0].begin_s == 0.5 and trace.spans(rank)[-1].end_s == 10.0
    (barrier,) = trace.collectives
    assert barrier.last_arrival.rank == 1 and not barrier.missing


def test_a_call_that_never_ends_lasts_until_the_end(ranks: list[Written]) -> None:
    ranks[0].call(Kind.COLLECTIVE, "Barrier", -1, 1.0, 0.0)
    trace = merged(ranks)
    assert [(span.what, span.end_s) for span in trace.spans(0)] == [("compute", 1.0), ("wait", 10.0)]
    assert trace.collectives[0].missing == [1]


def test_times_are_those_of_the_first_ranks_clock(ranks: list[Written]) -> None:
    ranks[1].call(Kind.SEND, "Send", 0, 101.0, 102.0)
    ranks[1].log.set_clock(-100.0, 0.25)
    ranks[0].call(Kind.RECEIVE, "Recv", 1, 0.9, 2.0)
    ranks[0].log.finish(3.0, 0.0)
    ranks[1].log.finish(103.0, 0.0)
    trace = merge([rank.read() for rank in ranks])
    assert trace.messages[0].left_s == 1.0 and trace.clock_error_s == 0.5 and trace.end_s == 3.0


def test_a_rank_without_a_log_is_named(ranks: list[Written]) -> None:
    assert merge([ranks[1].read()]).lost_ranks == [0]
    with pytest.raises(ValueError, match="expected the recordings of ranks"):
        merge([])


def test_a_chrome_trace_has_a_row_for_each_rank_and_an_arrow_for_each_message(ranks: list[Written]) -> None:
    ranks[0].call(Kind.SEND, "Send", 1, 1.0, 2.0)
    ranks[1].call(Kind.RECEIVE, "Recv", 0, 0.5, 3.0)
    content = json.loads(chrome_trace(merged(ranks), {"links": "none"}))
    assert content["otherData"]["links"] == "none"
    events = content["traceEvents"]
    rows = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert rows == ["rank 0", "rank 1"]
    begin, end = (event for event in events if event["ph"] in "sf")
    assert begin["id"] == end["id"] and (begin["tid"], end["tid"]) == (1, 2) and begin["ts"] < end["ts"]
    assert begin["ts"] == 0.5e6 and end["ts"] == pytest.approx(2.5e6, abs=0.01)


def test_a_trace_without_logs_is_not_written(tmp_path: Path, capfd: Any) -> None:
    write_trace(str(tmp_path / "trace.json"), 2)
    assert list(tmp_path.iterdir()) == []
    assert "no rank has recorded anything" in capfd.readouterr().err


def run_traced(tmp_path: Path, text: str, *options: str, code: int = 0) -> dict[str, Any]:
    """Run a program on three ranks with --trace; return the trace."""
    program, out = tmp_path / "program.py", tmp_path / "trace.json"
    program.write_text(text)
    words = [*WATCHED, "-n", "3", "--trace", str(out), *options, str(program)]
    job = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert job.returncode == code, job.stderr
    assert sorted(tmp_path.iterdir()) == [program, out]  # and no log
    content: dict[str, Any] = json.loads(out.read_text())
    return content


def test_a_program_is_recorded(tmp_path: Path) -> None:
    content = run_traced(tmp_path, RING)
    events = content["traceEvents"]
    for rank in range(3):
        calls = [event for event in events if event.get("cat") == "mpi" and event["tid"] == 1 + rank]
        right, left = (rank + 1) % 3, (rank - 1) % 3
        names = [f"Irecv ← {left}", f"Send → {right}", f"Wait ← {left}"] * 2
        assert [call["name"] for call in calls] == [*names, "allreduce"]
        assert calls[1]["args"] == {
            "line": "program.py line 9: `comm.Send(np.ones(4), (comm.rank + 1) % comm.size, step)`",
            "bytes": 32,
            "tag": 0,
        }
    assert [sum(event["ph"] == end for event in events) for end in "sf"] == [6, 6]
    assert content["otherData"]["messages"] == 6


def test_a_deadlock_is_recorded_to_its_end(tmp_path: Path) -> None:
    content = run_traced(tmp_path, DEADLOCK, code=HANG_EXIT_CODE)
    calls = [event for event in content["traceEvents"] if event.get("cat") == "mpi"]
    assert {call["name"] for call in calls} == {"Ssend → 0", "Ssend → 1", "Ssend → 2"}
    assert all(call["args"]["ended"] == "never" and call["dur"] > 0 for call in calls)


def test_a_program_in_strict_mode_is_recorded(tmp_path: Path) -> None:
    content = run_traced(tmp_path, RING, "--strict")
    assert content["otherData"]["messages"] == 6


def test_a_folder_that_does_not_exist_is_an_error_before_the_program_starts(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('ran')\n")
    words = [*WATCHED, "-n", "2", "--trace", str(tmp_path / "none" / "trace.json"), str(program)]
    job = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert job.returncode == 2 and "argument --trace: No such file or directory" in job.stderr
    assert "ran" not in job.stdout


def test_the_log_of_a_rank_stands_beside_the_trace(tmp_path: Path) -> None:
    assert log_file(str(tmp_path / "trace.json"), 3) == str(tmp_path / ".trace.json.rank-3")
