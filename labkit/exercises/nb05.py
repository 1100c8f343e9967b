"""The exercises of notebook 05: the ring."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from labkit import schedules
from labkit.checks.exercise import MPI, Case, Exercise, Outcome
from labkit.exercises.allreduce_contest import NBYTES, RANKS, networks, verified
from labkit.exercises.cases import COLLECTIVES, SIZES, all_but, calls, on_ranks
from labkit.exercises.ring import on_a_ring
from labkit.exercises.wraps import noting, rounds_as_list, with_notes
from labkit.schedules import Schedule, ScheduleError, copy_round, merge_rounds, reduce_round
from labkit.schedules.schedule import CollectiveName
from labkit.text import counted

WITH_ROUNDS = "import numpy as np\n\nfrom labkit.schedules import copy_round, merge_rounds, reduce_round"


def chunk(n, p, i):
    """Return the slice of chunk i of n values cut in p."""
    return slice(i * n // p, (i + 1) * n // p)


WITH_CHUNK = f"import numpy as np\nfrom mpi4py import MPI\n\n\n{inspect.getsource(chunk)}"


def look_neighbours(case: Case, outcomes: Sequence[Outcome], left_out: int) -> Iterator[str]:
    """Judge one half of the ring: rank r sends all chunks but number r + left_out to its right."""
    p, array = case.ranks, case.arguments[0][-1]
    for rank, outcome in enumerate(outcomes):
        right = (rank + 1) % p
        others = [dest for dest in range(p) if outcome.messages[dest] and dest != right]
        if others:
            yield (
                f"rank {rank} sends to rank {others[0]}, but its right-hand neighbour is rank {right}: "
                "in this ring every message goes to the right"
            )
        expected = array.nbytes - array[chunk(len(array), p, (rank + left_out) % p)].nbytes
        sent = sum(outcome.sent)
        text = f"rank {rank} sends {sent} bytes, expected {expected} (all chunks but one, once each)"
        if sent >= (p - 1) * array.nbytes > expected:
            yield f"{text}: this is a ring in name only, which moves whole arrays. Send one chunk a round"
        if sent > expected:
            yield f"{text}: it sends a chunk more than is needed; p - 1 rounds are enough"
        if sent < expected:
            yield f"{text}: which messages carry the other values?"


# Exercise 5.1
def ring_reduce_scatter(comm, array):
    """Return chunk `comm.rank` of the sum of all ranks' arrays; each chunk passes all ranks once.

    Shapes: array (n,), any n, the same on every rank; the function may overwrite it. Result (chunk's size,).
    """
    n, p, rank = len(array), comm.size, comm.rank
    received = np.empty_like(array)
    for k in range(1, p):
        sends, adds = chunk(n, p, (rank - k) % p), chunk(n, p, (rank - k - 1) % p)
        comm.Sendrecv(array[sends], (rank + 1) % p, recvbuf=received[adds], source=(rank - 1) % p)
        array[adds] += received[adds]
    return array[chunk(n, p, rank)]


def chunks_of_the_sum(case: Case) -> Sequence[Any]:
    total = np.sum([array for (array,) in case.arguments], axis=0)
    return [total[chunk(len(total), case.ranks, rank)] for rank in range(case.ranks)]


RING_REDUCE_SCATTER = Exercise(
    reference=ring_reduce_scatter,
    cases=on_ranks(SIZES, lambda rank, p, n: (np.arange(n) % 5 + 1.0 + 10 * rank,)),
    expected=chunks_of_the_sum,
    mistakes={
        "rank r returns its own input of chunk r: nothing that arrives is added to it. Which chunk arrives "
        "in the last round, and has it arrived (`Wait`) before you add it?": {"range(1, p)": "range(p - 1)"},
        "the chunk was copied from rank to rank, not added up: add what arrives to your own chunk": {
            "=received[adds]": "=array[adds]",
            "        array[adds] += received[adds]\n": "",
        },
        "rank r returns chunk r + 1 of the sum: send chunk r - 1 in the first round, not chunk r": {
            "range(1, p)": "range(p - 1)",
            "chunk(n, p, rank)": "chunk(n, p, (rank + 1) % p)",
        },
        "… a ring in name only": {
            "        array[adds] +=": (
                "        comm.Sendrecv(array, (rank + 1) % p, recvbuf=array.copy(), source=(rank - 1) % p)\n"
                "        array[adds] +="
            )
        },
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
    },
    look=lambda case, outcomes: look_neighbours(case, outcomes, left_out=0),
    hints=(
        "Follow one chunk through the table: it moves one rank to the right in each round. So each rank "
        "passes on what it received and added to in the round before.",
        "In round k = 1 … p - 1, rank r sends chunk r - k to the right and receives chunk r - k - 1 "
        "from the left, all modulo p. `comm.Sendrecv` does both in one call.",
        "Receive into a second array with the dtype of `array`, then add: "
        "`array[adds] += received[adds]`. After the last round, return `array[chunk(n, p, rank)]`.",
    ),
    forbidden=COLLECTIVES,
    may_change=(0,),
    prelude=WITH_CHUNK,
)


# Exercise 5.2
def ring_allgather(comm, own, array):
    """Leave every rank's chunk in its place in `array`; each chunk passes all ranks once.

    Shapes: own, this rank's chunk, (chunk's size,); array (n,), overwritten, the same n on every rank.
    """
    n, p, rank = len(array), comm.size, comm.rank
    array[chunk(n, p, rank)] = own
    for k in range(1, p):
        sends, gets = chunk(n, p, (rank - k + 1) % p), chunk(n, p, (rank - k) % p)
        receiving = comm.Irecv(array[gets], source=(rank - 1) % p)
        sending = comm.Isend(array[sends], dest=(rank + 1) % p)
        receiving.Wait()  # the next round sends this chunk on
        sending.Wait()


def look_requests(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    for rank, outcome in enumerate(outcomes):
        left = outcome.result[1]["pending"]
        if left:
            yield (
                f"rank {rank} has {counted(left, 'request')} without a Wait when the function returns: the "
                "array that it sends may still be under way. Wait for the sends, too"
            )
    yield from look_neighbours(case, outcomes, left_out=1)


RING_ALLGATHER = Exercise(
    reference=ring_allgather,
    cases=on_ranks(
        SIZES, lambda rank, p, n: ((np.arange(n) + 100.0)[chunk(n, p, rank)], -1.0 - rank - np.arange(n))
    ),
    expected=lambda case: [np.concatenate([rank_chunk for rank_chunk, _ in case.arguments])] * case.ranks,
    mistakes={
        "`array` is as it was before the call": {
            "    array[chunk": "    array = array.copy()\n    array[chunk"
        },
        "only the own chunk is in its place": {"Irecv(array[gets]": "Irecv(array[gets].copy()"},
        "every rank lacks its own chunk: write `own` into `array` as well": {
            "    array[chunk(n, p, rank)] = own\n": "",
            "Isend(array[sends]": "Isend(own if k == 1 else array[sends]",
        },
        "every rank lacks the chunk of its right-hand neighbour: it takes p - 1 rounds, one more": {
            "range(1, p)": "range(1, p - 1)"
        },
        "… has not arrived yet": {
            "    for k": "    requests = []\n    for k",
            "        receiving.Wait()  # the next round sends this chunk on\n        sending.Wait()": (
                "        requests += [receiving, sending]\n"
                "    for request in requests:\n        request.Wait()"
            ),
        },
        "… without a Wait when the function returns": {"        sending.Wait()\n": ""},
        "… the ranks hang": {"        sending =": "        receiving.Wait()\n        sending ="},
    },
    look=look_requests,
    hints=(
        "Write `own` into its place first. In round 1 it is the only chunk worth sending; from round 2 on, "
        "pass on the chunk that has just arrived.",
        "In round k, rank r sends chunk r - k + 1 and receives chunk r - k, modulo p, straight into its "
        "place. Start both, then wait.",
        "The next round sends what this one receives, so wait for the receive at the end of the round. The "
        "sends may end later, but before the function returns.",
    ),
    result_in=1,
    digest=with_notes,
    wrap=noting,
    forbidden=(*COLLECTIVES, "Send", "Recv", "Sendrecv", "Sendrecv_replace"),
    prelude=WITH_CHUNK,
)


# Exercise 5.3
def allreduce_seconds(p, nbytes, alpha, beta):
    """Return the predicted seconds of an all-reduce of nbytes bytes: (root, tree, allgather, ring).

    p divides nbytes. A message of m bytes takes alpha + beta * m seconds. A rank can send one message while
    it receives another.
    """
    levels = (p - 1).bit_length()  # of the tree: log2(p), rounded up
    rounds = np.array([2 * (p - 1), 2 * levels, p - 1, 2 * (p - 1)])
    message = np.array([nbytes, nbytes, nbytes, nbytes / p])
    return tuple(rounds * (alpha + beta * message))


def predictions(case: Case) -> Sequence[Any]:
    """Return the cost of the schedules, read off their transfers."""
    ((p, nbytes, alpha, beta),) = case.arguments
    # The array of an all-gather holds the arrays of all ranks.
    rounds = schedules.ALLREDUCE
    makers = (rounds["root"], 1), (rounds["tree"], 1), (schedules.ring_allgather, p), (rounds["ring"], 1)
    model = schedules.CostModel(alpha, beta)
    return [tuple(schedules.cost(make(p), factor * nbytes, model) for make, factor in makers)]


ALLREDUCE_SECONDS = Exercise(
    reference=allreduce_seconds,
    cases=calls(
        allreduce_seconds,
        *(
            (p, nbytes, 50e-6, 8e-9)
            for p, nbytes in ((2, 64), (4, 1 << 20), (3, 1200), (16, 256), (6, 1_200_000), (1, 8))
        ),
    ),
    expected=predictions,
    mistakes={
        "the ring is counted in one half only: it takes 2(p - 1) rounds": {"1, 2 * (p - 1)]": "1, p - 1]"},
        "the ring's messages are too large: each is one chunk of nbytes / p": {"nbytes / p": "nbytes"},
        "root's messages pass through rank 0 one after the other: p - 1 come and p - 1 go": {
            "[2 * (p - 1)": "[2"
        },
        "root is counted in one direction only: p - 1 messages come and p - 1 go": {"[2 * (p - 1)": "[p - 1"},
        "the tree is counted in one direction only: as many rounds bring the sum back": {
            "2 * levels": "levels"
        },
        "the tree's number of levels is rounded down: three ranks need two": {
            "(p - 1).bit_length()": "p.bit_length() - 1"
        },
        "here the all-gather takes the time of 2(p - 1) messages; it has p - 1 rounds, and in a round each "
        "rank sends and receives at once": {", p - 1,": ", 2 * (p - 1),"},
    },
    hints=(
        "Count the rounds, and the bytes of one message. The seconds are rounds · (alpha + beta · message).",
        "Root: p - 1 messages come to rank 0, one after the other, and p - 1 go. The tree needs as many "
        "rounds to bring the sum back as to add it up. In each round of the ring, a message is one chunk.",
        "Rounds of nbytes: root 2(p - 1), tree 2⌈log2 p⌉, all-gather p - 1. Ring: 2(p - 1) rounds of "
        "nbytes / p. `(p - 1).bit_length()` is ⌈log2 p⌉.",
    ),
    tolerance=1e-6,
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


def looking_at(
    judge: Callable[[Schedule], Iterator[str]],
    collective: CollectiveName = "allreduce",
    cut_in_p: bool = True,
) -> Callable[[Case, Sequence[Outcome]], Iterator[str]]:
    """Return the `look` that first verifies a schedule, with p chunks or any number, and then judges it."""

    def look(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
        p = case.arguments[0][0]
        try:
            yield from judge(verified(outcomes[0].result, p, "schedule", collective, p * cut_in_p))
        except ScheduleError as error:  # what the verifier says, without the schedule's name and ranks
            yield str(error).partition(" ranks, ")[2] or str(error)

    return look


def judge_ring(schedule: Schedule) -> Iterator[str]:
    p = schedule.p
    nbytes = 4 * p * (p + 1)
    both = schedules.ring_allreduce(p), schedule
    ours, theirs = (schedules.count_traffic(schedule, nbytes).busiest for schedule in both)
    if theirs > ours:
        yield f"the busiest rank sends and receives {theirs} bytes of {nbytes}; in a ring it is {ours}"
    rounds = len(list(schedule))
    if rounds > 2 * (p - 1):
        yield (
            f"there are {rounds} rounds, and {2 * (p - 1)} are enough: let all ranks send in the same round"
        )
    pairs_of_rounds = zip(schedule, schedules.ring_allreduce(p), strict=False)
    for number, (student_round, ring_round) in enumerate(pairs_of_rounds, start=1):
        other = sorted(set(student_round) - set(ring_round))
        if other:
            yield (
                f"round {number}: {other[0]} is not in the ring of exercise 5.1. There every rank sends one "
                "chunk to its right, and chunk i is complete at rank i after the reduce rounds"
            )


RING_ROUNDS = Exercise(
    reference=ring_rounds,
    cases=ranks(3, 2, 4, 5, 8, 1),
    look=looking_at(judge_ring),
    digest=rounds_as_list,
    mistakes={
        "… a second time": {"(1, p):\n        yield reduce": "(1, p + 1):\n        yield reduce"},
        "… overwrites chunk": {"rank - k + 1": "rank - k"},
        "… after the last round": {"(1, p):\n        yield copy": "(1, p - 1):\n        yield copy"},
        "… the busiest rank sends and receives": {
            "(rank, (rank + 1) % p, (rank - k) % p)": "(k, 0, rank)",
            "(rank, (rank + 1) % p, (rank - k + 1) % p)": "(0, k, rank)",
        },
        "… let all ranks send in the same round": {
            "    rank = np.arange(p)\n": "",
            "        yield": "        for rank in range(p):\n            yield",
        },
        "… every rank sends one chunk to its right": {
            "(rank + 1)": "(rank - 1)",
            "rank - k + 1": "rank + k - 1",
            "rank - k)": "rank + k)",
        },
        "… 0→1 +0 is not in the ring": {"range(1, p)": "range(p - 1)"},
        "… of type tuple": {"yield reduce_round(rank, (rank + 1) % p, (rank - k) % p)": "yield 0, 1, 2"},
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
def ring_reduce_rounds(p):
    """Yield the rounds of a ring reduce of p ranks to rank 0, for an array cut in p chunks."""
    rank = np.arange(p)
    for k in range(1, p):
        yield reduce_round(rank, (rank + 1) % p, (rank - k) % p)
    for other in range(1, p):
        yield copy_round(other, 0, other)


def judge_reduce(schedule: Schedule) -> Iterator[str]:
    p = schedule.p
    nbytes = 4 * p * (p + 1)
    both = schedules.ring_reduce(p), schedule
    ours, theirs = (schedules.count_traffic(schedule, nbytes).total for schedule in both)
    if theirs > ours:
        yield f"{theirs} bytes are sent, and {ours} are enough: send each finished chunk straight to rank 0"
    rounds = schedules.cost(schedule, nbytes, schedules.CostModel(0, p / nbytes))
    if rounds > 2 * (p - 1) + 0.01:
        yield (
            f"it takes the time of {rounds:.0f} chunks, and {2 * (p - 1)} are enough: let all ranks send "
            "different chunks in the same round"
        )


RING_REDUCE_ROUNDS = Exercise(
    reference=ring_reduce_rounds,
    cases=ranks(3, 2, 4, 5, 8, 1),
    look=looking_at(judge_reduce, "reduce"),
    digest=rounds_as_list,
    mistakes={
        "… send each finished chunk straight to rank 0": {
            "for other": "for k",
            "copy_round(other, 0, other)": "copy_round(rank, (rank + 1) % p, (rank - k + 1) % p)",
        },
        "… after the last round": {"for other in range(1, p)": "for other in range(1, p - 1)"},
        "… a second time": {"copy_round": "reduce_round"},
        "… the time of 6 chunks": """
