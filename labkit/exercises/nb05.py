"""The exercises of notebook 05: the ring."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from labkit.exercises.exercise import Case, Exercise, Outcome
from labkit.exercises.wraps import COLLECTIVES, rounds_as_list
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
from mpiwatch.report import counted

WITH_CHUNK = '''\
import numpy as np


def chunk(n, p, i):
    """Return the slice of chunk i of n values cut in p."""
    return slice(i * n // p, (i + 1) * n // p)
'''
WITH_ROUNDS = "import numpy as np\n\nfrom labkit.schedules import copy_round, merge_rounds, reduce_round"


def chunk(n: int, p: int, i: int) -> slice:
    """Return the slice of chunk i of n values cut in p."""
    return slice(i * n // p, (i + 1) * n // p)


SIZES: Sequence[tuple[int, int, type]] = (  # p, n and the dtype
    (1, 3, np.float64),
    (2, 4, np.float64),
    (2, 1, np.float32),
    (3, 7, np.float32),
    (4, 3, np.float64),
    (4, 8, np.float32),
    (4, 1001, np.float64),
)


def label(p: int, n: int, dtype: type) -> str:
    return f"{counted(p, 'rank')}, {counted(n, 'value')}, {dtype.__name__}"


def look_neighbours(case: Case, outcomes: Sequence[Outcome], left_out: int) -> str | None:
    """Judge one half of the ring: rank r sends all chunks but number r + left_out to its right."""
    p, (array, *_) = case.ranks, case.arguments[0][::-1]
    n, itemsize = len(array), array.itemsize
    for rank, outcome in enumerate(outcomes):
        right = (rank + 1) % p
        others = [dest for dest in range(p) if outcome.messages[dest] and dest != right]
        if others:
            return (
                f"rank {rank} sends to rank {others[0]}, but its right-hand neighbour is rank {right}: "
                "in this ring every message goes to the right"
            )
        place = chunk(n, p, (rank + left_out) % p)
        expected = (n - (place.stop - place.start)) * itemsize if p > 1 else 0
        sent = sum(outcome.sent)
        if sent == expected:
            continue
        text = f"rank {rank} sends {sent} bytes, expected {expected} (all chunks but one, once each)"
        if sent >= (p - 1) * n * itemsize > expected:
            return f"{text}: this is a ring in name only, which moves whole arrays. Send one chunk a round"
        if sent > expected:
            return f"{text}: it sends a chunk more than is needed; p - 1 rounds are enough"
        return f"{text}: which messages carry the other values?"
    return None


# Exercise 5.1


def ring_reduce_scatter(comm, array):
    """Return chunk `comm.rank` of the sum of all ranks' arrays; each chunk goes around the ring once.

    Shapes: array (n,), any n, the same on every rank, which may be overwritten; result (chunk's size,).
    """
    n, p, rank = len(array), comm.size, comm.rank
    received = np.empty_like(array)
    for k in range(1, p):
        sends, adds = chunk(n, p, (rank - k) % p), chunk(n, p, (rank - k - 1) % p)
        comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=received[adds], source=(rank - 1) % p)
        array[adds] += received[adds]
    return array[chunk(n, p, rank)]


def sum_cases() -> Sequence[Case]:
    cases = []
    for p, n, dtype in SIZES:
        arrays: list[Any] = [(np.arange(n) % 5 + 1 + 10 * rank).astype(dtype) for rank in range(p)]
        cases.append(Case(label(p, n, dtype), tuple((array,) for array in arrays)))
    return cases


def chunks_of_the_sum(case: Case) -> Sequence[Any]:
    arrays = np.array([array for (array,) in case.arguments])
    p, n = arrays.shape
    return [arrays.sum(axis=0)[chunk(n, p, rank)] for rank in range(p)]


RING_REDUCE_SCATTER = Exercise(
    reference=ring_reduce_scatter,
    title="Ring reduce-scatter",
    difficulty=3,
    minutes=20,
    cases=sum_cases,
    expected=chunks_of_the_sum,
    mistakes={
        "rank r returns its own input of chunk r. The chunk must arrive in the last round: start "
        "with chunk r - 1, and go p - 1 rounds": {"range(1, p)": "range(p - 1)"},
        "the chunk was copied from rank to rank, not added up: add what arrives to your own chunk": {
            "=received[adds]": "=array[adds]",
            "        array[adds] += received[adds]\n": "",
        },
        "rank r returns chunk r + 1 of the sum: send chunk r - 1 in the first round, not chunk r": {
            "range(1, p)": "range(p - 1)",
            "chunk(n, p, rank)": "chunk(n, p, (rank + 1) % p)",
        },
        "… a ring in name only": """
def ring_reduce_scatter(comm, array):
    n, p, rank = len(array), comm.size, comm.rank
    passing, received = array.copy(), np.empty_like(array)
    for _ in range(p - 1):
        comm.Sendrecv(passing, (rank + 1) % p, recvbuf=received, source=(rank - 1) % p)
        array += received
        passing, received = received, passing
    return array[chunk(n, p, rank)]
""",
        "… a chunk more than is needed": {
            "range(1, p)": "range(1, p + 1)",
            "        array[adds] +=": "        if k < p:\n            array[adds] +=",
        },
        "… its right-hand neighbour": {
            "(rank + 1)": "(right)",
            "(rank - 1)": "(rank + 1)",
            "(right)": "(rank - 1)",
            "rank - k - 1": "rank + k + 1",
            "rank - k)": "rank + k)",
        },
        "… wait for each other in a circle": {
            "comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=received[adds], source=(rank - 1) % p)": (
                "comm.Recv(received[adds], source=(rank - 1) % p)\n"
                "        comm.Send(array[sends], dest=(rank + 1) % p)"
            )
        },
        "… Allreduce": """
def ring_reduce_scatter(comm, array):
    total = np.empty_like(array)
    comm.Allreduce(array, total)
    return total[chunk(len(array), comm.size, comm.rank)]
""",
    },
    look=lambda case, outcomes: look_neighbours(case, outcomes, left_out=0),
    hints=(
        "In round k = 1 … p - 1, rank r sends chunk r - k to the right and receives chunk r - k - 1 "
        "from the left, all modulo p.",
        "All ranks send at the same time. `comm.Sendrecv` sends and receives in one call, so nobody "
        "waits in a circle.",
        "Receive into a second array with the dtype of `array`, then add: "
        "`array[adds] += received[adds]`. After the last round, return `array[chunk(n, p, rank)]`.",
    ),
    on_ranks=True,
    forbidden=COLLECTIVES,
    may_change=(0,),
    prelude=WITH_CHUNK,
)


# Exercise 5.2


def ring_allgather(comm, own, array):
    """Leave every rank's chunk in its place in `array`; each chunk goes around the ring once.

    Shapes: own, this rank's chunk, (chunk's size,); array (n,), overwritten, the same n on every rank.
    """
    n, p, rank = len(array), comm.size, comm.rank
    array[chunk(n, p, rank)] = own
    for k in range(1, p):
        sends, gets = chunk(n, p, (rank - k + 1) % p), chunk(n, p, (rank - k) % p)
        comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=array[gets], source=(rank - 1) % p)


def gather_cases() -> Sequence[Case]:
    cases = []
    for p, n, dtype in SIZES:
        whole = np.arange(n) + 100.0
        old = [-1.0 - rank - np.arange(n) for rank in range(p)]
        arguments: list[tuple[Any, ...]] = [
            (whole[chunk(n, p, r)].astype(dtype), old[r].astype(dtype)) for r in range(p)
        ]
        cases.append(Case(label(p, n, dtype), tuple(arguments)))
    return cases


RING_ALLGATHER = Exercise(
    reference=ring_allgather,
    title="Ring all-gather",
    difficulty=2,
    minutes=10,
    cases=gather_cases,
    expected=lambda case: [np.concatenate([own for own, _ in case.arguments])] * case.ranks,
    mistakes={
        "`array` is as it was before the call": {
            "    array[chunk": "    array = array.copy()\n    array[chunk"
        },
        "only the own chunk is in its place": {
            "recvbuf=array[gets]": "recvbuf=array[gets].copy()",
            "array[sends]": "array[sends].copy()",
        },
        "every rank lacks its own chunk: write `own` into `array` as well": """
