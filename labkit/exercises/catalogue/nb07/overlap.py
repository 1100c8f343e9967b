"""Averaging bucket by bucket during the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.exercises import wraps
from labkit.exercises.exercise import Case, Exercise, Outcome

if TYPE_CHECKING:
    from mpi4py import MPI  # the reference's prelude imports it; a notebook's kernel must not load MPI


def average_overlapped(comm, backward, grads, plan):  # type: ignore[no-untyped-def]
    """Run the backward pass and leave the mean of all ranks' gradients in `grads`, averaged bucket by bucket.

    `backward(finished)` fills `grads` from its end to its start. It calls `finished(start)` each time that
    grads[start:] is complete. `plan` holds the buckets (start, stop), the one at the end of `grads` first.
    """
    waiting, requests = list(plan), []

    def finished(start):  # type: ignore[no-untyped-def]
        while waiting and waiting[0][0] >= start:
            first, stop = waiting.pop(0)
            bucket = grads[first:stop]  # a view: nothing is copied
            bucket /= comm.size
            requests.append(comm.Iallreduce(MPI.IN_PLACE, bucket))
        for request in requests:
            request.Test()

    backward(finished)
    for request in requests:
        request.Wait()


PASSES = (  # ranks, where the layers start, the buckets, dtype
    (1, (2, 0), ((2, 4), (0, 2)), "float32"),
    (2, (4, 0), ((6, 7), (3, 6), (0, 3)), "float32"),
    (3, (9, 9, 4, 0), ((10, 11), (7, 10), (3, 7), (0, 3)), "float64"),
    (4, (20, 5, 0), ((29, 31), (26, 29), (20, 26), (6, 20), (2, 6), (0, 2)), "float32"),
    (4, (6, 3, 0), ((0, 8),), "float32"),
)


def _own_gradient(n: int, rank: int) -> np.ndarray:
    return np.arange(1, n + 1) * 10.0**rank


def _overlap_cases() -> Sequence[Case]:
    cases = []
    for p, starts, plan, dtype in PASSES:
        n, arguments = plan[0][1], []
        for rank in range(p):
            grads = np.full(n, -1e6, dtype)  # what no layer has filled yet
            own = _own_gradient(n, rank).astype(dtype)
            arguments.append((wraps.Backward(grads, own, starts), grads, list(plan)))
        label = f"{p} ranks, {n} values, {len(plan)} buckets, {len(starts)} layers, {dtype}"
        cases.append(Case(label, tuple(arguments)))
    return cases


def _look_at_overlap(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    for rank, outcome in enumerate(outcomes):
        notes, grads, _ = outcome.arguments
        plan, starts = case.arguments[rank][2], case.arguments[rank][0].starts
        fault = _fault_of_notes(notes, plan, starts, case.ranks) or _fault_of_mean(grads, case.ranks)
        if fault:
            return f"rank {rank}: {fault}"
    return None


def _fault_of_notes(
    notes: dict[str, Any], plan: Sequence[tuple[int, int]], starts: Sequence[int], p: int
) -> str | None:
    if notes["at"] is None:
        return "`backward` was never called"
    if notes["waits"]:
        return "it waits for a request inside `finished`, so the backward pass stands still: wait at the end"
    if fault := _fault_of_starts(notes, plan, starts):
        return fault
    if any(notes["pending"]):
        return "the function returned while an average was under way: wait for all requests"
    if p > 1 and not notes["tests"]:
        return "no request is tested in `finished`, so the MPI library may make no progress: call Test()"
    return None


def _fault_of_starts(
    notes: dict[str, Any], plan: Sequence[tuple[int, int]], starts: Sequence[int]
) -> str | None:
    for number, (first, size, at) in enumerate(notes["started"]):
        if number >= len(plan) or (first, first + size) != tuple(plan[number]):
            wanted = f"expected bucket {plan[number]}" if number < len(plan) else "expected no more buckets"
            what = (
                f"grads[{first}:{first + size}]"
                if 0 <= first < plan[0][1]
                else "an array that is not `grads`"
            )
            return f"average number {number + 1} is of {what}; {wanted}"
        complete = max(start for start in starts if start <= first)
        if at is None or at > first:
            return f"bucket {plan[number]} was started before it was complete: compare `start` with its start"
        if at < complete:
            when = "after the backward pass" if at == -1 else f"only at finished({at})"
            return f"bucket {plan[number]} was started {when}; it is complete at finished({complete})"
    left = plan[len(notes["started"]) :]
    if left and notes["started"] and notes["started"][-1][2] == 0:
        return "one call of `finished` can complete several buckets: start all of them, with `while`"
    return f"{len(left)} of {len(plan)} buckets were never averaged" if left else None


def _fault_of_mean(grads: np.ndarray, p: int) -> str | None:
    total = np.sum([_own_gradient(len(grads), rank) for rank in range(p)], axis=0)
    for factor, fault in (
        (1 / p, None),
        (1.0, "`grads` holds the sum: divide by the number of ranks"),
        (1 / p**2, "`grads` is divided by the number of ranks twice"),
    ):
        if np.allclose(grads, factor * total, rtol=1e-5):
            return fault
    place = int(np.argmax(np.abs(grads - total / p)))
    return f"grads[{place}] is {grads[place]:g}, the mean is {total[place] / p:g}"


EXERCISES = [
    Exercise(
        reference=average_overlapped,
        title="Averaging during the backward pass",
        difficulty=4,
        minutes=20,
        cases=_overlap_cases,
        expected=None,
        suspects={},
        look=_look_at_overlap,
        on_ranks=True,
        result_in=1,
        may_change=(0,),
        wrap=wraps.noting,
        forbidden=("Allreduce", "allreduce", "Reduce", "Allgather", "Iallgather"),
        prelude="import numpy as np\nfrom mpi4py import MPI",
        hints=(
            "Write a function `finished(start)` inside yours. It starts every bucket that is complete now "
            "and has not been started. Keep a list of the buckets to start, and a list of requests.",
            "A bucket (first, stop) is complete if first >= start. One call of `finished` can complete "
            "several buckets, or none: use `while`, not `if`.",
            "`bucket = grads[first:stop]; bucket /= comm.size; "
            "requests.append(comm.Iallreduce(MPI.IN_PLACE, bucket))`. At the end of `finished`, call Test() "
            "of each request. After `backward(finished)`, call Wait() of each.",
        ),
    ),
]
