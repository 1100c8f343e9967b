"""Replicas: what ranks do so that their copies of the model agree.

Parameters stay equal because every rank applies the same averaged gradient. Buffers do not: each rank
computes the running statistics of batch normalisation from its own local batches. Two ranks then have equal
weights and unequal test accuracies, as in report C.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm import CollectiveError
from labkit.nn import Classifier, Model
from labkit.train.settings import Buffers
from labkit.train.steps import Epoch, Position
from mpiwatch.report import ranks_phrase


def broadcast_model(comm: MPI.Intracomm, model: Model) -> None:
    """Give every rank the parameters and buffers of rank 0. Collective."""
    comm.Bcast(model.params)
    comm.Bcast(model.buffers)


def end_epoch(comm: MPI.Intracomm, model: Model, sums: Position, settings: Mapping[str, Any]) -> Epoch:
    """Return the record of an epoch with these sums on this rank; make replicas of the ranks' models.

    Collective. Raise CollectiveError on every rank if the loss is not finite or the ranks' weights differ.
    """
    n = sums.samples or math.nan  # a rank without samples has no loss
    losses, correct, samples = np.array(comm.allgather((sums.loss, sums.correct, sums.samples))).T
    loss = float(losses.sum() / samples.sum())
    if not math.isfinite(loss):
        local = ", ".join(f"{each:.3g} on rank {rank}" for rank, each in enumerate(losses / samples))
        raise CollectiveError(
            f"the loss is {loss} in epoch {sums.epoch} ({local}), expected a finite one: the training "
            "diverges or the data are not finite; try a lower learning rate"
        )
    row = Epoch(sums.epoch, comm.rank, sums.loss / n, loss, sums.wait_s, sums.transfer_s)
    row.samples, row.time_s = sums.samples, sums.time_s
    if isinstance(model, Classifier):
        row.local_accuracy = sums.correct / n
        row.global_accuracy = float(correct.sum() / samples.sum())
    synchronise_buffers(comm, model, settings["buffers"], sums.samples)
    if settings["average_after_step"]:
        row.drift = drift(comm, model)
    elif settings["check_weights"]:
        with_buffers = settings["buffers"] != "leave"
        sharded = settings["shard_state"] == "parameters"  # then there are no two copies
        check_replicas(
            comm, model, params=not sharded, buffers=with_buffers, when=f"after epoch {sums.epoch}"
        )
    return row


def synchronise_buffers(comm: MPI.Intracomm, model: Model, how: Buffers, samples: int) -> None:
    """Make the ranks' buffers equal, unless `how` is "leave". Collective.

    - "average": their mean, each rank weighted by its number of samples, as in a gradient's mean. It is added
      up in the order of the ranks, in float64, so all ranks get the same bits.
    - "broadcast": those of rank 0. PyTorch's DDP copies them before each forward pass (`broadcast_buffers`).
    - "leave": each rank keeps its own, so its model predicts a little differently.

    Training itself never reads running statistics, so it is enough to do this before somebody reads them: at
    the end of an epoch. The result is the same as after every step. A rank's statistics do not depend on
    those of other ranks, so rank 0 would have the same; and they are linear in those of the batches, so the
    mean of the ranks' running statistics is the running mean of the ranks' statistics (up to rounding, and
    except that a shorter last batch counts by the ranks' parts of the epoch, not by those of that batch).
    """
    if how == "leave" or not model.buffers.size or comm.size == 1:
        return
    if how == "broadcast":
        comm.Bcast(model.buffers)
        return
    gathered = comm.allgather((samples, model.buffers))
    model.buffers[...] = mean_buffers([n for n, _ in gathered], [buffers for _, buffers in gathered])


def mean_buffers(samples: list[int], buffers: list[np.ndarray]) -> np.ndarray:
    """Return the mean of the ranks' buffers, weighted by their numbers of samples, added up in float64.

    Shapes: buffers p × (n,); result (n,), float64.
    """
    weights = np.array(samples) / sum(samples)
    mean = np.zeros(buffers[0].size)
    for weight, own in zip(weights, buffers, strict=True):
        mean += weight * own.astype(np.float64)
    return mean


def check_replicas(
    comm: MPI.Intracomm, model: Model, *, params: bool = True, buffers: bool, when: str
) -> None:
    """Check that all ranks have the same parameters, buffers or both, bit for bit.

    Each rank hashes its bytes (about 1 GB/s), and one small allgather compares the hashes. Collective. Raise
    CollectiveError on every rank if they differ: the message says `when` and names the ranks that differ from
    the majority, or from rank 0 if there is none.
    """
    arrays = {"parameters": model.params} if params else {}
    arrays |= {"buffers": model.buffers} if buffers else {}
    hashes = comm.allgather([hash_of(array) for array in arrays.values()])
    for what, found in zip(arrays, zip(*hashes, strict=True), strict=True):
        common = Counter(found).most_common(1)[0][0]  # the first in the order of ranks, if there is a tie
        others = [rank for rank, each in enumerate(found) if each != common]
        if others:
            equal = [rank for rank, each in enumerate(found) if each == common]
            raise CollectiveError(
                f"{when}, {ranks_phrase(others, comm.size)}: the {what} of {model.name!r} have the hash "
                f"{', '.join(found[rank][:8] for rank in others)}, expected {common[:8]} as on "
                f"{ranks_phrase(equal, comm.size)}. A rank has changed its own model, or "
                "averaging gave the ranks different results; to go on regardless, set check_weights=False"
            )


def hash_of(array: np.ndarray) -> str:
    """Return a hash of an array's bytes: equal arrays have equal hashes."""
    return blake2b(array.data, digest_size=16).hexdigest()


def drift(comm: MPI.Intracomm, model: Model) -> float:
    """Return the largest ‖w_r - w_0‖ / ‖w_0‖ of all ranks r, where w_r are the parameters of rank r.

    Collective; costs one broadcast of the parameters. All ranks get the same number.
    """
    first = model.params.copy()
    comm.Bcast(first)
    apart = np.linalg.norm(model.params - first) / np.linalg.norm(first)
    return float(comm.allreduce(float(apart), MPI.MAX))
