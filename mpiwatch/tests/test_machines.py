"""The flight recorders of two machines in one process: each learns what the other's ranks are doing."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import pytest

from jobs import wait_until
from mpiwatch import machines
from mpiwatch.launch import ADDRESSES
from mpiwatch.machines import (
    MOST_WAITING_BYTES,
    SLOT_BYTES,
    Connection,
    FrameError,
    Hub,
    Kind,
    Listener,
    Relay,
    Session,
    addresses,
    decode,
    find_hub,
    hand_over,
    shake_hands,
    take_over,
)
from mpiwatch.recorder import (
    Call,
    CellState,
    Death,
    FlightRecorder,
    ReportRequest,
    Slot,
    WaitingIn,
    fit,
    read_members,
    read_request,
    write_members,
    write_request,
)
from mpiwatch.report import Activity, Mismatch, Reason, Report, render

MACHINES = [0, 0, 1, 1]  # of ranks 0 to 3


class Two(NamedTuple):
    """The recorders of two machines, and the threads that connect them."""

    here: FlightRecorder
    there: FlightRecorder
    hub: Hub
    relay: Relay


def connected() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        return ours, server.accept()[0]


def connections(key: bytes = bytes(32)) -> tuple[Connection, Connection]:
    """Return the hub's and the relay's end of a connection."""
    hub, relay = connected()
    return Connection(hub, Session(key, 0, 1)), Connection(relay, Session(key, 1, 0))


@pytest.fixture
def two() -> Iterator[Two]:
    recorders = [FlightRecorder(FlightRecorder.create(len(MACHINES))) for _ in range(2)]
    for number, recorder in enumerate(recorders):
        recorder.remove()
        recorder.head.machine, recorder.head.hub = number, 1
        for rank, slot in enumerate(recorder.slots):
            slot.machine, slot.host = MACHINES[rank], b"n%d" % MACHINES[rank]
            slot.pid = os.getpid() if MACHINES[rank] == number else 0
    near, far = connections()
    made = Two(*recorders, Hub(recorders[0], {1: near}), Relay(recorders[1], {0: far}))
    made.hub.start()
    made.relay.start()
    yield made
    made.relay.stop()
    made.hub.stop()
    made.relay.join()
    made.hub.join()


def test_other_machines_learn_what_a_rank_notes(two: Two) -> None:
    there, here = two.there.slots[2], two.here.slots[2]
    there.calls_noted, there.place = 1, fit("line 3: ü", 512)
    there.history[0] = Call(number=7, operation=b"Barrier", line=3)
    wait_until(lambda: bool(here.calls_noted and here.history[0].number == 7), "the call at the hub")
    assert here.place.decode() == "line 3: ü" and here.pid == os.getpid()
    two.here.set_cell_state(0, CellState.RAISED, "ValueError")
    wait_until(lambda: two.there.slots[0].cell_state == CellState.RAISED, "the state at the relay")
    assert two.there.slots[1].cell_state == CellState.RUNNING


def test_times_are_converted_to_the_receivers_clock(two: Two) -> None:
    late_s = 1000.0  # how far the other machine's clock is behind
    two.hub.connections[1].offset_s = late_s  # of a frame sent without any delay
    two.there.set_cell_state(3, CellState.RAISED)
    sent = two.there.slots[3].cell_state_since_s
    wait_until(lambda: two.here.slots[3].cell_state == CellState.RAISED, "the state at the hub")
    seen = two.here.slots[3].cell_state_since_s
    # Both clocks are the same, as the frame with the shortest transit shows.
    assert sent <= seen <= monotonic()
    assert two.here.slots[3].mpi_call_since_s == two.here.slots[3].waiting_since_s == 0.0  # still never


def test_a_report_is_made_of_all_machines_and_published_on_all(two: Two) -> None:
    for rank, recorder in enumerate((two.here, two.here, two.there, two.there)):
        slot = recorder.slots[rank]
        slot.waiting_in, slot.message_operation = WaitingIn.MESSAGE, b"Recv"
        slot.message_peer, slot.message_number, slot.place = (rank + 1) % 4, 1, b"x.py line %d" % rank
    two.there.slots[3].calls_noted = 9  # the highest number of a call is there
    wait_until(lambda: bool(two.here.slots[3].message_number), "rank 3's wait at the hub")
    write_request(two.there.slots[3], 0, ReportRequest(Reason.TIMED_OUT, 2.0, [0, 1, 2, 3], 3))
    wait_until(lambda: two.here.head.epoch == two.there.head.epoch == 1, "the report on both machines")
    report = two.here.last_report()
    assert report is not None and report == two.there.last_report()
    assert report.reason is Reason.CIRCLE  # only the hub can see it
    assert [rank.place for rank in report.ranks] == [f"x.py line {rank}" for rank in range(4)]
    assert "rank 3 (host n1) is waiting in Recv (from rank 0" in render(report)
    assert two.here.head.first_number == two.there.head.first_number == 9


def test_a_machine_that_cannot_be_reached_is_named(two: Two) -> None:
    two.there.set_cell_state(2, CellState.EXITED)
    wait_until(lambda: two.here.slots[2].cell_state == CellState.EXITED, "rank 2's end at the hub")
    two.relay.connections[0].socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: bool(two.here.slots[3].has_died), "the loss at the hub")
    assert two.here.is_alive(2) and not two.here.is_alive(3)  # rank 2 has ended as it should
    write_request(two.here.slots[0], 0, ReportRequest(Reason.RANK_ENDED, 2.0, [0, 1, 2, 3], 0))
    wait_until(lambda: two.here.head.epoch == 1, "a report without the machine")
    report = two.here.last_report()
    assert report is not None and report.ranks[3].activity is Activity.UNREACHABLE
    assert "rank 3 (host n1) cannot be reached" in render(report)
    wait_until(lambda: two.there.head.hub == 0, "the loss at the relay")
    assert two.there.slots[0].has_died == Death.UNREACHABLE


def test_a_rank_that_dies_is_seen_by_its_own_machine(two: Two) -> None:
    two.there.slots[2].pid = 0  # it has not started yet
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        two.there.slots[3].pid = process.pid
        process.kill()
        process.wait()
        wait_until(lambda: two.here.slots[3].has_died == Death.DIED, "the death at the hub")
    assert not two.here.is_alive(3) and two.here.is_alive(2)


def test_only_relays_with_the_key_are_admitted() -> None:
    listener = Listener()
    with ExitStack() as stack:
        stack.callback(listener.close)
        silent = stack.enter_context(socket.create_connection(("127.0.0.1", listener.port)))
        connection, fault = find_hub((["127.0.0.1"], listener.port, bytes(32)), 1)
        assert connection is None and fault and not listener.admitted
        # A client that sends nothing does not block the others, and the relay tries every address.
        connection, fault = find_hub((["255.255.255.255", *addresses()], listener.port, listener.key), 1)
        assert connection is not None, fault
        stack.callback(connection.close)
        wait_until(lambda: set(listener.admitted) == {1}, "the relay")
        stack.callback(listener.admitted[1].close)
        silent.sendall(b"\0" * 1000)
        assert set(listener.admitted) == {1}


@pytest.mark.parametrize("named", ["127.0.0.1", "203.0.113.7,127.0.0.1"])
def test_the_hub_listens_on_the_address_of_its_machine_alone(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESSES, named)
    listener = Listener()
    with closing(listener):
        assert listener.address == listener.socket.getsockname()[0] == "127.0.0.1"
        for address in addresses():
            connection, fault = find_hub(([address], listener.port, listener.key), 1)
            assert (connection is not None) == (address == "127.0.0.1"), fault
            if connection is not None:
                connection.close()


@pytest.mark.parametrize("named", ["", "203.0.113.7"])
def test_without_an_address_of_its_machine_the_hub_listens_on_all(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ADDRESSES, named)
    listener = Listener()
    with closing(listener):
        assert not listener.address and listener.socket.getsockname()[0] in ("::", "0.0.0.0")


def test_a_program_in_place_of_the_hub_is_refused() -> None:
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        theirs.sendall(bytes(68))
        with pytest.raises(ConnectionError, match="another program"):
            shake_hands(ours, bytes(32), 1)


def test_frames_arrive_whole_however_they_are_cut() -> None:
    sender, receiver = connections()
    sent = [[(i, i * 8, bytes([i % 251]) * (i * 7919 % 300_000))] for i in range(40)]
    received: list[object] = []
    for changes in sent:
        sender.send(Kind.SLOTS, changes)  # more than the socket takes at once; the rest waits
        received += [value for _, value in receiver.receive()]
    while sender.leaving:
        sender.flush()
        received += [value for _, value in receiver.receive()]
    assert received + [value for _, value in receiver.receive()] == sent
    sender.close()
    with pytest.raises(ConnectionError):
        list(receiver.receive())
    receiver.close()


def other_key(frame: bytes) -> bytes:
    forger, victim = connections(bytes(31) + b"x")
    forger.frames_sent = 1  # so that only the key is wrong
    forger.send(Kind.PUBLISHED)
    wait_until(lambda: bool(victim.socket.recv(1, socket.MSG_PEEK)), "the forged frame")
    forged = victim.socket.recv(1000)
    forger.close()
    victim.close()
    return forged


def has_read(connection: Connection) -> bool:
    """Read the frames that have arrived; return false, so that `wait_until` goes on until one is refused."""
    list(connection.receive())
    return False


FORGERIES = {
    "made without the key": other_key,
    "changed on the way": lambda frame: frame[:20] + bytes([frame[20] ^ 1]) + frame[21:],
    "longer than any frame": lambda frame: b"\xff" + frame[1:],
    "with another clock": lambda frame: frame[:8] + bytes([frame[8] ^ 1]) + frame[9:],
    "repeated": lambda frame: frame + frame,
}


@pytest.mark.parametrize("how", FORGERIES)
def test_a_forged_frame_is_refused_and_ends_the_connection(how: str) -> None:
    sender, receiver = connections()
    with closing(sender), closing(receiver):
        sender.send(Kind.SLOTS, [(0, 0, b"state")])
        assert list(receiver.receive()) == [(Kind.SLOTS, [(0, 0, b"state")])]
        sender.socket.setblocking(True)
        sender.send(Kind.SLOTS, [(1, 0, b"state")])
        receiver.socket.setblocking(True)
        frame = receiver.socket.recv(1000)
        receiver.socket.setblocking(False)
        sender.socket.sendall(FORGERIES[how](frame))
        with pytest.raises(FrameError, match=r"was not sent by the other end|none is so large"):
            wait_until(lambda: has_read(receiver), "the forged frame")


def test_a_frame_that_is_sent_back_to_its_sender_is_refused() -> None:
    sender, receiver = connections()
    with closing(sender), closing(receiver):
        sender.send(Kind.PUBLISHED)
        receiver.socket.setblocking(True)
        receiver.socket.sendall(receiver.socket.recv(1000))
        with pytest.raises(FrameError, match=r"was not sent by the other end|none is so large"):
            wait_until(lambda: has_read(sender), "the frame that comes back")


def test_a_connection_that_is_handed_over_goes_on_with_its_session() -> None:
    near, far = connections()
    recorder = FlightRecorder(FlightRecorder.create(2))
    recorder.head.machine, recorder.slots[1].machine = 1, 1
    ours, theirs = socket.socketpair()
    with closing(ours), closing(theirs):
        hand_over(1, recorder, Relay(recorder, {0: far}), ours)
        taken = take_over(theirs)
    recorder.remove()
    assert taken is not None and taken[2] is not None
    with closing(near), closing(far), closing(taken[2]):
        taken[2].connections[0].send(Kind.PUBLISHED)
        wait_until(lambda: [*near.receive()] == [(Kind.PUBLISHED, None)], "the frame")


NO_FRAMES = b"", b"\0", b"\1\0\0", b"\1" + bytes(11) + b"\t", b"\3{}", b"\3" + bytes(8)


@pytest.mark.parametrize("content", NO_FRAMES)
def test_a_frame_that_nobody_sends_is_refused_and_nothing_in_it_is_executed(content: bytes) -> None:
    with pytest.raises(FrameError):
        decode(content)
    for harmful in pickle.dumps(Path("x")), b"\1cos\nsystem\n(S'false'\ntR.":
        with pytest.raises(FrameError):
            decode(harmful)


@pytest.mark.parametrize("why", [*Reason, *Mismatch])
def test_a_wish_survives_writing_and_reading(recorder: FlightRecorder, why: Reason | Mismatch) -> None:
    request = ReportRequest(why, 2.5, [0, 2], 2)
    write_request(recorder.slots[2], 4, request)
    assert read_request(recorder.slots[2], 4, 3) == request
    assert read_request(recorder.slots[2], 5, 3) is None  # it was about an earlier epoch


@pytest.mark.parametrize("size", [1, 9, 1024, 1025])
def test_members_that_do_not_fit_are_all_ranks(recorder: FlightRecorder, size: int) -> None:
    slot = recorder.slots[0]
    write_members(slot, [0, size - 1])
    assert read_members(slot, size) == (sorted({0, size - 1}) if size <= 1024 else list(range(size)))


@pytest.fixture
def hub() -> Iterator[tuple[Hub, Connection]]:
    """A hub that is not started, for rank 0, and the other end of its connection to rank 1's machine."""
    recorder = FlightRecorder(FlightRecorder.create(2))
    recorder.remove()
    recorder.slots[1].machine = 1
    near, far = connections()
    made = Hub(recorder, {1: near})
    yield made, far
    made.close()
    far.close()


