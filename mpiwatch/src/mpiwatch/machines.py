"""Flight recorders of ranks on several machines: one on each, and relays that copy them to rank 0's.

Machines share no memory. Each has a recorder with slots for all ranks of the world. A thread in the first
rank of each machine, the relay, sends what changes in the slots of its ranks to a thread in rank 0, the hub,
which writes it to rank 0's recorder. A report can then be made from one recorder, as on one machine. The hub
sends it to the relays, which publish it on their machines.

They are threads rather than processes so that they end with their rank, however it ends, and the other end of
the connection sees it at once. If a rank's code blocks its other threads, it delays only these. In a program,
they run in the rank's parent process, which outlives it.
"""

from __future__ import annotations

import atexit
import ctypes
import hmac
import json
import math
import os
import re
import secrets
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from struct import Struct
from struct import error as StructError
from time import monotonic, sleep
from typing import Any, NamedTuple

from mpiwatch.guard import Guard
from mpiwatch.launch import ADDRESSES
from mpiwatch.processes import alive
from mpiwatch.recorder import CellState, Death, FlightRecorder, ReportRequest, Slot, read_request
from mpiwatch.report import Mismatch, Reason, Report
from mpiwatch.snapshot import Suspicion, is_in_mpi_call, stuck_ranks, take_snapshot, waits

HEADER = Struct("!Id")  # length of the content, the sender's clock; then come the content and its proof
PROOF_BYTES = 32  # of a frame
FRAME_ID = Struct("!IQ")  # the sender's machine, and how many frames it has sent before on this connection
RECEIVED_BYTES = 1 << 16
MOST_FRAME_BYTES = 1 << 28
MOST_WAITING_BYTES = 1 << 20  # if more is waiting to be sent, only frames that must arrive are added
HANDSHAKE_S = 5.0
DRIFT = 1e-4  # how fast clocks may drift apart, in seconds per second
KEY_BYTES = NONCE_BYTES = 32
SETTLED_S = 0.02  # smaller changes of the offset are ignored, since they would change every time in a slot
# The kernel notices within about 20 s that a machine is gone. For a busy process, its kernel answers.
KEEP_ALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPALIVE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
USER_TIMEOUT_MS = 20_000

START_S = 30.0  # until all machines have connected
CONNECT_S = 2.0  # for one address, which may lead nowhere and never answer
BLOCK_BYTES = 128  # of a slot: the parts that are sent if they have changed
SLOT_BYTES = ctypes.sizeof(Slot)
STATE_BYTES = Slot.host.offset  # of a slot: the part that waits read, without names, lines and calls
# On the writer's clock; 0 for never.
TIMES = [name for name, *_ in Slot._fields_ if name.endswith(("_since_s", "sampled_s"))]
TICK_S = 0.1  # between two samples of the slots
STOP_S = 2.0
DEATHS_S = 0.5  # between two checks of the processes
STATES_S = 0.25  # between two STATES frames
SETTLED_AFTER_S = 2 * TICK_S  # for what the ranks have noted to arrive, before a report is made
ANSWER_S = 3.0  # how long to wait for a machine to publish a report
MOST_FILES = 250  # limit of the system for one message to another process
MESSAGE_BYTES = 1 << 16
POLL_S = 0.01


class Kind(IntEnum):
    """What a frame holds: a byte with the kind, and a value as plain data."""

    SLOTS = 1  # relay to hub: changes in slots
    STATES = 2  # hub to relay: what the ranks of other machines are doing
    REPORT = 3  # hub to relay: publish this, and count calls on from this number
    PUBLISHED = 4  # relay to hub: the answer


# What has changed in slots: the rank, the offset in that rank's slot, and the new bytes.
Changes = list[tuple[int, int, bytes]]
CHANGE = Struct("!III")  # a rank, an offset, and the number of bytes that follow
NUMBER = Struct("!q")


class FrameError(OSError):
    """A frame that no mpiwatch of this version sends."""


def encode(kind: Kind, value: Any) -> bytes:
    """Return a frame's content: Changes of SLOTS and STATES, a report and a number of REPORT."""
    content = bytearray([kind])
    if kind in (Kind.SLOTS, Kind.STATES):
        for rank, start, part in value:
            content += CHANGE.pack(rank, start, len(part)) + part
    elif kind is Kind.REPORT:
        report, number = value
        content += NUMBER.pack(number) + report.to_json()
    return bytes(content)


