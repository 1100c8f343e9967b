"""A program of the corpus, and the parts of its templates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent

CALL = "call matching"
PARAMETER = "parameter matching"
REQUEST = "request lifecycle"
BUFFERING = "buffering hazard"
INVALID = "invalid parameter"
LEAK = "resource leak"
RACE = "message race"
LOCAL = "local concurrency"
GLOBAL = "global concurrency"
CATEGORIES = (CALL, PARAMETER, REQUEST, BUFFERING, INVALID, LEAK, RACE, LOCAL, GLOBAL)

HEAD = """import numpy as np
from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
x, y = np.arange(4.0) + rank, np.zeros(4)
"""


@dataclass(frozen=True)
class Program:
    """A program for `ranks` ranks. `blind`: why its error cannot be seen at run time; empty if it can."""

    name: str
    category: str
    is_correct: bool
    body: str
    ranks: int = 2
    blind: str = ""

    @property
    def source(self) -> str:
        """Return the text of the whole program."""
        return HEAD + self.body


class Call:
    """A kind of send or receive: the lines that make it, start it, wait for it and free it."""

    def __init__(self, kind: str, message: str, peer: object, tag: object, name: str = "request") -> None:
        is_receive = "recv" in kind.lower()
        arguments = f"{'source' if is_receive else 'dest'}={peer}, tag={tag}"
        is_object = kind[0].islower()
        self.kind, self.name = kind, name
        call = (
            f"comm.{kind}({arguments})"
            if is_receive and is_object
            else f"comm.{kind}({message}, {arguments})"
        )
        if kind.endswith("_init"):
            self.make, self.start = [f"{name} = {call}"], [f"{name}.Start()"]
            self.wait, self.free = [f"{name}.Wait()"], [f"{name}.Free()"]
        elif kind[0] in "Ii":
            self.make, self.start = [f"{name} = {call}"], []
            self.wait, self.free = [f"{name}.{'wait' if is_object else 'Wait'}()"], []
        else:
            self.make, self.start, self.wait, self.free = [call], [], [], []

    @property
    def lines(self) -> list[str]:
        """Return all of its lines."""
        return [*self.make, *self.start, *self.wait, *self.free]


def by_rank(*bodies: Sequence[str]) -> str:
    """Return `if rank == 0: … elif rank == 1: …`."""
    parts = []
    for rank, lines in enumerate(bodies):
        text = indent("\n".join(lines) or "pass", "    ")
        parts.append(f"{'el' * (rank > 0)}if rank == {rank}:\n{text}\n")
    return "".join(parts)


def same(*lines: str) -> str:
    """Return lines that all ranks run."""
    return "\n".join(lines) + "\n"


SENDS = ("Send", "Ssend", "Isend", "Issend", "Send_init", "send", "isend")
RECEIVES = ("Recv", "Irecv", "Recv_init", "recv", "irecv")


def fits(send: str, receive: str) -> bool:
    """Return whether a receive of one kind accepts the message of a send of another kind."""
    return send[0].islower() == receive[0].islower()


PAIRS = [(send, receive) for send in SENDS for receive in RECEIVES if fits(send, receive)]
