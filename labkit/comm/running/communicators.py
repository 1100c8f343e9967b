"""Communicators whose Allreduce is a schedule: any mpi4py program uses the ring by changing one line.

comm = RingComm(MPI.COMM_WORLD)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import numpy as np
from mpi4py import MPI

from labkit.comm.errors import raise_faults
from labkit.comm.message import flat
from labkit.comm.running.executor import run
from labkit.comm.wrapper import CommWrapper
from labkit.schedules import (
    Schedule,
    halving_doubling,
    recursive_doubling,
    ring_allreduce,
    root_allreduce,
    tree_allreduce,
)

_OPS = ("SUM", "PROD", "MAX", "MIN", "LAND", "BAND", "LOR", "BOR", "LXOR", "BXOR")
_OPS_OF_KIND = {"i": 10, "u": 10, "f": 4, "c": 2}  # so many of them, by the kind of a dtype
_READY, _LIBRARY, _FAULT = range(3)


class ScheduledComm(CommWrapper):
    """An `Intracomm` whose `Allreduce` carries out `schedule`, a function of the number of ranks.

    `Allreduce` takes what mpi4py's takes: arrays, `MPI.IN_PLACE`, [buffer, count, datatype] … Its messages go
    through a duplicate of its own, made at the first call: they never meet the caller's. Every other method
    is that of the communicator it is put around, and so is `Allreduce` where contributions have to be taken
    in their order (an operation that does not commute) or are no NumPy numbers (a derived datatype, a bool).

    Before anything moves, the ranks compare what they bring by one small Allreduce of the MPI library's own.
    Counts, datatypes or operations that differ, arrays with gaps and read-only ones to receive into are a
    CollectiveError on every rank.

    `Free` frees the duplicate too; of MPI.COMM_WORLD and MPI.COMM_SELF it frees that alone.
    """

    schedule: ClassVar[Callable[[int], Schedule]]
    _messages: ScheduledComm | None = None

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        own = self._messages
        if own is None:
            own = self._messages = self.Dup()
        sent = received = None
        fault = ""
        try:
            sent, received = _values(sendbuf, recvbuf)
        except (ValueError, TypeError) as error:
            fault = str(error)
        if not own._agree(received, op, fault):
            super().Allreduce(sendbuf, recvbuf, op)
            return
        assert received is not None
        if sent is not None:
            received[:] = sent
        run(own, type(self).schedule(own.size), received, op)

    def _agree(self, array: np.ndarray | None, op: MPI.Op, fault: str) -> bool:
        """Return whether the schedule can do it, alike on all ranks; raise if they differ.

        The largest of each number and of its negative, over all ranks, tell whether all are equal.
        """
        number = next((i for i, name in enumerate(_OPS) if op == getattr(MPI, name)), -1)
        size, kind, state = -1, -1, _LIBRARY
        if array is not None:
            size, (kind, ops) = array.size, _kind(array.dtype)
            if 0 <= number < ops or (ops and not op.is_predefined and op.Is_commutative()):
                state = _READY
        if fault:
            state = _FAULT
        if self.size > 1:
            mine = (state, size, kind, number)
            largest = np.array([*mine, *(-value for value in mine)])
            super().Allreduce(MPI.IN_PLACE, largest, MPI.MAX)
            if largest[0] != _FAULT and not (largest[:4] + largest[4:]).any():
                return state == _READY
        elif not fault:
            return state == _READY
        named = "" if number < 0 else f", {_OPS[number]}"
        all_said = super().allgather((fault or None, f"{_said(array)}{named}"))
        faults, said = zip(*all_said, strict=True)
        raise_faults(faults)
        raise_faults(
            [None if one == said[0] else f"expected {said[0]} as on rank 0, got {one}" for one in said]
        )
        raise AssertionError("ranks that differ in nothing")

    def Free(self) -> None:
        if self._messages is not None:
            self._messages.Free()
            self._messages = None
        if self not in (MPI.COMM_WORLD, MPI.COMM_SELF):
            super().Free()

    def _like(self, other: MPI.Intracomm) -> Any:
        super()._like(other)
        vars(self).pop("_messages", None)
        return self


class RootComm(ScheduledComm):
    """Allreduce by rank 0, which adds up what all send to it and sends them the sum."""

    schedule = staticmethod(root_allreduce)


class RingComm(ScheduledComm):
    """Allreduce by the ring."""

    schedule = staticmethod(ring_allreduce)


class TreeComm(ScheduledComm):
    """Allreduce up a binomial tree and down again."""

    schedule = staticmethod(tree_allreduce)


class RecursiveDoublingComm(ScheduledComm):
    """Allreduce by recursive doubling."""

    schedule = staticmethod(recursive_doubling)


class HalvingDoublingComm(ScheduledComm):
    """Allreduce by recursive halving, then doubling."""

    schedule = staticmethod(halving_doubling)


def _values(sendbuf: Any, recvbuf: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the values to send, None if they are in place, and where to receive; ValueError if unfit."""
    received = flat(recvbuf)
    if received is not None and not received.flags.writeable:
        raise ValueError("expected a writable array to receive into, got a read-only one")
    if sendbuf is None or sendbuf is MPI.IN_PLACE:
        return None, received
    sent = flat(sendbuf)
    if sent is None or received is None:
        return sent, None
    if (sent.size, sent.dtype) != (received.size, received.dtype):
        raise ValueError(f"expected to receive as much as is sent, {_said(sent)}, got {_said(received)}")
    return sent, received


@cache
def _kind(dtype: np.dtype) -> tuple[int, int]:
    """Return a number for a dtype, one where C has two names for it, and how many of _OPS it takes."""
    usual = dtype.isnative and dtype.char != "e"
    return np.dtype(dtype.str).num, _OPS_OF_KIND.get(dtype.kind, 0) if usual else 0


def _said(array: np.ndarray | None) -> str:
    return "values of a derived datatype" if array is None else f"{array.size} values of {array.dtype}"