def decode(content: bytes) -> tuple[Kind, Any]:
    """Return what `encode` was given; raise FrameError for anything else. Nothing in a frame is executed."""
    try:
        kind, rest = Kind(content[0]), content[1:]
        if kind in (Kind.SLOTS, Kind.STATES):
            return kind, list(_changes_in(rest))
        if kind is Kind.REPORT:
            (number,) = NUMBER.unpack_from(rest)
            return kind, (Report.from_json(rest[NUMBER.size :]), number)
        return kind, None
    except (ValueError, LookupError, TypeError, StructError) as error:
        raise FrameError(f"a frame cannot be read: {error}") from error


def _changes_in(content: bytes) -> Iterator[tuple[int, int, bytes]]:
    at = 0
    while at < len(content):
        rank, start, length = CHANGE.unpack_from(content, at)
        at += CHANGE.size
        part = content[at : at + length]
        if len(part) < length:
            raise ValueError(f"expected {length} bytes of a change, got {len(part)}")
        yield rank, start, part
        at += length


class Session(NamedTuple):
    """What both ends of a connection know after the handshake: its key, and the numbers of their machines.

    Each frame carries a proof: a digest, with the key, of the sender, its number and all of its bytes. So
    a frame that was made or changed on the way, repeated or sent back is refused.
    """

    key: bytes
    mine: int
    theirs: int

    def proof(self, machine: int, number: int, frame: bytes) -> bytes:
        """Return the proof of a frame (its header and content) of a machine."""
        return hmac.digest(self.key, FRAME_ID.pack(machine, number) + frame, "sha256")


class Connection:
    """One end of an admitted connection; none of its methods waits for the other end."""

    def __init__(self, sock: socket.socket, session: Session) -> None:
        self.socket, self.session = sock, session
        self.frames_sent = self.frames_received = 0
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (*KEEP_ALIVE.items(), ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS)):
            with suppress(OSError, AttributeError):  # not every system has every option
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        self.arrived, self.leaving = bytearray(), bytearray()
        self.offset_s = self.least_s = float("inf")
        self.heard = monotonic()

    def fileno(self) -> int:
        """Return the socket's file descriptor, for `select`."""
        return self.socket.fileno()

    def send(self, kind: Kind, value: Any = None) -> None:
        """Send a frame, or keep it until the other end takes it. Raise OSError if the connection is lost."""
        content = encode(kind, value)
        frame = HEADER.pack(len(content), monotonic()) + content
        self.leaving += frame + self.session.proof(self.session.mine, self.frames_sent, frame)
        self.frames_sent += 1
        self.flush()

    @property
    def is_behind(self) -> bool:
        """Return whether the other end is far behind in reading what was sent."""
        return len(self.leaving) > MOST_WAITING_BYTES

    def flush(self) -> None:
        """Send what the other end can take now."""
        with suppress(BlockingIOError):
            while self.leaving:
                del self.leaving[: self.socket.send(self.leaving)]

    def receive(self) -> Iterator[tuple[Kind, Any]]:
        """Yield the frames that have arrived. Raise OSError if the connection has ended, or one is forged."""
        has_ended = False
        with suppress(BlockingIOError):
            while not has_ended:
                part = self.socket.recv(RECEIVED_BYTES)
                self.arrived += part
                has_ended = not part
        while len(self.arrived) >= HEADER.size:
            length, sent = HEADER.unpack_from(self.arrived)
            if length > MOST_FRAME_BYTES:  # its proof, which comes last, would never come
                raise FrameError(f"a frame of {length} bytes was announced, and none is so large")
            end = HEADER.size + length
            if len(self.arrived) < end + PROOF_BYTES:
                break
            frame, proof = bytes(self.arrived[:end]), bytes(self.arrived[end : end + PROOF_BYTES])
            expected = self.session.proof(self.session.theirs, self.frames_received, frame)
            if not hmac.compare_digest(proof, expected):
                raise FrameError("a frame was not sent by the other end, or was changed on the way")
            self.frames_received += 1
            del self.arrived[: end + PROOF_BYTES]
            self._compare_clocks(sent)
            yield decode(frame[HEADER.size :])
        if has_ended:
            raise ConnectionError("the other end has closed the connection")

    def _compare_clocks(self, sent: float) -> None:
        """Estimate how far this machine's clock is ahead, from the frame with the shortest transit."""
        now = monotonic()
        self.least_s = min(now - sent, self.least_s + DRIFT * (now - self.heard))
        self.heard = now
        if not abs(self.offset_s - self.least_s) < SETTLED_S:
            self.offset_s = self.least_s

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


