"""The hub: a thread in rank 0 that has the slots of all machines and makes the reports."""

from __future__ import annotations

import math
import select
import sys
import threading
import traceback
from collections.abc import Callable
from time import monotonic

from mpiwatch.flight_recorder.circle import stuck_ranks, waits
from mpiwatch.flight_recorder.layout import CellState, Death, FlightRecorder
from mpiwatch.flight_recorder.report import Mismatch, Reason
from mpiwatch.flight_recorder.snapshot import is_in_mpi_call, take_snapshot
from mpiwatch.machines.connection import Connection, Kind
from mpiwatch.machines.relay import FIRST_NUMBER, Observed
from mpiwatch.machines.slots import Mirror, states_of
from mpiwatch.machines.wishes import Wish, read_wish
from mpiwatch.watchdog.deadlock import Suspicion

TICK_S = 0.1
STOP_S = 2.0
STATES_S = 0.25  # between two STATES frames
ANSWER_S = 3.0  # how long to wait for a machine's observations, or for it to publish a report


class Hub(threading.Thread):
    """Serves the relays. `connections`: by the numbers of their machines."""

    def __init__(self, recorder: FlightRecorder, connections: dict[int, Connection]) -> None:
        super().__init__(name="mpiwatch-hub", daemon=True)
        self.recorder, self.connections = recorder, connections
        self.ranks = {
            machine: [rank for rank, slot in enumerate(recorder.slots) if slot.machine == machine]
            for machine in connections
        }
        self.all_ranks = list(range(recorder.size))
        self.mirrors = {machine: Mirror(recorder, ranks) for machine, ranks in self.ranks.items()}
        self.answers: dict[int, bytes] = {}  # by machine
        self.told: dict[int, tuple[float, ...]] = {}  # by rank
        self.suspicion = Suspicion(recorder)
        self.deadline_s: Callable[[], float] = lambda: math.inf  # before a deadlock is reported
        self.tell_at = 0.0
        self.is_over = False

    def run(self) -> None:
        """Serve until `stop`, or until all machines are lost."""
        try:
            while not self.is_over:
                self.exchange(TICK_S)
                if (now := monotonic()) > self.tell_at:
                    self.tell_at = now + STATES_S
                    self.tell_states(now)
                if self.suspicion.is_certain(now, self.deadline_s()):
                    self.report(Wish(Reason.DEADLOCK, self.deadline_s(), self.all_ranks, 0))
                if (wish := self.next_wish()) is not None:
                    self.report(wish)
            self.tell_states(monotonic())
        except Exception:
            traceback.print_exc(file=sys.stderr)  # the relays notice that the hub is gone and report it
        finally:
            self.recorder.head.hub = 0  # the processes of this machine make their own reports again
            self.close()

    def close(self) -> None:
        """Close the connections."""
        for connection in self.connections.values():
            connection.close()

    def stop(self) -> None:
        """Send the relays the last states, and end the thread."""
        self.is_over = True
        if self.is_alive():
            self.join(STOP_S)

    def exchange(self, timeout_s: float) -> None:
        """Read the frames that have arrived, and send those that the relays have not taken yet."""
        machines = {connection.fileno(): machine for machine, connection in self.connections.items()}
        behind = [connection.fileno() for connection in self.connections.values() if connection.leaving]
        ready, writable, _ = select.select(list(machines), behind, [], timeout_s)
        for file in {*ready, *writable}:
            machine = machines[file]
            connection = self.connections[machine]
            try:
                connection.flush()
                for kind, payload in connection.receive():
                    if kind is Kind.SLOTS:
                        self.mirrors[machine].apply(payload, connection.offset_s)
                    else:
                        self.answers[machine] = payload
            except OSError:
                self.lose(machine)

    def send(self, machine: int, kind: Kind, payload: bytes = b"") -> None:
        """Send a frame to a machine; note if it is lost."""
        try:
            self.connections[machine].send(kind, payload)
        except OSError:
            self.lose(machine)

    def lose(self, machine: int) -> None:
        """Note that a machine can no longer be reached."""
        self.connections.pop(machine).close()
        for rank in self.ranks[machine]:
            slot = self.recorder.slots[rank]
            if slot.cell_state != CellState.EXITED and not slot.has_died:
                slot.has_died = Death.UNREACHABLE

    def tell_states(self, now: float) -> None:
        """Send each machine what has changed in the states of other machines' ranks."""
        changed = []
        for rank, slot in enumerate(self.recorder.slots):
            of_cell = slot.cell_state, slot.cells_started, slot.has_died, slot.has_exited
            of_waits = slot.waiting_in, slot.message_number, slot.waiting_since_s, is_in_mpi_call(slot, now)
            if self.told.get(rank) != (*of_cell, *of_waits):
                self.told[rank] = *of_cell, *of_waits
                changed.append(rank)
        for machine, connection in tuple(self.connections.items()):
            if not connection.is_behind:
                others = [rank for rank in changed if rank not in self.ranks[machine]]
                self.send(machine, Kind.STATES, states_of(self.recorder, others, now))

    def next_wish(self) -> Wish | None:
        """Return a report that a rank wants."""
        epoch, size = self.recorder.head.epoch, self.recorder.size
        wishes = (read_wish(slot, epoch, size) for slot in self.recorder.slots)
        return next((wish for wish in wishes if wish is not None), None)

    def report(self, wish: Wish) -> None:
        """Publish a report on all other machines, then on this one."""
        recorder = self.recorder
        with recorder.locked():
            observed = self.observed()
            others = {state.rank: state for answer in observed for state in answer.states}
            report = take_snapshot(recorder, *wish._replace(why=self.reason(wish)), observed=others)
            number = max([recorder.highest_number(), *(answer.highest_number for answer in observed)])
            self.ask(Kind.REPORT, FIRST_NUMBER.pack(number) + report.to_json())
            recorder.publish(report, number)
        self.tell_at = 0.0

    def reason(self, wish: Wish) -> Reason | Mismatch:
        """Return why the rank's wait cannot end. Only the hub can see a circle across machines."""
        waiting = waits(self.recorder)
        in_circle = wish.reporter in waiting and wish.reporter in stuck_ranks(waiting, self.recorder.size)
        return Reason.CIRCLE if wish.why is Reason.TIMED_OUT and in_circle else wish.why

    def observed(self) -> list[Observed]:
        """Return what the ranks are doing on those other machines that answer."""
        return [Observed.from_json(answer) for answer in self.ask(Kind.OBSERVE).values()]

    def ask(self, kind: Kind, payload: bytes = b"") -> dict[int, bytes]:
        """Send a frame to all machines; return the answers that arrive in time."""
        self.answers.clear()
        for machine in tuple(self.connections):
            self.send(machine, kind, payload)
        deadline = monotonic() + ANSWER_S
        while set(self.connections) - set(self.answers) and monotonic() < deadline:
            self.exchange(TICK_S)
        return dict(self.answers)
