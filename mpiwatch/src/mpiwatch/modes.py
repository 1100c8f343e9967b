"""What a mode of watching adds to watched calls. Strict mode is one; at first there is none.

A mode is an object of a class derived from `Mode`. `communicators.register_mode` lets it take part: a mode
hooks in there and nowhere else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

MODULES = {"strict": "mpiwatch.strict"}  # of each mode that a program can ask for; its `begin` registers it


class ProgramEnd(NamedTuple):
    """What a mode says at the end of a program.

    `text` and `json`: its findings. `is_complete`: on rank 0, these are the findings of all ranks.
    """

    text: str
    json: str
    has_errors: bool
    is_complete: bool


class Mode:
    """What is added to watched calls: each method is called where its docstring says; here it does nothing.

    `world`: the communicator that takes the place of the watched world. `request`, `prequest`: the classes of
    all requests. `names`: what takes the place of names of `mpi4py.MPI`.
    """

    world: Any
    request: Any
    prequest: Any
    names: dict[str, Any]

    def progress(self) -> None:
        """Called again and again while this rank waits."""

    def note_request(self, request: Any) -> None:
        """Called for each request that a watched call returns."""

    def check_message(self, call: str, rank: int, buffer: Any, datatype: Any) -> None:
        """Called for each message that is given with its datatype, such as `[array, MPI.INT]`."""

    def note_collective(self, channel: Any, operation: str, root: int) -> None:
        """Called when all ranks of a channel have called the same collective."""

    def end_cell(self) -> str:
        """Return what the mode says at the end of a cell; empty for nothing."""
        return ""

    def end_program(self) -> ProgramEnd:
        """Return what the mode says at the end of the program. The ranks wait for one another."""
        return ProgramEnd("", "[]", has_errors=False, is_complete=True)


registered: Mode | None = None  # in this process


def begin_mode(name: str, world: Any) -> None:
    """Begin a mode of MODULES. The first call is collective."""
    import_module(MODULES[name]).begin(world)