def ring_reduce_rounds(p):
    for rank in range(1, p):
        yield reduce_round(rank, 0, np.arange(p))
""",
        "… different chunks in the same round": """
def ring_reduce_rounds(p):
    for rank in range(p - 1, 0, -1):
        yield reduce_round(rank, rank - 1, 0, p)
""",
    },
    hints=(
        "After the first half of the ring, each rank holds the sum of one chunk. Who needs it now?",
        "Keep the reduce rounds of exercise 5.4. Then every other rank sends its chunk straight to rank 0: "
        "`copy_round(other, 0, other)`.",
    ),
    prelude=WITH_ROUNDS,
)


# Exercise 5.6
HALVES = inspect.getsource(ring_reduce_scatter), inspect.getsource(ring_allgather)
WITH_HALVES = "\n\n".join(["from mpi4py import MPI", WITH_CHUNK, *HALVES])


def two_level_sum(comm, array, host):
    """Leave the sum of all ranks' arrays in `array`: a sum within each host, then one between the hosts.

    `host` is the number of this rank's host; all hosts have equally many ranks. Shape: array (n,), the same n
    on every rank.
    """
    inside = comm.Split(host, comm.rank)
    my_chunk = ring_reduce_scatter(inside, array)
    across = comm.Split(inside.rank, comm.rank)  # the ranks that hold the same chunk, one on each host
    across.Allreduce(MPI.IN_PLACE, my_chunk)
    ring_allgather(inside, my_chunk, array)
    inside.Free()
    across.Free()


def host_cases() -> Iterator[Case]:
    for hosts, n, dtype in (
        ((0, 0), 2, "float64"),
        ((0, 1), 3, "float32"),
        ((0, 0, 1, 1), 8, "float64"),
        ((0, 1, 0, 1), 9, "float32"),
        ((2, 2, 7, 7), 1001, "float64"),
        ((0, 1, 2), 5, "float64"),
        ((0, 0, 0), 1, "float32"),
        ((0, 0, 1, 1), 1, "float32"),
        ((0,), 3, "float64"),
    ):
        arguments = (((np.arange(n) % 5 + 10.0**rank).astype(dtype), host) for rank, host in enumerate(hosts))
        where = f"hosts {' '.join(map(str, hosts))}, {counted(n, 'value')}, {dtype}"
        yield Case(f"ranks on {where}", tuple(arguments))


def look_hosts(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    arrays, hosts = zip(*case.arguments, strict=True)
    count, per_host = len(set(hosts)), case.ranks // len(set(hosts))
    # Two thirds of a ring among the hosts, say; each of a host's chunks may be cut unevenly.
    most = 2 * (count - 1) * (arrays[0].size // count + per_host) * arrays[0].itemsize
    for host in dict.fromkeys(hosts):
        leave = sum(
            sent
            for rank, outcome in enumerate(outcomes)
            for dest, sent in enumerate(outcome.sent)
            if hosts[rank] == host != hosts[dest]
        )
        if leave > most:
            yield (
                f"{leave} bytes leave host {host}, and {most} are enough: add up within the host first, then "
                "let each of its ranks exchange only its own chunk with the other hosts"
            )


TWO_LEVEL_SUM = Exercise(
    reference=two_level_sum,
    cases=host_cases,
    expected=lambda case: [sum(array for array, _ in case.arguments)] * case.ranks,
    mistakes={
        "this is the sum of one host: add up between the hosts, too": {
            "    across.Allreduce(MPI.IN_PLACE, my_chunk)\n": ""
        },
        "each rank has its own chunk of the sum only: gather the chunks within the host": {
            "    ring_allgather(inside, my_chunk, array)\n": ""
        },
        "… Collective mismatch": {"Split(inside.rank": "Split(host"},
        "… enough: add up within the host first": {
            "my_chunk = ring_reduce_scatter(inside, array)": "inside.Allreduce(MPI.IN_PLACE, array)",
            "(MPI.IN_PLACE, my_chunk)": "(MPI.IN_PLACE, array)",
            "    ring_allgather(inside, my_chunk, array)\n": "",
        },
    },
    look=look_hosts,
    hints=(
        "Two communicators: one joins the ranks of a host, the other the ranks that hold the same chunk, one "
        "on each host. `comm.Split(color, key)` joins ranks of the same color, in the order of the key.",
        "`inside = comm.Split(host, comm.rank)`. Your reduce-scatter on it leaves chunk `inside.rank` of the "
        "host's sum on each rank, so `across = comm.Split(inside.rank, comm.rank)`.",
        "Then `across.Allreduce(MPI.IN_PLACE, my_chunk)` and your all-gather on `inside`. Free both "
        "communicators: MPI has only so many.",
    ),
    result_in=0,
    wrap=on_a_ring,
    forbidden=all_but("Allreduce"),
    prelude=WITH_HALVES,
)


# Exercise 5.7
NEEDED = 0.95  # of the time of the fastest algorithm of section 5, on one network at least


def my_allreduce(p):
    """Yield the rounds of an all-reduce of p >= 2 ranks, for an array cut in as many chunks as you like."""
    # For a slow link of the last rank: each chunk crosses it once in each direction.
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


def judge_speed(schedule: Schedule) -> Iterator[str]:
    p = schedule.p
    if p != RANKS:
        return
    known = [make(p) for make in schedules.ALLREDUCE.values()]
    known.append(schedules.hierarchical(p, tuple(2 * r // p for r in range(p))))
    ratios = {}
    for name, network in networks(p).items():
        seconds, *others = (
            schedules.simulate(candidate, NBYTES, network).seconds for candidate in (schedule, *known)
        )
        ratios[name] = seconds / min(others)
    if min(ratios.values()) > NEEDED:
        ratios_text = ", ".join(f"{ratio:.3f} ({name})" for name, ratio in ratios.items())
        yield (
            f"simulated, it takes {ratios_text} of the time of the fastest algorithm of section 5, expected "
            f"at most {NEEDED} on one network: ask what passes its slowest link, and when that link is idle"
        )


MY_ALLREDUCE = Exercise(
    reference=my_allreduce,
    cases=ranks(2, 3, 4, 5, RANKS),
    look=looking_at(judge_speed, cut_in_p=False),
    digest=rounds_as_list,
    mistakes={
        "… it has the line `from labkit.schedules import hierarchical`": """
