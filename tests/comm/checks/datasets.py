"""Data sets on many ranks: fetched once, each rank its own share, and steps that do not depend on p."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from unittest import mock

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm import CollectiveError, SharedSet, fetch, once_per_node, scatter
from labkit.comm.data import once
from labkit.nn import Model, linear_regression, softmax_regression
from labkit.train import Batches, Contributions, Epoch, speeds, train

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.made_sets import files_of, made, put, source_of

N = 47  # no p above 1 divides it
LR = 0.02  # at 0.1 the loss on these images of noise jumps up, and rounding grows with it


@contextmanager
def made_set(
    comm: MPI.Intracomm, name: str = "mnist", n: int = N, there: bool = True
) -> Iterator[dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Make a set and an empty cache of the ranks' own; its files are put there by hand, or not."""
    parts = made(name, n, 5)
    files = files_of(name, parts)
    cache = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    if there and comm.rank == 0:
        put(Path(cache) / name, files)
    comm.Barrier()
    try:
        with (
            mock.patch.dict(os.environ, LABKIT_DATA=cache),
            mock.patch.dict(data.SOURCES, {name: source_of(name, parts, files)}),
        ):
            yield parts
    finally:
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(cache)


class TwoNodes(MPI.Intracomm):
    """A communicator whose ranks count as on two nodes: the even ones, and the odd ones."""

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Intracomm:
        return self.Split(self.rank % 2, key)


def error_on_every_rank(comm: MPI.Intracomm, call) -> str:
    try:
        call()
    except CollectiveError as error:
        said = str(error)
    else:
        raise AssertionError(f"rank {comm.rank}: no error")
    assert comm.allgather(said) == [said] * comm.size
    return said


def check_one_rank_of_each_node_does_the_work_and_all_see_it_done(comm: MPI.Intracomm) -> None:
    for nodes, workers in (comm, [0]), (TwoNodes(comm), [0, 1][: comm.size]):
        folder = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))

        def work(alive, folder=folder) -> None:
            # The first rank works alone: its node may share a disk with the others.
            end = monotonic() + (0.3 if comm.rank == 0 else 0)
            while monotonic() < end:
                assert not (folder / "1").exists()
            assert (comm.rank == 0) != (folder / "0").exists()
            (folder / str(comm.rank)).touch()

        once_per_node(nodes, work)
        done = sorted(int(path.name) for path in folder.iterdir())
        assert done == workers, f"rank {comm.rank} sees the work of {done}, expected {workers}"
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(folder)


def check_what_goes_wrong_on_one_node_is_told_to_all(comm: MPI.Intracomm) -> None:
    last = min(1, comm.size - 1)  # of the ranks that work, where there are two nodes
    for error, words in (
        (OSError("no room"), "no room"),
        (KeyError("k"), "KeyError: 'k'"),
    ):

        def work(alive, error=error) -> None:
            if comm.rank == last:
                raise error

        said = error_on_every_rank(comm, lambda work=work: once_per_node(TwoNodes(comm), work))
        assert said == f"rank {last}: {words}", said


def check_those_who_wait_are_patient_with_a_rank_that_gives_signs_of_life(comm: MPI.Intracomm) -> None:
    def work(alive) -> None:
        end = monotonic() + 3  # longer than the others' patience
        while monotonic() < end:
            alive()

    with mock.patch.object(once, "SIGN_EVERY_S", 0.02):
        once_per_node(comm, work, patience_s=1.5)


def check_those_who_wait_do_not_wait_for_ever(comm: MPI.Intracomm) -> None:
    if comm.size == 1:
        return
    given_up = comm.Dup()

    def stuck(alive) -> None:
        for _ in range(comm.size - 1):
            given_up.recv(source=MPI.ANY_SOURCE)  # never gives a sign, until all have given it up

    if comm.rank == 0:
        once_per_node_alone(comm, stuck)
        return
    try:
        once_per_node(comm, stuck, patience_s=0.2)
    except TimeoutError as error:
        said = str(error)
    else:
        raise AssertionError("no error")
    assert said.startswith(f"rank {comm.rank} waits for rank 0, expected a sign of life"), said
    given_up.send(None, 0)


