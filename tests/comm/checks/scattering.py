"""Scattering a data set from rank 0."""

from __future__ import annotations

from functools import partial

import numpy as np
from mpi4py import MPI

from labkit.comm import scatter
from labkit.data import by_label, contiguous, strided
from tests.raising import error_on_every_rank


def check_scatter_gives_each_rank_its_shard(comm: MPI.Intracomm) -> None:
    for n in (comm.size, 2 * comm.size, 13, 101):
        labels = np.arange(n) * 7 % 5
        for whole in (
            np.arange(3 * n, dtype=np.float32).reshape(n, 3),
            np.arange(8 * n, dtype=np.uint8).reshape(n, 2, 2, 2),
            np.arange(n, dtype=np.int64),
            np.asfortranarray(np.arange(4.0 * n).reshape(n, 4)),
        ):
            for scheme in (contiguous, strided, lambda n, r, p, labels=labels: by_label(labels, r, p)):
                mine = scatter(comm, whole if comm.rank == 0 else None, scheme)
                expected = whole[scheme(n, comm.rank, comm.size)]
                np.testing.assert_array_equal(mine, expected)
                assert mine.dtype == whole.dtype and mine.flags.c_contiguous and mine.flags.writeable


def check_scatter_refuses_fewer_samples_than_ranks_on_every_rank(comm: MPI.Intracomm) -> None:
    few = np.ones((comm.size - 1, 2), np.float32)
    for bad, words in (
        (few, f"{comm.size - 1} samples for {comm.size} ranks"),
        (None, "NoneType"),
        (np.float32(1), "float32"),
        (np.array([None] * 9), "array"),
    ):
        for scheme in (contiguous, strided, partial(strided)):
            given = bad if comm.rank == 0 else None
            said = error_on_every_rank(comm, lambda given=given, scheme=scheme: scatter(comm, given, scheme))
            assert words in said, said
