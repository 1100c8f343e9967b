"""The relay: a thread in the first rank of every machine except rank 0's that talks to the hub."""

from __future__ import annotations

import json
import select
import sys
import threading
import traceback
from dataclasses import dataclass
from struct import Struct
from time import monotonic

from mpiwatch.flight_recorder.layout import CellState, Death, FlightRecorder
from mpiwatch.flight_recorder.report import RankState, Report, rank_from_json, to_json
from mpiwatch.flight_recorder.snapshot import observe
from mpiwatch.machines.connection import Connection, Kind
from mpiwatch.machines.slots import Changes, write_states
from mpiwatch.processes import alive

TICK_S = 0.1  # between two samples of the slots
STOP_S = 2.0
DEATHS_S = 0.5  # between two checks of the processes
FIRST_NUMBER = Struct("!q")


@dataclass(frozen=True)
class Observed:
    """What a machine's ranks are doing, and the highest number of a call that they have made."""

    states: tuple[RankState, ...]
    highest_number: int

    def to_json(self) -> bytes:
        """Return this object as JSON."""
        return to_json(self)

    @staticmethod
    def from_json(text: bytes) -> Observed:
        """Return the object that `to_json` has written."""
        fields = json.loads(text)
        return Observed(tuple(map(rank_from_json, fields["states"])), fields["highest_number"])


class Relay(threading.Thread):
    """Sends the hub the slots of this machine's ranks, and publishes the hub's reports."""

    def __init__(self, recorder: FlightRecorder, connection: Connection) -> None:
        super().__init__(name="mpiwatch-relay", daemon=True)
        self.recorder, self.connection = recorder, connection
        self.connections = {0: connection}  # by the number of the machine at the other end
        machine = recorder.head.machine
        self.ranks = [rank for rank, slot in enumerate(recorder.slots) if slot.machine == machine]
        self.others = sorted(set(range(recorder.size)) - set(self.ranks))
        self.changes = Changes(recorder, self.ranks)
        self.next_check_s = 0.0
        self.is_over = False

    def run(self) -> None:
        """Serve until `stop`, or until the hub is lost."""
        try:
            while not self.is_over:
                self.exchange(TICK_S)
            self.send_changes()
        except OSError:
            pass
        except Exception:
            traceback.print_exc(file=sys.stderr)  # the hub notices that this machine is gone and reports it
        finally:
            self.close()
            self.lose_hub()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def stop(self) -> None:
        """Send the last changes, and end the thread."""
        self.is_over = True
        if self.is_alive():
            self.join(STOP_S)

    def exchange(self, timeout_s: float) -> None:
        """Send changes in the slots, and handle the hub's frames. Raise OSError if the hub is lost."""
        connection = self.connection
        select.select([connection], [connection] if connection.leaving else [], [], timeout_s)
        for kind, payload in connection.receive():
            if kind is Kind.STATES:
                write_states(self.recorder, payload, connection.offset_s)
                for rank in self.others:
                    self.recorder.slots[rank].sampled_s = monotonic()
            elif kind is Kind.OBSERVE:
                self.send_changes()
                connection.send(Kind.OBSERVED, self.observed().to_json())
            elif kind is Kind.REPORT:
                self.publish(payload)
                connection.send(Kind.PUBLISHED)
        if monotonic() > self.next_check_s:
            self.next_check_s = monotonic() + DEATHS_S
            self.note_deaths()
        if not connection.is_behind:
            self.send_changes()
        connection.flush()

    def send_changes(self) -> None:
        """Send the hub what has changed in the slots of this machine's ranks."""
        if parts := self.changes.take():
            self.connection.send(Kind.SLOTS, parts)

    def observed(self) -> Observed:
        """Return what this machine's ranks are doing."""
        with self.recorder.locked():
            states = tuple(observe(self.recorder, rank) for rank in self.ranks)
            return Observed(states, self.recorder.highest_number())

    def publish(self, payload: bytes) -> None:
        """Publish a report of the hub on this machine."""
        (number,) = FIRST_NUMBER.unpack_from(payload)
        with self.recorder.locked():
            self.recorder.publish(Report.from_json(payload[FIRST_NUMBER.size :]), number)

    def note_deaths(self) -> None:
        """Note which ranks of this machine have died, which only this machine can see."""
        for rank in self.ranks:
            slot = self.recorder.slots[rank]
            has_started = slot.pid != 0
            if (
                has_started
                and not slot.has_died
                and slot.cell_state != CellState.EXITED
                and not alive(slot.pid)
            ):
                slot.has_died = Death.DIED

    def lose_hub(self) -> None:
        """Mark all other machines' ranks as unreachable, and let this machine make its own reports."""
        for rank in self.others:
            slot = self.recorder.slots[rank]
            if slot.cell_state != CellState.EXITED and not slot.has_died:
                slot.has_died = Death.UNREACHABLE
        self.recorder.head.hub = 0
