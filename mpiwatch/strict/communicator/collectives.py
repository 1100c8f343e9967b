"""Non-blocking and persistent collectives in strict mode: the ranks compare their calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from mpiwatch.message import arguments_of, is_in_place
from mpiwatch.opcodes import NONBLOCKING_COLLECTIVES
from mpiwatch.requests import NO_PEER
from mpiwatch.strict import requests_made
from mpiwatch.strict.communicator.base import FROM_ROOT, TO_ROOT, StrictBase
from mpiwatch.strict.objects import here
from mpiwatch.strict.operations import CollectiveOperation, Operation, PlainOperation
from mpiwatch.strict.requests import StrictPrequest, StrictRequest
from mpiwatch.strict.signatures import Signature, of_each, of_message

REDUCING = "Reduce", "Allreduce", "Scan", "Exscan"


class StrictCollectives(StrictBase):
    """Collectives with per-rank counts, and those that return a request.

    Other blocking ones are compared by every watched communicator.
    """

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        sent = {} if is_in_place(sendbuf) else {root: of_message(sendbuf)}
        self._announce(sent, of_each(recvbuf, self.size) if self.rank == root else {})
        super().Gatherv(sendbuf, recvbuf, root)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        expected = {} if is_in_place(recvbuf) else {root: of_message(recvbuf)}
        self._announce(of_each(sendbuf, self.size) if self.rank == root else {}, expected)
        super().Scatterv(sendbuf, recvbuf, root)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        sent = {} if is_in_place(sendbuf) else dict.fromkeys(range(self.size), of_message(sendbuf))
        self._announce(sent, of_each(recvbuf, self.size))
        super().Allgatherv(sendbuf, recvbuf)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        sent = {} if is_in_place(sendbuf) else of_each(sendbuf, self.size)
        self._announce(sent, of_each(recvbuf, self.size))
        super().Alltoallv(sendbuf, recvbuf)

    def _announce(self, sent: dict[int, Signature], expected: dict[int, Signature]) -> None:
        if self._exchange is not None:
            self._exchange.amounts = sent, expected


def _collective(name: str) -> Callable[..., Any]:
    def start(self: StrictCollectives, *arguments: Any, **named: Any) -> MPI.Request:
        def begin() -> Operation:
            blocking = name[1:].capitalize() if name[0] == "I" else name.removesuffix("_init")
            nonblocking = f"I{blocking.lower()}"
            request = getattr(super(StrictCollectives, self), nonblocking)(*arguments, **named)
            return _comparing(self, name, blocking, request, arguments, named)

        if name.endswith("_init"):
            made: StrictRequest = StrictPrequest(None, begin, name, here())
        else:
            made = StrictRequest(None, begin())
        frame = sys._getframe(1)
        made.made = name, self, NO_PEER, -1, frame.f_code, frame.f_lasti
        requests_made.add_request(made)
        return made

    return start


def _comparing(  # noqa: PLR0917
    comm: StrictCollectives,
    name: str,
    blocking: str,
    request: Any,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> Operation:
    if comm._exchange is None:
        return PlainOperation(name, request, here())
    given = arguments_of(blocking, arguments, named)
    is_root = comm.rank == given.get("root", 0)
    buffers: list[tuple[Any, bool]] = []
    for key in "buf", "sendbuf", "recvbuf":
        buffer = given.get(key)
        if buffer is None or isinstance(buffer, MPI.InPlaceType) or blocking.endswith(("w", "v")):
            continue
        if (key == "recvbuf" and blocking in TO_ROOT and not is_root) or (
            key == "sendbuf" and blocking in FROM_ROOT and not is_root
        ):
            continue
        buffers.append((buffer, key == "recvbuf" or (key == "buf" and not is_root)))
    rooted = blocking in (*FROM_ROOT, *TO_ROOT)
    count: int | None = None
    dtype = ""
    compared = {"Bcast": "buf", "Reduce": "sendbuf", "Allreduce": "sendbuf", "Scan": "sendbuf"}.get(blocking)
    if compared and given.get(compared) is not None and not isinstance(given[compared], MPI.InPlaceType):
        signature = of_message(given[compared])
        count, dtype = signature.elements, signature.dtype
    op = given.get("op", MPI.SUM) if blocking.startswith(REDUCING) else None
    reduction = next((key for key in ("SUM", "PROD", "MAX", "MIN") if op == getattr(MPI, key)), None)
    call = (given.get("root", 0) if rooted else None, count, dtype or None, reduction)
    made = CollectiveOperation(comm._exchange, name, call, request, buffers, here())
    made.what = name
    return made


for _name in NONBLOCKING_COLLECTIVES:
    if hasattr(MPI.Intracomm, _name) and "eighbor" not in _name:
        setattr(StrictCollectives, _name, _collective(_name))
