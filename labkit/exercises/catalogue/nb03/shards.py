"""The exercises of notebook 03 about shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise
from mpiwatch.wording import counted

# mypy: disable-error-code="no-untyped-def"


def shard_bounds(n, size):
    """Return the bounds of all shards: rank r holds samples bounds[r] … bounds[r + 1] - 1.

    Shape: (size + 1,), integers, from 0 to n.
    """
    sizes = np.full(size, n // size)
    sizes[: n % size] += 1
    return np.concatenate([[0], np.cumsum(sizes)])


def _bounds(case: Case) -> Sequence[Any]:
    n, size = case.arguments[0]
    return [np.cumsum([0, *map(len, np.array_split(np.arange(n), size))])]


def _bounds_case(n: int, size: int) -> Case:
    return Case(f"{n} samples on {counted(size, 'rank')}", ((n, size),))


def _of_bounds(mistake: Callable[[int, int], Any]) -> Callable[[Case], Sequence[Any]]:
    return lambda case: [np.asarray(mistake(*case.arguments[0]))]


SHARD_BOUNDS = Exercise(
    reference=shard_bounds,
    title="Cut n samples into p shards",
    difficulty=2,
    minutes=10,
    cases=lambda: [
        _bounds_case(*c) for c in ((4, 2), (3, 1), (11, 4), (10, 3), (5, 5), (2, 4), (1438, 4), (1000, 7))
    ],
    expected=_bounds,
    suspects={
        "every shard has n // size samples, so the last n % size samples are on no rank": _of_bounds(
            lambda n, size: np.arange(size + 1) * (n // size)
        ),
        "the last rank gets all samples that are left over, so its shard is more than one sample larger; "
        "give one each to the first n % size ranks": _of_bounds(
            lambda n, size: [*(np.arange(size) * (n // size)), n]
        ),
        "n / size is rounded up for every rank, so the last shard is too small or empty": _of_bounds(
            lambda n, size: np.minimum(np.arange(size + 1) * -(-n // size), n)
        ),
        "the sizes are right, but not on the right ranks: the first n % size ranks hold the larger "
        "shards": _of_bounds(lambda n, size: np.arange(size + 1) * n // size),
        "these are the sizes of the shards; the bounds are their running sums, starting with 0": (
            lambda case: [np.diff(_bounds(case)[0])]
        ),
        "the bounds lack the 0 at the front or the n at the end": lambda case: [_bounds(case)[0][1:]],
    },
    hints=(
        "How many samples does every rank get at least, and how many are left over?",
        "The first n % size ranks hold n // size + 1 samples, the others n // size.",
        "Make the array of the sizes, then use np.cumsum and put a 0 in front.",
    ),
)


def shuffled_shard(n, rank, size, seed, epoch):
    """Return this rank's part of the epoch's order: positions rank, rank + size, … Shape: (n_rank,)."""
    order = np.random.default_rng([seed, epoch]).permutation(n)
    return order[rank::size]


def _order(n: int, *seeds: int) -> np.ndarray:
    order = np.arange(n)
    np.random.default_rng(seeds).shuffle(order)
    return order


def _shuffled(case: Case) -> Sequence[Any]:
    n, rank, size, seed, epoch = case.arguments[0]
    order = _order(n, seed, epoch)
    return [order[np.arange(n) % size == rank]]


def _shuffled_cases() -> Sequence[Case]:
    cases = []
    for n, size, seed, epoch in ((5, 1, 3, 1), (8, 2, 3, 1), (10, 3, 4, 2), (11, 4, 0, 3), (3, 4, 7, 1)):
        for rank in range(size):
            label = f"{n} samples, rank {rank} of {size}, seed {seed}, epoch {epoch}"
            cases.append(Case(label, ((n, rank, size, seed, epoch),)))
    return cases


def _of_order(mistake: Callable[[int, int, int, int, int], Any]) -> Callable[[Case], Sequence[Any]]:
    return lambda case: [mistake(*case.arguments[0])]


SHUFFLED_SHARD = Exercise(
    reference=shuffled_shard,
    title="A shuffle that all ranks agree on",
    difficulty=2,
    minutes=10,
    cases=_shuffled_cases,
    expected=_shuffled,
    suspects={
        "the order does not depend on the epoch: every epoch has the same batches": _of_order(
            lambda n, rank, size, seed, epoch: _order(n, seed)[rank::size]
        ),
        "the order does not depend on the seed: every run has the same batches": _of_order(
            lambda n, rank, size, seed, epoch: _order(n, epoch)[rank::size]
        ),
        "seed + epoch is one number, so seed 3 in epoch 2 repeats seed 4 in epoch 1; seed the generator "
        "with the list [seed, epoch]": _of_order(
            lambda n, rank, size, seed, epoch: _order(n, seed + epoch)[rank::size]
        ),
        "the rank is part of the seed, so each rank draws an order of its own: some samples are on several "
        "ranks, others on none": _of_order(
            lambda n, rank, size, seed, epoch: _order(n, seed + rank, epoch)[rank::size]
        ),
        "each rank draws an order of its own (the rank is in the list of seeds): some samples are on "
        "several ranks, others on none": _of_order(
            lambda n, rank, size, seed, epoch: _order(n, seed, epoch, rank)[rank::size]
        ),
        "the order is cut into blocks; deal it out, every size-th position to this rank": _of_order(
            lambda n, rank, size, seed, epoch: np.array_split(_order(n, seed, epoch), size)[rank]
        ),
        "samples from the front are repeated so that all shards are equal, as PyTorch's DistributedSampler "
        "does; here each sample is used exactly once": _of_order(
            lambda n, rank, size, seed, epoch: np.resize(_order(n, seed, epoch), -(-n // size) * size)[
                rank::size
            ]
        ),
        "each rank shuffles a fixed shard, so no sample ever changes its rank; shuffle all samples, then "
        "deal them": _of_order(
            lambda n, rank, size, seed, epoch: np.random.default_rng([seed, epoch]).permutation(
                np.arange(rank, n, size)
            )
        ),
        "the whole order is returned; keep only this rank's positions": _of_order(
            lambda n, rank, size, seed, epoch: _order(n, seed, epoch)
        ),
    },
    hints=(
        "All ranks draw the order of all n samples. What must be the same on all ranks for that?",
        "Let order = np.random.default_rng([seed, epoch]).permutation(n).",
        "Dealing cards to `size` players: player `rank` gets order[rank::size].",
    ),
)


def block_shuffled_shard(n, block, rank, size, seed, epoch):
    """Return the samples of this rank's blocks, block after block. Shape: (n_rank,), integers."""
    blocks = -(-n // block)
    order = np.random.default_rng([seed, epoch]).permutation(blocks)
    samples = [np.arange(b * block, min((b + 1) * block, n)) for b in order[rank::size]]
    return np.concatenate([np.arange(0), *samples])


def _block_cases() -> Sequence[Case]:
    cases = []
    sizes = (4, 2, 1, 3, 1), (12, 3, 2, 3, 1), (10, 4, 3, 4, 2), (23, 5, 4, 0, 3), (6, 4, 4, 7, 1)
    for n, block, size, seed, epoch in sizes:
        for rank in range(size):
            label = f"{n} samples in blocks of {block}, rank {rank} of {size}, seed {seed}, epoch {epoch}"
            cases.append(Case(label, ((n, block, rank, size, seed, epoch),)))
    return cases


def _of_blocks(
    *,
    n_used: Callable[[int, int], int] = lambda n, block: n,
    end: Callable[[int, int], int] = lambda n, block: n,
    with_rank: bool = False,
) -> Callable[[Case], Sequence[Any]]:
    """Return the samples of a rank's blocks, of which there are as many as n_used(n, block) samples need."""

    def results(case: Case) -> Sequence[Any]:
        n, block, rank, size, *seeds = case.arguments[0]
        used = n_used(n, block)
        samples = np.arange(min(used, n) if used < n else end(n, block))
        own = _order(-(-used // block), *seeds, *[rank] * with_rank)[rank::size]
        return [np.concatenate([np.arange(0), *(samples[samples // block == b] for b in own)])]

    return results


def _full(n: int, block: int) -> int:
    return n // block * block


def _rounded_up(n: int, block: int) -> int:
    return -(-n // block) * block


def _samples(case: Case) -> Sequence[Any]:
    n, _, rank, size, *seeds = case.arguments[0]
    return [_order(n, *seeds)[rank::size]]


def _numbers(case: Case) -> Sequence[Any]:
    n, block, rank, size, *seeds = case.arguments[0]
    return [_order(-(-n // block), *seeds)[rank::size]]


def _in_order(case: Case) -> Sequence[Any]:
    n, block, rank, size, *_ = case.arguments[0]
    return [np.arange(n)[np.arange(n) // block % size == rank]]


BLOCK_SHUFFLED_SHARD = Exercise(
    reference=block_shuffled_shard,
    title="Shuffle blocks, not samples",
    difficulty=3,
    minutes=15,
    cases=_block_cases,
    expected=_of_blocks(),
    suspects={
        "the last block is shorter than the others: these indices go beyond n - 1": _of_blocks(
            end=_rounded_up
        ),
        "the number of blocks is rounded down, so the samples of the last, shorter block are on no "
        "rank": _of_blocks(n_used=_full),
        "single samples are shuffled, not blocks: this shard is all over the file again": _samples,
        "the blocks are dealt in the order of the file: every epoch gives each rank the same "
        "samples": _in_order,
        "each rank draws an order of its own (its rank is part of the seed): some blocks are on several "
        "ranks, others on none": _of_blocks(with_rank=True),
        "these are the numbers of the blocks; return the samples in them": _numbers,
    },
    hints=(
        "This is your shuffled shard once more, with blocks in the place of samples.",
        "There are -(-n // block) blocks. Block b holds samples b * block … min((b + 1) * block, n) - 1.",
        "A rank may get no block at all, and np.concatenate([]) raises an error: return an empty array.",
    ),
)

EXERCISES = [SHARD_BOUNDS, SHUFFLED_SHARD, BLOCK_SHUFFLED_SHARD]
