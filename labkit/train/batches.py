"""Which samples each rank trains on: its shard in every epoch, and its local batch in every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm import SharedSet, all_or_none, raise_together
from labkit.nn import Model

Samples = tuple[np.ndarray, np.ndarray]

# Under these schemes, a step has the same global batch for any number of ranks.
FOR_ANY_RANKS = ("strided", "shuffled", "weighted")


class EpochBatches(NamedTuple):
    """One epoch of one rank: its shard, and for each step its local batch and the size of the global batch.

    Shapes: x (n_rank, …) and y as the model's targets; `slices` cut them into the local batches, some of
    which may be empty; `global_sizes` has as many entries, the same on every rank. If `augment` is given, it
    returns other images in place of those of a local batch, given them and their slice.
    """

    x: np.ndarray
    y: np.ndarray
    slices: Sequence[slice]
    global_sizes: Sequence[int]
    augment: Callable[[np.ndarray, slice], np.ndarray] | None = None

    def local(self, number: int) -> Samples:
        """Return x, augmented, and y of this rank's local batch in a step, counted from 0."""
        part = self.slices[number]
        x = self.x[part]
        return self.augment(x, part) if self.augment else x, self.y[part]


class Batches:
    """The batches of a run. `train` asks for them epoch by epoch.

    With neither `global_batch` nor `slices`, each epoch is one step with all samples. With a `global_batch`,
    a step takes that many samples of all ranks together and each rank takes its part of them
    (`data.local_batches`). Given `data.strided` or `data.shuffled` shards, the steps are then the same for
    any number of ranks. If the shards have other sizes (`data.weighted`), `slices` cut this rank's shard into
    its local batches, one for each step (`data.batches_by_index`).

    `reshard` returns this rank's shard for an epoch, given its number (from 2); it must be as large as the
    first. `Batches.of` makes all this from a data set and the name of a sharding scheme.

    `about` describes the batches; runs with equal descriptions train on the same samples in the same steps.
    `for_any_ranks` is True if that holds for runs on other numbers of ranks, too.

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
        self._comm = comm
        self._reshard = reshard
        self._augment: Callable[[int], Callable[[np.ndarray, slice], np.ndarray]] | None = None  # by epoch
        chosen = f"{len(slices)} slices" if slices is not None else f"a global batch of {global_batch}"
        expected = comm.bcast(chosen)
        fault = None
        if global_batch is not None and slices is not None:
            fault = "expected a global batch or slices, got both"
        elif chosen != expected:
            fault = f"expected {expected} as on rank 0, got {chosen}"
        raise_together(comm, fault)
        n = comm.allreduce(len(x))
        if global_batch is not None:
            slices = all_or_none(comm, lambda: data.local_batches(n, global_batch, comm.rank, comm.size))
        elif slices is None:
            slices = [slice(0, len(x))]
        ends = [0, *(part.stop for part in slices)]
        if [part.start for part in slices] != ends[:-1] or ends[-1] != len(x) or ends != sorted(ends):
            fault = f"expected slices that cut 0 … {len(x)} into pieces, got {slices}"
            if global_batch is not None:
                fault = (
                    f"expected a shard of {ends[-1]} of the {n} samples to deal global batches of "
                    f"{global_batch} from, got {len(x)}"
                )
        raise_together(comm, fault)
        sizes: list[int] = np.sum(comm.allgather(np.diff(ends)), axis=0).tolist()
        raise_together(comm, None if all(sizes) else f"expected a sample in each step, got steps of {sizes}")
        self._first = EpochBatches(x, y, list(slices), sizes)
        self.about: dict[str, Any] = {"samples": n, "steps": len(sizes), "global batch": sizes[0]}
        self.for_any_ranks = len(sizes) == 1

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
        augmentation: data.Augmentation | None = None,
    ) -> Batches:
        """Return the batches of a data set, sharded by one of `data.SCHEMES`. Collective.

        "shuffled" and "distributed-sampler" reshuffle the samples in each epoch, by `seed`; "weighted" deals
        them in proportion to the ranks' `speeds`. With an `augmentation`, `seed` also decides what happens to
        each image.
        """
        n = len(dataset.targets)

        def shards(epoch: int) -> data.Scheme:
            return data.scheme(scheme, targets=dataset.targets, seed=seed, epoch=epoch, speeds=speeds)

        def indices(epoch: int) -> np.ndarray:
            return shards(epoch)(n, comm.rank, comm.size)

        x, y = dataset.shard(shards(1))
        cut, slices = global_batch, None
        if scheme == "weighted" and global_batch:
            cut, slices = None, data.batches_by_index(indices(1), n, global_batch)
        anew = scheme in ("shuffled", "distributed-sampler")
        reshard = (lambda epoch: dataset.shard(shards(epoch))) if anew else None
        batches = cls(comm, x, y, cut, slices=slices, reshard=reshard)
        if augmentation:

            def augment(epoch: int) -> Callable[[np.ndarray, slice], np.ndarray]:
                own_indices = indices(epoch)
                return lambda x, part: augmentation(x, own_indices[part], seed, epoch)

            batches._augment = augment
            batches.about["augmentation"] = str(augmentation)
        batches.about |= {"data": dataset.name, "shard": scheme, "seed": seed}
        batches.for_any_ranks |= scheme in FOR_ANY_RANKS
        return batches

    @property
    def steps(self) -> int:
        """Return the number of steps in an epoch."""
        return len(self._first.global_sizes)

    def epoch(self, number: int, model: Model | None = None) -> EpochBatches:
        """Return the batches of an epoch, from 1 on, and check that all ranks' fit a model. Collective.

        A shard that stays is checked for the first epoch only. Raise CollectiveError on every rank if a shard
        does not fit, cannot be read or has another size.
        """
        batches, reshard = self._first, self._reshard
        if reshard and number > 1:
            x, y = all_or_none(self._comm, lambda: reshard(number))
            held = len(batches.x)
            fault = f"expected a shard of {held} samples in epoch {number} as before, got {len(x)}"
            raise_together(self._comm, None if len(x) == held else fault)
            batches = batches._replace(x=x, y=y)
        if model and (reshard or number == 1):
            all_or_none(self._comm, lambda: model.check(batches.x, batches.y))
        return batches._replace(augment=self._augment(number)) if self._augment else batches
