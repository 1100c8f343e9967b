"""Which samples each rank trains on: its shard in every epoch, and its local batch in every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm import CollectiveError, SharedSet, raise_together

Samples = tuple[np.ndarray, np.ndarray]


class EpochBatches(NamedTuple):
    """One epoch of one rank: its shard, and for each step its local batch and the size of the global batch.

    Shapes: x (n_rank, …) and y as the model's targets; `slices` cut them into the local batches, some of
    which may be empty; `global_sizes` has as many entries, the same on every rank.
    """

    x: np.ndarray
    y: np.ndarray
    slices: Sequence[slice]
    global_sizes: Sequence[int]

    def local(self, number: int) -> Samples:
        """Return x and y of this rank's local batch in a step, counted from 0."""
        part = self.slices[number]
        return self.x[part], self.y[part]


class Batches:
    """The batches of a run. `train` asks for them epoch by epoch.

    With neither `global_batch` nor `slices`, each epoch is one step with all samples. With a `global_batch`,
    a step takes that many samples of all ranks together and each rank takes its part of them
    (`data.local_batches`).
    Given `data.strided` or `data.shuffled` shards, the steps are then the same for any number of ranks. If
    the shards have other sizes (`data.weighted`), `slices` cut this rank's shard into its local batches, one
    for each step (`data.batches_by_index`).

    `reshard` returns this rank's shard for an epoch, given its number (from 2); it must be as large as the
    first. `Batches.of` makes all this from a data set and the name of a sharding scheme.

    Collective. Raise CollectiveError on every rank if the ranks' settings differ, if a shard cannot be dealt
    into these batches, or if a step has no sample on any rank.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        x: np.ndarray,
        y: np.ndarray,
        global_batch: int | None = None,
        *,
        slices: Sequence[slice] | None = None,
        reshard: Callable[[int], Samples] | None = None,
    ) -> None:
        self._comm, self._reshard = comm, reshard
        chosen = f"{len(slices)} slices" if slices is not None else f"a global batch of {global_batch}"
        expected = comm.bcast(chosen)
        fault = None
        if global_batch is not None and global_batch < 1:
            fault = f"expected a global batch ≥ 1, got {global_batch}"
        elif global_batch is not None and slices is not None:
            fault = "expected a global batch or slices, got both"
        elif chosen != expected:
            fault = f"expected {expected} as on rank 0, got {chosen}"
        raise_together(comm, fault)
        if slices is not None:
            sizes = _global_sizes(comm, slices, len(x))
            self._first = EpochBatches(x, y, list(slices), sizes)
            return
        n = comm.allreduce(len(x))
        if global_batch is None:
            raise_together(comm, None if n else "expected a sample on some rank, got none on any")
            self._first = EpochBatches(x, y, [slice(0, len(x))], [n])
            return
        dealt = len(range(comm.rank, n, comm.size))
        if len(x) != dealt:
            fault = (
                f"expected a shard of {dealt} of the {n} samples to deal global batches of {global_batch} "
                f"from, got {len(x)}"
            )
        raise_together(comm, fault)
        sizes = [min(global_batch, n - start) for start in range(0, n, global_batch)]
        self._first = EpochBatches(x, y, data.local_batches(n, global_batch, comm.rank, comm.size), sizes)

    @classmethod
    def of(
        cls,
        comm: MPI.Intracomm,
        dataset: SharedSet,
        scheme: str,
        global_batch: int | None = None,
        *,
        seed: int = 0,
        speeds: Sequence[float] = (),
    ) -> Batches:
        """Return the batches of a data set, sharded by one of `data.SCHEMES`. Collective.

        "shuffled" reshuffles the samples in each epoch, by `seed`; "weighted" deals them in proportion to the
        ranks' `speeds`.
        """

        def shards(epoch: int) -> data.Scheme:
            return data.scheme(scheme, targets=dataset.targets, seed=seed, epoch=epoch, speeds=speeds)

        x, y = dataset.shard(shards(1))
        if scheme == "weighted" and global_batch:
            n = len(dataset.targets)
            slices = data.batches_by_index(shards(1)(n, comm.rank, comm.size), n, global_batch)
            return cls(comm, x, y, slices=slices)
        reshard = (lambda epoch: dataset.shard(shards(epoch))) if scheme == "shuffled" else None
        return cls(comm, x, y, global_batch, reshard=reshard)

    def epoch(self, number: int) -> EpochBatches:
        """Return the batches of an epoch, counted from 1. Collective.

        Raise CollectiveError on every rank if the epoch's shard cannot be read or has another size.
        """
        if self._reshard is None or number == 1:
            return self._first
        fault, held = None, len(self._first.x)
        try:
            x, y = self._reshard(number)
            if len(x) != held:
                fault = f"expected a shard of {held} samples in epoch {number} as before, got {len(x)}"
        except CollectiveError:
            raise  # every rank has it already
        except (OSError, ValueError, IndexError) as error:
            fault = str(error)
        raise_together(self._comm, fault)
        return self._first._replace(x=x, y=y)


def _global_sizes(comm: MPI.Intracomm, slices: Sequence[slice], held: int) -> list[int]:
    """Return how many samples each step takes on all ranks together. Collective.

    Raise CollectiveError if a rank's slices do not cut its shard into pieces, or a step has no sample.
    """
    ends = [0, *(part.stop for part in slices)]
    whole = [part.start for part in slices] == ends[:-1] and ends[-1] == held and ends == sorted(ends)
    raise_together(comm, None if whole else f"expected slices that cut 0 … {held} into pieces, got {slices}")
    sizes: list[int] = np.sum(comm.allgather(np.diff(ends)), axis=0).tolist()
    raise_together(comm, None if all(sizes) else f"expected a sample in each step, got steps of {sizes}")
    return sizes
