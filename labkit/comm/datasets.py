"""Data sets for every rank: fetched once per node, then scattered by rank 0 or read in shards.

While one rank of a node fetches files, it sends heartbeats to the ranks that wait. So these can wait for as
long as a large download takes, and still find out when the working rank is stuck.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import monotonic, sleep
from typing import TypeVar

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm import tags
from labkit.data import Scheme, shards
from mpiwatch.report import ranks_phrase
from mpiwatch.waiting import CollectiveError, raise_together, sleeping_barrier

TIMEOUT_S = 120.0  # without a heartbeat; a download itself gives up earlier on a silent server
HEARTBEAT_S = 1.0
POLL_S = 0.005

Heartbeat = Callable[[], None]
Samples = tuple[np.ndarray, np.ndarray]
Result = TypeVar("Result")


def fetch(comm: MPI.Intracomm, name: str) -> None:
    """Fetch the set "mnist" or "cifar10" into the cache of every node, checked and unpacked.

    One rank of each node fetches while the others wait. Collective. Raise CollectiveError on every rank if
    that fails (no connection, a damaged file); the message says what to do.
    """
    once_per_node(comm, lambda heartbeat: data.fetch(name, heartbeat))


class SharedSet:
    """A data set by name, whose method `shard` returns this rank's shard.

    Files are fetched (`fetch`), and each rank reads its own shard from them. Any other set is loaded by
    rank 0, which scatters it. On every rank: `targets` of all training samples, (n,) int64 labels or
    (n, outputs) float32; `features`, `outputs` and `labelled` as of a `labkit.data.Dataset`. Given `samples`,
    the training set is only the first so many samples, or all if there are fewer.

    Collective. Raise CollectiveError on every rank if the set cannot be loaded, or not in that shape.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        name: str,
        shape: tuple[int, ...] | None = None,
        samples: int | None = None,
    ) -> None:
        self._comm, self.name, self._samples = comm, name, samples
        self._stored: data.FileDataset | None = None
        self._loaded: data.Dataset | None = None  # on rank 0
        if name in data.SOURCES:
            fetch(comm, name)

        def open_or_load() -> tuple[np.ndarray, int, int]:
            if name in data.SOURCES:
                self._stored = data.open_dataset(name, "train", shape)
                self._test = data.open_dataset(name, "test", shape)
                labels = self._stored.labels
                return labels, math.prod(self._stored.shape), int(labels.max()) + 1
            if comm.rank:
                return np.empty(0), 0, 0
            self._loaded = loaded = data.load(name, shape)
            return loaded.y_train, loaded.features, loaded.outputs

        known = _by_all(comm, open_or_load, takes_long=True)
        self.targets, self.features, self.outputs = known if self._stored else comm.bcast(known)
        self.labelled = bool(np.issubdtype(self.targets.dtype, np.integer))
        self.targets = self.targets[:samples]
        if self._stored:
            self._stored = replace(self._stored, labels=self._stored.labels[:samples])

    def shard(self, scheme: Scheme) -> Samples:
        """Return x and y of this rank's shard of the training samples, in the order of the scheme.

        Collective. Raise CollectiveError on every rank if that fails, for example with more ranks than
        samples.
        """
        stored, comm = self._stored, self._comm
        if stored is not None:
            return _by_all(comm, lambda: stored.take(scheme(len(stored), comm.rank, comm.size)))
        first, whole = slice(self._samples), self._loaded
        x, y = (whole.x_train[first], whole.y_train[first]) if whole else (None, None)
        return scatter(comm, x, scheme), scatter(comm, y, scheme)

    def test_batches(self, size: int) -> Iterator[Samples]:
        """Yield x and y of the test samples, `size` at a time, to every rank.

        No rank holds more than one batch of them, except rank 0, which has loaded a set that is in no file.
        Collective: all ranks take all batches. Raise CollectiveError on every rank if one cannot be read.
        """
        if self._stored is None:
            loaded = self._loaded
            parts = range(0, len(loaded.y_test), size) if loaded else None
            for start in self._comm.bcast(parts):
                part = slice(start, start + size)
                yield self._comm.bcast((loaded.x_test[part], loaded.y_test[part]) if loaded else None)
            return
        for start in range(0, len(self._test), size):
            samples = np.arange(start, min(start + size, len(self._test)))
            yield _by_all(self._comm, lambda samples=samples: self._test.take(samples))  # type: ignore[misc]


def _by_all(comm: MPI.Intracomm, read: Callable[[], Result], takes_long: bool = False) -> Result:
    """Return what `read` returns; raise CollectiveError on every rank if it fails on any. Collective.

    If it takes long on some ranks, the others wait asleep, as these need their cores.
    """
    results, fault = list[Result](), None
    try:
        results.append(read())
    except (OSError, ValueError, IndexError) as error:
        fault = str(error)
    if takes_long:
        sleeping_barrier(comm)
    raise_together(comm, fault)
    return results[0]


