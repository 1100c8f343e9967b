"""The exercises of notebook 03 about mini-batches, and shards with every label or with few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.exercises.calls import collectives_with
from labkit.exercises.exercise import Case, Exercise
from mpiwatch.wording import counted

if TYPE_CHECKING:
    from mpi4py import MPI  # the reference's prelude imports it; a notebook's kernel must not load MPI

# mypy: disable-error-code="no-untyped-def"


def step_bounds(n, batch, step, rank, size):
    """Return (start, stop): in this step, the rank trains on shard[start:stop] of its dealt shard."""
    start = len(range(rank, step * batch, size))
    stop = len(range(rank, min((step + 1) * batch, n), size))
    return start, stop


def _step_bounds(case: Case) -> Sequence[Any]:
    n, batch, step, rank, size = case.arguments[0]
    positions = np.arange(rank, n, size)
    ends = np.searchsorted(positions, [step * batch, min((step + 1) * batch, n)])
    return [tuple(ends.tolist())]


def _step_cases() -> Sequence[Case]:
    cases = []
    for n, batch, size in ((4, 2, 1), (12, 4, 2), (10, 4, 3), (11, 8, 4), (9, 2, 4), (23, 6, 4)):
        for step in range(-(-n // batch)):
            for rank in range(size):
                label = f"{n} samples, global batch {batch}, step {step}, rank {rank} of {size}"
                cases.append(Case(label, ((n, batch, step, rank, size),)))
    return cases


def _of_step(mistake: Callable[[int, int, int, int, int], Any]) -> Callable[[Case], Sequence[Any]]:
    return lambda case: [tuple(mistake(*case.arguments[0]))]


def _local_batch(n: int, batch: int, step: int, rank: int, size: int) -> tuple[int, int]:
    each, held = batch // size, len(range(rank, n, size))
    return min(step * each, held), min((step + 1) * each, held)


def _rounded_down(n: int, batch: int, step: int, rank: int, size: int) -> tuple[int, int]:
    end = min((step + 1) * batch, n)
    return max(0, (step * batch - rank) // size), max(0, (end - rank) // size)


def _last_dropped(n: int, batch: int, step: int, rank: int, size: int) -> tuple[int, int]:
    start, end = step * batch, (step + 1) * batch
    before = len(range(rank, start, size))
    return before, len(range(rank, end, size)) if end <= n else before


STEP_BOUNDS = Exercise(
    reference=step_bounds,
    title="This rank's part of each global batch",
    difficulty=3,
    minutes=15,
    cases=_step_cases,
    expected=_step_bounds,
    suspects={
        "batch // size samples per step only works if the number of ranks divides the global batch; count "
        "this rank's positions below step * batch": _of_step(_local_batch),
        "the last global batch is not full: stop goes beyond the end of this rank's shard": _of_step(
            lambda n, batch, step, rank, size: (
                len(range(rank, step * batch, size)),
                len(range(rank, (step + 1) * batch, size)),
            )
        ),
        "these are positions in the epoch's order; start and stop count within this rank's shard": _of_step(
            lambda n, batch, step, rank, size: (step * batch, min((step + 1) * batch, n))
        ),
        "the counts are rounded down, so samples are missing from a step; count the positions rank, "
        "rank + size, … below the end, rounded up": _of_step(_rounded_down),
        "the last global batch is dropped because it is not full; its samples would never be used": _of_step(
            _last_dropped
        ),
    },
    hints=(
        "The shard holds positions rank, rank + size, rank + 2 size, … of the epoch's order.",
        "`start` is the number of these positions that lie below step * batch.",
        "len(range(rank, end, size)) counts the positions below `end`. What is the end of the last step?",
    ),
)


def stratified_shard(labels, rank, size):
    """Return the indices of this rank's samples, ascending. Shapes: labels (n,); result (n_rank,)."""
    by_label = np.argsort(labels, kind="stable")
    return np.sort(by_label[rank::size])


def _stratified(case: Case) -> Sequence[Any]:
    labels, rank, size = case.arguments[0]
    by_label = sorted(range(len(labels)), key=lambda i: (labels[i], i))
    return [np.array(sorted(by_label[rank::size]), dtype=np.int64)]


def _stratified_cases() -> Sequence[Case]:
    cases = []
    for n, classes, size in ((4, 2, 1), (6, 2, 2), (11, 3, 3), (30, 10, 4), (3, 2, 4), (101, 10, 4)):
        labels = np.random.default_rng(n).integers(0, classes, n)
        for rank in range(size):
            label = f"{n} samples of {classes} labels, rank {rank} of {size}"
            cases.append(Case(label, ((labels, rank, size),)))
    return cases


def _of_labels(mistake: Callable[[np.ndarray, int, int], Any]) -> Callable[[Case], Sequence[Any]]:
    return lambda case: [np.asarray(mistake(*case.arguments[0]), dtype=np.int64)]


def _each_label_from_rank_0(labels: np.ndarray, rank: int, size: int) -> np.ndarray:
    parts = [np.flatnonzero(labels == label)[rank::size] for label in np.unique(labels)]
    return np.sort(np.concatenate(parts))


