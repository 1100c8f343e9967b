"""A communicator that refuses what an exercise wants to be saved: large messages, or many calls."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from labkit.exercises.calls import COLLECTIVES
from labkit.exercises.exercise import Case


def at_most(calls: int, nbytes: int, finding: str) -> Callable[[Any, Case], Any]:
    """Return a `wrap`: after `calls` collectives of `nbytes` bytes or more, the next one raises RuntimeError.

    The error holds the finding, in which {calls} and {nbytes} are the call's number and size.
    """

    def wrap(comm: Any, case: Case) -> Any:
        from labkit.comm.wrapper import CommWrapper  # noqa: PLC0415 (it loads MPI: only in a job)

        class Limited(CommWrapper):
            large = 0

        def limited(name: str) -> Callable[..., Any]:
            def call(self: Any, *arguments: Any, **named: Any) -> Any:
                size = _size(name, [*arguments, *named.values()])
                if size >= nbytes:
                    self.large += 1
                    if self.large > calls:
                        raise RuntimeError(finding.format(calls=self.large, nbytes=size))
                return getattr(super(Limited, self), name)(*arguments, **named)

            return call

        for name in COLLECTIVES:
            setattr(Limited, name, limited(name))
        return Limited(comm)

    return wrap


def _size(name: str, arguments: list[Any]) -> int:
    """Return the bytes that a rank sends: those of its smallest array, or of a pickled object."""
    if name.islower():
        message: Any = arguments[0] if arguments else None
        return int(message.nbytes) if hasattr(message, "nbytes") else len(pickle.dumps(message))
    parts = [part for each in arguments for part in (each if isinstance(each, (list, tuple)) else [each])]
    sizes = [part.nbytes for part in parts if hasattr(part, "nbytes")]
    return min(sizes, default=0)  # the send buffer: what is received from all ranks is larger
