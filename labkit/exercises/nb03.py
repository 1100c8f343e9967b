"""The exercises of notebook 03: shards, mini-batches."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from labkit.checks.exercise import MPI, Case, Exercise, Outcome
from labkit.exercises.cases import SMALL_OBJECTS, calls, calls_by_rank
from labkit.text import counted


# Exercise 3.1
def shard_bounds(n, size):
    """Return the bounds of all shards: rank r holds samples bounds[r] … bounds[r + 1] - 1.

    Shape: (size + 1,), integers, from 0 to n.
    """
    sizes = np.full(size, n // size)
    sizes[: n % size] += 1
    return np.concatenate([[0], np.cumsum(sizes)])


SHARD_BOUNDS = Exercise(
    reference=shard_bounds,
    cases=calls(shard_bounds, (4, 2), (3, 1), (11, 4), (10, 3), (5, 5), (2, 4), (1438, 4), (1000, 7)),
    mistakes={
        "every shard has n // size samples, so the last n % size samples are on no rank": {
            "    sizes[: n % size] += 1\n": ""
        },
        "the last rank gets all samples that are left over, so its shard is more than one sample "
        "larger; give one each to the first n % size ranks": {": n % size] += 1": "-1] += n % size"},
        "n / size is rounded up for every rank, so the last shard is too small or empty": {
            "np.concatenate([[0], np.cumsum(sizes)])": "np.minimum(np.arange(size + 1) * -(-n // size), n)"
        },
        "the sizes are right, but not on the right ranks: the first n % size ranks hold the larger shards": {
            "np.concatenate([[0], np.cumsum(sizes)])": "np.arange(size + 1) * n // size"
        },
        "these are the sizes of the shards; the bounds are their running sums, starting with 0": {
            "np.concatenate([[0], np.cumsum(sizes)])": "sizes"
        },
        "the bounds lack the 0 at the front or the n at the end": {
            "np.concatenate([[0], np.cumsum(sizes)])": "np.cumsum(sizes)"
        },
    },
    hints=(
        "How many samples does every rank get at least, and how many are left over?",
        "The first n % size ranks hold n // size + 1 samples, the others n // size.",
        "Make the array of the sizes, then use np.cumsum and put a 0 in front.",
    ),
)


# Exercise 3.2
def shuffled_shard(n, rank, size, seed, epoch, pad=False):
    """Return this rank's part of the epoch's order: positions rank, rank + size, … Shape: (n_rank,).

    With `pad`, the order is first extended by its own first samples until all shards are equally long.
    """
    order = np.random.default_rng([seed, epoch]).permutation(n)
    if pad:
        order = np.resize(order, -(-n // size) * size)
    return order[rank::size]


SHUFFLED_SHARD = Exercise(
    reference=shuffled_shard,
    cases=calls_by_rank(
        shuffled_shard,
        (5, 2, 1, 0),
        *(
            (n, p, p + 2, p, pad)
            for n, p in ((5, 1), (8, 2), (10, 3), (11, 4), (3, 4), (2, 5))
            for pad in (False, True)
        ),
    ),
    mistakes={
        "the order does not depend on the epoch: every epoch has the same batches": {", epoch]": "]"},
        "the order does not depend on the seed: every run has the same batches": {"[seed, epoch]": "[epoch]"},
        "seed + epoch is one number, so seed 3 in epoch 2 repeats seed 4 in epoch 1; seed the generator"
        " with the list [seed, epoch]": {"[seed, epoch]": "seed + epoch"},
        "the rank is part of the seed, so each rank draws an order of its own: some samples are on "
        "several ranks, others on none": {"[seed, epoch]": "[seed + rank, epoch]"},
        "each rank draws an order of its own (the rank is in the list of seeds): some samples are on "
        "several ranks, others on none": {"[seed, epoch]": "[seed, epoch, rank]"},
        "the order is cut into blocks; deal it out, every size-th position to this rank": {
            "order[rank::size]": "np.array_split(order, size)[rank]"
        },
        "samples from the front are repeated although `pad` is false: each sample is used exactly once": {
            "if pad:": "if True:"
        },
        "with `pad`, samples are left out so that all shards are equal, as with `drop_last`; repeat the "
        "first ones instead": {"-(-n // size) * size": "n // size * size"},
        "with `pad`, this repeats the first samples of the file; repeat the first of the epoch's order": {
            "order = np.resize(order, -(-n // size) * size)": (
                "order = np.append(order, np.arange(-n % size) % n)"
            )
        },
        "each rank shuffles a fixed shard, so no sample ever changes its rank; shuffle all samples, "
        "then deal them": {"permutation(n)": "permutation(np.arange(rank, n, size))", "[rank::size]": ""},
        "the whole order is returned; keep only this rank's positions": {"[rank::size]": ""},
    },
    hints=(
        "All ranks draw np.random.default_rng([seed, epoch]).permutation(n). Why must the rank not be in "
        "the list of seeds?",
        "Dealing cards to `size` players: player `rank` gets order[rank::size].",
        "All shards have ceil(n / size) samples if the order has -(-n // size) * size. np.resize(order, "
        "length) repeats an array from its front until it has this length.",
    ),
)


# Exercise 3.3
def block_shuffled_shard(n, block, rank, size, seed, epoch):
    """Return the samples of this rank's blocks, block after block. Shape: (n_rank,), integers."""
    blocks = -(-n // block)
    order = np.random.default_rng([seed, epoch]).permutation(blocks)
    samples = [np.arange(b * block, min((b + 1) * block, n)) for b in order[rank::size]]
    return np.concatenate([np.arange(0), *samples])


BLOCK_SHUFFLED_SHARD = Exercise(
    reference=block_shuffled_shard,
    cases=calls_by_rank(
        block_shuffled_shard,
        (4, 2, 1, 3, 1),
        (12, 3, 2, 3, 1),
        (10, 4, 3, 4, 2),
        (23, 5, 4, 0, 3),
        (6, 4, 4, 7, 1),
        (38, 3, 2, 1, 5),
        (39, 4, 2, 4, 0),
    ),
    mistakes={
        "the last block is shorter than the others: these indices go beyond n - 1": {
            "min((b + 1) * block, n)": "(b + 1) * block"
        },
        "the number of blocks is rounded down, so the samples of the last, shorter block are on no rank": {
            "-(-n // block)": "n // block"
        },
        "single samples are shuffled, not blocks: this shard is all over the file again": """
def block_shuffled_shard(n, block, rank, size, seed, epoch):
    return np.random.default_rng([seed, epoch]).permutation(n)[rank::size]
""",
        "the blocks are dealt in the order of the file: every epoch gives each rank the same samples": {
            "np.random.default_rng([seed, epoch]).permutation(blocks)": "np.arange(blocks)"
        },
        "each rank draws an order of its own (its rank is part of the seed): some blocks are on several"
        " ranks, others on none": {"[seed, epoch]": "[seed, epoch, rank]"},
        "these are the numbers of the blocks; return the samples in them": {
            "return np.concatenate([np.arange(0), *samples])": "return order[rank::size]"
        },
        "… need at least one array to concatenate": {"[np.arange(0), *samples]": "samples"},
    },
    hints=(
        "This is your shuffled shard once more, with blocks in the place of samples.",
        "There are -(-n // block) blocks. Block b holds samples b * block … min((b + 1) * block, n) - 1.",
        "A rank may get no block at all, and np.concatenate([]) raises an error: return an empty array.",
    ),
)


# Exercise 3.4
def step_bounds(n, batch, rank, size):
    """Return the bounds of this rank's local batches: step k trains on shard[bounds[k] : bounds[k + 1]].

    The shard holds positions rank, rank + size, … of an order of n samples, and step k the positions from
    k * batch up to (k + 1) * batch or n. Shape: (steps + 1,), integers.
    """
    bounds = [0]
    for start in range(0, n, batch):
        stop = min(start + batch, n)
        bounds.append(len(range(rank, stop, size)))
    return np.array(bounds)


STEP_BOUNDS = Exercise(
    reference=step_bounds,
    cases=calls_by_rank(step_bounds, (4, 2, 1), (12, 4, 2), (10, 4, 3), (11, 8, 4), (9, 2, 4), (23, 6, 4)),
    mistakes={
        "batch // size samples per step only works if the number of ranks divides the global batch; "
        "count this rank's positions below the end of each step": {
            "np.array(bounds)": "np.minimum(np.arange(len(bounds)) * (batch // size), bounds[-1])"
        },
        "the last global batch is not full: its stop goes beyond the end of this rank's shard": {
            "min(start + batch, n)": "start + batch"
        },
        "these are positions in the epoch's order; the bounds count within this rank's shard": {
            "len(range(rank, stop, size))": "stop"
        },
        "the counts are rounded down, so samples are missing from a step; count the positions rank, "
        "rank + size, … below the end, rounded up": {
            "len(range(rank, stop, size))": "max(0, (stop - rank) // size)"
        },
        "the last global batch is dropped because it is not full; its samples would never be used": {
            "        stop = min(start + batch, n)\n": (
                "        stop = start + batch if start + batch <= n else start\n"
            )
        },
        "these are the sizes of the local batches; the bounds are their running sums": {
            "array(bounds)": "array([0, *np.diff(bounds)])"
        },
    },
    hints=(
        "Write down, for 10 samples, a global batch of 4 and 3 ranks, which positions rank 1 has, and which "
        "of them lie below 4, 8 and 10.",
        "bounds[k] is the number of the positions rank, rank + size, … that lie below k * batch, or below n "
        "in the end. len(range(rank, end, size)) counts those below `end`.",
    ),
)


# Exercise 3.5
def stratified_shard(labels, rank, size, seed, epoch):
    """Return this rank's samples in the epoch's order; any two ranks hold the same mixture of labels.

    Shapes: labels (n,), integers; result (n_rank,).
    """
    order = np.random.default_rng([seed, epoch]).permutation(len(labels))
    by_label = order[np.argsort(labels[order], kind="stable")]
    mine = by_label[rank::size]
    return order[np.isin(order, mine)]


STRATIFIED_SHARD = Exercise(
    reference=stratified_shard,
    cases=calls_by_rank(
        stratified_shard,
        *(
            (np.random.default_rng(n).integers(0, classes, n), size, 3, size)
            for n, classes, size in ((4, 2, 1), (6, 2, 2), (11, 3, 3), (30, 10, 4), (3, 2, 4), (101, 10, 4))
        ),
    ),
    mistakes={
        "the samples are sorted by label and then cut into blocks: this is label skew, each rank knows "
        "only a few labels; deal the sorted samples": {
            "by_label[rank::size]": "np.array_split(by_label, size)[rank]"
        },
        "the labels are not used: dealing the samples in the epoch's order leaves the mixture to chance": {
            "by_label[rank::size]": "order[rank::size]"
        },
        "each label is dealt from rank 0 anew, so the first ranks get the extra sample of every label "
        "and the sizes differ by more than one": {
            "mine = by_label[rank::size]": (
                "mine = []\n    for label in np.unique(labels):\n"
                "        mine.extend(by_label[labels[by_label] == label][rank::size])"
            )
        },
        "the samples are right but in the order of their labels, so the first mini-batches know only the "
        "first label: return them in the epoch's order": {"order[np.isin(order, mine)]": "mine"},
        "the samples are right but in ascending order, the same in each epoch: return them in the epoch's "
        "order": {"order[np.isin(order, mine)]": "np.sort(mine)"},
        "these are the labels of the samples, not their indices": {
            "order[np.isin(order, mine)]": "labels[order[np.isin(order, mine)]]"
        },
        "the samples are not shuffled before they are sorted by label: every epoch deals the same ones": {
            'order[np.argsort(labels[order], kind="stable")]': 'np.argsort(labels, kind="stable")'
        },
    },
    hints=(
        "Shuffle as before. Then put samples with the same label next to each other and deal them out.",
        "np.argsort(labels[order], kind='stable') says how to sort `order` by label, and keeps the order of "
        "samples with equal labels.",
        "np.isin(order, mine) says which places of `order` hold one of this rank's samples.",
    ),
)


# Exercise 3.6
def accuracy_by_label(comm, labels, predictions, classes):
    """Return the fraction of each label's samples, on all ranks together, that are predicted correctly.

    Shapes: labels, predictions (n_rank,), integers, n_rank ≥ 0; result (classes,), the same on every rank,
    nan for a label that no rank has.
    """
    correct = np.bincount(labels[labels == predictions], minlength=classes)
    counts = np.array([correct, np.bincount(labels, minlength=classes)])
    comm.Allreduce(MPI.IN_PLACE, counts)
    correct, held = counts
    return np.divide(correct, held, out=np.full(classes, np.nan), where=held > 0)


def _accuracy_cases() -> Iterator[Case]:
    for p, classes in ((1, 3), (2, 3), (3, 4), (4, 10)):
        rng, arguments = np.random.default_rng(p), []
        for rank in range(p):
            labels = rng.integers(
                0, classes - 1, (6 if p > 2 else 60) + 5 * rank if rank < 3 else 0
            )  # not the last label
            if rank + 1 < p:
                labels[labels == rank] = rank + 1  # this rank lacks another label, too
            guess = np.where(rng.random(len(labels)) < 0.5, labels, rng.integers(0, classes, len(labels)))
            arguments.append((labels, guess, classes))
        yield Case(f"{classes} labels, {counted(p, 'rank')}, no sample of the last label", tuple(arguments))
    labels, fewer = np.arange(900) % 3, np.arange(750) % 3
    yield Case("3 labels, 2 ranks, 550 samples of each label", ((labels, labels, 3), (fewer, 0 * fewer, 3)))


def _accuracy(case: Case) -> Sequence[Any]:
    labels, predictions = (np.concatenate(part) for part in list(zip(*case.arguments, strict=True))[:2])
    held = [labels == k for k in range(case.arguments[0][2])]
    return [
        np.array([np.mean(predictions[of] == labels[of]) if of.any() else np.nan for of in held])
    ] * case.ranks


def look_at_counts(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    most = max((call.most for outcome in outcomes for call in outcome.calls), default=0)
    classes = case.arguments[0][2]
    if most > 2 * 8 * classes + SMALL_OBJECTS:
        yield f"a rank sends {most:,} bytes at once: send counts of each label, and no samples"


DIVIDED = "np.divide(correct, held, out=np.full(classes, np.nan), where=held > 0)"
ACCURACY_BY_LABEL = Exercise(
    reference=accuracy_by_label,
    cases=_accuracy_cases,
    expected=_accuracy,
    mistakes={
        "this is the accuracy on this rank's own samples; sum the counts over the ranks": {
            "    comm.Allreduce(MPI.IN_PLACE, counts)\n": ""
        },
        "this is the mean of the ranks' accuracies, so a rank with one sample of a label counts as much"
        " as a rank with a hundred; sum correct and all samples, then divide": {
            "    comm.Allreduce(MPI.IN_PLACE, counts)\n": "",
            f"return {DIVIDED}": "own = np.where(held > 0, correct / np.maximum(held, 1), 0.0)\n"
            "    return comm.allreduce(own) / comm.allreduce((held > 0).astype(float))",
        },
        "nan spreads: a rank without samples of a label makes the mean of the ranks' accuracies nan; "
        "sum counts over the ranks, not accuracies": {
            "    comm.Allreduce(MPI.IN_PLACE, counts)\n": "",
            DIVIDED: f"comm.allreduce({DIVIDED}) / comm.size",
        },
        "a label that no rank has gets 0, as if all its samples were wrong; it should be nan": {
            DIVIDED: "correct / np.maximum(held, 1)"
        },
        "the counts are divided by how often each label was predicted (precision); divide by how often "
        "it occurs (recall)": {"bincount(labels, minlength": "bincount(predictions, minlength"},
        "these are the numbers of correct samples; divide by the samples of each label": {DIVIDED: "correct"},
    },
    hints=(
        "A mean over all ranks needs sums of counts: correct samples and all samples of each label.",
        "np.bincount(labels, minlength=classes) counts the labels, also on a rank without samples.",
        "One comm.Allreduce(MPI.IN_PLACE, counts) sums both counts if they are in one array (2, classes).",
        "np.divide(correct, held, out=np.full(classes, np.nan), where=held > 0) leaves nan for no sample.",
    ),
    look=look_at_counts,
)


QUESTIONS = {
    "03-blocks": "All samples of a block have one label, so a rank learns one label at a time. Shuffle the "
    "file when you write it, and let each rank mix the samples of many blocks in memory (a shuffle "
    "buffer).",
    "03-skew": "No: a step's mean gradient is the mean over all samples, wherever they are. It would matter "
    "with smaller global batches whose samples depend on the shards (by label, read in order), with local "
    "SGD, with batch norm, or with unweighted means of unequal shards.",
    "03-bonus-1": "`r * (n // size) + min(r, n % size)`: r shards of the smaller size, and one sample "
    "more for each of the larger shards before rank r.",
    "03-bonus-2": "After two, nearly always. An epoch leaves out n mod p samples: 2 of 1,438 on four "
    "ranks. The next epoch has another order, and leaves out one of the same two with a probability of "
    "about 2 * 2 / 1,438. (If p divides n, one epoch is enough.)",
    "03-bonus-3": "Permute the samples within each pair of blocks, with a generator of [seed, epoch, "
    "rank]. Each mini-batch then holds samples of two blocks in place of one. Far better than none, but "
    "two neighbouring blocks in a sorted file have nearly the same labels: what mixes is the number of "
    "blocks in the buffer.",
    "03-bonus-4": "Rank r holds the positions r, r + p, ...; of the first m positions that is ceil((m - "
    "r) / p), and at least 0. So bounds = np.maximum(0, -((rank - m) // size)) with m = np.minimum(batch "
    "* np.arange(steps + 1), n).",
    "03-bonus-5": "Of each label whose number of samples p does not divide. No scheme that uses each "
    "sample once can avoid that: somebody must hold the samples that are left. Only repeating or leaving "
    "out samples makes the numbers equal.",
    "03-bonus-6": "Count pairs: np.add.at(matrix, (labels, predictions), 1), a matrix of classes x "
    "classes, and Allreduce it. The diagonal divided by the row sums is the accuracy by label.",
}
