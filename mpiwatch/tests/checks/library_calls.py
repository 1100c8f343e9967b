"""The call of the MPI library that the main thread is inside is noted, whoever makes it."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from mpiwatch import library_calls
from mpiwatch.communicators import WatchedComm
from mpiwatch.library_calls import NOTED, NotedCartcomm, NotedIntracomm, main_thread
from mpiwatch.wrapper import CommWrapper


def seen_in(call: Callable[[MPI.Op], object]) -> list[str]:
    """Return which calls are noted while MPI calls back, in a reduction, from a call."""
    seen = []

    def add(one: Any, other: Any, datatype: MPI.Datatype) -> None:
        entry = main_thread.entry
        seen.append(entry[0] if entry else "")
        result = np.frombuffer(other, np.int64)
        result += np.frombuffer(one, np.int64)

    operation = MPI.Op.Create(add, commute=True)
    call(operation)
    operation.Free()
    assert main_thread.entry is None
    return seen


class Wrapped(CommWrapper):
    """A communicator around another one, as a library derives it."""


class Derived(NotedIntracomm):
    """As a program derives a class from `MPI.Intracomm`."""

    def total(self, value: int, operation: MPI.Op) -> None:
        received = np.zeros(1, np.int64)
        super().Allreduce(np.array([value]), received, operation)


def check_a_call_is_noted_for_as_long_as_it_lasts(comm: MPI.Intracomm) -> None:
    sent, received = np.array([comm.rank]), np.zeros(1, np.int64)
    names: set[str] = set()
    kinds = NotedIntracomm, WatchedComm, Wrapped
    for kind in kinds:
        names |= {*seen_in(lambda op, kind=kind: kind(comm).Allreduce(sent, received, op))}  # type: ignore[misc]
    names |= {*seen_in(lambda op: Derived(comm).total(comm.rank, op))}
    names |= {*seen_in(lambda op: Derived(comm).Dup().Allreduce(sent, received, op))}
    cart = NotedIntracomm(comm).Create_cart([comm.size])
    assert type(cart) is NotedCartcomm
    names |= {*seen_in(lambda op: cart.Allreduce(sent, received, op))}
    cart.Free()
    everywhere = set().union(*comm.allgather(names))  # not every rank has to reduce
    assert everywhere == ({"Allreduce"} if comm.size > 1 else set())


def check_a_call_of_another_thread_and_one_that_fails_leave_no_note(comm: MPI.Intracomm) -> None:
    noted = NotedIntracomm(comm).Dup()
    seen = seen_in(
        lambda op: on_thread(lambda: noted.Allreduce(np.array([1]), np.zeros(1, np.int64), op)),
    )
    assert seen == [""] * len(seen)
    for bad in (lambda: noted.Bcast(lambda: None), lambda: noted.Send(np.ones(1), comm.size + 5)):
        try:
            bad()  # type: ignore[no-untyped-call]
        except Exception:
            assert main_thread.entry is None
        else:
            raise AssertionError("expected an error")
    noted.Free()


def on_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def check_every_method_of_mpi4py_is_noted_or_returns_at_once(comm: MPI.Intracomm) -> None:
    """A method that a later mpi4py adds has to be looked at: may it wait?"""
    for own, kind in NOTED.items():
        for name in vars(own):
            if name[0].isupper():
                starts = bool(library_calls.STARTING.fullmatch(name))
                returns_at_once = bool(library_calls.AT_ONCE.fullmatch(name)) and not starts
                assert (name in vars(kind)) != returns_at_once, (own, name)


def check_replaced_classes_pass_for_mpi4pys_own(comm: MPI.Intracomm) -> None:
    made = NotedIntracomm(comm)
    assert isinstance(comm, NotedIntracomm) and isinstance(made, library_calls.RawComm)
    assert repr(NotedIntracomm) == "<class 'mpi4py.MPI.Intracomm'>"
    assert pickle.loads(pickle.dumps(MPI.COMM_SELF)) == MPI.COMM_SELF
