"""The algorithm `auto`: what it chooses, what it keeps, and that all ranks agree."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
from mpi4py import MPI

from labkit.comm import ALGORITHMS, Averaging, CountingComm, EmulatedComm, Link, averaging, choose, timing
from labkit.comm import auto as tuned
from labkit.comm.algorithms import SLOWER, library_allreduce

SMALL, LARGE = 1024, 2048  # bytes
auto = ALGORITHMS["auto"]
FLOAT = np.dtype(np.float32)


@contextmanager
def costs_in_a_new_folder(comm: MPI.Intracomm) -> Iterator[list[int]]:
    """Know no costs for the block; yield a list that gets each size that is measured."""
    measured: list[int] = []

    def one_pass(own, algorithms, size, seconds, report, *, fewest):  # type: ignore[no-untyped-def]
        measured.append(size)
        return real(own, algorithms, size, 0.0, report, fewest=1)

    real = timing.one_pass
    with tempfile.TemporaryDirectory() as folder:
        with (
            mock.patch.dict(os.environ, LABKIT_COSTS=f"{folder}/costs"),  # rank 0 decides
            mock.patch.object(tuned, "_known", {}),
            mock.patch.object(timing, "one_pass", one_pass),
        ):
            yield measured
        comm.Barrier()


def plant(comm: MPI.Intracomm, by_size: dict[int, dict[str, float]]) -> None:
    """Keep these costs (s) on every rank; only those of rank 0 count."""
    place = tuned.place_of(comm)
    backwards = {
        size: dict(zip(times, reversed(times.values()), strict=True)) for size, times in by_size.items()
    }
    tuned.save(place, by_size if comm.rank == 0 else backwards, "today")


def check_auto_uses_the_algorithm_with_the_lowest_cost_on_rank_0(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        assert choose(comm, SMALL).name == "mpi"
        return
    with costs_in_a_new_folder(comm) as measured:
        fast = {"mpi": 3e-5, "tree": 2e-5, "ring": 1e-5}
        slow = {"mpi": 9e-5, "ring": 8e-5, "shared-memory": 7e-5}
        plant(comm, {SMALL: fast, LARGE: slow})
        called: list[str] = []
        fixed = {
            name: lambda *given, name=name, real=real: (called.append(name), real(*given))[1]  # type: ignore[misc]
            for name, real in averaging.FIXED.items()
        }
        with mock.patch.object(averaging, "FIXED", fixed):
            for nbytes, expected in ((SMALL, "ring"), (LARGE, "shared-memory")) * 2:
                gradient = auto.allocate(comm, nbytes // 4, FLOAT)
                assert (gradient is None) == (expected == "ring")
                gradient = np.zeros(nbytes // 4, FLOAT) if gradient is None else gradient
                gradient[...] = comm.rank
                auto(comm, gradient, 0.5)
                assert (gradient == 0.5 * sum(range(comm.size))).all(), nbytes
            assert called == ["ring", "shared-memory"] * 2, called
        assert measured == []
        assert choose(comm, SMALL + 4).ranked == [("ring", 1e-5), ("tree", 2e-5), ("mpi", 3e-5)]


def check_costs_are_measured_once_and_again_only_if_they_are_damaged_or_on_request(
    comm: MPI.Intracomm,
) -> None:
    if comm.size == 1:
        return
    with costs_in_a_new_folder(comm) as measured:

        def measured_for(nbytes: int, own_memory: bool = False) -> list[int]:
            measured.clear()
            if not own_memory:
                tuned._known.clear()  # as in a new process
            assert choose(comm, nbytes).nbytes == nbytes
            return measured

        assert measured_for(SMALL) == [SMALL]
        assert measured_for(SMALL) == []
        assert measured_for(SMALL + 4) == []
        assert measured_for(LARGE - 4) == [LARGE]
        path = tuned.file_of_costs()
        for damaged in b"", b'{"place": ""}', b"[1]", path.read_bytes()[:-9] if comm.rank == 0 else b"":
            comm.Barrier()
            if comm.rank == 0:
                path.write_bytes(damaged)
            assert measured_for(SMALL) == [SMALL], damaged
        comm.Barrier()
        if comm.rank == 0:  # the costs of another place
            path.write_text(path.read_text().replace("shared memory", "10 links"))
        assert measured_for(SMALL) == [SMALL]
        tuned.refit_costs(comm)
        assert measured_for(SMALL, own_memory=True) == [SMALL]
        with mock.patch.dict(os.environ, LABKIT_COSTS="/dev/null/costs"):  # no file can be written there
            assert measured_for(LARGE) == [LARGE]
            assert measured_for(LARGE, own_memory=True) == []


def check_large_sizes_are_measured_with_the_algorithms_that_are_close_at_a_smaller_one(
    comm: MPI.Intracomm,
) -> None:
    if comm.size == 1:
        return
    with costs_in_a_new_folder(comm) as measured:
        plant(comm, {tuned.ALL_UP_TO: {"mpi": 1.0, "ring": tuned.CLOSE, "tree": 1.01 * tuned.CLOSE}})
        assert {name for name, _ in choose(comm, 2 * tuned.ALL_UP_TO).ranked} == {"mpi", "ring"}
        assert measured == [2 * tuned.ALL_UP_TO]
        tuned.refit_costs(comm)
        assert len(choose(comm, 2 * tuned.ALL_UP_TO).ranked) >= 1
        assert measured[1:] == [tuned.ALL_UP_TO, 2 * tuned.ALL_UP_TO]


def check_a_bound_algorithm_is_the_one_it_was_chosen_for(comm: MPI.Intracomm) -> None:
    with costs_in_a_new_folder(comm):
        for best in ("mpi", "ring") if comm.size > 1 else ("mpi",):
            if comm.size > 1:
                tuned.refit_costs(comm)
                plant(comm, {SMALL: {best: 1e-5, "tree": 2e-5}})
            bound = auto.bind(comm, SMALL)
            assert bound == (library_allreduce if best == "mpi" else ALGORITHMS["ring"])
    for other in Averaging("mpi", "mean"), Averaging("mpi", compress="float16"):
        assert other.bind(comm, SMALL) == other
    gradient = np.full(SMALL // 4, 1.0 + comm.rank, FLOAT)
    ALGORITHMS["mpi"].bind(comm, SMALL)(comm, gradient, 0.5)
    assert (gradient == 0.5 * sum(range(1, comm.size + 1))).all()


def check_auto_on_emulated_links_leaves_shared_memory_out(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    with costs_in_a_new_folder(comm) as measured:
        gradient = np.empty(SMALL // 4, np.float32)
        # Each has costs of its own, although all share one handle.
        for number, link in enumerate((None, Link(1e9, 1e-5), Link(1e9, 2e-5)), start=1):
            own = EmulatedComm(comm, link) if link else comm
            gradient[...] = comm.rank
            auto(own, gradient, 1.0)
            assert measured == [SMALL] * number
            assert (gradient == sum(range(comm.size))).all()
        names = {name for name, _ in choose(own, SMALL).ranked}
        assert names == set(ALGORITHMS) - {"auto", "shared-memory", *SLOWER}, names


def check_measuring_for_auto_is_not_counted(comm: MPI.Intracomm) -> None:
    with costs_in_a_new_folder(comm):
        counting = CountingComm(comm)
        auto(counting, np.ones(SMALL // 4, np.float32), 0.5)
        assert {row.calls for row in counting.traffic()} <= {1, 2}


def check_without_room_in_shared_memory_auto_takes_another_algorithm(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    with costs_in_a_new_folder(comm):
        plant(comm, {SMALL: {"shared-memory": 1e-5, "tree": 2e-5, "mpi": 3e-5}})
        full = lambda nbytes: "too little" if nbytes >= SMALL else None  # noqa: E731
        with mock.patch("labkit.comm.shared_memory._no_room", full):
            assert auto.allocate(comm, SMALL // 4, FLOAT) is None
        assert auto.for_size(comm, SMALL) == ALGORITHMS["tree"]
