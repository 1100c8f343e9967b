"""Made data sets in a cache that all ranks of a communicator see."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
from mpi4py import MPI

from labkit import data
from tests.made_sets import archive_files, random_samples, source_for, write_files

N = 47  # no p above 1 divides it


@contextmanager
def made_set(
    comm: MPI.Intracomm, name: str = "mnist", n: int = N, there: bool = True
) -> Iterator[dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Make a data set and a cache of its own; if `there`, its files are in the cache."""
    parts = random_samples(name, n, 5)
    files = archive_files(name, parts)
    cache = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    if there and comm.rank == 0:
        write_files(Path(cache) / name, files)
    comm.Barrier()
    try:
        with (
            mock.patch.dict(os.environ, LABKIT_DATA=cache),
            mock.patch.dict(data.SOURCES, {name: source_for(name, files)}),
        ):
            yield parts
    finally:
        comm.Barrier()
        if comm.rank == 0:
            shutil.rmtree(cache)
