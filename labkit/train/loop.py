"""The way of a batch: shard → forward → loss → backward → average the gradient → step → record.

One function does it for a notebook's `%%px` cell, for `mpiexec -n 4 labkit train` and for a batch job alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from mpi4py import MPI

from labkit.comm import Algorithm, CollectiveError, agree, allreduce, factor, memory, raise_together
from labkit.data import dealt
from labkit.nn import Model, sgd_step
from labkit.train.bottleneck import Straggler
from labkit.train.timeline import Timeline


@dataclass(frozen=True)
class Epoch:
    """What one rank measured in one epoch (counted from 1).

    `local_loss` is the mean over this rank's samples, `global_loss` over those of all ranks, each batch
    taken before its own step. `wait_s` is the time (s) at the barrier before averaging, until the last rank
    is ready (in epoch 1 also at the door of `train`, until the last rank has come in); `transfer_s` the
    time (s) of averaging itself. By parameter name: `gradient_mean` is the mean entry of this rank's own
    gradient over the epoch, `contribution` is ‖this rank's part‖ / ‖sum of all ranks' parts‖, as a
    fraction; of a median, which has no parts, ‖the part this rank would have in the mean‖ / ‖the median‖.
    """

    epoch: int
    rank: int
    local_loss: float
    global_loss: float
    wait_s: float
    transfer_s: float
    gradient_mean: dict[str, float]
    contribution: dict[str, float]


def train(
    comm: MPI.Intracomm,
    model: Model,
    x: np.ndarray,
    y: np.ndarray,
    *,
    epochs: int,
    lr: float,
    batch: int | Sequence[slice] | None = None,
    algorithm: Algorithm = allreduce,
    on_epoch: Callable[[Epoch], None] | None = None,
    reshard: Callable[[int], tuple[np.ndarray, np.ndarray]] | None = None,
    straggler: Straggler | None = None,
    timeline: Timeline | None = None,
) -> list[Epoch]:
    """Train `model` on the shards of all ranks together, in step; return this rank's epochs.

    Shapes: x (n_rank, features), y as the model's targets: this rank's shard. Without `batch` each step
    takes every sample, one step an epoch. With it a step takes `batch` samples of all ranks together, and
    each rank its part of them (`data.dealt`); with `data.strided` shards the steps are then the same for
    any number of ranks. Where the shards are of other sizes (`data.weighted`), `batch` is a slice of this
    rank's shard for each step (`data.in_order`). Every rank starts from rank 0's parameters. `on_epoch` is
    called after each epoch, on every rank. `reshard` is called before each epoch but the first, on every
    rank, with its number, and returns the shard for it, as large as the first (`data.shuffled`). `algorithm`
    is one of `labkit.comm.ALGORITHMS`, one made by `labkit.comm.algorithm`, or a function of your own; with
    `shared_memory` the model's gradients lie in memory that the ranks share until it is trained. A
    `straggler` makes this rank slow; a `timeline` records what it does when.

    Collective. A shard or setting that does not fit, and a loss that is no longer finite, is a
    CollectiveError on every rank.
    """
    came = perf_counter()
    parts, totals = _steps(comm, model, x, y, epochs=epochs, lr=lr, batch=batch)
    comm.Bcast(model.params)
    wait_s = perf_counter() - came

    straggler = straggler or Straggler((), comm.rank, comm.size)
    rows = []
    with _in_place(comm, model, algorithm):
        for epoch in range(1, epochs + 1):
            if reshard and epoch > 1:
                x, y = _resharded(comm, model, reshard, epoch, len(x))
            # Summed over the epoch's samples: what this rank brings to the gradient, and all of it.
            own, every = np.zeros_like(model.grads), np.zeros_like(model.grads)
            loss_sum, counted, transfer_s = 0.0, 0.0, 0.0
            # A diverging run overflows; its loss tells, so a warning per operation would only be noise.
            with np.errstate(over="ignore", invalid="ignore"):
                for part, total in zip(parts, totals, strict=True):
                    straggler.lose_time()
                    begin = perf_counter()
                    weight = part.stop - part.start
                    if weight:
                        loss_sum += weight * straggler.compute(model.loss_and_gradient, x[part], y[part])
                    else:  # the batch is smaller than the number of ranks
                        model.grads[...] = 0
                    counts = total * factor(algorithm, weight / total, comm.size)
                    own += counts * model.grads
                    counted += counts

                    ready = perf_counter()
                    comm.Barrier()
                    start = perf_counter()
                    algorithm(comm, model.grads, weight / total)
                    end = perf_counter()
                    wait_s += start - ready
                    transfer_s += end - start

                    every += total * model.grads
                    sgd_step(model.params, model.grads, lr)
                    if timeline:
                        timeline.add(epoch, begin, ready, start, end, perf_counter())
                row = Epoch(
                    epoch,
                    comm.rank,
                    loss_sum / len(x),
                    _global_loss(comm, loss_sum, len(x), epoch),
                    wait_s,
                    transfer_s,
                    {name: float(g.mean()) / counted for name, g in model.views(own).items()},
                    _contribution(model, own, every),
                )
            rows.append(row)
            if on_epoch:
                on_epoch(row)
            wait_s = 0.0
    return rows


@contextmanager
def _in_place(comm: MPI.Intracomm, model: Model, algorithm: Algorithm) -> Iterator[None]:
    """Have the gradients where the way has them best, for a while. Collective, the way back not."""
    before = model.grads
    place = memory(algorithm, comm, before.size, before.dtype)
    if place is not None:
        model.move_gradients(place)
    try:
        yield
    finally:
        model.move_gradients(before)


def gather(comm: MPI.Intracomm, rows: list[Epoch]) -> list[Epoch]:
    """Return the epochs of all ranks, by epoch and rank, on rank 0; an empty list elsewhere. Collective."""
    gathered = comm.gather(rows) or []
    return sorted((row for rows in gathered for row in rows), key=lambda row: (row.epoch, row.rank))


def _steps(
    comm: MPI.Intracomm,
    model: Model,
    x: np.ndarray,
    y: np.ndarray,
    *,
    epochs: int,
    lr: float,
    batch: int | Sequence[slice] | None,
) -> tuple[list[slice], list[int]]:
    """Check on all ranks what `train` was given; return each step's slice and its size over all ranks."""
    given = f"{len(batch)} slices" if isinstance(batch, Sequence) else batch
    settings = epochs, lr, given, model.name
    expected = comm.bcast(settings)
    fault = None
    if epochs < 1 or not (math.isfinite(lr) and lr > 0) or (isinstance(batch, int) and batch < 1):
        fault = f"expected epochs ≥ 1, lr > 0 and batch ≥ 1, got {epochs}, {lr} and {batch}"
    elif settings != expected:
        fault = f"expected (epochs, lr, batch, model) = {expected} as on rank 0, got {settings}"
    else:
        try:
            model.check(x, y)
        except ValueError as error:
            fault = str(error)
    raise_together(comm, fault)

    n = int(agree(comm, model.grads, len(x)))
    if batch is None:
        return [slice(0, len(x))], [n]
    if isinstance(batch, Sequence):
        return list(batch), _step_sizes(comm, batch, len(x))
    held = len(range(comm.rank, n, comm.size))
    if len(x) != held:
        fault = f"expected a shard of {held} of the {n} samples to deal batches of {batch} from, got {len(x)}"
    raise_together(comm, fault)
    starts = range(0, n, batch)
    return dealt(n, batch, comm.rank, comm.size), [min(batch, n - start) for start in starts]