def shake_hands(sock: socket.socket, key: bytes, mine: int) -> Session:
    """Return the session with the machine at the other end, which has to prove that it has the key.

    Both ends do the same. Raise OSError if there is no proof. `mine`: the number of this machine.
    """

    def receive(size: int) -> bytes:
        received = b""
        while len(received) < size:
            part = sock.recv(size - len(received))
            if not part:
                raise ConnectionError("the connection was refused")
            received += part
        return received

    sock.settimeout(HANDSHAKE_S)
    sent = secrets.token_bytes(NONCE_BYTES) + mine.to_bytes(4, "big")
    sock.sendall(sent)
    received = receive(len(sent))
    sock.sendall(hmac.digest(key, sent + received, "sha256"))
    proof = hmac.digest(key, received + sent, "sha256")
    theirs = int.from_bytes(received[NONCE_BYTES:], "big")
    # A program that returns what another connection of this machine has sent would have its number.
    if not hmac.compare_digest(receive(len(proof)), proof) or theirs == mine:
        raise ConnectionError("another program answered in place of the hub")
    of_connection = b"".join(sorted([sent, received]))  # in the same order at both ends
    return Session(hmac.digest(key, b"frames" + of_connection, "sha256"), mine, theirs)


class Listener:
    """The socket on which the hub listens until all relays have connected.

    It listens on the one address of ADDRESSES that is this machine's, else on all.
    """

    def __init__(self) -> None:
        self.key = secrets.token_bytes(KEY_BYTES)
        self.address = own_address()
        self.socket = self._open()
        self.port: int = self.socket.getsockname()[1]
        self.admitted: dict[int, Connection] = {}
        threading.Thread(target=self._admit_all, name="mpiwatch-hub-listener", daemon=True).start()

    def _open(self) -> socket.socket:
        if self.address:
            family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
            return socket.create_server((self.address, 0), family=family, backlog=1024)
        try:
            return socket.create_server(("", 0), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
        except (OSError, ValueError):  # without IPv6
            return socket.create_server(("", 0), backlog=1024)

    def _admit_all(self) -> None:
        while True:
            try:
                sock, _ = self.socket.accept()
            except OSError:  # closed
                return
            # A client that sends nothing must not keep the others out.
            threading.Thread(target=self._admit, args=[sock], daemon=True).start()

    def _admit(self, sock: socket.socket) -> None:
        with suppress(OSError):
            session = shake_hands(sock, self.key, 0)
            if session.theirs not in self.admitted:
                self.admitted[session.theirs] = Connection(sock, session)
                return
        sock.close()

    def close(self) -> None:
        """Stop listening."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)  # otherwise `accept` keeps waiting in its thread
        self.socket.close()


def addresses() -> list[str]:
    """Return the addresses of this machine; those that other machines cannot reach come last."""
    known: list[str] = []
    with suppress(OSError):  # Linux lists all of its addresses in these files
        table = Path("/proc/net/fib_trie").read_text()
        known += re.findall(r"-- ([\d.]+)\n +/32 host LOCAL", table)
        rows = [line.split() for line in Path("/proc/net/if_inet6").read_text().splitlines()]
        # An address of the scope "link" (0x20) is of no use without the name of the interface.
        known += [socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])) for row in rows if row[3] != "20"]
    if not known:
        with suppress(OSError):
            names = socket.getaddrinfo(socket.gethostname(), None)
            known = [str(name[4][0]) for name in names if "%" not in str(name[4][0])]
        known += ["127.0.0.1"]
    return sorted(dict.fromkeys(known), key=lambda address: (address in ("127.0.0.1", "::1"), ":" in address))


def own_address() -> str:
    """Return this machine's address among those that ADDRESSES names; empty if it names none of them."""
    of_this_machine = addresses()
    named = [address.strip() for address in os.environ.get(ADDRESSES, "").split(",")]
    return next((address for address in named if address in of_this_machine), "")


def find_hub(where: tuple[list[str], int, bytes], machine: int) -> tuple[Connection | None, str]:
    """Connect to the hub as the relay of a machine; return the connection, or None and the errors.

    `where`: the addresses of the hub's machine, its port and the key.
    """
    addresses, port, key = where
    faults, deadline = [], monotonic() + START_S
    for address in addresses:
        if monotonic() > deadline:
            break
        sock = None
        try:
            sock = socket.create_connection((address, port), CONNECT_S)
            return Connection(sock, shake_hands(sock, key, machine)), ""
        except OSError as error:
            faults.append(f"{address}: {error.strerror or error}")
            if sock is not None:
                sock.close()
    return None, "; ".join(faults)


class Server(threading.Thread):
    """Serves the connections to other machines until `stop`.

    `connections`: by the number of the machine at the other end. `reached`: the ranks that each one leads to.
    `ranks`: those that this thread serves; the hub serves all.
    """

    STEPS: tuple[str, ...] = ()  # of the loop

    def __init__(self, recorder: FlightRecorder, connections: dict[int, Connection]) -> None:
        super().__init__(name=f"mpiwatch-{type(self).__name__.lower()}", daemon=True)
        self.guard = Guard(self.name)
        self.recorder, self.connections = recorder, connections
        mine, machines = recorder.head.machine, [slot.machine for slot in recorder.slots]
        self.ranks = [rank for rank, its in enumerate(machines) if not mine or its == mine]
        self.reached = {
            other: [rank for rank, its in enumerate(machines) if its != mine and (mine or its == other)]
            for other in connections
        }
        # The slots of other machines' ranks, with times on those machines' clocks.
        self.raw = [bytearray(slot) for slot in recorder.slots]
        self.sent = [b""] * recorder.size  # the slots, or what the other machines see of them, as last sent
        self.is_over = False

    def run(self) -> None:
        """Serve until `stop`."""
        try:
            while not self.is_over:
                for name in self.STEPS:
                    self.guard.do(name, getattr(self, name))
            self.guard.do("send_last", self.send_last)
        finally:
            self.close()
            self.recorder.head.hub = 0  # the processes of this machine make their own reports again

    def send_last(self) -> None:
        """Send what has changed since the last time."""
        raise NotImplementedError

    def handle(self, machine: int, kind: Kind, value: Any) -> None:
        """Handle a frame."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections."""
        for connection in self.connections.values():
            connection.close()

    def stop(self) -> None:
        """Send the last states, and end the thread."""
        self.is_over = True
        if self.is_alive():
            self.join(STOP_S)

    def exchange(self, timeout_s: float = TICK_S) -> None:
        """Handle the frames that have arrived, and send those that the other ends have not taken yet."""
        machines = {connection.fileno(): machine for machine, connection in self.connections.items()}
        behind = [connection.fileno() for connection in self.connections.values() if connection.leaving]
        ready, writable, _ = select.select(list(machines), behind, [], timeout_s)
        for machine in {machines[file] for file in (*ready, *writable)}:
            connection = self.connections[machine]
            try:
                connection.flush()
                for frame in connection.receive():
                    if machine in self.connections:
                        self.guard.do("handle", self.handle, machine, *frame)
            except OSError:
                self.lose(machine)

    def send(self, machine: int, kind: Kind, value: Any = None) -> None:
        """Send a frame to a machine, unless it is lost; note if it is lost now."""
        try:
            if machine in self.connections:
                self.connections[machine].send(kind, value)
        except OSError:
            self.lose(machine)

    def lose(self, machine: int) -> None:
        """Note that a connection has ended, and that the ranks which it led to can no longer be reached."""
        connection = self.connections.pop(machine, None)
        if connection is None:
            return  # the handler of a frame has lost it
        connection.close()
        for rank in self.reached[machine]:
            slot = self.recorder.slots[rank]
            if slot.cell_state != CellState.EXITED and not slot.has_died:
                slot.has_died = Death.UNREACHABLE

    def changes(self, rank: int, now: bytes) -> Changes:
        """Return the blocks of a slot, or of its first part, that have changed since the last call."""
        before, self.sent[rank] = self.sent[rank], now
        if now == before:
            return []
        blocks = ((start, start + BLOCK_BYTES) for start in range(0, len(now), BLOCK_BYTES))
        return [(rank, start, now[start:end]) for start, end in blocks if now[start:end] != before[start:end]]

    def write(self, machine: int, changes: Changes) -> None:
        """Write changes in a machine's slots to this machine's recorder, with times on our clock."""
        for rank, start, part in changes:
            self.raw[rank][start : start + len(part)] = part
        for rank in {rank for rank, _, _ in changes}:
            moved = Slot.from_buffer_copy(self.raw[rank])
            for name in TIMES:
                time_s = getattr(moved, name)
                if time_s:
                    setattr(moved, name, time_s + self.connections[machine].offset_s)
            start = self.recorder.slot_offset(rank)
            self.recorder.memory[start : start + SLOT_BYTES] = bytes(moved)


class Relay(Server):
    """Sends the hub the slots of this machine's ranks, and publishes the hub's reports."""

    STEPS = "exchange", "note_deaths", "send_changes"
    next_check_s = 0.0

    def run(self) -> None:
        super().run()
        if self.connections:
            self.lose(0)

    def lose(self, machine: int) -> None:
        super().lose(machine)
        self.is_over = True  # without the hub, there is nothing to do

    def send_changes(self) -> None:
        """Send what has changed, unless the hub is behind in reading."""
        if self.connections and not self.connections[0].is_behind:
            self.send_last()

    def send_last(self) -> None:
        slots = self.recorder.slots
        changes = [change for rank in self.ranks for change in self.changes(rank, bytes(slots[rank]))]
        if changes:
            self.send(0, Kind.SLOTS, changes)

    def handle(self, machine: int, kind: Kind, value: Any) -> None:
        if kind is Kind.STATES:
            self.write(machine, value)
            for rank in self.reached[machine]:
                self.recorder.slots[rank].sampled_s = monotonic()
        elif kind is Kind.REPORT:
            with self.recorder.locked():
                self.recorder.publish(*value)
            self.send(0, Kind.PUBLISHED)

    def note_deaths(self) -> None:
        """Note which ranks of this machine have died, which only this machine can see."""
        if monotonic() < self.next_check_s:
            return
        self.next_check_s = monotonic() + DEATHS_S
        for slot in (self.recorder.slots[rank] for rank in self.ranks):
            may_have_died = slot.pid and not slot.has_died and slot.cell_state != CellState.EXITED
            if may_have_died and not alive(slot.pid):
                slot.has_died = Death.DIED


class Hub(Server):
    """Gathers the slots of all machines' ranks, makes the reports, and lets the relays publish them."""

    STEPS = "exchange", "tell", "report_deadlock", "report_on_request"

    def __init__(self, recorder: FlightRecorder, connections: dict[int, Connection]) -> None:
        super().__init__(recorder, connections)
        self.published: set[int] = set()  # machines that have published the last report
        self.behind: set[int] = set()  # machines that have not been told all changes
        self.suspicion = Suspicion(recorder)
        self.deadline_s: Callable[[], float] = lambda: math.inf  # before a deadlock is reported
        self.tell_at = 0.0

    def tell(self) -> None:
        """Tell the machines from time to time what the ranks of the others are doing."""
        now = monotonic()
        if now > self.tell_at:
            self.tell_at = now + STATES_S
            self.send_last()

    def report_deadlock(self) -> None:
        """Report a deadlock of ranks in calls that are not watched."""
        if self.suspicion.is_certain(monotonic(), self.deadline_s()):
            self.report(ReportRequest(Reason.DEADLOCK, self.deadline_s(), self.ranks, 0))

    def report_on_request(self) -> None:
        """Make the report that a rank asks for."""
        request = self.next_request()
        if request is not None:
            self.report(request)

    def handle(self, machine: int, kind: Kind, value: Any) -> None:
        if kind is Kind.SLOTS:
            self.write(machine, value)
        elif kind is Kind.PUBLISHED:
            self.published.add(machine)

    def send_last(self) -> None:
        """Send each machine what has changed in the states of other machines' ranks."""
        now, changes = monotonic(), Changes()
        for rank, slot in enumerate(self.recorder.slots):
            state = Slot.from_buffer_copy(slot)
            if not is_in_mpi_call(state, now):  # or its watchdog has not sampled it lately
                state.mpi_call_since_s = 0.0
            state.sampled_s = 0.0  # the other machines take what they get to be up to date
            changes += self.changes(rank, bytes(state)[:STATE_BYTES])
        for machine, connection in tuple(self.connections.items()):
            if connection.is_behind:
                self.behind.add(machine)
                continue
            sent_states = [(rank, 0, state) for rank, state in enumerate(self.sent)]
            sent_states = sent_states if machine in self.behind else changes
            self.behind.discard(machine)
            others = [change for change in sent_states if change[0] not in self.reached[machine]]
            self.send(machine, Kind.STATES, others)

    def next_request(self) -> ReportRequest | None:
        """Return a report that a rank wants."""
        epoch, size = self.recorder.head.epoch, self.recorder.size
        requests = (read_request(slot, epoch, size) for slot in self.recorder.slots)
        return next((request for request in requests if request is not None), None)

    def report(self, request: ReportRequest) -> None:
        """Publish a report on all other machines, then on this one."""
        recorder = self.recorder
        self.exchange_until(lambda: False, SETTLED_AFTER_S)
        with recorder.locked():
            report = take_snapshot(recorder, *request._replace(why=self.reason(request)))
            # No rank has made more calls on any communicator since the last report than it has made in all.
            number = recorder.head.first_number + max(slot.calls_noted for slot in recorder.slots)
            self.published.clear()
            for machine in tuple(self.connections):
                self.send(machine, Kind.REPORT, (report, number))
            self.exchange_until(lambda: self.published >= set(self.connections), ANSWER_S)
            recorder.publish(report, number)
        self.tell_at = 0.0

    def exchange_until(self, is_done: Callable[[], bool], limit_s: float) -> None:
        """Handle frames until `is_done()`, at most for so long."""
        deadline = monotonic() + limit_s
        while not is_done() and monotonic() < deadline:
            self.exchange(TICK_S)

    def reason(self, request: ReportRequest) -> Reason | Mismatch:
        """Return why the rank's wait cannot end. Only the hub can see a circle across machines."""
        waiting = waits(self.recorder)
        in_circle = request.reporter in waiting and request.reporter in stuck_ranks(
            waiting, self.recorder.size
        )
        return Reason.CIRCLE if request.why is Reason.TIMED_OUT and in_circle else request.why


def server_of(recorder: FlightRecorder, connections: dict[int, Connection]) -> Hub | Relay:
    """Return the thread that serves these connections, which are keyed by machine number."""
    return (Relay if recorder.head.machine else Hub)(recorder, connections)


def serve_here(server: Server, progress: Callable[[], object]) -> None:
    """Serve in this process. After its program has ended, it stays alive as long as other ranks need it.

    `progress` lets MPI move messages.
    """

    def is_needed(rank: int) -> bool:
        return server.recorder.slots[rank].cell_state != CellState.EXITED and server.recorder.is_alive(rank)

    def stay() -> None:
        while server.is_alive() and any(map(is_needed, server.ranks)):
            progress()
            sleep(POLL_S)
        server.stop()

    atexit.register(stay)
    server.start()


def hand_over(rank: int, recorder: FlightRecorder, server: Server | None, to: socket.socket) -> None:
    """Pass the recorder and the connections to the process at the other end of a Unix socket.

    No frame has been sent or received on them.
    """
    connections = server.connections if server is not None else {}
    sessions = [connection.session for connection in connections.values()]
    words = {
        "rank": rank,
        "recorder": recorder.path,
        "sessions": [(session.key.hex(), session.mine, session.theirs) for session in sessions],
    }
    files = [connection.fileno() for connection in connections.values()]
    socket.send_fds(to, [json.dumps(words).encode()], files)


def take_over(source: socket.socket) -> tuple[int, FlightRecorder, Server | None] | None:
    """Return what `hand_over` has sent: a rank, its flight recorder and the server, if one runs here.

    Return None if the other process has ended.
    """
    message, files, _, _ = socket.recv_fds(source, MESSAGE_BYTES, MOST_FILES)
    if not message:
        return None
    words = json.loads(message)
    recorder = FlightRecorder(words["recorder"])
    connections = {}
    for file, (key, mine, theirs) in zip(files, words["sessions"], strict=True):
        session = Session(bytes.fromhex(key), mine, theirs)
        connections[theirs] = Connection(socket.socket(fileno=file), session)
    return words["rank"], recorder, server_of(recorder, connections) if files else None
