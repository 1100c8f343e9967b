"""The exercises of notebook 05 about schedules and the cost model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise, Outcome
from labkit.exercises.trial import wraps
from labkit.schedules import (
    ALLREDUCE,
    CostModel,
    Network,
    Round,
    Schedule,
    ScheduleError,
    contents_by_round,
    copy_round,
    cost,
    count_traffic,
    merge_rounds,
    reduce_round,
    ring_allreduce,
    simulate,
    verify,
)

PRELUDE = "import numpy as np\n\nfrom labkit.schedules import copy_round, merge_rounds, reduce_round"
SLOWER, NBYTES = 10, 1 << 20  # the slow link, and the size of the array that is simulated
MODEL = CostModel(alpha=50e-6, beta=8e-9)  # 1 Gbit/s
NEEDED = 0.85  # the part of the ring's time within which a schedule must stay


def ring_rounds(p):  # type: ignore[no-untyped-def]
    """Yield the rounds of a ring all-reduce of p ranks, for an array cut in p chunks."""
    rank = np.arange(p)
    for k in range(1, p):
        yield reduce_round(rank, (rank + 1) % p, (rank - k) % p)
    for k in range(1, p):
        yield copy_round(rank, (rank + 1) % p, (rank - k + 1) % p)


def predict_seconds(p, nbytes, alpha, beta):  # type: ignore[no-untyped-def]
    """Return the predicted times (s) of root, ring, recursive doubling and halving-doubling, in this order.

    p is a power of two. A message of m bytes takes alpha + beta * m seconds; adding takes no time.
    """
    rounds = p.bit_length() - 1
    root = 2 * (p - 1) * (alpha + beta * nbytes)
    ring = 2 * (p - 1) * (alpha + beta * nbytes / p)
    doubling = rounds * (alpha + beta * nbytes)
    halving = 2 * rounds * alpha + 2 * beta * nbytes * (p - 1) / p
    return root, ring, doubling, halving


def slow_rank_rounds(p):  # type: ignore[no-untyped-def]
    """Yield the rounds of an all-reduce of p ranks whose last rank has a slow link, both ways.

    The array is cut in p - 1 chunks, one for each of the fast ranks 0 … p - 2.
    """
    slow, fast = p - 1, np.arange(p - 1)
    right = (fast + 1) % slow
    for k in range(1, slow):
        yield reduce_round(fast, right, (fast - k) % slow)
    yield reduce_round(slow, 0, 0)
    for i in range(1, slow):
        # Both directions of the slow link are busy: chunk i leaves while the sum of chunk i - 1 comes back.
        yield merge_rounds(reduce_round(slow, i, i), copy_round(i - 1, slow, i - 1))
    yield copy_round(slow - 1, slow, slow - 1)
    for k in range(1, slow):
        yield copy_round(fast, right, (fast - k + 1) % slow)


def _schedule_of(rounds: Any, p: int, chunks: int, name: str) -> Schedule | str:
    """Return the schedule made of these rounds, or a finding."""
    if not isinstance(rounds, list):
        return f"the function returned {rounds}, expected rounds: `yield` each of them"
    for number, round_ in enumerate(rounds, start=1):
        if not isinstance(round_, Round):
            return (
                f"round {number} is of type {type(round_).__name__}: yield what `reduce_round` or "
                f"`copy_round` returns"
            )
    return Schedule(name, "allreduce", p, max(1, chunks), lambda: iter(rounds))


def _fault(schedule: Schedule) -> str | None:
    """Return what the verifier says against the schedule, or None."""
    try:
        verify(schedule)
    except (ScheduleError, ValueError, TypeError, IndexError) as error:
        return str(error).partition(" ranks, ")[2] or str(error)
    return None


def _ranks(*numbers: int) -> Callable[[], Sequence[Case]]:
    return lambda: [Case(f"p = {p}", ((p,),)) for p in numbers]


def _wrong_transfer(schedule: Schedule) -> str | None:
    """Return what is wrong with the first transfer that is none of a ring, or None."""
    p = schedule.p
    for number, round_ in enumerate(schedule, start=1):
        for source, dest, first, stop, _ in round_:
            sends = f"round {number}: rank {source} sends"
            if p > 2 and (dest - source) % p == p - 1:
                return (
                    f"{sends} to rank {dest}, its left-hand neighbour: send to the right, as in exercise 5.1"
                )
            if p > 2 and (dest - source) % p != 1:
                return f"{sends} to rank {dest}, which is not its neighbour"
            if stop - first > 1:
                return (
                    f"{sends} chunks {first} to {stop - 1}. Whole arrays that "
                    f"go around make a ring in name only: send one chunk"
                )
    return None


def _wrong_place(schedule: Schedule) -> str | None:
    """Return which chunk does not end its reduce rounds at the rank of its number, or None."""
    p = schedule.p
    held = list(contents_by_round(schedule))[p - 1]
    for chunk in range(p):
        if not held[chunk, chunk].all():
            complete = np.flatnonzero(held[:, chunk].all(axis=1))
            where = f"complete at rank {complete[0]}" if len(complete) else "incomplete"
            return (
                f"after the {p - 1} reduce rounds, chunk {chunk} is {where}, expected complete at rank "
                f"{chunk}: rank r sends chunk r - 1 in the first round, as in exercise 5.1"
            )
    return None


def _look_ring(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    p = case.arguments[0][0]
    schedule = _schedule_of(outcomes[0].result, p, p, "ring_rounds")
    if isinstance(schedule, str):
        return schedule
    if fault := _fault(schedule):
        return fault
    nbytes = 4 * p * (p + 1)
    ours, theirs = (count_traffic(one, nbytes).busiest for one in (ring_allreduce(p), schedule))
    if theirs > ours:
        return f"the busiest rank sends and receives {theirs} bytes of {nbytes}; in a ring it is {ours}"
    rounds = len(list(schedule))
    if rounds > 2 * (p - 1):
        return (
            f"there are {rounds} rounds, and {2 * (p - 1)} are enough: let all ranks send in the same round"
        )
    return _wrong_transfer(schedule) or _wrong_place(schedule)


def _predict_cases() -> Sequence[Case]:
    sizes = (2, 64), (4, 1 << 20), (16, 256), (64, 1 << 20)
    return [Case(f"p = {p}, {nbytes} bytes", ((p, nbytes, 50e-6, 8e-9),)) for p, nbytes in sizes]


def _predicted(
    case: Case, change: Callable[[int, float, float, float], dict[int, float]] | None = None
) -> Any:
    """Return the cost of the four schedules, read off their transfers; `change` replaces some of them."""
    ((p, nbytes, alpha, beta),) = case.arguments
    names = "root", "ring", "recursive-doubling", "halving-doubling"
    seconds = [cost(ALLREDUCE[name](p), nbytes, CostModel(alpha, beta)) for name in names]
    for place, wrong in (change(p, nbytes, alpha, beta) if change else {}).items():
        seconds[place] = wrong
    return [tuple(seconds)]


def _suspect(
    change: Callable[[int, float, float, float], dict[int, float]],
) -> Callable[[Case], Sequence[Any]]:
    return lambda case: _predicted(case, change)


def _seconds(schedule: Schedule) -> float:
    network = Network.uniform(schedule.p, MODEL).slow_link(schedule.p - 1, SLOWER)
    return simulate(schedule, NBYTES, network).seconds


def _look_slow(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    p = case.arguments[0][0]
    schedule = _schedule_of(outcomes[0].result, p, p - 1, "slow_rank_rounds")
    if isinstance(schedule, str) or (fault := _fault(schedule)):
        return schedule if isinstance(schedule, str) else fault
    if p < 8:
        return None
    ours, theirs = _seconds(schedule), _seconds(ring_allreduce(p))
    if ours <= NEEDED * theirs:
        return None
    nbytes = NBYTES // 4 // (p - 1) * 4 * (p - 1)
    counted = count_traffic(schedule, nbytes)
    out, back = counted.sent[p - 1] / nbytes, counted.received[p - 1] / nbytes
    text = f"it takes {ours / theirs:.2f} times as long as the ring, expected at most {NEEDED}"
    if max(out, back) > 1.01:
        return f"{text}: {max(out, back):.2f} arrays pass the slow link one way; one each way is enough"
    return f"{text}: one array passes the slow link each way, but not both ways at the same time"


EXERCISES = [
    Exercise(
        reference=ring_rounds,
        notebook="05",
        title="The ring as a schedule",
        difficulty=3,
        minutes=15,
        points=3,
        cases=_ranks(3, 2, 4, 5, 8, 1),
        expected=None,
        suspects={},
        look=_look_ring,
        digest=wraps.rounds_as_list,
        hints=(
            "The two loops are those of your functions. Where rank r sent chunk r - k to rank r + 1, "
            "write it for all ranks at once, with `rank = np.arange(p)`.",
            "`yield reduce_round(source, dest, chunk)` for the first half, `yield copy_round(source, "
            "dest, chunk)` for the second. Each argument is an array of p integers.",
            "`reduce_round(rank, (rank + 1) % p, (rank - k) % p)` for k = 1 … p - 1. In the second half "
            "rank r sends chunk r - k + 1.",
        ),
        prelude=PRELUDE,
    ),
    Exercise(
        reference=predict_seconds,
        notebook="05",
        title="Predict four algorithms",
        difficulty=3,
        minutes=15,
        points=3,
        cases=_predict_cases,
        expected=_predicted,
        suspects={
            "the ring's time counts one half only: it takes 2(p - 1) rounds": _suspect(
                lambda p, n, a, b: {1: (p - 1) * (a + b * n / p)}
            ),
            "the ring's messages are too large: each is one chunk of nbytes / p": _suspect(
                lambda p, n, a, b: {1: 2 * (p - 1) * (a + b * n)}
            ),
            "the ring has 2(p - 1) rounds, not 2p": _suspect(lambda p, n, a, b: {1: 2 * p * (a + b * n / p)}),
            "root's messages pass through rank 0 one after the other: p - 1 come and p - 1 go": _suspect(
                lambda p, n, a, b: {0: 2 * (a + b * n)}
            ),
            "root's time counts one direction only: p - 1 messages come and p - 1 go": _suspect(
                lambda p, n, a, b: {0: (p - 1) * (a + b * n)}
            ),
            "recursive doubling exchanges whole arrays in lg p rounds, and there is no second half": _suspect(
                lambda p, n, a, b: {2: 2 * (p.bit_length() - 1) * (a + b * n)}
            ),
            "Halving-doubling is counted with whole arrays: its messages are n/2, n/4, … n/p bytes": _suspect(
                lambda p, n, a, b: {3: 2 * (p.bit_length() - 1) * (a + b * n)}
            ),
            "Halving-doubling is counted in one half only: it takes lg p rounds to halve and lg p to "
            "double": (_suspect(lambda p, n, a, b: {3: (p.bit_length() - 1) * a + b * n * (p - 1) / p})),
        },
        hints=(
            "Count the rounds, and the bytes of the largest message in each round. Messages of one round "
            "travel at the same time, unless they need the same link in the same direction.",
            "Root: 2(p - 1) whole arrays, one after the other. Ring: 2(p - 1) rounds of nbytes / p.",
            "Recursive doubling: lg p rounds of nbytes. Halving-doubling: messages of n/2, n/4, … n/p "
            "bytes, which add up to n(p - 1)/p, and the same again. `p.bit_length() - 1` is lg p.",
        ),
        tolerance=1e-6,
    ),
    Exercise(
        reference=slow_rank_rounds,
        notebook="05",
        title="Beat the ring over a slow link",
        difficulty=5,
        minutes=30,
        points=6,
        cases=_ranks(2, 3, 4, 8, 16),
        expected=None,
        suspects={},
        look=_look_slow,
        digest=wraps.rounds_as_list,
        hints=(
            "How many bytes must pass the slow link each way, at the least? How many does the ring send "
            "over it?",
            "At least one array each way; the ring sends 2(p - 1)/p arrays each way. Let the fast ranks "
            "do everything among themselves and send each chunk over the slow link once out and once back.",
            "The link is full duplex: while chunk i leaves the slow rank, the finished chunk i - 1 can "
            "come back. `merge_rounds(reduce_round(…), copy_round(…))` puts both into one round.",
            "Ring reduce-scatter of the fast ranks; then the slow rank sends chunk i to fast rank i, "
            "which holds the others' sum of it and sends the finished chunk back one round later; then "
            "their all-gather.",
        ),
        prelude=PRELUDE,
    ),
]
