"""Communicators whose Allreduce is a schedule, so that any mpi4py program uses the ring by changing one line.

comm = RingComm(MPI.COMM_WORLD)

Another schedule takes a class of two lines, such as RingComm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from labkit.comm.counting import CountingComm
from labkit.comm.running import complete, steps
from labkit.schedules import Schedule, ring_allreduce
from mpiwatch import waiting
from mpiwatch.messages import Pending, wait_for_pending
from mpiwatch.waiting import raise_faults
from mpiwatch.wrapper import CommWrapper, flat, is_in_place

_OPS = ("SUM", "PROD", "MAX", "MIN", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR")
_OPS_OF_KIND = {"i": 10, "u": 10, "f": 4, "c": 2}  # how many of _OPS work, by dtype.kind
_READY, _LIBRARY, _FAULT = range(3)


class ScheduledComm(CommWrapper):
    """An `Intracomm` whose `Allreduce` carries out `schedule`, a function of the number of ranks.

    `Allreduce` takes the same messages as mpi4py's: arrays, `MPI.IN_PLACE`, [buffer, count, datatype] and so
    on. Its own messages travel on a duplicate of the communicator, made at the first call, so that the
    caller's receives never match them. All other methods are those of the communicator inside. So is
    `Allreduce` itself where the operation does not commute, or where the values are no NumPy numbers (a
    derived datatype, a bool).

    Before any value moves, the ranks compare their arguments by one small all-reduce of the MPI library.
    Raise CollectiveError on every rank if counts, datatypes or operations differ, if an array is not
    contiguous, or if the array to receive into is read-only.

    `Free` also frees the duplicate; on MPI.COMM_WORLD and MPI.COMM_SELF it frees only the duplicate.
    """

    schedule: ClassVar[Callable[[int], Schedule]]
    _messages: ScheduledComm | None = None
    _attempt = 0  # in which the duplicate was made; after a hang, its collectives may be out of step

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        schedule = type(self).schedule(self.size)
        self._before_schedule(schedule.name, None)
        own = self._messages
        if own is None or self._attempt != waiting.attempt():
            own = self._messages = self._duplicate(schedule)
            self._attempt = waiting.attempt()
        sent = received = None
        fault = ""
        try:
            sent, received = _values(sendbuf, recvbuf)
        except (ValueError, TypeError) as error:
            fault = str(error)
        if not own._agree(schedule, received, op, fault):
            super().Allreduce(sendbuf, recvbuf, op)
            return
        assert received is not None
        if sent is not None:
            received[:] = sent
        complete(steps(own, schedule, received, op))

    def _duplicate(self, schedule: Schedule) -> Any:
        """Return a duplicate, made when all ranks are here: Dup itself has no deadline.

        If a rank is missing, the barrier that the others have entered stays theirs: MPI cannot cancel it, and
        it ends when the missing rank enters it at last.
        """
        barrier = self.Get_attr(_entered_barrier())
        if not isinstance(barrier, MPI.Request):
            barrier = MPI.Intracomm.Ibarrier(self)
            self.Set_attr(_entered_barrier(), barrier)
        wait_for_pending(barrier.Test, lambda: self._pending(schedule))
        self.Delete_attr(_entered_barrier())
        return self.Dup()

    def _pending(self, schedule: Schedule) -> Pending:
        return Pending(self, schedule.name, [], [])

    def _agree(self, schedule: Schedule, array: np.ndarray | None, op: MPI.Op, fault: str) -> bool:
        """Return whether the schedule can be used; raise CollectiveError if the ranks' arguments differ.

        Each number's maximum over all ranks and the maximum of its negative tell whether all ranks gave the
        same one.
        """
        number = next((i for i, name in enumerate(_OPS) if op == getattr(MPI, name)), -1)
        size, dtype, state = -1, -1, _LIBRARY
        if array is not None:
            size, (dtype, ops) = array.size, _number_and_ops(array.dtype)
            if 0 <= number < ops or (ops and not op.is_predefined and op.Is_commutative()):
                state = _READY
        if fault:
            state = _FAULT
        if self.size > 1:
            own = (state, size, dtype, number)
            largest = np.array([*own, *(-value for value in own)])
            if isinstance(self, CountingComm):
                self.counts.calls["Iallreduce"] += 1
            # Not the blocking one: it could hang.
            request = MPI.Intracomm.Iallreduce(self, MPI.IN_PLACE, largest, MPI.MAX)
            wait_for_pending(request.Test, lambda: self._pending(schedule))
            if largest[0] != _FAULT and not (largest[:4] + largest[4:]).any():
                return state == _READY
        elif not fault:
            return state == _READY
        operation = "" if number < 0 else f", {_OPS[number]}"
        gathered = super().allgather((fault or None, f"{_describe(array)}{operation}"))
        faults, arguments = zip(*gathered, strict=True)
        raise_faults(faults)
        raise_faults(
            [
                None if given == arguments[0] else f"expected {arguments[0]} as on rank 0, got {given}"
                for given in arguments
            ]
        )
        raise AssertionError("the ranks' arguments differ in nothing that can be named")

    def Free(self) -> None:
        if self._messages is not None:
            self._messages.Free()
            self._messages = None
        if self not in (MPI.COMM_WORLD, MPI.COMM_SELF):
            super().Free()

    def _renewed(self) -> None:
        super()._renewed()
        self._messages = None

    def _take_over(self, inner: MPI.Intracomm) -> None:
        super()._take_over(inner)
        vars(self).pop("_messages", None)  # its messages would not pass through the outer communicators


class RingComm(ScheduledComm):
    """Allreduce around a ring."""

    schedule = staticmethod(ring_allreduce)


def _values(sendbuf: Any, recvbuf: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the values to send (None if in place) and the array to receive into.

    Raise ValueError if they cannot be used.
    """
    received = flat(recvbuf)
    if received is not None and not received.flags.writeable:
        raise ValueError("expected a writable array to receive into, got a read-only one")
    if is_in_place(sendbuf):
        return None, received
    sent = flat(sendbuf)
    if sent is None or received is None:
        return sent, None
    if (sent.size, sent.dtype) != (received.size, received.dtype):
        raise ValueError(f"expected to receive what is sent, {_describe(sent)}, got {_describe(received)}")
    return sent, received


@cache
def _entered_barrier() -> int:
    """Return the key under which a communicator keeps the barrier of `ScheduledComm._duplicate`."""
    return MPI.Comm.Create_keyval()


@cache
def _number_and_ops(dtype: np.dtype) -> tuple[int, int]:
    """Return a dtype's number, the same for two C names of one type, and how many of _OPS work on it."""
    usual = dtype.isnative and dtype.char != "e"
    return np.dtype(dtype.str).num, _OPS_OF_KIND.get(dtype.kind, 0) if usual else 0


def _describe(array: np.ndarray | None) -> str:
    return "values of a derived datatype" if array is None else f"{array.size} values of {array.dtype}"