def scatter(comm: MPI.Intracomm, array: np.ndarray | None, scheme: Scheme = shards.contiguous) -> np.ndarray:
    """Return this rank's shard of the array that rank 0 holds, by one Scatterv; other ranks pass None.

    Shapes: array (n, …), any dtype; result (n_rank, …), the samples `scheme(n, rank, size)` in that order.
    Only rank 0 calls the scheme.

    Collective. Raise CollectiveError on every rank if the array or the scheme does not fit, for example if
    there are fewer samples than ranks.
    """
    header: tuple[np.dtype, tuple[int, ...], list[int]] | str = ""
    if comm.rank == 0:
        try:
            ordered, counts = _order(array, scheme, comm.size)
            header = ordered.dtype, ordered.shape[1:], counts
        except (ValueError, IndexError) as error:
            header = str(error)
    header = comm.bcast(header)
    if isinstance(header, str):
        raise CollectiveError(f"rank 0 cannot scatter: {header}")

    dtype, shape, counts = header
    mine = np.empty((counts[comm.rank], *shape), dtype)
    # One MPI element per sample, so that counts stay below 2³¹ and any dtype works.
    row = MPI.BYTE.Create_contiguous(dtype.itemsize * int(np.prod(shape))).Commit()
    try:
        send = [ordered, (counts, None), row] if comm.rank == 0 else None
        comm.Scatterv(send, [mine, counts[comm.rank], row])
    finally:
        row.Free()
    return mine


def _order(array: np.ndarray | None, scheme: Scheme, size: int) -> tuple[np.ndarray, list[int]]:
    """Return the samples in the order of their ranks, and the number of samples of each rank."""
    if not isinstance(array, np.ndarray) or array.ndim == 0 or array.dtype.hasobject:
        raise ValueError(f"expected a NumPy array of samples, got {type(array).__name__}")
    n = len(array)
    indices = [scheme(n, rank, size) for rank in range(size)]
    order = np.concatenate(indices)
    in_place = np.array_equal(order, np.arange(n))  # then no copy is needed
    return np.ascontiguousarray(array if in_place else array[order]), [len(i) for i in indices]


def once_per_node(
    comm: MPI.Intracomm, work: Callable[[Heartbeat], object], timeout_s: float = TIMEOUT_S
) -> None:
    """Call `work` on one rank of each node; return on every rank when all calls are over.

    Rank 0 works first, then the first rank of every other node, all at the same time: where nodes share a
    disk, these find the work done. `work` receives a function that it should call often; at most once a
    second, a call sends a heartbeat.

    Collective. Raise CollectiveError on every rank if `work` raised an exception. A waiting rank raises
    TimeoutError, with the silent ranks, if it has received no heartbeat for `timeout_s` seconds.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    first = node.rank == 0
    node.Free()
    firsts = [rank for rank, is_first in enumerate(comm.allgather(first)) if is_first]
    own = comm.Dup()  # so that none of the caller's messages is taken for a heartbeat
    for workers in firsts[:1], firsts[1:]:
        fault = _do(own, work) if comm.rank in workers else None
        _wait_for(own, [rank for rank in workers if rank != comm.rank], timeout_s)
        raise_together(comm, fault)
    own.Free()


def _do(comm: MPI.Intracomm, work: Callable[[Heartbeat], object]) -> str | None:
    """Do the work, send all other ranks heartbeats and a last message; return the fault, if any."""
    sent: list[MPI.Request] = []
    last, fault = monotonic(), None

    def send(done: bool) -> None:
        others = (rank for rank in range(comm.size) if rank != comm.rank)
        sent.extend(comm.isend(done, rank, tags.HEARTBEAT) for rank in others)

    def heartbeat() -> None:
        nonlocal last
        if monotonic() - last > HEARTBEAT_S:
            last = monotonic()
            send(False)

    try:
        work(heartbeat)
    except Exception as error:
        # The messages of the usual errors need no type in front.
        fault = str(error) if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}"
    send(True)
    MPI.Request.Waitall(sent)
    return fault


def _wait_for(comm: MPI.Intracomm, workers: list[int], timeout_s: float) -> None:
    """Wait, mostly asleep, until each of these ranks has sent its last message."""
    last_heard = dict.fromkeys(workers, monotonic())
    status = MPI.Status()
    while last_heard:
        if comm.Iprobe(MPI.ANY_SOURCE, tags.HEARTBEAT, status):
            source = status.Get_source()
            if comm.recv(source=source, tag=tags.HEARTBEAT):
                del last_heard[source]
            else:
                last_heard[source] = monotonic()
        elif silent := [rank for rank, when in last_heard.items() if monotonic() - when > timeout_s]:
            raise TimeoutError(
                f"rank {comm.rank} waits for {ranks_phrase(silent)}: expected a heartbeat every "
                f"{HEARTBEAT_S:.0f} s, got none for {timeout_s:.0f} s"
            )
        else:
            sleep(POLL_S)
