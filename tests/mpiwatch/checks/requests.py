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
    request = UnaskedRequest(MPI.COMM_SELF.Irecv(np.empty(1), 0))
    same = RawRequest(request)  # another object with the same handle
    under_way = UnderWay()
    for _ in range(KEPT):
        under_way.add(request)
    assert under_way.any()
    assert not under_way.any(besides=[request])
    MPI.COMM_SELF.Send(np.ones(1), 0)
    same.Wait()
    assert under_way.any()  # the request keeps its handle, which is no longer valid
    under_way.add(request)
    assert under_way.lost_track and not under_way.requests
    waited_for, under_way = UnaskedRequest(MPI.COMM_SELF.Irecv(np.empty(1), 0)), UnderWay()
    under_way.add(waited_for)
    MPI.COMM_SELF.Send(np.ones(1), 0)
    waited_for.Wait()
    assert not under_way.any()


def check_a_persistent_request_is_under_way_until_it_completes(comm: MPI.Intracomm) -> None:
    request = MPI.COMM_SELF.Recv_init(np.empty(1), 0)
    under_way = UnderWay()
    under_way.add(request)
    assert not under_way.any()
    request.Start()
    under_way.add(request)
    assert under_way.any()
    MPI.COMM_SELF.Send(np.ones(1), 0)
    assert not under_way.any()
    request.Wait()
    request.Free()
