"""The communicator of strict mode, and communicators made from it."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from mpiwatch.strict import objects, requests_made
from mpiwatch.strict.communicator.collectives import StrictCollectives
from mpiwatch.strict.communicator.messages import StrictMessages
from mpiwatch.strict.exchange import Exchange


class StrictComm(StrictMessages, StrictCollectives):
    """A watched communicator whose `Send` and `send` are synchronous and whose messages are compared."""

    def _derived(self, new: Any, is_ready: bool = True) -> None:
        super()._derived(new, is_ready)
        if is_ready:
            new.begin()
        objects.track(new, "communicator")

    def Free(self) -> None:
        exchange = self._exchange
        super().Free()
        self._ended(exchange)

    def Disconnect(self) -> None:
        exchange = self._exchange
        super().Disconnect()
        self._ended(exchange)

    def _ended(self, exchange: Exchange | None) -> None:
        objects.forget(self)
        if exchange is not None:
            self._exchange = None
            requests_made.report_leftovers(exchange)
            exchange.close()

    def Get_group(self) -> MPI.Group:
        return MPI.Group.adopt(super().Get_group())  # type: ignore[attr-defined]