def _step_sizes(comm: MPI.Intracomm, parts: Sequence[slice], held: int) -> list[int]:
    """Return how many samples each step takes on all ranks together. Collective.

    A CollectiveError if a rank's slices are not its shard cut into pieces, or a step has no sample at all.
    """
    ends = [0, *(part.stop for part in parts)]
    whole = [part.start for part in parts] == ends[:-1] and ends[-1] == held and ends == sorted(ends)
    raise_together(comm, None if whole else f"expected slices that cut 0 … {held} into pieces, got {parts}")
    sizes = np.sum(comm.allgather(np.diff(ends)), axis=0).tolist()
    raise_together(comm, None if all(sizes) else f"expected a sample in each step, got steps of {sizes}")
    return sizes


def _resharded(
    comm: MPI.Intracomm,
    model: Model,
    reshard: Callable[[int], tuple[np.ndarray, np.ndarray]],
    epoch: int,
    held: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return this rank's shard for an epoch, checked on all ranks. Collective."""
    fault, shard = None, None
    try:
        shard = reshard(epoch)
        model.check(*shard)
        if len(shard[0]) != held:
            fault = f"expected a shard of {held} samples in epoch {epoch} as before, got {len(shard[0])}"
    except CollectiveError:
        raise  # on every rank already
    except (OSError, ValueError, IndexError) as error:
        fault = str(error)
    raise_together(comm, fault)
    assert shard is not None  # or there would have been a fault
    return shard


def _global_loss(comm: MPI.Intracomm, loss_sum: float, n: int, epoch: int) -> float:
    """Return the mean loss over all ranks' samples; a CollectiveError if it is not finite. Collective."""
    sums = np.array(comm.allgather((loss_sum, n)))
    loss = float(sums[:, 0].sum() / sums[:, 1].sum())
    if not math.isfinite(loss):
        local = ", ".join(f"{s / count:.3g} on rank {rank}" for rank, (s, count) in enumerate(sums))
        raise CollectiveError(
            f"the loss is {loss} in epoch {epoch} ({local}), expected a finite one: the training "
            "diverges or the data are not finite; try a lower learning rate"
        )
    return loss


def contribution(part: np.ndarray, total: np.ndarray) -> float:
    """Return ‖part‖ / ‖total‖, as a fraction; NaN where the total is zero.

    `part` is one rank's gradient, `total` the sum over all ranks, alike in shape. Where the ranks' gradients
    point different ways, the sum can be shorter than a part: then that rank's contribution is over 1.
    """
    length = float(np.linalg.norm(total))
    return float(np.linalg.norm(part)) / length if length else math.nan


def _contribution(model: Model, own: np.ndarray, every: np.ndarray) -> dict[str, float]:
    """Return this rank's contribution to each parameter."""
    parts, sums = model.views(own), model.views(every)
    return {name: contribution(parts[name], sums[name]) for name in parts}
