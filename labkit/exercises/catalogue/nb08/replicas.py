"""Whether the ranks hold the same model: compare their weights, average their buffers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise, Outcome
from labkit.exercises.wraps import at_most
from mpiwatch.wording import counted

PRELUDE = "import hashlib\n\nimport numpy as np\nfrom mpi4py import MPI"


def weights_equal(comm, weights):  # type: ignore[no-untyped-def]
    """Return on every rank whether all ranks' weights are equal, bit for bit. Shape: weights (n,)."""
    hashes = comm.allgather(hashlib.sha256(weights.tobytes()).digest())
    return len(set(hashes)) == 1


def average_buffers(comm, buffers, samples):  # type: ignore[no-untyped-def]
    """Leave the mean of the ranks' buffers, weighted by their samples, in place. Shape: buffers (n,)."""
    rows = np.empty((comm.size, buffers.size), buffers.dtype)
    comm.Allgather(buffers * samples, rows)
    buffers[...] = rows.sum(axis=0) / sum(comm.allgather(samples))


# ---------------------------------------------------------------- equal weights

SIZE = 4000  # float32 values: 16 kB, far more than a hash


def _weights_cases() -> Sequence[Case]:
    start = np.linspace(-1, 1, SIZE, dtype=np.float32)
    cases = []
    for p, changed, how in (
        (1, None, "equal"),
        (2, None, "equal"),
        (2, 0, "all values"),
        (2, 1, "one bit"),
        (3, 0, "one bit"),
        (4, 3, "one bit"),
        (4, 2, "two values exchanged"),
        (3, None, "equal, one of them NaN"),
        (4, None, "equal"),
    ):
        weights = [start.copy() for _ in range(p)]
        if how == "all values":
            weights[changed or 0][...] += 1
        elif how == "one bit":
            weights[changed or 0].view(np.uint32)[SIZE // 2] ^= 1
        elif how == "two values exchanged":
            weights[changed or 0][[1, 7]] = start[[7, 1]]
        elif "NaN" in how:
            for each in weights:
                each[5] = np.nan
        where = "equal weights" if changed is None else f"{how} different on rank {changed}"
        label = f"{counted(p, 'rank')}, {where if 'NaN' not in how else 'equal weights with a NaN'}"
        cases.append(Case(label, tuple((each,) for each in weights)))
    return cases


def _equal(case: Case) -> Sequence[Any]:
    """Return whether the bytes of all ranks are those of rank 0."""
    first = case.arguments[0][0].tobytes()
    return [all(weights.tobytes() == first for (weights,) in case.arguments)] * case.ranks


def _compared(is_same: Callable[[np.ndarray, np.ndarray], Any]) -> Callable[[Case], Sequence[Any]]:
    """Return a suspect of weights_equal: every rank's weights are compared with rank 0's in this way."""

    def suspect(case: Case) -> Sequence[Any]:
        first = case.arguments[0][0]
        return [all(bool(is_same(weights, first)) for (weights,) in case.arguments)] * case.ranks

    return suspect


def _own_answer(case: Case) -> Sequence[Any]:
    first = case.arguments[0][0]
    return [weights.tobytes() == first.tobytes() for (weights,) in case.arguments]


def _on_root(case: Case) -> Sequence[Any]:
    return [_equal(case)[0], *[None] * (case.ranks - 1)]


# ---------------------------------------------------------------- the mean of the buffers


def _buffers_cases() -> Sequence[Case]:
    cases = []
    for samples, dtype in (
        ((5,), np.float32),
        ((2, 2), np.float64),
        ((1, 3), np.float64),
        ((3, 1, 2), np.float32),
        ((4, 0, 1, 3), np.float64),
        ((25, 25, 25, 24), np.float32),
    ):
        rows = np.random.default_rng(len(samples)).normal(3, 2, size=(len(samples), 50)).astype(dtype)
        label = f"{' + '.join(map(str, samples))} samples, {np.dtype(dtype)}"
        cases.append(Case(label, tuple(zip(rows, samples, strict=True))))
    return cases


def _of_rows(how: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[[Case], Sequence[Any]]:
    """Return what `how` makes of all ranks' buffers (p, n), float64, and weights (p, 1), on every rank."""

    def result(case: Case) -> Sequence[Any]:
        rows = np.array([buffers for buffers, _ in case.arguments], np.float64)
        samples = np.array([[each] for _, each in case.arguments], np.float64)
        return [how(rows, samples).astype(case.arguments[0][0].dtype)] * case.ranks

    return result


def _unchanged(case: Case) -> Sequence[Any]:
    return [buffers for buffers, _ in case.arguments]


def _only_on_root(case: Case) -> Sequence[Any]:
    mean = _of_rows(lambda rows, samples: (rows * samples).sum(axis=0) / samples.sum())(case)[0]
    return [mean, *_unchanged(case)[1:]]


def _look_at_bits(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    first = outcomes[0].arguments[0]
    for rank, outcome in enumerate(outcomes):
        if outcome.arguments[0].tobytes() != first.tobytes():
            return (
                f"right up to rounding, but ranks 0 and {rank} have different bits. Let every rank get all "
                "terms and add them in the same order"
            )
    return None


EXERCISES = [
    Exercise(
        reference=weights_equal,
        title="Do all ranks have the same weights?",
        difficulty=2,
        minutes=10,
        cases=_weights_cases,
        expected=_equal,
        suspects={
            "only rank 0 knows the answer: every rank needs it": _on_root,
            "a difference of one bit is overlooked: compare bytes, not rounded values": _compared(
                lambda a, b: np.allclose(a, b, equal_nan=True)
            ),
            "two exchanged values are overlooked: a sum does not say where the values are": _compared(
                lambda a, b: np.array_equal(np.sort(a), np.sort(b), equal_nan=True)
            ),
            "the answer is always True": lambda case: [True] * case.ranks,
            "the ranks answer differently: each compares its own weights with rank 0's only": _own_answer,
            "the answer is always False for more than one rank. Python's hash() differs from process to "
            "process; use hashlib": lambda case: [case.ranks == 1] * case.ranks,
        },
        on_ranks=True,
        wrap=at_most(
            0, SIZE, "{nbytes:,} bytes in one collective: send a hash, a few bytes, not the weights"
        ),
        hints=(
            "hashlib.sha256(weights.tobytes()).digest() are 32 bytes computed from all bits of the weights.",
            "comm.allgather (lower case) gives every rank the list of all ranks' hashes.",
            "How many different elements does the list have? len(set(…)).",
        ),
        prelude=PRELUDE,
    ),
    Exercise(
        reference=average_buffers,
        title="Average the buffers",
        difficulty=2,
        minutes=10,
        cases=_buffers_cases,
        expected=_of_rows(lambda rows, samples: (rows * samples).sum(axis=0) / samples.sum()),
        suspects={
            "the buffers are unchanged: leave the mean in place, with buffers[...] = …": _unchanged,
            "this is the plain mean: each rank has its weight": _of_rows(
                lambda rows, samples: rows.mean(axis=0)
            ),
            "this is the sum of the buffers": _of_rows(lambda rows, samples: rows.sum(axis=0)),
            "the weighted sum is not divided by the samples of all ranks": _of_rows(
                lambda rows, samples: (rows * samples).sum(axis=0)
            ),
            "the weighted sum is divided by the number of ranks, not by the samples of all ranks": _of_rows(
                lambda rows, samples: (rows * samples).sum(axis=0) / len(rows)
            ),
            "these are rank 0's buffers: the mean uses the samples of all ranks": _of_rows(
                lambda rows, samples: rows[0]
            ),
            "only rank 0 has the mean: every rank needs it": _only_on_root,
        },
        look=_look_at_bits,
        on_ranks=True,
        result_in=0,
        hints=(
            "Each rank's term is buffers * samples; the divisor is the number of samples of all ranks.",
            "comm.Allgather(term, rows) with rows of shape (p, n) gives every rank all terms, in rank order.",
            "rows.sum(axis=0) adds in the same order on every rank, so the bits are the same.",
        ),
        prelude=PRELUDE,
    ),
]