STRATIFIED_SHARD = Exercise(
    reference=stratified_shard,
    title="Every label on every rank",
    difficulty=2,
    minutes=10,
    cases=_stratified_cases,
    expected=_stratified,
    suspects={
        "the samples are sorted by label and then cut into blocks: this is label skew, each rank knows only "
        "a few labels; deal the sorted samples": _of_labels(
            lambda labels, rank, size: np.sort(np.array_split(np.argsort(labels, kind="stable"), size)[rank])
        ),
        "the labels are not used: dealing the samples in the order of the file leaves the mixture to "
        "chance": _of_labels(lambda labels, rank, size: np.arange(rank, len(labels), size)),
        "each label is dealt from rank 0 anew, so the first ranks get the extra sample of every label and "
        "the sizes differ by more than one": _of_labels(_each_label_from_rank_0),
        "the samples are right but in the order of their labels: return them in ascending order, or the "
        "first mini-batches know only the first label": _of_labels(
            lambda labels, rank, size: np.argsort(labels, kind="stable")[rank::size]
        ),
        "these are the labels of the samples, not their indices": _of_labels(
            lambda labels, rank, size: np.sort(labels)[rank::size]
        ),
    },
    hints=(
        "Put samples with the same label next to each other, then deal them out like cards.",
        "np.argsort(labels, kind='stable') returns the indices in the order of the labels.",
        "Keep every size-th index from `rank` on, and sort what is left.",
    ),
)


def accuracy_by_label(comm, labels, predictions, classes):
    """Return the fraction of each label's samples, on all ranks together, that are predicted correctly.

    Shapes: labels, predictions (n_rank,), integers, n_rank ≥ 0; result (classes,), the same on every rank,
    nan for a label that no rank has.
    """
    counts = np.array(
        [
            np.bincount(labels[labels == predictions], minlength=classes),
            np.bincount(labels, minlength=classes),
        ]
    )
    comm.Allreduce(MPI.IN_PLACE, counts)
    correct, held = counts
    return np.divide(correct, held, out=np.full(classes, np.nan), where=held > 0)


def _accuracy_cases() -> Sequence[Case]:
    cases = []
    for p, classes in ((1, 3), (2, 3), (3, 4), (4, 10)):
        rng = np.random.default_rng(p)
        arguments = []
        for rank in range(p):
            few = rng.integers(0, classes - 1, 6 + 5 * rank)  # no rank has the last label
            if rank + 1 < p:
                few[few == rank % (classes - 1)] = (rank + 1) % (classes - 1)  # nor this rank that label
            labels = few if rank < 3 else few[:0]
            guess = np.where(rng.random(len(labels)) < 0.5, labels, rng.integers(0, classes, len(labels)))
            arguments.append((labels, guess, classes))
        cases.append(
            Case(f"{classes} labels, {counted(p, 'rank')}, no sample of the last label", tuple(arguments))
        )
    return cases


def _tables(case: Case) -> list[np.ndarray]:
    """Return for each rank its correct, held and predicted samples by label. Shape: (3, classes)."""
    return [
        np.array(
            [[np.sum((y == k) & (guess == k)), np.sum(y == k), np.sum(guess == k)] for k in range(classes)],
            float,
        ).T
        for y, guess, classes in case.arguments
    ]


def _accuracy(combine: Callable[[list[np.ndarray]], Any]) -> Callable[[Case], Sequence[Any]]:
    def results(case: Case) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            return [combine(_tables(case))] * case.ranks

    return results


def _own(case: Case) -> Sequence[Any]:
    with np.errstate(all="ignore"):
        return [table[0] / table[1] for table in _tables(case)]


def _mean_of_known(tables: list[np.ndarray]) -> np.ndarray:
    each = np.array([table[0] / table[1] for table in tables])
    known = np.isfinite(each).sum(0)
    return np.asarray(np.nansum(each, axis=0) / known)


ACCURACY_BY_LABEL = Exercise(
    reference=accuracy_by_label,
    title="The accuracy of each label, over all ranks",
    difficulty=3,
    minutes=15,
    cases=_accuracy_cases,
    expected=_accuracy(lambda tables: np.divide(*np.sum(tables, axis=0)[:2])),
    suspects={
        "this is the accuracy on this rank's own samples; sum the counts over the ranks": _own,
        "this is the mean of the ranks' accuracies, so a rank with one sample of a label counts as much as a "
        "rank with a hundred; sum correct and all samples, then divide": _accuracy(_mean_of_known),
        "nan spreads: a rank without samples of a label makes the mean of the ranks' accuracies nan; sum "
        "counts over the ranks, not accuracies": _accuracy(
            lambda tables: np.asarray(np.mean([table[0] / table[1] for table in tables], axis=0))
        ),
        "a label that no rank has gets 0, as if all its samples were wrong; it should be nan": _accuracy(
            lambda tables: np.nan_to_num(np.divide(*np.sum(tables, axis=0)[:2]))
        ),
        "the counts are divided by how often each label was predicted (precision); divide by how often it "
        "occurs (recall)": _accuracy(lambda tables: np.divide(*np.sum(tables, axis=0)[::2])),
        "these are the numbers of correct samples; divide by the samples of each label": _accuracy(
            lambda tables: np.sum(tables, axis=0)[0]
        ),
    },
    hints=(
        "A mean over all ranks needs sums of counts: correct samples and all samples of each label.",
        "np.bincount(labels, minlength=classes) counts the labels, also on a rank without samples.",
        "One comm.Allreduce(MPI.IN_PLACE, counts) sums both counts if they are in one array (2, classes).",
        "np.divide(correct, held, out=np.full(classes, np.nan), where=held > 0) leaves nan for no sample.",
    ),
    on_ranks=True,
    forbidden=collectives_with("gather"),
    prelude="import numpy as np\nfrom mpi4py import MPI",
)

EXERCISES = [STEP_BOUNDS, STRATIFIED_SHARD, ACCURACY_BY_LABEL]