from labkit.schedules import hierarchical


def my_allreduce(p):
    yield from hierarchical(p, tuple(2 * rank // p for rank in range(p)))
""",
        "… when that link is idle": """
def my_allreduce(p):
    slow = p - 1
    for rank in range(slow):
        yield reduce_round(rank, slow, 0, slow)
    for rank in range(slow):
        yield copy_round(slow, rank, 0, slow)
""",
        "… after the last round": {"    yield copy_round(slow - 1, slow, slow - 1)\n": ""},
        "… a second time": {
            "    yield reduce_round(slow, 0, 0)\n": "    yield reduce_round(slow, 0, 0)\n" * 2
        },
    },
    hints=(
        "For the slow link: how many bytes must pass it each way, at the least? How many does the ring send "
        "over it? For two hosts, ask the same about the uplink.",
        "One array each way is enough; the ring sends 2(p - 1)/p. Let the other ranks do everything among "
        "themselves, and let each chunk pass the slow link once out and once back.",
        "Links are full duplex: while chunk i leaves the slow rank, the finished chunk i - 1 can come back. "
        "`merge_rounds(reduce_round(…), copy_round(…))` puts both into one round.",
        "Ring reduce-scatter of the fast ranks; then the slow rank sends chunk i to fast rank i, "
        "which holds the others' sum of it and sends the finished chunk back one round later; then "
        "their all-gather.",
    ),
    prelude=WITH_ROUNDS,
)

QUESTIONS = {
    "05-requests": (
        "The receive, before the next round begins: that round sends the chunk which it brings. The send may "
        "take longer, until its buffer is written again; here nothing writes it before the function returns."
    ),
    "05-model": (
        "Usually all-gather with large arrays, already on two ranks: each call fills fresh memory with p "
        "arrays and adds them up, and p(p - 1) whole arrays pass one memory. The model gives a link its own "
        "bandwidth, and leaves out adding (γ), Python's time for a round, and ranks that wait for a core."
    ),
    "05-reduce": (
        "Bytes; in p chunks no time: p - 1 of them pass rank 0's link, as in the all-reduce's second half. "
        "(In more chunks, the bonus can be faster. A broadcast after it makes it slower than the ring.)"
    ),
    "05-cable": (
        "In A: in the ring 0, 2, 4, 6, 7, 5, 3, 1, ranks 3 and 4 are not neighbours, so no message passes "
        "the slow cable. In B, every order crosses it: send less across it, as two levels do."
    ),
    "05-replay": (
        "Mostly the second: in the first half a rank also adds each chunk to its own before it can send on, "
        "and that holds on any machine. (If a rank lost its core, it can be the other way round once.) A "
        "non-blocking half can pass on a chunk as soon as it is there, while its own earlier send is still "
        "under way; and it could compute meanwhile."
    ),
    "05-winners": (
        "Small arrays: latency counts, so few rounds win: recursive doubling on one switch, never the ring. "
        "Messages that share an uplink wait for each other, so with an uplink the tree is as fast, and with "
        "a slow one faster, although it has more rounds. Large arrays on one switch: bytes count, and ring, "
        "two-level and halving-doubling send equally few: a tie. With an uplink as fast as a link the ring "
        "wins, since only one rank of a host sends to the other host at a time. A slow uplink: the ring "
        "sends 2 (p - 1) / p arrays across it in each direction, two-level and halving-doubling only one: "
        "a tie of these two."
    ),
    "05-bonus-1": "Start an Irecv for each half; as the first arrives, add it and send it on, while the "
    "second is still under way. So adding overlaps with sending, and the neighbour can begin earlier. "
    "This is what NCCL does with its segments. On the lab's links it saves little: adding is fast beside "
    "sending, and each half has a latency of its own.",
    "05-bonus-2": "Post Irecv for all chunks except your own, straight into their places in `array`, in "
    "the order in which they will come; then send. No message finds its receiver unready, so none has to "
    "wait or be buffered. You still have to wait for chunk k before you send it on.",
    "05-bonus-5": "Leave rank 0 out of the ring: ranks 1 ... p - 1 reduce-scatter p - 1 chunks among "
    "themselves, in p - 2 rounds. Then each sends its finished chunk to rank 0 in a reduce round, so rank "
    "0 adds its own values on arrival: p - 1 rounds more, 2p - 3 in all.",
    "05-bonus-7": "Combine two ideas: reduce inside each host and cross the uplink once, and keep both "
    "directions of every link busy by cutting the array into more chunks than ranks. Look at the longest "
    "wait that the contest prints: the rank which waits there had nothing to send, so let it start with "
    "another chunk.",
}
