"""Recordings: what a log holds, how those of all ranks become one, and the Chrome trace of a program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from jobs import wait_until
from mpiwatch import launch
from mpiwatch.launch import HANG_EXIT_CODE
from mpiwatch.trace import Kind, RankLog, Trace, chrome_trace, merge, read, read_file
from mpiwatch.trace_files import log_file, start_keeper, write_trace
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


NON_BLOCKING = """\
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
received, total = np.empty(4), np.empty(4)
sending = comm.Isend(np.ones(4), right)
receiving = comm.Irecv(received, left)
sending.Wait()
receiving.Wait()
comm.Isendrecv(np.ones(4), right, recvbuf=received, source=left).Wait()
comm.Iallreduce(received, total).Wait()
"""
RAISES = """\
import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 1:
    try:
        comm.Send(np.ones(4)[::2], 2)
    except (ValueError, BufferError):
        1 / 0
"""


class Written:
    """The log of a rank, written by hand."""

    def __init__(self, path: Path, rank: int, size: int = 2, capacity: int = 100, machine: int = 0) -> None:
        self.path = path / f"log-{rank}"
        self.log = LogWriter(str(self.path), rank, size, 0.5, capacity, machine)
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
        address: int = 0,
    ) -> int:
        """Write a row; return its number."""
        self.number += 1
        row = self.log.row()
        if row:
            texts = self.log.text(operation), self.log.text(comm)
            line = self.log.text(f"program.py line {self.number}")
            names = *texts, peer, tag, -1, line, 0
            sizes = nbytes, 1, request, address, 0, 0
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


def test_a_receive_of_any_tag_whose_tag_is_not_known_takes_the_first_message(ranks: list[Written]) -> None:
    """MPICH does not say which tag an Isendrecv has received."""
    ranks[0].call(Kind.SEND, "Send", 1, 3.0, 3.5, tag=9)
    ranks[0].call(Kind.SEND, "Send", 1, 2.0, 2.5, tag=5)
    ranks[1].call(Kind.RECEIVE, "Recv", 0, 1.0, 4.0, tag=-1)
    taken = [message.tag for message in merged(ranks).messages if message.receive is not None]
    assert taken == [5]


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


def test_clocks_that_were_measured_wrong_are_set_so_that_no_message_arrives_before_it_left(
    tmp_path: Path,
) -> None:
    """Three machines; the clock of each is late by 2 s for each machine before it."""
    ranks = [Written(tmp_path, rank, 3, machine=rank) for rank in range(3)]
    sent_s = [11.0, 14.0, 17.0]  # as it was: each message takes 1 s
    for rank, begin_s in enumerate(sent_s):
        following = (rank + 1) % 3
        ranks[rank].call(Kind.SEND, "Send", following, begin_s - 2 * rank, begin_s - 2 * rank + 0.1)
        late = 2 * following
        ranks[following].call(Kind.RECEIVE, "Recv", rank, begin_s - 0.5 - late, begin_s + 1 - late)
    trace = merged(ranks)
    for message in trace.messages:
        assert message.send and message.completion and message.completion.end_s
        assert message.send.begin_s <= message.completion.end_s == message.arrived_s
    assert trace.logs[0].events[0].begin_s == 11.0  # rank 0's clock is the one
    assert trace.shift_s == pytest.approx(2.0) and trace.clock_error_s >= trace.shift_s
    assert json.loads(chrome_trace(trace))["otherData"]["clock_error_us"] == pytest.approx(2e6)


def test_clocks_that_fit_all_messages_are_left_as_they_were_measured(ranks: list[Written]) -> None:
    ranks[0].call(Kind.SEND, "Send", 1, 4.0, 6.0)
    ranks[1].call(Kind.RECEIVE, "Recv", 0, 1.0, 5.0)
    trace = merged(ranks)
    assert trace.shift_s == 0.0 and trace.messages[0].arrived_s == 5.0


def test_clocks_that_drift_too_far_let_no_arrow_run_backwards(tmp_path: Path) -> None:
    ranks = [Written(tmp_path, rank, machine=rank) for rank in range(2)]
    for one, other in (0, 1), (1, 0):  # each seems to arrive before it left
        ranks[one].call(Kind.SEND, "Send", other, 5.0, 5.1)
        ranks[other].call(Kind.RECEIVE, "Recv", one, 3.0, 4.0)
    for message in merged(ranks).messages:
        assert message.left_s is not None and message.arrived_s is not None
        assert message.left_s <= message.arrived_s


def test_a_part_of_a_recording_is_a_recording_of_its_own(ranks: list[Written]) -> None:
    for rank in ranks:
        rank.log.note(Kind.PART, 0, "expected", "", 1.0)
    ranks[0].call(Kind.SEND, "Send", 1, 1.0, 2.0)
    ranks[1].call(Kind.RECEIVE, "Recv", 0, 1.0, 2.0)
    for rank in ranks:
        rank.log.note(Kind.PART, 0, "", "", 2.0)
    ranks[0].call(Kind.COLLECTIVE, "Barrier", -1, 3.0, 4.0)
    trace = merged(ranks)
    assert trace.messages == [] and len(trace.collectives) == 1
    part = trace.part("expected")
    assert part is not None and len(part.messages) == 1 and part.collectives == []
    assert trace.part("something else") is None


def test_a_wait_for_a_send_says_so(ranks: list[Written]) -> None:
    started = ranks[0].call(Kind.START_SEND, "Isend", 1, 1.0, 1.1, request=1)
    ranks[0].call(Kind.WAIT, "Wait", 1, 2.0, 3.0, request=started)
    assert [event.is_of_send for event in ranks[0].read().events] == [False, True]


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


def run_traced(tmp_path: Path, text: str, *options: str, ranks: int = 3, code: int = 0) -> dict[str, Any]:
    """Run a program with --trace; return the trace."""
    program, out = tmp_path / "program.py", tmp_path / "trace.json"
    program.write_text(text)
    words = [*WATCHED, "-n", str(ranks), "--trace", str(out), *options, str(program)]
    job = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert job.returncode == code, job.stderr
    assert sorted(tmp_path.iterdir()) == [program, out]  # and no log
    content: dict[str, Any] = json.loads(out.read_text())
    return content


def calls_of(content: dict[str, Any], rank: int) -> list[str]:
    """Return the names of a rank's calls in a trace."""
    events = content["traceEvents"]
    return [event["name"] for event in events if event.get("cat") == "mpi" and event["tid"] == 1 + rank]


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


