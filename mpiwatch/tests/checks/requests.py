"""Which requests count as under way, for which of them MPI is asked, and what becomes of dropped ones."""

from __future__ import annotations

import gc
from typing import Any, NoReturn

import numpy as np
import pytest
from mpi4py import MPI

from mpiwatch.communicators import WatchedComm
from mpiwatch.requests import EndedError, PolledRequest
from mpiwatch.under_way import RawRequest, UnderWay, has_unfinished, under_way

CODE = compile("pass", "program.py", "exec")


class UnaskedRequest(RawRequest):
    """A request that must not be asked for its status: MPICH crashes if its handle is no longer valid."""

    def Get_status(self, *_: Any) -> NoReturn:
        raise AssertionError("an ordinary request was asked for its status")

    Test = test = Get_status  # type: ignore[assignment]


def made(operation: str, comm: Any = None) -> tuple[Any, ...]:
    """Return the items of a Made: a message with rank 0."""
    return operation, WatchedComm(MPI.COMM_SELF) if comm is None else comm, 0, 0, CODE, 0


def check_ordinary_requests_are_not_asked_for_their_status(comm: MPI.Intracomm) -> None:
    requests = [UnaskedRequest(MPI.COMM_SELF.Irecv(np.empty(1), 0)) for _ in range(3)]
    same = RawRequest(requests[0])  # another object with the same handle
    own = UnderWay()
    own.add(requests[0], made("Irecv"))
    MPI.COMM_SELF.Send(np.ones(1), 0)
    same.Wait()
    assert own.has_receives() and not own.has_sends()  # the handle is kept, and no longer valid
    own = UnderWay()
    own.add(requests[1], made("Irecv"))
    assert own.has_receives() and not own.has_receives(besides=requests[1])
    for request in requests[1:]:
        MPI.COMM_SELF.Send(np.ones(1), 0)
        request.Wait()
    assert not own.has_receives()


def check_a_persistent_request_is_under_way_until_it_completes(comm: MPI.Intracomm) -> None:
    request = MPI.COMM_SELF.Recv_init(np.empty(1), 0)
    own = UnderWay()
    own.add(request, made("Recv_init"))
    assert not own.has_receives()
    request.Start()
    own.add(request, made("Recv_init"))
    assert own.has_receives()
    MPI.COMM_SELF.Send(np.ones(1), 0)
    assert not own.has_receives()
    request.Wait()
    request.Free()


def check_a_request_that_the_program_drops_stays_under_way_with_its_buffer(comm: MPI.Intracomm) -> None:
    watched = WatchedComm(MPI.COMM_SELF)
    before = len(under_way.dropped)
    array = np.zeros(3)
    watched.Irecv(array, 0, 7)
    gc.collect()
    (_, call), *others = under_way.dropped[before:]
    assert call.operation == "Irecv" and not others
    rival = under_way.rival(watched, 0, 7, None)
    assert rival is not None and under_way.rival(watched, 0, 8, None) is None
    watched.Send(np.ones(3), 0, 7)
    assert not under_way.rival(watched, 0, 7, None)
    np.testing.assert_array_equal(array, 1)


def check_requests_of_a_failed_cell_are_cancelled_and_sends_keep_their_buffers(comm: MPI.Intracomm) -> None:
    watched = WatchedComm(MPI.COMM_SELF)
    receive = watched.Irecv(np.zeros(1), 0, 1)
    send = watched.Issend(np.ones(1), 0, 2)
    held = under_way.end_all()
    assert [type(request) for request, _ in held] == [PolledRequest, PolledRequest]
    assert not receive and not under_way.has_receives() and not under_way.has_sends()
    assert has_unfinished()
    watched.Recv(np.zeros(1), 0, 2)
    assert not has_unfinished()
    send.end("its cell has failed")
    with pytest.raises(EndedError, match="its cell has failed"):
        send.Wait()
