"""Windows whose accesses are checked: a list such as [array, count, datatype] must fit its array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from mpi4py.MPI import Win as RawWin

from mpiwatch.requests.polled import LikeMpi4py, like
from mpiwatch.signature import check_message
from mpiwatch.wrapper import like_mpi4py

# Access -> how many of its first arguments are buffers; the next one is the target's rank.
ACCESSES = {
    **dict.fromkeys(("Put", "Get", "Accumulate", "Rput", "Rget", "Raccumulate"), 1),
    **dict.fromkeys(("Get_accumulate", "Rget_accumulate", "Fetch_and_op"), 2),
    "Compare_and_swap": 3,
}


class CheckedWin(RawWin, metaclass=LikeMpi4py):
    """An `MPI.Win` whose accesses raise an error before MPI reads or writes beyond an origin's array."""


def check_access(call: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Raise ValueError if the buffer of an access, on the rank that makes it, is given more than it holds."""
    buffers = ACCESSES[call]
    given = [*arguments, *named.values()]
    peer = named.get("target_rank", arguments[buffers] if len(arguments) > buffers else 0)
    for buffer in given[:buffers]:
        check_message(MPI.COMM_WORLD, call, buffer, peer)


def _checked(name: str) -> Callable[..., Any]:
    def access(self: CheckedWin, *arguments: Any, **named: Any) -> Any:
        check_access(name, arguments, named)
        return getattr(RawWin, name)(self, *arguments, **named)

    return like_mpi4py(access, name, RawWin)


for _name in ACCESSES:
    if hasattr(RawWin, _name):
        setattr(CheckedWin, _name, _checked(_name))
like(CheckedWin, RawWin)