def test_counts_for_two_ranks_are_no_count_with_a_displacement(tmp_path: Path) -> None:
    text = "import numpy as np\nfrom mpi4py import MPI\n"
    text += "MPI.COMM_WORLD.Allgatherv(MPI.IN_PLACE, [np.ones(5), [3, 2]])"
    events = run_traced(tmp_path, text, ranks=2)["traceEvents"]
    assert [event["args"]["bytes"] for event in events if event["name"] == "Allgatherv"] == [40, 40]


def test_a_deadlock_is_recorded_to_its_end(tmp_path: Path) -> None:
    content = run_traced(tmp_path, DEADLOCK, code=HANG_EXIT_CODE)
    calls = [event for event in content["traceEvents"] if event.get("cat") == "mpi"]
    assert {call["name"] for call in calls} == {"Ssend → 0", "Ssend → 1", "Ssend → 2"}
    assert all(call["args"]["ended"] == "never" and call["dur"] > 0 for call in calls)


def test_a_program_in_strict_mode_is_recorded(tmp_path: Path) -> None:
    content = run_traced(tmp_path, RING, "--strict")
    assert content["otherData"]["messages"] == 6
    for rank in range(3):
        right, left = (rank + 1) % 3, (rank - 1) % 3
        assert calls_of(content, rank) == [f"Irecv ← {left}", f"Send → {right}", f"Wait ← {left}"] * 2 + [
            "allreduce"
        ]


def test_the_non_blocking_calls_of_strict_mode_are_recorded(tmp_path: Path) -> None:
    content = run_traced(tmp_path, NON_BLOCKING, "--strict")
    for rank in range(3):
        right, left = (rank + 1) % 3, (rank - 1) % 3
        exchange = [f"Isendrecv → {right}", f"Isendrecv ← {left}", f"Wait ← {left}"]
        sent = [f"Isend → {right}", f"Irecv ← {left}", f"Wait → {right}", f"Wait ← {left}"]
        assert calls_of(content, rank) == [*sent, *exchange, "Iallreduce", "Wait"]
    calls = [event for event in content["traceEvents"] if event.get("cat") == "mpi"]
    assert all(call["args"]["line"].startswith("program.py line ") for call in calls), calls
    assert content["otherData"]["messages"] == 6


@pytest.mark.parametrize("strict", [(), ("--strict",)])
def test_a_call_and_a_program_that_raise_an_error_are_recorded_with_its_words(
    tmp_path: Path, strict: tuple[str, ...]
) -> None:
    content = run_traced(tmp_path, RAISES, *strict, code=1)
    calls = [event for event in content["traceEvents"] if event.get("cat") == "mpi" and event["tid"] == 2]
    send, error = calls
    assert send["name"] == "Send → 2"
    assert send["args"]["ended"].startswith(("ValueError: ", "BufferError: ")), calls
    assert error["name"] == "ZeroDivisionError: division by zero", calls
    assert error["args"]["line"] == "program.py line 9: `1 / 0`", calls