def test_a_machine_that_was_behind_learns_what_it_has_missed(hub: tuple[Hub, Connection]) -> None:
    server, far = hub
    server.send_last()
    server.connections[1].leaving += bytes(MOST_WAITING_BYTES + 1)
    server.recorder.set_cell_state(0, CellState.EXITED)
    server.send_last()
    server.connections[1].leaving.clear()
    server.send_last()
    told: list[int] = []

    def has_learnt() -> bool:
        firsts = (part for _, start, part in states(far) if not start)
        told.extend(Slot.from_buffer_copy(part.ljust(SLOT_BYTES)).cell_state for part in firsts)
        return CellState.EXITED in told

    wait_until(has_learnt, "the state that was not sent at first")


def states(connection: Connection) -> list[tuple[int, int, bytes]]:
    """Return the states of ranks that have arrived."""
    return [change for kind, value in connection.receive() if kind is Kind.STATES for change in value]


def test_a_machine_that_does_not_answer_delays_a_report_for_a_while_only(
    hub: tuple[Hub, Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, _ = hub
    monkeypatch.setattr(machines, "ANSWER_S", 0.1)
    server.report(ReportRequest(Reason.TIMED_OUT, 2.0, [0, 1], 0))
    assert server.recorder.head.epoch == 1


def test_a_hub_that_ends_while_it_is_answered_is_lost_once(two: Two) -> None:
    two.hub.stop()
    near, far = connections()
    relay = Relay(two.there, {0: far})
    near.send(Kind.REPORT, (Report(Reason.STOPPED, 2.0), 0))
    near.close()

    def is_lost() -> bool:
        relay.exchange(0.1)
        return not relay.connections

    wait_until(is_lost, "the loss of the hub")