def ring_allgather(comm, own, array):
    n, p, rank = len(array), comm.size, comm.rank
    passing = own
    for k in range(1, p):
        gets = chunk(n, p, (rank - k) % p)
        comm.Sendrecv(passing, (rank + 1) % p, recvbuf=array[gets], source=(rank - 1) % p)
        passing = array[gets]
""",
        "every rank lacks the chunk of its right-hand neighbour: it takes p - 1 rounds, one more": {
            "range(1, p)": "range(1, p - 1)"
        },
        "… its right-hand neighbour": """
def ring_allgather(comm, own, array):
    n, p, rank = len(array), comm.size, comm.rank
    array[chunk(n, p, rank)] = own
    for k in range(1, p):
        gets = chunk(n, p, (rank - k) % p)
        comm.Sendrecv(own, (rank + k) % p, recvbuf=array[gets], source=(rank - k) % p)
""",
        "… allgather": """
def ring_allgather(comm, own, array):
    array[:] = np.concatenate(comm.allgather(own))
""",
        "… wait for each other in a circle": {
            "comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=array[gets], source=(rank - 1) % p)": (
                "comm.Recv(array[gets], source=(rank - 1) % p)\n"
                "        comm.Send(array[sends], dest=(rank + 1) % p)"
            )
        },
    },
    look=lambda case, outcomes: look_neighbours(case, outcomes, left_out=1),
    hints=(
        "Write `own` into its place first. In round 1 it is the only chunk worth sending.",
        "From round 2 on, pass on the chunk that has just arrived: the neighbour lacks it.",
        "In round k, rank r sends chunk r - k + 1 and receives chunk r - k, modulo p, straight into "
        "its place.",
    ),
    on_ranks=True,
    result_in=1,
    forbidden=COLLECTIVES,
    prelude=WITH_CHUNK,
)


# Exercise 5.3


def ring_traffic(n, p):
    """Return how many values each rank sends and receives, added up, in a ring all-reduce of n values.

    Shape: result (p,), integers; they are exact, also where p does not divide n.
    """
    sizes = np.diff(np.arange(p + 1) * n // p)
    sent = 2 * n - sizes - np.roll(sizes, -1)
    return sent + np.roll(sent, 1)


def traffic_cases() -> Sequence[Case]:
    return [
        Case(f"n = {n}, p = {p}", ((n, p),)) for n, p in ((5, 1), (4, 2), (8, 4), (10, 4), (3, 5), (1000, 7))
    ]


def traffic(case: Case) -> Sequence[np.ndarray]:
    """Walk along the ring: add up the values that each rank sends and receives in each round."""
    ((n, p),) = case.arguments
    values = np.zeros(p, int)
    for first in 1, 0:
        for k in range(p - 1) if p > 1 else ():
            for rank in range(p):
                part = chunk(n, p, (rank - k - first) % p)
                values[rank] += part.stop - part.start
                values[(rank + 1) % p] += part.stop - part.start
    return [values]


RING_TRAFFIC = Exercise(
    reference=ring_traffic,
    title="The traffic of each rank",
    difficulty=3,
    minutes=10,
    cases=traffic_cases,
    expected=traffic,
    mistakes={
        "this is what each rank sends: add what it receives, which its left-hand neighbour sends": {
            "return sent + np.roll(sent, 1)": "return sent"
        },
        "this is twice what each rank sends. A rank receives what its left-hand neighbour sends": {
            "return sent + np.roll(sent, 1)": "return 2 * sent"
        },
        "this counts whole arrays. In each of the 2(p - 1) rounds a rank sends one chunk": """
