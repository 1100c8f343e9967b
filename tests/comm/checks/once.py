"""Work that one rank of each node does while the others wait."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from time import monotonic

from mpi4py import MPI

from labkit.comm import once_per_node
from tests.raising import error_on_every_rank


class TwoNodes(MPI.Intracomm):
    """A communicator that pretends that its even and its odd ranks are on two nodes."""

    def Split_type(self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Intracomm:
        return self.Split(self.rank % 2, key)


def check_one_rank_of_each_node_does_the_work_before_any_rank_returns(comm: MPI.Intracomm) -> None:
    for nodes, workers in (comm, [0]), (TwoNodes(comm), [0, 1][: comm.size]):
        folder = Path(comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None))

        def work(folder=folder) -> None:
            # Rank 0 works alone, since its node may share a disk with the others.
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


def check_a_fault_on_one_node_is_raised_on_all_ranks(comm: MPI.Intracomm) -> None:
    last = min(1, comm.size - 1)  # the last rank that works, with two nodes
    for error, words in (
        (OSError("no room"), "no room"),
        (KeyError("k"), "KeyError: 'k'"),
    ):

        def work(error=error) -> None:
            if comm.rank == last:
                raise error

        said = error_on_every_rank(comm, lambda work=work: once_per_node(TwoNodes(comm), work))
        assert said == f"rank {last}: {words}", said