LAUNCHED = {
    "an error": "if comm.rank == 2:\n    raise ValueError('an error')\n",
    "an exit code": "if comm.rank == 2:\n    sys.exit(3)\n",
    "a death": "if comm.rank == 2:\n    os._exit(3)\n",
    "a kill": "if comm.rank == 2:\n    os.kill(os.getpid(), 9)\n",
    "a hang": "if comm.rank == 2:\n    comm.recv(source=1)\n",
    "Abort": "if comm.rank == 2:\n    comm.Abort(5)\n",
}


@pytest.mark.parametrize("how", LAUNCHED)
def test_another_launcher_leaves_the_trace_of_a_program_that_fails(tmp_path: Path, how: str) -> None:
    program, out = tmp_path / "program.py", tmp_path / "trace.json"
    text = "import os, sys\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\ncomm.Barrier()\n"
    program.write_text(f"{text}{LAUNCHED[how]}comm.Barrier()\n")
    words = [launch.mpiexec(), "-n", "4", *WATCHED, "--deadline", "2", "--trace", str(out), str(program)]
    environment = {**os.environ, **launch.settings()}  # Open MPI: also with fewer cores than ranks
    job = subprocess.run(
        words, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment
    )
    assert job.returncode != 0
    # After Abort, a process that outlives the job writes it.
    wait_until(lambda: sorted(tmp_path.iterdir()) == [program, out], "the trace, and no log")
    content = json.loads(out.read_text())
    assert "lost_ranks" not in content["otherData"], job.stderr
    for rank in range(4):
        assert calls_of(content, rank)[:1] == ["Barrier"], job.stderr


def logs_of_two_ranks(trace: Path) -> None:
    for rank in range(2):
        log = LogWriter(log_file(str(trace), rank), rank, 2, 0.5)
        log.note(Kind.RAISED, 1, "error", "program.py line 1", 1.0, "an error")
        log.finish(2.0, 0.0)


def test_the_process_that_writes_a_trace_writes_it_when_it_is_asked(tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    logs_of_two_ranks(out)
    keeper = start_keeper(str(out), 2)
    assert keeper is not None and keeper.write()
    assert list(tmp_path.iterdir()) == [out]
    assert "lost_ranks" not in json.loads(out.read_text())["otherData"]


def test_the_process_that_writes_a_trace_says_what_is_missing(tmp_path: Path, capfd: Any) -> None:
    out = tmp_path / "trace.json"
    logs_of_two_ranks(out)
    os.unlink(log_file(str(out), 1))
    keeper = start_keeper(str(out), 2)
    assert keeper is not None and keeper.write()
    assert "lacks what these ranks have recorded: 1." in capfd.readouterr().err


KILLED = """\
import os, signal, sys
from mpiwatch.trace_files import start_keeper

keeper = start_keeper(sys.argv[1], 2)
if sys.argv[2] == "asks":
    os.write(keeper._ask, b"\\n")
os.kill(0, signal.SIGKILL)  # with all of its group, as a launcher does
"""


@pytest.mark.parametrize("what", ["asks", "does not ask"])
def test_a_process_that_is_killed_leaves_a_trace_of_all_ranks(tmp_path: Path, what: str) -> None:
    out = tmp_path / "trace.json"
    logs_of_two_ranks(out)
    words = [sys.executable, "-c", KILLED, str(out), what]
    subprocess.run(words, timeout=DEADLINE_S, start_new_session=True, check=False)
    wait_until(lambda: list(tmp_path.iterdir()) == [out], "the trace, and no log")
    assert "lost_ranks" not in json.loads(out.read_text())["otherData"]


def test_a_trace_that_goes_to_an_open_file_is_left_to_its_process() -> None:
    assert start_keeper("/dev/null", 2) is None


def test_a_folder_that_does_not_exist_is_an_error_before_the_program_starts(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('ran')\n")
    words = [*WATCHED, "-n", "2", "--trace", str(tmp_path / "none" / "trace.json"), str(program)]
    job = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert job.returncode == 2 and "argument --trace: No such file or directory" in job.stderr
    assert "ran" not in job.stdout


def test_traces_whose_names_begin_alike_have_logs_of_their_own(tmp_path: Path) -> None:
    for characters in (50, 220, 250):
        names = [f"{'n' * characters}{number}" for number in range(2)]
        logs = [log_file(str(tmp_path / name), 3) for name in names]
        assert logs[0] != logs[1]
        for log in logs:
            Path(log).write_text("")  # the name is not too long


def test_the_log_of_a_rank_stands_beside_the_trace(tmp_path: Path) -> None:
    assert log_file(str(tmp_path / "trace.json"), 3) == str(tmp_path / ".trace.json.rank-3")