def ring_traffic(n, p):
    return np.full(p, 4 * (p - 1) * n)
""",
        "this is one half of the ring: count the reduce-scatter and the all-gather": {
            "2 * n - sizes - np.roll(sizes, -1)": "n - sizes"
        },
        "this counts every chunk as n // p values, but some chunks have one value more": """
def ring_traffic(n, p):
    return np.full(p, 4 * (p - 1) * (n // p))
""",
    },
    hints=(
        "The size of chunk i is (i + 1) · n // p - i · n // p.",
        "In the reduce-scatter, rank r sends every chunk but chunk r. Which chunk does it not send "
        "in the all-gather?",
        "It does not send chunk r + 1. So it sends 2n - size[r] - size[r + 1], and receives what "
        "rank r - 1 sends: `np.roll(sent, 1)`.",
    ),
    prelude=WITH_CHUNK,
)


# Exercise 5.4


def ring_rounds(p):
    """Yield the rounds of a ring all-reduce of p ranks, for an array cut in p chunks."""
    rank = np.arange(p)
    for k in range(1, p):
        yield reduce_round(rank, (rank + 1) % p, (rank - k) % p)
    for k in range(1, p):
        yield copy_round(rank, (rank + 1) % p, (rank - k + 1) % p)


def ranks(*numbers: int) -> Callable[[], Sequence[Case]]:
    return lambda: [Case(f"p = {p}", ((p,),)) for p in numbers]


def schedule_of(rounds: Any, p: int, chunks: int, name: str) -> Schedule | str:
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


def fault(schedule: Schedule) -> str | None:
    """Return what the verifier says against the schedule, or None."""
    try:
        verify(schedule)
    except (ScheduleError, ValueError, TypeError, IndexError) as error:
        return str(error).partition(" ranks, ")[2] or str(error)
    return None


def wrong_transfer(schedule: Schedule) -> str | None:
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


def wrong_place(schedule: Schedule) -> str | None:
    """Return which chunk does not end its reduce rounds at the rank of its number, or None."""
    p = schedule.p
    held = list(contents_by_round(schedule))[p - 1]
    for number in range(p):
        if not held[number, number].all():
            complete = np.flatnonzero(held[:, number].all(axis=1))
            where = f"complete at rank {complete[0]}" if len(complete) else "incomplete"
            return (
                f"after the {p - 1} reduce rounds, chunk {number} is {where}, expected complete at rank "
                f"{number}: rank r sends chunk r - 1 in the first round, as in exercise 5.1"
            )
    return None


def look_ring(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    p = case.arguments[0][0]
    schedule = schedule_of(outcomes[0].result, p, p, "ring_rounds")
    if isinstance(schedule, str):
        return schedule
    if found := fault(schedule):
        return found
    nbytes = 4 * p * (p + 1)
    ours, theirs = (count_traffic(one, nbytes).busiest for one in (ring_allreduce(p), schedule))
    if theirs > ours:
        return f"the busiest rank sends and receives {theirs} bytes of {nbytes}; in a ring it is {ours}"
    rounds = len(list(schedule))
    if rounds > 2 * (p - 1):
        return (
            f"there are {rounds} rounds, and {2 * (p - 1)} are enough: let all ranks send in the same round"
        )
    return wrong_transfer(schedule) or wrong_place(schedule)


RING_ROUNDS = Exercise(
    reference=ring_rounds,
    title="The ring as a schedule",
    difficulty=3,
    minutes=15,
    cases=ranks(3, 2, 4, 5, 8, 1),
    expected=None,
    look=look_ring,
    digest=rounds_as_list,
    mistakes={
        "… a second time": {"(1, p):\n        yield reduce": "(1, p + 1):\n        yield reduce"},
        "… overwrites chunk": {"rank - k + 1": "rank - k"},
        "… after the last round": {"(1, p):\n        yield copy": "(1, p - 1):\n        yield copy"},
        "… the busiest rank sends and receives": """
def ring_rounds(p):
    for rank in range(1, p):
        yield reduce_round(rank, 0, np.arange(p))
    for rank in range(1, p):
        yield copy_round(0, rank, np.arange(p))
""",
        "… let all ranks send in the same round": {
            "    rank = np.arange(p)\n": "",
            "        yield": "        for rank in range(p):\n            yield",
        },
        "… its left-hand neighbour: send to the right": {
            "(rank + 1)": "(rank - 1)",
            "rank - k + 1": "rank + k - 1",
            "rank - k)": "rank + k)",
        },
        "… chunk 0 is complete at rank 2, expected complete at rank 0": {"range(1, p)": "range(p - 1)"},
        "… of type tuple": """
def ring_rounds(p):
    for k in range(1, p):
        for rank in range(p):
            yield rank, (rank + 1) % p, (rank - k) % p
""",
    },
    hints=(
        "The two loops are those of your functions. Where rank r sent chunk r - k to rank r + 1, "
        "write it for all ranks at once, with `rank = np.arange(p)`.",
        "`yield reduce_round(source, dest, chunk)` for the first half, `yield copy_round(source, "
        "dest, chunk)` for the second. Each argument is an array of p integers.",
        "`reduce_round(rank, (rank + 1) % p, (rank - k) % p)` for k = 1 … p - 1. In the second half "
        "rank r sends chunk r - k + 1.",
    ),
    prelude=WITH_ROUNDS,
)


# Exercise 5.5


def predict_seconds(p, nbytes, alpha, beta):
    """Return the predicted times (s) of root, ring, recursive doubling and halving-doubling, in this order.

    p is a power of two. A message of m bytes takes alpha + beta * m seconds; adding takes no time.
    """
    rounds = p.bit_length() - 1
    root = 2 * (p - 1) * (alpha + beta * nbytes)
    ring = 2 * (p - 1) * (alpha + beta * nbytes / p)
    doubling = rounds * (alpha + beta * nbytes)
    halving = 2 * rounds * alpha + 2 * beta * nbytes * (p - 1) / p
    return root, ring, doubling, halving


def predict_cases() -> Sequence[Case]:
    sizes = (2, 64), (4, 1 << 20), (16, 256), (64, 1 << 20)
    return [Case(f"p = {p}, {nbytes} bytes", ((p, nbytes, 50e-6, 8e-9),)) for p, nbytes in sizes]


def seconds_of_schedules(case: Case) -> Sequence[Any]:
    """Return the cost of the four schedules, read off their transfers."""
    ((p, nbytes, alpha, beta),) = case.arguments
    names = "root", "ring", "recursive-doubling", "halving-doubling"
    return [tuple(cost(ALLREDUCE[name](p), nbytes, CostModel(alpha, beta)) for name in names)]


PREDICT_SECONDS = Exercise(
    reference=predict_seconds,
    title="Predict four algorithms",
    difficulty=3,
    minutes=15,
    cases=predict_cases,
    expected=seconds_of_schedules,
    mistakes={
        "the ring's time counts one half only: it takes 2(p - 1) rounds": {
            "ring = 2 * (p - 1)": "ring = (p - 1)"
        },
        "the ring's messages are too large: each is one chunk of nbytes / p": {
            "(alpha + beta * nbytes / p)": "(alpha + beta * nbytes)"
        },
        "the ring has 2(p - 1) rounds, not 2p": {"ring = 2 * (p - 1)": "ring = 2 * p"},
        "root's messages pass through rank 0 one after the other: p - 1 come and p - 1 go": {
            "root = 2 * (p - 1)": "root = 2"
        },
        "root's time counts one direction only: p - 1 messages come and p - 1 go": {
            "root = 2 * (p - 1)": "root = (p - 1)"
        },
        "recursive doubling exchanges whole arrays in lg p rounds, and there is no second half": {
            "doubling = rounds": "doubling = 2 * rounds"
        },
        "Halving-doubling is counted with whole arrays: its messages are n/2, n/4, … n/p bytes": {
            "2 * beta * nbytes * (p - 1) / p": "2 * rounds * beta * nbytes"
        },
        "Halving-doubling is counted in one half only: it takes lg p rounds to halve and lg p to double": {
            "2 * rounds * alpha + 2 * beta": "rounds * alpha + beta"
        },
    },
    hints=(
        "Count the rounds, and the bytes of the largest message in each round. Messages of one round "
        "travel at the same time, unless they need the same link in the same direction.",
        "Root: 2(p - 1) whole arrays, one after the other. Ring: 2(p - 1) rounds of nbytes / p.",
        "Recursive doubling: lg p rounds of nbytes. Halving-doubling: messages of n/2, n/4, … n/p "
        "bytes, which add up to n(p - 1)/p, and the same again. `p.bit_length() - 1` is lg p.",
    ),
    tolerance=1e-6,
)


# Exercise 5.6

SLOWER, NBYTES = 10, 1 << 20  # the slow link, and the size of the array that is simulated
MODEL = CostModel(alpha=50e-6, beta=8e-9)  # 1 Gbit/s
NEEDED = 0.85  # the part of the ring's time within which a schedule must stay


def slow_rank_rounds(p):
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


def seconds(schedule: Schedule) -> float:
    network = Network.uniform(schedule.p, MODEL).slow_link(schedule.p - 1, SLOWER)
    return simulate(schedule, NBYTES, network).seconds


def look_slow(case: Case, outcomes: Sequence[Outcome]) -> str | None:
    p = case.arguments[0][0]
    schedule = schedule_of(outcomes[0].result, p, p - 1, "slow_rank_rounds")
    if isinstance(schedule, str) or (found := fault(schedule)):
        return schedule if isinstance(schedule, str) else found
    if p < 8:
        return None
    ours, theirs = seconds(schedule), seconds(ring_allreduce(p))
    if ours <= NEEDED * theirs:
        return None
    nbytes = NBYTES // 4 // (p - 1) * 4 * (p - 1)
    count = count_traffic(schedule, nbytes)
    out, back = count.sent[p - 1] / nbytes, count.received[p - 1] / nbytes
    text = f"it takes {ours / theirs:.2f} times as long as the ring, expected at most {NEEDED}"
    if max(out, back) > 1.01:
        return f"{text}: {max(out, back):.2f} arrays pass the slow link one way; one each way is enough"
    return f"{text}: one array passes the slow link each way, but not both ways at the same time"


SLOW_RANK_ROUNDS = Exercise(
    reference=slow_rank_rounds,
    title="Beat the ring over a slow link",
    difficulty=5,
    minutes=30,
    cases=ranks(2, 3, 4, 8, 16),
    expected=None,
    look=look_slow,
    digest=rounds_as_list,
    mistakes={
        "… not both ways at the same time": """
def slow_rank_rounds(p):
    slow, fast = p - 1, np.arange(p - 1)
    yield reduce_round(slow, 0, 0, slow)
    for k in range(1, slow):
        yield reduce_round(fast, (fast + 1) % slow, (fast - k) % slow)
    for k in range(1, slow):
        yield copy_round(fast, (fast + 1) % slow, (fast - k + 1) % slow)
    yield copy_round(0, slow, 0, slow)
""",
        "… arrays pass the slow link": """
def slow_rank_rounds(p):
    slow = p - 1
    for rank in range(slow):
        yield reduce_round(rank, slow, 0, slow)
    for rank in range(slow):
        yield copy_round(slow, rank, 0, slow)
""",
        "… after the last round": """
def slow_rank_rounds(p):
    slow, fast = p - 1, np.arange(p - 1)
    for k in range(1, slow):
        yield reduce_round(fast, (fast + 1) % slow, (fast - k) % slow)
    for i in range(slow):
        yield reduce_round(slow, i, i)
        yield copy_round(i, slow, i)
""",
        "… the last copy": """
def slow_rank_rounds(p):
    slow, fast = p - 1, np.arange(p - 1)
    for k in range(1, slow):
        yield reduce_round(fast, (fast + 1) % slow, (fast - k) % slow)
    for i in range(slow):
        yield copy_round(i, slow, i)
    for i in range(slow):
        yield reduce_round(slow, i, i)
    for k in range(1, slow):
        yield copy_round(fast, (fast + 1) % slow, (fast - k + 1) % slow)
""",
    },
    hints=(
        "How many bytes must pass the slow link each way, at the least? How many does the ring send over it?",
        "At least one array each way; the ring sends 2(p - 1)/p arrays each way. Let the fast ranks "
        "do everything among themselves and send each chunk over the slow link once out and once back.",
        "The link is full duplex: while chunk i leaves the slow rank, the finished chunk i - 1 can "
        "come back. `merge_rounds(reduce_round(…), copy_round(…))` puts both into one round.",
        "Ring reduce-scatter of the fast ranks; then the slow rank sends chunk i to fast rank i, "
        "which holds the others' sum of it and sends the finished chunk back one round later; then "
        "their all-gather.",
    ),
    prelude=WITH_ROUNDS,
)
