"""Strict mode's own records: requests that no variable refers to, and headers for many ranks."""

from __future__ import annotations

from mpi4py import MPI

from mpiwatch.strict import requests_made
from mpiwatch.strict.exchange import Clock, Exchange, Traffic
from mpiwatch.strict.operations import CollectiveOperation, PlainOperation
from mpiwatch.strict.requests import StrictRequest


def check_a_request_counts_as_lost_when_no_variable_refers_to_it(comm: MPI.Intracomm) -> None:
    def made() -> StrictRequest:
        call = PlainOperation("Irecv", MPI.COMM_SELF.Irecv(bytearray(1), MPI.PROC_NULL), "line 1")
        call.what = "Irecv"
        request = StrictRequest(None, call)
        requests_made.add_request(request)
        return request

    kept = made()
    assert requests_made.never_completed(comm.rank, only_lost=True) == []
    made()
    (found,) = requests_made.never_completed(comm.rank, only_lost=True)
    assert found.text == "the request of Irecv was never waited for" and not found.is_remark
    (found,) = requests_made.never_completed(comm.rank, only_lost=False)
    assert kept.call is not None


def check_a_non_blocking_collective_compares_calls_of_a_world_of_any_size(comm: MPI.Intracomm) -> None:
    exchange = Exchange(comm, list(range(comm.size)), Clock(comm.rank, 3000), Traffic())
    exchange.clock.times = [10**6] * 3000
    call = None, None, None, None
    ibarrier = CollectiveOperation(exchange, "Ibarrier", call, comm.Ibarrier(), [], "line 1")
    while not ibarrier.advance():
        pass
    ibarrier.finish(None)
    exchange.close()
