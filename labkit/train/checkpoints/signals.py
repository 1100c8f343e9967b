"""Signals that ask a run for a checkpoint: SIGUSR1 to write one, SIGTERM to write one and to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
from mpi4py import MPI

Handler = Callable[[int, "FrameType | None"], Any] | int | None


class Signals:
    """Which of the two signals this rank has received; `agree` tells all ranks.

    A signal reaches the ranks at different moments, and perhaps only one of them. If each acted by itself,
    they would write the states of different steps.
    """

    def __init__(self) -> None:
        self._received = np.zeros(2, np.int32)  # SIGUSR1, SIGTERM
        self._before: dict[int, Handler] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take note of both signals inside the block, instead of what they did before.

        A second SIGTERM does what it did before, so it ends a rank that is stuck. Only a process's main
        thread can listen: in another thread, nothing changes.
        """
        if threading.current_thread() is threading.main_thread():
            for number in signal.SIGUSR1, signal.SIGTERM:
                self._before[number] = signal.signal(number, self._note)
        try:
            yield
        finally:
            for which, handler in self._before.items():
                signal.signal(which, handler)
            self._before.clear()

    def agree(self, comm: MPI.Intracomm) -> tuple[bool, list[int]]:
        """Return whether any rank has received SIGUSR1 since the last call, and which received SIGTERM.

        Collective; costs an Allreduce of eight bytes.
        """
        mine, some = self._received.copy(), np.empty_like(self._received)
        comm.Allreduce(mine, some, MPI.MAX)
        self._received[0] -= mine[0]  # not one that has come since
        ended = comm.allgather(bool(mine[1])) if some[1] else []
        return bool(some[0]), [rank for rank, received in enumerate(ended) if received]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self._received[1] = 1
            signal.signal(number, self._before[number])
        else:
            self._received[0] = 1
