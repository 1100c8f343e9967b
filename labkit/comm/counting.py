"""A communicator that counts messages and bytes at every send, by collective and by rank.

No number comes from a formula: what a rank receives is what the other ranks have counted as sent to it. The
messages inside the MPI library's own collectives cannot be seen from here, so the report lists the calls and
gives their traffic as unknown.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from mpiwatch.layers import CommWrapper, add_methods, nbytes
from mpiwatch.report import NONBLOCKING_COLLECTIVES, OF_ARRAYS, OF_OBJECTS, SENDS

MESSAGES = "messages"  # sent outside any schedule


class CountedTraffic(NamedTuple):
    """The traffic of all ranks of a communicator under one name.

    Shapes: messages, sent (p, p), int64: messages and bytes from the rank of the row to that of the column;
    None if they are unknown.
    """

    name: str
    calls: int  # of the rank that called most often
    messages: np.ndarray | None
    sent: np.ndarray | None

    @property
    def by_rank(self) -> np.ndarray:
        """Return the bytes that each rank sends and receives. Shape: (p,), int64."""
        if self.sent is None:
            raise ValueError(f"the traffic of the MPI library's own {self.name} is unknown")
        return self.sent.sum(0) + self.sent.sum(1)

    def __str__(self) -> str:
        if self.messages is None or self.sent is None:
            return f"{self.name:<22} {self.calls:>7} {'unknown':>9} {'unknown':>13}  the MPI library's own"
        busiest, count = int(self.by_rank.argmax()), int(self.messages.sum())
        return (
            f"{self.name:<22} {self.calls:>7} {count:>9} {self.sent.sum():>13}  "
            f"rank {busiest}: {self.by_rank[busiest]}"
        )


class Counts:
    """What this rank has sent through a communicator and all communicators made from it."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.size = comm.size
        self.group = comm.Get_group()
        self._names = threading.local()  # a helper thread may send for a schedule at the same time
        self.calls: Counter[str] = Counter()
        self.sent: dict[str, np.ndarray] = {}  # (2, p): messages and bytes to each rank

    def add(self, dest: int, size: int) -> None:
        """Count a message of `size` bytes to a rank of the communicator that was wrapped first."""
        name = getattr(self._names, "name", MESSAGES)
        if name not in self.sent:
            self.sent[name] = np.zeros((2, self.size), np.int64)
        self.sent[name][:, dest] += 1, size

    def of_schedule(self, name: str, send: Callable[..., Any]) -> Callable[..., Any]:
        """Count a run of a schedule; return `send` as a function that counts under the schedule's name."""
        self.calls[name] += 1

        def send_under_name(*message: Any) -> Any:
            self._names.name = name
            try:
                return send(*message)
            finally:
                self._names.name = MESSAGES

        return send_under_name


class CountingComm(CommWrapper):
    """An `Intracomm` that counts the messages sent through it and through communicators made from it.

    `comm.report()` shows the messages and bytes, and which rank sends and receives most. It wraps any other
    communicator, and any other wraps it: it always counts what reaches the MPI library.

    It counts all sends, of buffers and of pickled objects, blocking or not. It lists the library's own
    collectives and persistent messages with unknown traffic.
    """

    innermost = True
    counts: Counts
    _ranks: np.ndarray | None = None  # this communicator's, in the one that was wrapped first

    @staticmethod
    def object_bytes(message: Any) -> int:
        """Return with how many bytes a pickled object counts."""
        return len(MPI.pickle.dumps(message))

    def _take_over(self, inner: MPI.Intracomm) -> None:
        super()._take_over(inner)
        if "counts" not in vars(self):
            self.counts = Counts(inner)

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        super()._derived(new, is_ready)
        new.counts = self.counts

    def traffic(self) -> list[CountedTraffic]:
        """Return the traffic since the last reset, on every rank. Collective; not counted itself.

        On a communicator made by Split, say, it is the traffic among the ranks of that communicator.
        """
        counts, ranks = self.counts, self._first_ranks()
        parts = MPI.Intracomm.allgather(self, (counts.calls, counts.sent))
        nothing, rows = np.zeros((2, counts.size), np.int64), []
        for name in dict.fromkeys(name for calls, sent in parts for name in (*calls, *sent)):
            both = np.array([sent.get(name, nothing)[:, ranks] for _, sent in parts]).transpose(1, 0, 2)
            calls = max(calls[name] for calls, _ in parts)
            rows.append(CountedTraffic(name, calls, *((None, None) if name in LIBRARY else both)))
        return rows

    def report(self) -> str:
        """Return a table of the traffic since the last reset. Collective; not counted itself."""
        head = f"{'':<22} {'calls':>7} {'messages':>9} {'bytes sent':>13}  busiest rank: sent + received"
        return "\n".join([head, *map(str, self.traffic())])

    def reset(self) -> None:
        """Count from 0 again. Local: call it on every rank."""
        self.counts.calls.clear()
        self.counts.sent.clear()

    def _first_ranks(self) -> np.ndarray:
        if self._ranks is None:
            mine = self.Get_group()
            self._ranks = np.array(mine.Translate_ranks(None, self.counts.group))
            mine.Free()
        return self._ranks


# What a wrapper does in place of a method of mpi4py: it gets the communicator, the method's name, a function
# that makes the call on the next communicator inside, and the arguments by mpi4py's names for them.
Around = Callable[[Any, str, Callable[[], Any], dict[str, Any]], Any]


def wrap(wrapper: type[CommWrapper], names: Iterable[str], around: Around) -> None:
    """Let a class of wrappers do these methods of mpi4py by `around`."""

    def inside(self: CommWrapper, name: str, kwargs: dict[str, Any]) -> Any:
        # The watchdog of mpiwatch tells from this form that a wrapper makes the call, not the program.
        return around(self, name, lambda: getattr(super(wrapper, self), name)(**kwargs), kwargs)

    via = f"_{around.__name__}_{id(wrapper)}"  # no other class of a stack has it
    setattr(wrapper, via, inside)
    add_methods(wrapper, names, via, by_name=True)


EXCHANGES = "Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace", "sendrecv"
SENDING = [*EXCHANGES, *(name for name in SENDS if not name.endswith("_init"))]
# Calls whose messages the MPI library sends, and hides.
LIBRARY = [
    *OF_ARRAYS,
    *OF_OBJECTS,
    *NONBLOCKING_COLLECTIVES,
    *(send for send in SENDS if send not in SENDING),
]


def _count(comm: CountingComm, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> Any:
    result = call()
    message = next(kwargs[key] for key in ("buf", "sendbuf", "obj", "sendobj") if key in kwargs)
    dest = kwargs["dest"]
    if dest != MPI.PROC_NULL:
        size = nbytes(message) if name[0].isupper() else comm.object_bytes(message)
        comm.counts.add(comm._first_ranks()[dest], size)
    return result


def _list(comm: CountingComm, name: str, call: Callable[[], Any], kwargs: dict[str, Any]) -> Any:
    comm.counts.calls[name] += 1
    return call()


wrap(CountingComm, SENDING, _count)
wrap(CountingComm, LIBRARY, _list)
