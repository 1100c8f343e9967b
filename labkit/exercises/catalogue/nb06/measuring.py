"""The exercises of notebook 06 about telling a straggler from a slow link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit import schedules
from labkit.exercises.exercise import Case, Exercise
from mpiwatch.wording import counted

# mypy: disable-error-code="no-untyped-def"

Results = Callable[[Case], Sequence[Any]]


def _instead(mistake: Callable[..., Any]) -> Results:
    """Return what a mistake makes of the arguments of a case without a communicator."""
    return lambda case: [mistake(*case.arguments[0])]


def sent_by_rank(p, n, rank):
    """Return the bytes that this rank sends, as {"root": …, "allgather": …, "ring": …}."""
    to_others = (p - 1) * n
    root = to_others if rank == 0 else n
    return {"root": root, "allgather": to_others, "ring": 2 * to_others // p}


MAKE = {
    "root": (schedules.root_allreduce, 1),
    "allgather": (schedules.ring_allgather, 0),  # 0: its buffer holds the gradients of all ranks
    "ring": (schedules.ring_allreduce, 1),
}


def _sent(case: Case) -> Sequence[Any]:
    p, n, rank = case.arguments[0]
    return [
        {
            name: int(schedules.count_traffic(make(p), (gradients or p) * n).sent[rank])
            for name, (make, gradients) in MAKE.items()
        }
    ]


def _sent_cases() -> Sequence[Case]:
    found = []
    for p in (2, 3, 1, 4, 7):
        for rank in range(p):
            n = 48 * p
            found.append(Case(f"{counted(p, 'rank')}, n = {n}, rank {rank}", ((p, n, rank),)))
    return found


def _changed(**mistakes: Callable[[int, int, int], int]) -> Results:
    return _instead(
        lambda p, n, rank: {**sent_by_rank(p, n, rank), **{k: f(p, n, rank) for k, f in mistakes.items()}}
    )


SENT_BY_RANK = Exercise(
    reference=sent_by_rank,
    title="What goes through the slow link",
    difficulty=2,
    minutes=10,
    cases=_sent_cases,
    expected=_sent,
    suspects={
        "root: rank 0 counts like the others; but it sends the mean to each of the other p - 1 "
        "ranks": _changed(root=lambda p, n, rank: n),
        "root: every rank counts like rank 0; the others send their own gradient once": _changed(
            root=lambda p, n, rank: (p - 1) * n
        ),
        "allgather: passing on its own gradient is only the first round; in p - 1 rounds it passes on "
        "p - 1 gradients": _changed(allgather=lambda p, n, rank: n),
        "allgather: its own gradient is sent to p - 1 ranks, not to p": _changed(
            allgather=lambda p, n, rank: p * n
        ),
        "ring: this is the reduce-scatter only; the all-gather sends as much again": _changed(
            ring=lambda p, n, rank: (p - 1) * n // p
        ),
        "ring: a message of the ring is a chunk of n / p bytes, not the whole gradient": _changed(
            ring=lambda p, n, rank: 2 * (p - 1) * n
        ),
    },
    hints=(
        "Draw three ranks and count the arrows that leave the rank, and what each of them carries.",
        "root: the others send n bytes to rank 0, which sends the mean back to each.",
        "ring: p - 1 rounds of reduce-scatter and p - 1 rounds of all-gather, each with a chunk of n / p.",
    ),
)


def diagnose(compute_s, transfer_s, expected_s):
    """Return (trouble, rank): "straggler" and its rank, or "slow link" or "none" and None.

    Shapes: compute_s, transfer_s (steps, p), in s. expected_s: a transfer's time on healthy links, in s.
    """
    compute = np.median(compute_s, axis=0)
    lost_computing = compute.max() - np.median(compute)
    lost_on_links = np.median(transfer_s) - expected_s
    if max(lost_computing, lost_on_links) <= 0.2 * (np.median(compute) + expected_s):
        return "none", None
    if lost_computing > lost_on_links:
        return "straggler", int(compute.argmax())
    return "slow link", None


def _diagnoses(
    over_steps: Callable[..., Any] = np.median,
    name: Callable[[np.ndarray, np.ndarray], int] = lambda compute, transfer: int(np.argmax(compute)),
    link_rank: Callable[[np.ndarray], Any] = lambda transfer: None,
    least: float = 0.2,
    ignored: str = "",
) -> Results:
    """Return the diagnosis with something else in the place of one of its parts."""

    def found(compute_s: np.ndarray, transfer_s: np.ndarray, expected_s: float) -> tuple[str, Any]:
        compute, transfer = over_steps(compute_s, axis=0), over_steps(transfer_s, axis=0)
        usual = float(np.sort(compute)[(len(compute) - 1) // 2 : len(compute) // 2 + 1].mean())
        late = 0.0 if ignored == "compute" else float(max(compute)) - usual
        slow = 0.0 if ignored == "transfer" else float(np.median(transfer)) - expected_s
        if max(late, slow) <= least * (usual + expected_s):
            return "none", None
        if late > slow:
            return "straggler", name(compute, transfer)
        return "slow link", link_rank(transfer)

    return _instead(found)


def _diagnosis_cases() -> Sequence[Case]:
    def case(label: str, p: int, compute: dict[int, float], transfer: float, pause: int = 0) -> Case:
        rng = np.random.default_rng(p)
        compute_s = 0.010 * (1 + 0.02 * rng.random((9, p)))
        transfer_s = 0.005 * transfer * (1 + 0.02 * rng.random((9, p)))
        for rank, factor in compute.items():
            compute_s[:, rank] *= factor
        if pause == 1:  # a slow start
            compute_s[0, 1] += 0.3
        if pause == 2:
            compute_s[4, 1] += 2.0
            transfer_s[6] += 2.0
        return Case(f"{label}, {p} ranks", ((compute_s, transfer_s, 0.005),))

    return [
        case("equal ranks", 3, {}, 1),
        case("rank 1 five times slower", 3, {1: 5}, 1),
        case("a link ten times slower", 3, {}, 10),
        case("rank 0 three times slower", 4, {0: 3}, 1),
        case("rank 3 twice as slow and a link ten times slower", 4, {3: 2}, 10),
        case("rank 2 six times slower and a link twice as slow", 4, {2: 6}, 2),
        case("a slow first step on rank 1", 4, {}, 1, pause=1),
        case("one pause of 2 s on rank 1 and one slow transfer", 4, {}, 1, pause=2),
    ]


DIAGNOSE = Exercise(
    reference=diagnose,
    title="Straggler or slow link?",
    difficulty=3,
    minutes=20,
    cases=_diagnosis_cases,
    expected=_diagnoses(),
    suspects={
        "the first step alone decides; take the median over the steps": _diagnoses(
            over_steps=lambda times, axis: times[0]
        ),
        "one long pause counts as a trouble of every step: the mean over the steps follows it; take the "
        "median": _diagnoses(over_steps=np.mean),
        "the straggler is the rank that computes for the longest time, not for the shortest": _diagnoses(
            name=lambda compute, transfer: int(compute.argmin())
        ),
        "the straggler is looked for in the transfers; all ranks leave a collective together, so look at "
        "the compute times": _diagnoses(name=lambda compute, transfer: int(transfer.argmax())),
        "a slow link gets a rank, but all ranks spend the same time in a collective: return None": _diagnoses(
            link_rank=lambda transfer: int(transfer.argmax())
        ),
        "equal ranks get a trouble; a loss of up to 20 % of a healthy step is none": _diagnoses(least=0.0),
        "the transfers are not looked at: compare them with expected_s": _diagnoses(ignored="transfer"),
        "the compute times are not looked at: compare the longest with the median": _diagnoses(
            ignored="compute"
        ),
    },
    hints=(
        "Take medians over the steps first, so that a single pause does not decide.",
        "A straggler costs max - median of the ranks' compute times; a slow link costs the median transfer "
        "minus expected_s.",
        "Compare the larger of the two losses with 0.2 * (median compute time + expected_s), then with each "
        "other.",
    ),
)


EXERCISES = [SENT_BY_RANK, DIAGNOSE]
