"""Which requests count as under way, and for which of them MPI is asked."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from mpi4py import MPI

from mpiwatch.messages import KEPT, RawRequest, UnderWay


class UnaskedRequest(RawRequest):
    """A request that must not be asked for its status: MPICH crashes if its handle is no longer valid."""

    def Get_status(self, *_: Any) -> NoReturn:
        raise AssertionError("an ordinary request was asked for its status")

    Test = test = Get_status  # type: ignore[assignment]


def check_ordinary_requests_are_not_asked_for_their_status(comm: MPI.Intracomm) -> None:
    requests = [UnaskedRequest(MPI.COMM_SELF.Irecv(np.empty(1), 0)) for _ in range(KEPT + 1)]
    same = RawRequest(requests[0])  # another object with the same handle
    under_way = UnderWay()
    for request in requests[:KEPT]:
        under_way.add(request, ("Irecv",))
    MPI.COMM_SELF.Send(np.ones(1), 0)
    same.Wait()
    assert under_way.has_receives() and not under_way.has_sends()  # the handle is kept, and no longer valid
    under_way.add(requests[KEPT], ("Irecv",))
    assert under_way.lost_receives and under_way.lost_sends and not under_way.requests
    under_way = UnderWay()
    under_way.add(requests[1], ("Irecv",))
    assert not under_way.has_receives(besides=requests[1])
    for request in requests[1:]:
        MPI.COMM_SELF.Send(np.ones(1), 0)
        request.Wait()
    assert not under_way.has_receives()


def check_a_persistent_request_is_under_way_until_it_completes(comm: MPI.Intracomm) -> None:
    request = MPI.COMM_SELF.Recv_init(np.empty(1), 0)
    under_way = UnderWay()
    under_way.add(request, ("Recv_init",))
    assert not under_way.has_receives()
    request.Start()
    under_way.add(request, ("Recv_init",))
    assert under_way.has_receives()
    MPI.COMM_SELF.Send(np.ones(1), 0)
    assert not under_way.has_receives()
    request.Wait()
    request.Free()