def once_per_node_alone(comm: MPI.Intracomm, work) -> None:
    """Take part in `once_per_node` as its worker, whose peers leave before its end."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED, comm.rank)
    node.Free()
    comm.allgather(True)
    comm.Dup()
    work(lambda: None)


def check_a_set_in_the_cache_is_unpacked_by_one_rank(comm: MPI.Intracomm) -> None:
    for name in data.SOURCES:
        with made_set(comm, name) as parts:
            unpacked = []
            source = data.SOURCES[name]

            def unpack(folder: Path, source=source, unpacked=unpacked) -> list[Path]:
                unpacked.append(comm.rank)
                return source.unpack(folder)

            counting = data.Source(**{**vars(source), "unpack": unpack})
            with mock.patch.dict(data.SOURCES, {name: counting}):
                fetch(comm, name)
                assert data.is_cached(name)
                fetch(comm, name)
            assert comm.allgather(unpacked) == [[0]] + [[]] * (comm.size - 1)
            assert data.stored(name).labels.tolist() == parts["train"][1].tolist()


def check_without_a_connection_every_rank_hears_what_to_do(comm: MPI.Intracomm) -> None:
    with made_set(comm, there=False):
        for call in (lambda: fetch(comm, "mnist"), lambda: SharedSet(comm, "mnist")):
            said = error_on_every_rank(comm, call)
            assert said.startswith("rank 0: the data set 'mnist' is not in the cache"), said
            assert "take the embedded set" in said


def check_each_rank_reads_what_rank_0_would_have_scattered(comm: MPI.Intracomm) -> None:
    for name, shape in (("mnist", None), ("mnist", (1, 32, 32)), ("cifar10", (3, 32, 32))):
        with made_set(comm, name):
            shared_set = SharedSet(comm, name, shape)
            whole = data.load(name, shape)
            assert (shared_set.features, shared_set.outputs, shared_set.labelled) == (
                whole.features,
                whole.outputs,
                True,
            )
            for scheme_name in data.SCHEMES:
                scheme = data.scheme(
                    scheme_name,
                    targets=shared_set.targets,
                    seed=3,
                    epoch=2,
                    speeds=range(1, comm.size + 1),
                )
                x, y = shared_set.shard(scheme)
                rank_0 = comm.rank == 0
                np.testing.assert_array_equal(x, scatter(comm, whole.x_train if rank_0 else None, scheme))
                np.testing.assert_array_equal(y, scatter(comm, whole.y_train if rank_0 else None, scheme))
            if comm.rank == 0:
                x, y = shared_set.test()
                np.testing.assert_array_equal(x, whole.x_test)
                np.testing.assert_array_equal(y, whole.y_test)
            else:
                assert shared_set.test() is None


def check_an_embedded_set_is_shared_alike(comm: MPI.Intracomm) -> None:
    for name, shape in (("digits", None), ("digits", (1, 28, 28)), ("linear", None)):
        shared_set, whole = SharedSet(comm, name, shape), data.load(name, shape)
        np.testing.assert_array_equal(shared_set.targets, whole.y_train)
        assert (shared_set.features, shared_set.outputs, shared_set.labelled) == (
            whole.features,
            whole.outputs,
            whole.labelled,
        )
        for scheme_name in ("shuffled", "outlying"):
            scheme = data.scheme(scheme_name, targets=shared_set.targets)
            x, y = shared_set.shard(scheme)
            mine = scheme(len(whole.x_train), comm.rank, comm.size)
            np.testing.assert_array_equal(x, whole.x_train[mine])
            np.testing.assert_array_equal(y, whole.y_train[mine])


def check_a_set_or_scheme_that_cannot_be_is_an_error_on_every_rank(comm: MPI.Intracomm) -> None:
    assert "no data set 'cats'" in error_on_every_rank(comm, lambda: SharedSet(comm, "cats"))
    assert "no shape (5,)" in error_on_every_rank(comm, lambda: SharedSet(comm, "digits", (5,)))
    with made_set(comm):
        assert "no shape (5,)" in error_on_every_rank(comm, lambda: SharedSet(comm, "mnist", (5,)))
        shared_set = SharedSet(comm, "mnist")

        def odd(n: int, rank: int, size: int) -> np.ndarray:
            return np.array([n if rank == size - 1 else 0])

        said = error_on_every_rank(comm, lambda: shared_set.shard(odd))
        assert said == f"rank {comm.size - 1}: sample {N}: expected 0 … {N - 1}", said
    if comm.size > 1:
        with made_set(comm, n=comm.size - 1):
            shared_set = SharedSet(comm, "mnist")
            said = error_on_every_rank(comm, lambda: shared_set.shard(data.strided))
            assert f"{comm.size - 1} samples for {comm.size} ranks" in said, said


def check_one_seed_shuffles_alike_on_every_rank(comm: MPI.Intracomm) -> None:
    """Each rank draws on its own; that the shards of all ranks together are the set shows that they agree."""
    drawn = {}
    for seed in (1, 2):
        mine = data.shuffled(N, comm.rank, comm.size, seed, 1).tolist()
        shards = comm.allgather(mine)
        assert sorted(sample for shard in shards for sample in shard) == list(range(N))
        drawn[seed] = shards
    assert drawn[1] != drawn[2]


def check_ranks_see_step_by_step_the_samples_of_the_one_rank_twin(comm: MPI.Intracomm) -> None:
    """With batch B on each of p ranks, against one rank with p·B: the samples themselves, told by content."""
    with made_set(comm):
        shared_set = SharedSet(comm, "mnist")
        alone = SharedSet(MPI.COMM_SELF, "mnist")
        for name in ("strided", "shuffled", "weighted"):
            for each in (1, 4, 30):
                batch = comm.size * each
                for epoch in (1, 2):
                    several = data.scheme(name, seed=7, epoch=epoch, speeds=range(1, comm.size + 1))
                    single = data.scheme(name, seed=7, epoch=epoch, speeds=[1])
                    x, _ = shared_set.shard(several)
                    twin, _ = alone.shard(single)
                    parts = (
                        data.in_order(several(N, comm.rank, comm.size), N, batch)
                        if name == "weighted"
                        else data.dealt(N, batch, comm.rank, comm.size)
                    )
                    steps = range(0, N, batch)
                    assert len(parts) == len(steps)
                    for part, start in zip(parts, steps, strict=True):
                        seen = [row for rows in comm.allgather(x[part].tolist()) for row in rows]
                        assert sorted(seen) == sorted(twin[start : start + batch].tolist())


def trained(
    comm: MPI.Intracomm, name: str, shared_set: SharedSet, pace: list[float], batch: int
) -> tuple[Model, list[Epoch]]:
    """Train for three epochs on the shards of a scheme."""
    batches = Batches.of(comm, shared_set, name, batch, seed=5, speeds=pace)
    shards = [batches.epoch(number).x for number in (1, 2, 3)]
    assert all((x is shards[0]) == (name != "shuffled") for x in shards[1:])
    model = softmax_regression(shared_set.features, shared_set.outputs)
    return model, train(comm, model, batches, epochs=3, lr=LR)


def check_ranks_learn_what_one_rank_learns_under_every_scheme_that_promises_it(comm: MPI.Intracomm) -> None:
    with made_set(comm, n=103):
        for name in ("strided", "shuffled", "weighted"):
            model, rows = trained(
                comm, name, SharedSet(comm, "mnist"), [1.0 + 3 * r for r in range(comm.size)], 10
            )
            twin, alone = trained(MPI.COMM_SELF, name, SharedSet(MPI.COMM_SELF, "mnist"), [1.0], 10)
            scale = np.abs(twin.params).max()
            np.testing.assert_allclose(model.params, twin.params, rtol=0, atol=2e-6 * scale)
            np.testing.assert_allclose(
                [row.global_loss for row in rows], [row.global_loss for row in alone], rtol=1e-5
            )


def check_every_rank_raises_if_slices_or_shards_do_not_fit(comm: MPI.Intracomm) -> None:
    whole = data.linear(n=40)
    mine = data.strided(40, comm.rank, comm.size)
    x, y = whole.x_train[mine], whole.y_train[mine]
    last = comm.rank == comm.size - 1
    held, fewest = len(x), 40 // comm.size  # the last rank holds the fewest
    for bad in (
        [slice(0, 2), slice(3, held)],
        [slice(0, 2), slice(2, held - 1)],
        [slice(0, held + 1), slice(held + 1, held)],
    ):
        slices = bad if last else [slice(0, 2), slice(2, held)]
        said = error_on_every_rank(comm, lambda cut=slices: Batches(comm, x, y, slices=cut))
        expected = f"expected slices that cut 0 … {fewest} into pieces, got "
        assert said.startswith(f"rank {comm.size - 1}: {expected}"), said
    said = error_on_every_rank(comm, lambda: Batches(comm, x, y, slices=[]))
    assert "expected slices that cut" in said, said
    said = error_on_every_rank(comm, lambda: Batches(comm, x, y, 10, slices=[slice(0, held)]))
    assert "expected a global batch or slices, got both" in said, said
    if comm.size > 1:
        cut = [slice(0, held)] if last else [slice(0, 1), slice(1, held)]
        said = error_on_every_rank(comm, lambda: Batches(comm, x, y, slices=cut))
        assert "expected 2 slices as on rank 0, got 1 slices" in said, said
    empty = [slice(0, 0), slice(0, held)]
    said = error_on_every_rank(comm, lambda: Batches(comm, x, y, slices=empty))
    assert "expected a sample in each step" in said, said

    for shard, words in (
        ((x[:-1], y[:-1]), f"expected a shard of {fewest} samples in epoch 2 as before, got {fewest - 1}"),
        ((x.astype(np.float64), y), "float64"),
    ):
        batches = Batches(comm, x, y, reshard=lambda epoch, shard=shard: shard if last else (x, y))
        said = error_on_every_rank(
            comm, lambda batches=batches: train(comm, linear_regression(), batches, epochs=3, lr=0.1)
        )
        assert words in said, said


def check_a_local_loss_rises_while_the_global_loss_falls_at_every_step(comm: MPI.Intracomm) -> None:
    """Report A's case on any number of ranks: the rank in the middle holds outlying samples."""
    if comm.size == 1:
        return
    n = 1000
    whole = data.linear(n, seed=22, outlying=data.contiguous(n, comm.size // 2, comm.size))
    mine = data.contiguous(n, comm.rank, comm.size)
    batches = Batches(comm, whole.x_train[mine], whole.y_train[mine])
    rows = train(comm, linear_regression(), batches, epochs=10, lr=0.01, callbacks=[Contributions()])
    assert np.all(np.diff([row.global_loss for row in rows]) < 0)
    if comm.rank == 0:
        assert np.all(np.diff([row.local_loss for row in rows]) > 0)
    if comm.rank == comm.size // 2:
        assert rows[0].contribution["b"] > 1, rows[0]


def check_speeds_are_those_of_the_ranks(comm: MPI.Intracomm) -> None:
    whole = data.linear(n=64)
    model = linear_regression()
    computing = model.loss_and_gradient
    slow = comm.size - 1

    def slower(x: np.ndarray, y: np.ndarray) -> float:
        end = monotonic() + 0.02  # a slow rank is the subject here
        while monotonic() < end:
            pass
        return computing(x, y)

    if comm.rank == slow:
        model.loss_and_gradient = slower  # type: ignore[method-assign]
    before = model.params.copy()
    found = speeds(comm, model, whole.x_train, whole.y_train)
    assert comm.allgather(found) == [found] * comm.size and len(found) == comm.size
    assert found[slow] <= 64 / 0.02
    if comm.size == 2:  # with more ranks than cores the others' times are the operating system's
        assert found[0] > found[1]
    np.testing.assert_array_equal(model.params, before)
