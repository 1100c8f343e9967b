"""Strict mode's own records: requests that no variable refers to, and headers for many ranks."""

from __future__ import annotations

from mpi4py import MPI

from mpiwatch.message_waits import polls
from mpiwatch.report import CallRecord
from mpiwatch.strict import findings, requests
from mpiwatch.strict.exchange import Exchange, clock
from mpiwatch.strict.operations import CollectiveOperation, Operation
from mpiwatch.strict.requests import StrictRequest


def check_a_request_that_the_program_drops_is_reported(comm: MPI.Intracomm) -> None:
    def made() -> StrictRequest:
        call = Operation("Irecv", "line 1", MPI.COMM_SELF.Irecv(bytearray(1), MPI.PROC_NULL))
        request = StrictRequest(None, call)
        requests.add_request(request)
        return request

    kept = made()
    requests.report_never_completed(only_dropped=True)
    assert findings.take() == []
    made()
    requests.report_never_completed(only_dropped=True)
    (found,) = findings.take()
    assert found.text == "the request of Irecv was never waited for" and not found.is_remark
    requests.report_never_completed(only_dropped=False)
    (found,) = findings.take()
    assert kept.call is not None


def check_a_test_counts_once_as_a_poll(comm: MPI.Intracomm) -> None:
    request = StrictRequest(MPI.COMM_SELF.Irecv(bytearray(1), 0))
    before = polls.failed
    assert not request.Test() and not request.test()[0] and polls.failed == before + 2
    request.Cancel()
    request.Wait()


def check_a_non_blocking_collective_compares_calls_of_a_world_of_any_size(comm: MPI.Intracomm) -> None:
    before = clock.rank, clock.times
    clock.rank, clock.times = comm.rank, [10**6] * 3000
    exchange = Exchange(comm, list(range(comm.size)))
    call = CallRecord(0, 0, "Ibarrier", None, None, None, None, "line 1: `" + "…" * 80, 0)
    ibarrier = CollectiveOperation(exchange, call, comm.Ibarrier(), [])
    while not ibarrier.advance():
        pass
    ibarrier.finish(None)
    exchange.close()
    clock.rank, clock.times = before
