"""Recordings: every message and collective is there, with its ranks, tag, bytes and line."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from mpiwatch import layers, sessions, trace, trace_log, trace_recorder
from mpiwatch.arguments import nbytes
from mpiwatch.communicators import watch_world
from mpiwatch.forwarding import add_methods
from mpiwatch.messages import open_requests
from mpiwatch.report import MAKERS, NONBLOCKING_COLLECTIVES, OF_ARRAYS, OF_OBJECTS, SENDS
from mpiwatch.under_way import under_way
from mpiwatch.wrapper import CommWrapper

sys.path.insert(0, str(Path(__file__).parent.parent / "programs"))
from recorded_calls import PROGRAMS

BOTH = "Isendrecv", "Isendrecv_replace"


class CountingComm(CommWrapper):
    """Counts what reaches the MPI library."""

    innermost = True
    sent: ClassVar[Counter[tuple[int, int, int]]] = (
        Counter()
    )  # messages by receiver, tag and bytes; -1: an object
    collectives = 0

    def _count_send(self, name: str, given: dict[str, Any]) -> Any:
        buffer = next(given[key] for key in ("buf", "obj", "sendbuf") if key in given)
        if given["dest"] != MPI.PROC_NULL:
            size = nbytes(buffer) if name[0].isupper() else -1
            world = MPI.COMM_WORLD.Get_group()
            dest = self.Get_group().Translate_ranks([given["dest"]], world)[0]
            tag = given["sendtag"] if "sendtag" in given else given["tag"]
            CountingComm.sent[dest, tag, size] += 1
        return getattr(super(), name)(**given)

    def _count_collective(self, name: str, given: dict[str, Any]) -> Any:
        CountingComm.collectives += 1
        return getattr(super(), name)(**given)


_SENDS = [name for name in (*SENDS, *BOTH) if "_init" not in name]
add_methods(CountingComm, _SENDS, "_count_send", by_name=True)
_COLLECTIVES = [*OF_ARRAYS, *OF_OBJECTS, *NONBLOCKING_COLLECTIVES]
add_methods(CountingComm, _COLLECTIVES, "_count_collective", by_name=True)


def recorded(function: Callable[[], object]) -> trace.RankLog:
    """Return what this rank records while it calls a function."""
    world = watch_world(deadline_s=60)
    with tempfile.TemporaryDirectory() as folder:
        trace_recorder.begin(f"{folder}/log", world)
        try:
            function()
        finally:
            content = trace_recorder.end()
        log = trace.read(content)
        assert log.events == trace.read_file(f"{folder}/log").events
    return log


def check_each_message_and_collective_of_many_programs_is_recorded(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)
    counting: Any = CountingComm(world)
    for function in PROGRAMS:
        CountingComm.sent, CountingComm.collectives = Counter(), 0
        log = recorded(lambda function=function: function(counting))  # type: ignore[misc]
        counts, collectives = CountingComm.sent, CountingComm.collectives
        logs = MPI.Intracomm.allgather(world, log)
        expected = MPI.Intracomm.allgather(world, counts)
        merged = trace.merge(logs)
        about = f"{function.__name__} on {world.size} ranks"
        # Of objects, the receiver knows the size.
        sent = Counter(
            (message.dest, message.tag, -1 if message.send.operation[0].islower() else message.nbytes)
            for message in merged.messages
            if message.send is not None and message.source == world.rank
        )
        if function.__name__ == "persistent_requests":  # which do not pass where the others are counted
            expected = [Counter({((rank + 1) % world.size, 7, 16): 3}) for rank in range(world.size)]
        assert sent == expected[world.rank], f"{about}: {sent} != {expected[world.rank]}"
        for message in merged.messages:
            assert message.send is not None and message.receive is not None, f"{about}: {message}"
            assert message.nbytes >= 0, f"{about}: {message}"
            assert message.left_s is not None and message.arrived_s is not None, about
            assert message.left_s <= message.arrived_s, f"{about}: {message}"
        calls = [each for each in merged.collectives if world.rank in each.calls]
        calls = [each for each in calls if each.operation not in (*MAKERS, "Create_cart")]
        assert len(calls) == collectives, f"{about}: {len(calls)} != {collectives}"
        for collective in merged.collectives:
            assert not collective.missing, f"{about}: {collective}"
            assert {call.operation for call in collective.calls.values()} == {collective.operation}, about
        for event in log.events:
            assert event.end_s is not None and not event.has_failed, f"{about}: {event}"
            assert "recorded_calls.py line " in event.line, f"{about}: {event}"


def check_a_row_holds_ranks_tag_bytes_line_and_values(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    received = np.empty(100, np.float32)

    def exchange() -> None:
        request = world.Irecv(received, left, 3)
        world.Send(np.full(100, world.rank, np.float32), right, 3)
        request.Wait()
        request = world.isend({"a": world.rank}, right)
        world.recv(source=left)
        request.wait()

    started, sent, waited, complete, _, taken, *_ = recorded(exchange).events
    kinds = [trace.Kind.START_RECEIVE, trace.Kind.SEND, trace.Kind.WAIT, trace.Kind.COMPLETE]
    assert [event.kind for event in (started, sent, waited, complete)] == kinds
    assert started.request == waited.request == complete.request and waited.number == complete.number
    assert (sent.peer, sent.tag, sent.nbytes, complete.nbytes) == (right, 3, 400, 400)
    assert complete.values is not None and complete.values.items == 100
    assert complete.values.first == (float(left),) * 32 and not complete.values.is_whole
    assert sent.line.endswith("`world.Send(np.full(100, world.rank, np.float32), right, 3)`")
    assert taken.values is not None and taken.values.text == f"{{'a': {left}}}" and taken.nbytes > 0


def check_recording_leaves_no_trace_in_the_classes(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)
    before = dict(vars(type(world))), dict(vars(MPI.Request)), dict(vars(MPI.Prequest))
    recorded(world.Barrier)
    assert (dict(vars(type(world))), dict(vars(MPI.Request)), dict(vars(MPI.Prequest))) == before
    assert trace_recorder.recorder is None and trace_recorder.end() == b""


def check_a_request_that_is_recorded_keeps_the_line_of_the_program(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)

    def start() -> None:
        request = world.Irecv(np.empty(1), world.rank, 11)
        ((_, _, line, _),) = [each for each in open_requests() if each[2]]
        assert "recording.py line" in line and "world.Irecv" in line, line
        world.Send(np.ones(1), world.rank, 11)
        request.Wait()

    under_way.requests.clear()
    recorded(start)


def check_a_recording_is_bounded_and_says_how_much_is_missing(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)
    path = os.path.join(tempfile.mkdtemp(), "log")
    trace_recorder.begin(path, world, capacity=10)
    for _ in range(25):
        world.Barrier()
    log = trace.read(trace_recorder.end())
    assert len(log.events) == 10 and log.lost == 15


def check_a_call_that_raises_an_error_is_recorded_as_failed(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)

    def fail() -> None:
        with contextlib.suppress(ValueError, BufferError):
            world.Send(np.ones(4)[::2], world.rank)

    (event,) = recorded(fail).events
    assert event.has_failed and event.operation == "Send" and not event.never_ended
    assert event.error.startswith(("ValueError: ", "BufferError: ")), event


def check_a_start_that_raises_an_error_is_recorded_as_failed(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)
    unfit = np.ones(4)[::2]

    def fail() -> None:
        request = world.Recv_init(np.empty(1), world.rank, 14)
        request.Start()
        with contextlib.suppress(MPI.Exception, RuntimeError, ValueError):
            request.Start()  # it is active
        world.Send(np.ones(1), world.rank, 14)
        request.Wait()
        request.Free()
        with contextlib.suppress(ValueError, BufferError):
            world.Isendrecv(unfit, world.rank, 15, np.empty(4), world.rank, 15)

    *events, sent, received = recorded(fail).events
    assert [each.has_failed for each in events if each.operation == "Recv_init"][:2] == [False, True], events
    assert (sent.kind, received.kind) == (trace.Kind.START_SEND, trace.Kind.START_RECEIVE)
    assert sent.has_failed and received.has_failed, (sent, received)


def check_what_goes_nowhere_is_no_message(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)
    nothing = np.empty(0)

    def call() -> None:
        assert world.Mprobe(MPI.PROC_NULL) == MPI.MESSAGE_NO_PROC
        request = world.Isendrecv(np.ones(1), world.rank, 16, nothing, MPI.PROC_NULL, 16)
        world.Recv(np.empty(1), world.rank, 16)
        request.Wait()

    kinds = [event.kind for event in recorded(call).events]
    kind = trace.Kind
    assert kinds == [kind.START_SEND, kind.RECEIVE, kind.WAIT, kind.COMPLETE], kinds


def check_values_of_buffers_are_shown_whatever_names_them(comm: MPI.Intracomm) -> None:
    """A wait in small letters, the ranks of a Reduce that get nothing, and a persistent collective."""
    world = watch_world(deadline_s=60)
    received, mine, total = np.zeros(1), np.full(1, 1.0 + world.rank), np.zeros(1)
    root = world.size - 1

    def call() -> None:
        request = world.Irecv([received, MPI.DOUBLE], world.rank, 17)
        world.Send(np.full(1, 5.0), world.rank, 17)
        request.wait()
        world.Reduce(mine, total if world.rank == root else None, root=root)

    _, _, _, complete, reduced = recorded(call).events
    assert complete.values is not None and complete.values.first == (5.0,), complete
    expected = sum(range(1, world.size + 1)) if world.rank == root else mine[0]
    assert reduced.values is not None and reduced.values.first == (expected,), reduced
    if MPI.VERSION < 4:
        return  # without persistent collectives

    def start() -> None:
        request = world.Allreduce_init(mine, total)
        request.Start()
        request.Wait()
        request.Free()

    started, *_ = recorded(start).events
    assert started.values is not None and started.values.first == (mine[0],), started


def check_texts_that_threads_add_at_once_keep_their_numbers(comm: MPI.Intracomm) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = trace_log.LogWriter(f"{folder}/log", 0, 1, 0.0)
        texts = [[f"thread {thread}, text {number}" for number in range(2000)] for thread in range(4)]

        def add(own: list[str]) -> None:
            for text in own:
                log.text(text)

        threads = [threading.Thread(target=add, args=(own,)) for own in texts]
        interval_s = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval_s)
        for own in texts:
            for text in own:
                log.note(trace.Kind.PART, 0, text, "", 0.0)
        parts = trace.read_file(f"{folder}/log").parts
    assert [part.name for part in parts] == [text for own in texts for text in own]


def check_a_thread_may_be_inside_a_call_when_a_recording_ends(comm: MPI.Intracomm) -> None:
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        return
    world = watch_world(deadline_s=60)
    received, errors = np.zeros(1), []
    is_inside = threading.Event()

    def receive() -> None:
        is_inside.set()
        try:
            world.Recv(received, world.rank, 13)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=receive)
    with tempfile.TemporaryDirectory() as folder:
        trace_recorder.begin(f"{folder}/log", world)
        thread.start()
        is_inside.wait()
        while not trace.read_file(f"{folder}/log").events:
            time.sleep(0.001)
        log = trace.read(trace_recorder.end())
    MPI.Intracomm.Send(world, np.ones(1), world.rank, 13)
    thread.join()
    assert not errors and received[0] == 1, errors
    (event,) = log.events
    assert event.operation == "Recv" and event.end_s is None
    (again,) = recorded(lambda: world.allreduce(1)).events  # the next recording is as ever
    assert again.operation == "allreduce"


def check_a_part_of_a_recording_has_no_lines(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)

    def run() -> None:
        with sessions.recording_part("expected"):
            world.Barrier()
        world.allreduce(1)

    log = recorded(run)
    (part,) = log.parts
    assert part.name == "expected" and [(e.operation, e.line) for e in part.events] == [("Barrier", "")]
    (event,) = log.events
    assert event.operation == "allreduce" and event.line and part.events[0].begin_s < log.begin_s


def check_a_row_says_where_an_array_is_in_memory(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)
    array = np.arange(10.0)

    def exchange() -> None:
        request = world.Irecv(array[6:8], world.rank, 14)
        world.Send(array[2:4], world.rank, 14)
        request.Wait()

    started, sent, *_ = recorded(exchange).events
    assert (started.offset, started.whole, sent.offset, sent.whole) == (48, 80, 16, 80)
    assert sent.address == array.ctypes.data + 16


def check_a_wait_of_an_algorithm_is_a_wait(comm: MPI.Intracomm) -> None:
    """It polls requests, which would look like computing."""
    world = watch_world(deadline_s=60)
    if world.size < 2:
        return
    left, right = (world.rank - 1) % world.size, (world.rank + 1) % world.size
    may_send = Path(tempfile.gettempdir()) / f"{world.bcast(os.getpid())}-may-send"

    def exchange() -> None:
        request = world.Irecv(np.empty(1), left, 15)
        if world.rank == 0:  # the messages go around, and begin when rank 1 waits
            while not may_send.exists():
                time.sleep(0.001)
        awaited = layers.Pending(world, "an algorithm", [left], [], request=request)
        if world.rank:
            layers.wait_for_pending(signalling(request.Test), lambda: awaited)
        world.Send(np.ones(1), right, 15)
        if not world.rank:
            layers.wait_for_pending(signalling(request.Test), lambda: awaited)
        layers.note_wait(world, lambda: time.sleep(0.001))

    def signalling(test: Callable[[], bool]) -> Callable[[], bool]:
        def over() -> bool:
            if world.rank == 1 and not may_send.exists():
                may_send.touch()
                return False
            return test()

        return over

    try:
        log = recorded(exchange)
    finally:
        MPI.Intracomm.Barrier(world)
        may_send.unlink(missing_ok=True)
    started, complete = (
        next(event for event in log.events if event.kind is kind)
        for kind in (trace.Kind.START_RECEIVE, trace.Kind.COMPLETE)
    )
    waited, noted = (event for event in log.events if event.kind is trace.Kind.WAIT)
    assert (waited.request, waited.peer, waited.tag) == (started.request, left, 15)
    assert complete.number == waited.number and complete.request == started.request
    assert "recording.py line" in waited.line and noted.request == 0 and noted.peer == -1
    merged = trace.merge(MPI.Intracomm.allgather(world, log))
    spans = [span for span in merged.spans(1) if span.event is not None and span.what == "wait"]
    assert spans and spans[0].awaited == (0,), merged.spans(1)


def check_a_wait_for_a_send_lasts_until_its_receive(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)
    if world.size < 2:
        return

    def exchange() -> None:
        if world.rank == 0:
            request = world.Issend(np.ones(1), 1, 16)
            world.Send(np.ones(1), 1, 17)
            request.Wait()
        elif world.rank == 1:
            world.Recv(np.empty(1), 0, 17)
            time.sleep(0.02)  # the other rank waits for this one as long, or a little less
            world.Recv(np.empty(1), 0, 16)

    merged = trace.merge(MPI.Intracomm.allgather(world, recorded(exchange)))
    spans = [span for span in merged.spans(0) if span.event and span.event.kind is trace.Kind.WAIT]
    assert spans and (spans[0].what, spans[0].awaited) == ("wait", (1,)), spans


def check_a_cancelled_receive_takes_no_message(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)

    def cancel() -> None:
        request = world.Irecv(np.empty(1), world.rank, 12)
        request.Cancel()
        request.Wait()
        again = world.Irecv(np.empty(1), world.rank, 12)
        world.Send(np.ones(1), world.rank, 12)
        again.Wait()

    (message,) = trace.merge([recorded(cancel)]).messages
    assert message.receive is not None and message.receive.number == 3


def check_only_the_next_cell_of_a_session_is_recorded(comm: MPI.Intracomm) -> None:
    world = watch_world(deadline_s=60)
    watch = world.watch
    sessions.begin_cell(watch)  # the host asks for a recording: its functions count as cells
    path = sessions.begin_recording(world)
    sessions.end_cell(watch, None)
    for call in (world.Barrier, world.Dup, world.Split):
        sessions.begin_cell(watch)
        call()
        sessions.end_cell(watch, None)
    assert os.path.exists(path)
    log = trace.read(sessions.end_recording())
    assert [event.operation for event in log.events] == ["Barrier"] and log.lost == 0
    assert log.end_s is not None and log.begin_s < log.events[0].begin_s < log.end_s
    assert not os.path.exists(path) and sessions.end_recording() == b""
