"""Communicators whose Allreduce is a schedule, so that any mpi4py program uses the ring by changing one line.

comm = RingComm(MPI.COMM_WORLD)

Another schedule takes a class of two lines, such as RingComm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from labkit.comm.running import complete, steps
from labkit.schedules import Schedule, ring_allreduce
from mpiwatch import layers
from mpiwatch.layers import CommWrapper, Pending, check_writable, flat, is_in_place, wait_for_pending


class ScheduledComm(CommWrapper):
    """An `Intracomm` whose `Allreduce` carries out `schedule`, a function of the number of ranks.

    `Allreduce` takes the same messages as mpi4py's: arrays, `MPI.IN_PLACE`, [buffer, count, datatype] and so
    on. Its own messages travel on a duplicate of the communicator, made at the first call, so that the
    caller's receives never match them. All other methods are those of the communicator inside. So is
    `Allreduce` itself where the operation does not commute, or where the values are no NumPy numbers (a
    derived datatype, a bool).

    `Free` also frees the duplicate; on MPI.COMM_WORLD and MPI.COMM_SELF it frees only the duplicate.
    """

    schedule: ClassVar[Callable[[int], Schedule]]
    _messages: ScheduledComm | None = None
    _attempt = 0  # in which the duplicate was made; after a hang, its collectives may be out of step

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        schedule = type(self).schedule(self.size)
        received = flat(recvbuf)
        sent = received if is_in_place(sendbuf) else flat(sendbuf)
        if sent is None or received is None or not (op.Is_commutative() and _is_number(received.dtype)):
            super().Allreduce(sendbuf, recvbuf, op)
            return
        if (sent.size, sent.dtype) != (received.size, received.dtype):
            raise ValueError(
                f"expected to receive what is sent, {sent.size} values of {sent.dtype}, "
                f"got {received.size} values of {received.dtype}"
            )
        if not is_in_place(sendbuf) and np.may_share_memory(sent, received):
            raise ValueError(
                "Allreduce was given the same array to send and to receive: pass MPI.IN_PLACE to send"
            )
        check_writable(received)
        self._before_schedule("Allreduce", received)
        if self._messages is None or self._attempt != layers.attempt():
            # Dup has no deadline, so it begins when all ranks are here.
            barrier = MPI.Intracomm.Ibarrier(self)
            wait_for_pending(barrier.Test, lambda: Pending(self, "Allreduce", [], []))
            self._messages, self._attempt = self.Dup(), layers.attempt()
        if sent is not received:
            received[:] = sent
        complete(steps(self._messages, schedule, received, op))

    def Free(self) -> None:
        if self._messages is not None:
            self._messages.Free()
            self._messages = None
        if self not in (MPI.COMM_WORLD, MPI.COMM_SELF):
            super().Free()

    def _take_over(self, inner: MPI.Intracomm) -> None:
        super()._take_over(inner)
        vars(self).pop("_messages", None)  # its messages would not pass through the outer communicators


def _is_number(dtype: np.dtype) -> bool:
    """Return whether MPI has a datatype for these values that is a number."""
    return dtype.kind in "iufc" and dtype.char != "e" and dtype.isnative


class RingComm(ScheduledComm):
    """Allreduce around a ring."""

    schedule = staticmethod(ring_allreduce)
