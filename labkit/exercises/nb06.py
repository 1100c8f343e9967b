"""The exercises of notebook 06: bottleneck nodes."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations, permutations
from time import perf_counter
from typing import NamedTuple

import numpy as np

from labkit import schedules
from labkit.checks.compare import kind
from labkit.checks.exercise import MPI, Case, Exercise, Outcome
from labkit.exercises import wraps
from labkit.exercises.cases import COLLECTIVES, SENDS, both_dtypes, calls, named, normal
from labkit.text import counted


# Exercise 6.1
def sent_by_rank(p, n, rank):
    """Return the bytes that this rank sends, as {"root": …, "allgather": …, "ring": …}: whole numbers."""
    to_others = (p - 1) * n
    root = to_others if rank == 0 else n
    return {"root": root, "allgather": to_others, "ring": 2 * to_others // p}


def sent_by_schedules(case: Case) -> Sequence[dict[str, int]]:
    ((p, n, rank),) = case.arguments
    schedule_and_size = {
        "root": (schedules.root_allreduce, n),
        "allgather": (schedules.ring_allgather, p * n),  # its buffer holds the gradients of all ranks
        "ring": (schedules.ring_allreduce, n),
    }
    traffic = {
        name: schedules.count_traffic(make(p), size) for name, (make, size) in schedule_and_size.items()
    }
    return [{name: int(counts.sent[rank]) for name, counts in traffic.items()}]


SENT_BY_RANK = Exercise(
    reference=sent_by_rank,
    cases=calls(sent_by_rank, *((p, 48 * p, rank) for p in (2, 3, 1, 4, 7) for rank in range(p))),
    expected=sent_by_schedules,
    mistakes={
        "root: rank 0 counts like the others; but it sends the mean to each of the other p - 1 ranks": {
            "to_others if rank == 0 else n": "n"
        },
        "root: every rank counts like rank 0; the others send their own gradient once": {
            "to_others if rank == 0 else n": "to_others"
        },
        "allgather: passing on its own gradient is only the first round; in p - 1 rounds it passes on "
        "p - 1 gradients": {'"allgather": to_others': '"allgather": n'},
        "allgather: its own gradient is sent to p - 1 ranks, not to p": {": to_others": ": p * n"},
        "ring: this is the reduce-scatter only; the all-gather sends as much again": {"2 * ": ""},
        "ring: a message of the ring is a chunk of n / p bytes, not the whole gradient": {" // p": ""},
    },
    hints=(
        "Draw three ranks. Count the arrows that leave this rank, and the bytes that each of them carries.",
        "root: each of the others sends n bytes to rank 0, which sends the mean back to each of them.",
        "ring: p - 1 rounds of reduce-scatter and p - 1 of all-gather; each round sends a chunk of n / p.",
    ),
)


# Exercise 6.2
def diagnose(compute_s, transfer_s, expected_s):
    """Return (bottleneck, rank): "straggler" and its rank, or "slow link" or "none" and None.

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


def diagnosis_cases() -> Iterator[Case]:
    for label, p, slower, transfer in (
        ("equal ranks", 3, {}, 1),
        ("rank 1 five times slower", 3, {1: 5}, 1),
        ("a link ten times slower", 3, {}, 10),
        ("rank 0 three times slower", 4, {0: 3}, 1),
        ("rank 3 twice as slow and a link ten times slower", 4, {3: 2}, 10),
        ("rank 2 six times slower and a link twice as slow", 4, {2: 6}, 2),
        ("a slow first step on rank 1", 4, {}, 1),
        ("one pause of 2 s on rank 1 and one slow transfer", 4, {}, 1),
        ("a straggler that costs 15 % of a healthy step", 3, {2: 1.225}, 1),
        ("a straggler that costs 25 % of a healthy step", 3, {2: 1.375}, 1),
        ("a slow link that costs 15 % of a healthy step", 3, {}, 1.45),
        ("a slow link that costs 25 % of a healthy step", 3, {}, 1.75),
        ("a slow link that costs 22 % of a healthy step", 3, {}, 1.66),
        ("a straggler, and four of nine steps slow on both ranks", 2, {1: 1.9}, 1),
        ("two of five ranks that compute in a tenth of the time", 5, {0: 0.1, 3: 0.1}, 1),
        ("ranks that are slow in turn", 4, {}, 1),
        ("rank 1 twice as slow", 2, {1: 2}, 1),
        ("transfers in a tenth of the time", 3, {}, 0.1),
        ("one of four ranks with transfers six times as long", 4, {}, [1, 1, 6, 1]),
        ("two fast ranks and a straggler that costs 18 % of a healthy step", 5, {0: 0.1, 3: 0.1, 4: 1.27}, 1),
    ):
        noise = 1 + 0.02 * np.random.default_rng(p).random((2, 9, p))
        compute_s = 0.010 * np.array([slower.get(rank, 1) for rank in range(p)]) * noise[0]
        transfer_s = 0.005 * np.array(transfer) * noise[1]
        if "first step" in label:
            compute_s[0, 1] += 0.3
        if "slow on both" in label:
            compute_s[5:] = 0.020 * noise[0, 5:]
        if "in turn" in label:
            compute_s[range(9), np.arange(9) % p] *= 5
        if "pause" in label:
            compute_s[4, 1] += 2.0
            transfer_s[6] += 2.0
        yield Case(f"{label}, {p} ranks", ((compute_s, transfer_s, 0.005),))


DIAGNOSE = Exercise(
    reference=diagnose,
    cases=diagnosis_cases,
    mistakes={
        "the first step alone decides; take the median over the steps": {
            "np.median(compute_s, axis=0)": "compute_s[0]",
            "np.median(transfer_s)": "np.median(transfer_s[0])",
        },
        "one long pause counts as a bottleneck of every step: the mean over the steps follows it; take the "
        "median": {
            "np.median(compute_s, axis=0)": "compute_s.mean(axis=0)",
            "np.median(transfer_s)": "np.median(transfer_s.mean(axis=0))",
        },
        "the straggler is the rank that computes for the longest time, not for the shortest": {
            "compute.argmax()": "compute.argmin()"
        },
        "the straggler is looked for in the transfers; all ranks leave a collective together, so look at "
        "the compute times": {"compute.argmax()": "np.median(transfer_s, axis=0).argmax()"},
        "a slow link gets a rank, but all ranks spend the same time in a collective: return None": {
            '"slow link", None': '"slow link", int(np.median(transfer_s, axis=0).argmax())'
        },
        "this loss is below 20 % of a healthy step: of the median compute time plus expected_s": {
            "0.2 * (np.median(compute) + expected_s)": "0.05 * np.median(compute)"
        },
        "a loss of more than 20 % of a healthy step is a bottleneck": {"0.2 *": "1.0 *"},
        "a straggler's cost is measured from the median of the ranks: fast ranks pull the mean down": {
            "compute.max() - np.median(compute)": "compute.max() - compute.mean()"
        },
        "one rank with long transfers makes a slow link of it: take the median of the ranks, which one rank "
        "cannot move": {"np.median(transfer_s)": "np.median(transfer_s, axis=0).mean()"},
        "equal ranks get a bottleneck; a loss of up to 20 % of a healthy step is none": {"0.2 *": "0 *"},
        "no straggler is ever found: compare the longest of the ranks' median times with their median": {
            "compute.max() - np.median(compute)": "0"
        },
        "the transfers are not looked at: compare them with expected_s": {
            "np.median(transfer_s) - expected_s": "0"
        },
    },
    hints=(
        "Take medians over the steps first, so that a single pause does not decide the result.",
        "A straggler costs max - median of the ranks' compute times; a slow link costs the median transfer "
        "minus expected_s.",
        "Compare the larger of the two losses with 0.2 * (median compute time + expected_s), then with each "
        "other.",
    ),
)


# Exercise 6.3
def time_pairs(comm, nbytes):
    """Return the time of a message of nbytes there and back, for each pair of ranks, on every rank.

    Shape: (p, p), in s, symmetric, with 0 on the diagonal.
    """
    seconds, buffer = np.zeros((comm.size, comm.size)), np.zeros(nbytes, np.uint8)
    for a in range(comm.size):
        for b in range(a + 1, comm.size):
            comm.Barrier()  # the others are silent
            start = perf_counter()
            if comm.rank == a:
                comm.Send(buffer, b)
                comm.Recv(buffer, b)
                seconds[a, b] = seconds[b, a] = perf_counter() - start
            elif comm.rank == b:
                comm.Recv(buffer, a)
                comm.Send(buffer, a)
    return comm.allreduce(seconds)


NBYTES, BYTES_PER_S, LATENCY_S, SLOWER = 25_000, 1e6, 2.5e-3, 4  # of the emulated links
SLOW_RANK = {2: 1, 3: 1, 4: 3}  # of the cases, by the number of ranks
LEAST, MOST = 0.9, 1.5  # times the time of the emulated link, and times what the pair's turn took


MESSAGES = "Send", "Isend", "Ssend", "Sendrecv", "Recv", "Irecv"
OF_ALL_RANKS = *COLLECTIVES, "Barrier", "Ibarrier", "barrier", "Split"


class Turn(NamedTuple):
    """What a rank does between two collectives."""

    to: set[int]  # the ranks that it sends to
    seconds: float
    sends_first: bool


def turns_of(outcome: Outcome) -> list[Turn]:
    """Return what a rank does between its collectives; a turn ends when the rank calls the next one."""
    turns, times = [Turn(set(), 0.0, False)], list[float]()
    for call in outcome.calls:
        is_of_all = call.name in OF_ALL_RANKS and call.ranks == len(outcome.sent)
        if call.name in MESSAGES or (times and is_of_all):
            sends, turn = "end" in call.name, turns[-1]
            to = turn.to | ({call.peer} if sends else set())
            times.append(call.at_s)
            turns[-1] = Turn(to, times[-1] - times[0], turn.sends_first or (sends and len(times) == 1))
        if is_of_all:
            turns.append(Turn(set(), 0.0, False))
            times.clear()
    return turns


def look_at_pairs(case: Case, outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield what is wrong with the messages, and then with the times. Each pair has a limit of its own."""
    called = {call.name for outcome in outcomes for call in outcome.calls}
    for name in sorted(called & {"send", "recv", "isend", "irecv", "ssend", "sendrecv"}):
        yield f"`comm.{name}` pickles objects, which emulated links do not delay: use `Send` and `Recv`"
    turns = list(map(turns_of, outcomes))
    yield from fault_of_messages(outcomes, turns)
    yield from fault_of_times(case.ranks, outcomes, turns)


def fault_of_messages(outcomes: Sequence[Outcome], turns: Sequence[list[Turn]]) -> Iterator[str]:
    for a, b in permutations(range(len(outcomes)), 2):
        largest = max((call.most for call in outcomes[a].calls if call.name in SENDS), default=0)
        if largest > NBYTES:
            yield f"rank {a} sends {largest:,} bytes, expected {NBYTES:,}: np.uint8 has one byte a value"
        if outcomes[a].sent[b] < NBYTES:
            yield (
                f"rank {a} sends {outcomes[a].sent[b]} bytes to rank {b}: each pair sends a message of "
                f"{NBYTES} bytes there and back"
            )
    for turn in zip(*turns, strict=False):
        pairs = sorted({(min(a, b), max(a, b)) for a, of_rank in enumerate(turn) for b in of_rank.to})
        # One rank may take all its pairs, one after the other, if the others wait for its messages.
        leaders = [rank for rank, of_rank in enumerate(turn) if of_rank.sends_first]
        if len(pairs) > 1 and not (len(leaders) == 1 and all(leaders[0] in pair for pair in pairs)):
            (a, b), (c, d) = pairs[:2]
            yield (
                f"ranks {a} and {b} measure, and no barrier separates them from ranks {c} and {d}: let all "
                "ranks call `comm.Barrier` before each pair"
            )


def fault_of_times(p: int, outcomes: Sequence[Outcome], turns: Sequence[list[Turn]]) -> Iterator[str]:
    for matrix in (outcome.result for outcome in outcomes):
        if not isinstance(matrix, np.ndarray) or matrix.shape != (p, p) or matrix.dtype.kind not in "fi":
            yield f"the result is {kind(matrix)}, expected an array of numbers of shape {(p, p)}"
    seconds = np.array(outcomes[0].result, float)
    if np.isnan(seconds).any():
        yield "the times hold nan: an entry that this rank has not measured must be 0, so that sums are right"
    if not all(np.array_equal(seconds, other.result) for other in outcomes):
        yield "each rank has only the times that it measured itself; sum the matrices over the ranks"
    if np.any(seconds != seconds.T) or np.any(seconds.diagonal()):
        yield "the times at [a, b] and [b, a] differ, or [a, a] is not 0: enter one time in both places"
    limits = {}
    for a, b in combinations(range(p), 2):
        slower = SLOWER if SLOW_RANK[p] in (a, b) else 1
        took_s = max(turn.seconds for r, other in ((a, b), (b, a)) for turn in turns[r] if other in turn.to)
        limits[a, b] = LEAST * 2 * slower * (LATENCY_S + NBYTES / BYTES_PER_S), MOST * took_s

    def fits(factor: float) -> bool:
        return all(least <= factor * seconds[pair] <= most for pair, (least, most) in limits.items())

    if fits(1):
        return
    if fits(p):
        yield "this is the mean over the ranks, but one rank measures each pair: sum"
    if fits(0.5):
        yield "each time is there twice: both ranks of a pair enter it, and the sum over the ranks adds them"
    for (a, b), (least, most) in limits.items():
        text = f"result[{a}, {b}] is {seconds[a, b]:.3f} s, but"
        if seconds[a, b] < least:
            yield f"{text} the link needs {least / LEAST:.3f} s for a message there and back"
        if seconds[a, b] > most:
            yield f"{text} their messages took {most / MOST:.3f} s: start the clock after the barrier"


NOTE_THE_TIME = "seconds[a, b] = seconds[b, a] = perf_counter() - start"
TIME_PAIRS = Exercise(
    reference=time_pairs,
    cases=lambda: [
        Case(f"{p} ranks, a slow link at rank {slow}", ((NBYTES,),) * p) for p, slow in SLOW_RANK.items()
    ],
    look=look_at_pairs,
    mistakes={
        "… sum the matrices over the ranks": {"comm.allreduce(seconds)": "seconds"},
        "… there and back": {
            f"                comm.Recv(buffer, b)\n                {NOTE_THE_TIME}\n": "",
            "comm.Send(buffer, a)": NOTE_THE_TIME,
        },
        "… each time is there twice": {
            "comm.Send(buffer, a)": f"comm.Send(buffer, a)\n                {NOTE_THE_TIME}"
        },
        "… enter one time in both places": {"seconds[b, a] = ": ""},
        "… this is the mean over the ranks": {"(seconds)": "(seconds) / comm.size"},
        "… no barrier separates": {"            comm.Barrier()  # the others are silent\n": ""},
        "… their messages took": {  # the time that the ranks before it take counts, too
            "            comm.Barrier()  # the others are silent\n            start = perf_counter()": (
                "            start = perf_counter()\n            comm.Barrier()"
            )
        },
        "… the link needs": {"perf_counter() - start": "0.02"},
        "… is waiting for its Irecv": {
            "                comm.Send(buffer, b)\n                comm.Recv(buffer, b)\n": (
                "                comm.Recv(buffer, b)\n                comm.Send(buffer, b)\n"
            )
        },
        "… use `Send` and `Recv`": {"comm.Send(": "comm.send(", "comm.Recv(buffer, ": "comm.recv(source="},
    },
    hints=(
        "Loop over the pairs a < b, in the same order on all ranks. Which rank sends, which one receives?",
        "Rank a takes the time: Send, then Recv. Rank b calls Recv first, then Send. With a Barrier before "
        "each pair, no other pair uses the links.",
        "At the end, comm.allreduce(seconds) sums the matrices of the ranks.",
    ),
    wrap=partial(wraps.on_links, (BYTES_PER_S, LATENCY_S), SLOWER, SLOW_RANK),
    prelude="import numpy as np\nfrom time import perf_counter\nfrom mpi4py import MPI",
    deadline_s=15.0,
    is_strict=False,
)


# Exercise 6.4
def slow_links(seconds):
    """Return the ranks with a slow link, ascending: all their pairs take over twice the fastest pair's time.

    Shape: seconds (p, p), symmetric, p ≥ 2; the diagonal holds 0 and is no pair.
    """
    p = len(seconds)
    pairs = ~np.eye(p, dtype=bool)
    limit = 2 * seconds[pairs].min()
    return [rank for rank in range(p) if np.all(seconds[rank, pairs[rank]] > limit)]


def link_cases() -> Iterator[Case]:
    for p, slow, factor in (
        (3, (1,), 5),
        (3, (), 5),
        (2, (1,), 5),
        (4, (0,), 5),
        (5, (1, 4), 5),
        (8, (7,), 5),
        (5, (), 5),
        (4, (2,), 1.8),
        (4, (2,), 2.2),
        (3, (1,), 2),
    ):
        links = np.where(np.isin(np.arange(p), slow), 0.01 * factor, 0.01)
        noise = 1 + 0.05 * np.random.default_rng(p).random((p, p)) * (factor != 2)
        times = np.maximum.outer(links, links) * (noise + noise.T) / 2
        np.fill_diagonal(times, 0)
        yield Case(f"{p} ranks, slow links: {list(slow)}, {factor} times slower", ((times,),))


SLOW_LINKS = Exercise(
    reference=slow_links,
    cases=link_cases,
    mistakes={
        "a pair is slow only if it takes more than twice as long as the fastest": {
            "limit = 2 *": "limit = 1.2 *"
        },
        "a pair is slow as soon as it takes more than twice as long as the fastest": {
            "limit = 2 *": "limit = 4 *"
        },
        "both ranks of the slowest pair are named, but only one of them has the slow link: look at all pairs "
        "of a rank": """
def slow_links(seconds):
    a, b = np.unravel_index(seconds.argmax(), seconds.shape)
    return sorted([int(a), int(b)])
""",
        "a rank with one slow pair is named, but the other rank of that pair may be the reason: all pairs "
        "of a rank with a slow link are slow": {"np.all": "np.any"},
        "the zeros on the diagonal count as the fastest pair, so every pair is slow": {"[pairs]": ""},
        "the diagonal counts as a pair of each rank, so no rank has only slow pairs": {", pairs[rank]": ""},
        "some rank is always named, also where all links are equal or nobody can tell": {
            "for rank in range(p) if np.all(seconds[rank, pairs[rank]] > limit)": (
                "for rank in [int(seconds.sum(axis=0).argmax())]"
            )
        },
        "the ranks above the mean are named: that is always somebody, and noise is enough": {
            "np.all(seconds[rank, pairs[rank]] > limit)": "seconds[rank].sum() > seconds.sum() / p"
        },
    },
    hints=(
        "Rank 1 has a slow link. Which entries of the matrix are large?",
        "A rank whose fastest pair is slow has a slow link.",
        "Leave out the diagonal: pairs = ~np.eye(p, dtype=bool), then seconds[pairs].min().",
    ),
)


# Exercise 6.5
def time_to_loss(times, losses, target):
    """Return when the loss first reaches `target`, by linear interpolation; inf if it never does.

    Shapes: times, losses (n,), n ≥ 1, in the order of time; result: one number.
    """
    reached = np.flatnonzero(losses <= target)
    if len(reached) == 0:
        return np.inf
    k = reached[0]
    if k == 0:
        return times[0]
    part = (losses[k - 1] - target) / (losses[k - 1] - losses[k])
    return times[k - 1] + part * (times[k] - times[k - 1])


TIME_TO_LOSS = Exercise(
    reference=time_to_loss,
    cases=named(
        {
            label: (np.array([0.5, 1.0, 2.0, 3.5, 4.0]), np.array(losses), 1.0)
            for label, losses in {
                "a falling loss": [2.0, 1.5, 0.9, 0.6, 0.5],
                "a loss that rises before it reaches the target": [2.0, 1.2, 1.8, 0.9, 0.5],
                "a loss that rises after it has reached the target": [2.0, 0.9, 0.8, 1.5, 1.6],
                "a last loss that equals the target": [2.0, 1.5, 1.4, 1.2, 1.0],
                "a loss that equals the target": [2.0, 1.5, 1.0, 0.9, 0.8],
                "a loss that rises again": [2.0, 0.9, 1.2, 1.1, 0.8],
                "a target that is never reached": [2.0, 1.8, 1.7, 1.6, 1.5],
                "a loss that is no number at the end": [2.0, 0.9, 3.0, np.inf, np.nan],
                "a first loss below the target": [0.5, 0.4, 0.3, 0.2, 0.1],
            }.items()
        }
    ),
    mistakes={
        "this is the time of the first loss at the target; interpolate between it and the one before": {
            "    if k == 0:\n        return times[0]\n": "    return times[k]\n"
        },
        "the first time is returned where the target is never reached: argmax of an array without True is "
        "0": {
            "    if len(reached) == 0:\n        return np.inf\n": "",
            "k = reached[0]": "k = np.argmax(losses <= target)",
        },
        "the last time is returned where the target is never reached; return np.inf": {"np.inf": "times[-1]"},
        "if the first loss is at most the target, there is none before it, and index -1 is the last": {
            "    if k == 0:\n        return times[0]\n": ""
        },
        "the fraction is measured from the loss after the crossing; measure it from the loss before": {
            "part = (losses[k - 1] - target)": "part = (target - losses[k])"
        },
        "np.interp needs an ascending axis, but losses fall, and may rise again": {
            "    k = reached[0]\n": "    return np.interp(target, losses[::-1], times[::-1])\n    k = 0\n"
        },
    },
    hints=(
        "losses <= target is an array of True and False. np.flatnonzero gives the positions of True; k is "
        "the first of them.",
        "Between k - 1 and k the loss falls by losses[k - 1] - losses[k]. Which fraction of that brings it "
        "to the target?",
        "Add the same fraction of times[k] - times[k - 1] to times[k - 1].",
    ),
)


# Exercise 6.6
def sizes_by_speed(n, speeds):
    """Return each rank's number of samples, in proportion to its speed: an array of integers.

    Shapes: speeds (p,); result (p,).
    """
    exact = n * np.asarray(speeds) / np.sum(speeds)
    sizes = exact.astype(int)  # rounded down
    rest = n - sizes.sum()
    sizes[np.argsort(sizes - exact, kind="stable")[:rest]] += 1
    return sizes


GIVE_THE_REST = '    sizes[np.argsort(sizes - exact, kind="stable")[:rest]] += 1\n'
SIZES_BY_SPEED = Exercise(
    reference=sizes_by_speed,
    cases=calls(
        sizes_by_speed,
        *(
            (7, np.array([1, 1, 2])),
            (12, np.array([1, 1, 2])),
            (10, np.array([1, 1, 1, 1])),
            (10, np.array([3.0])),
            (101, np.tile([1, 2], 25)),
        ),
        *(
            (101, np.array([4, 4, 4, 1.5])),
            (9, np.array([0.25, 8, 8, 8])),
            (1438, np.array([400.0, 390, 410, 65])),
        ),
    ),
    mistakes={
        "the sizes are rounded down, so the samples that are left over are on no rank": {GIVE_THE_REST: ""},
        "each size is rounded for itself, so the sum is not n": {
            "exact.astype(int)": "np.round(exact).astype(int)",
            GIVE_THE_REST: "",
        },
        "all samples that are left over go to rank 0; they belong to the largest remainders": {
            GIVE_THE_REST: "    sizes[0] += rest\n"
        },
        "all samples that are left over go to the last rank; they belong to the largest remainders": {
            GIVE_THE_REST: "    sizes[-1] += rest\n"
        },
        "all samples that are left over go to the fastest rank; they belong to the largest remainders": {
            GIVE_THE_REST: "    sizes[np.argmax(speeds)] += rest\n"
        },
        "the slowest rank gets most: these are speeds, in samples per second, not times": {
            "np.asarray(speeds) / np.sum(speeds)": "(1 / speeds) / np.sum(1 / speeds)"
        },
        "the speeds are not used: equal shards": {"asarray(speeds) / np.sum": "ones(len(speeds)) / len"},
        "sizes are whole numbers: round them so that the sum stays n": {"return sizes": "return exact"},
        "… dtype float64": {"return sizes": "return sizes.astype(float)"},
    },
    hints=(
        "A rank's exact size is n · speed / sum of the speeds. Round the sizes down. How many are left over?",
        "Give one more sample each to the ranks that lost most by rounding: the largest remainders.",
        "np.argsort(sizes - exact, kind='stable')[:rest] are these ranks; lower ranks come first in a tie.",
    ),
)


# Exercise 6.7
def local_sgd_epoch(comm, gradient, params, batches, lr, every):  # noqa: PLR0917
    """Step with each of this rank's batches; average the parameters after `every` steps and at the end.

    Leave the result in `params` (n,). gradient(params, x, y) returns this rank's gradient (n,); batches is
    a list of (x, y), equally long on all ranks.
    """
    for step, (x, y) in enumerate(batches, start=1):
        params -= lr * gradient(params, x, y)
        if step % every == 0 or step == len(batches):
            comm.Allreduce(MPI.IN_PLACE, params)
            params /= comm.size


def epoch_cases() -> Iterator[Case]:
    for p, steps, every in ((2, 2, 2), (3, 3, 1), (1, 3, 2), (2, 5, 2), (4, 7, 3), (3, 2, 5)):
        sizes = [3 + rank * (p == 3) for rank in range(p)]  # of batches
        batches = [
            [tuple(normal([rank, step], (n, 4), n)) for step in range(steps)] for rank, n in enumerate(sizes)
        ]
        arguments = ((wraps.gradient, *normal(p, 4), batches[rank], 0.1, every) for rank in range(p))
        yield from both_dtypes(f"{counted(p, 'rank')}, {steps} steps, every {every}", *arguments)
    of_ranks = []
    for rank in range(2):
        (params,) = normal(2, 4)
        batches_of_rank = [tuple(normal([rank, step], (3, 4), 3)) for step in range(4)]
        of_ranks.append((wraps.GradientOfModel(params), params, batches_of_rank, 0.1, 3))
    yield Case("2 ranks, 4 steps, every 3, gradients of a model that holds `params`", tuple(of_ranks))


def epoch_in_one_process(case: Case) -> Sequence[np.ndarray]:
    _, start, first, lr, every = case.arguments[0]
    models = [start.astype(float)] * case.ranks
    for step in range(1, len(first) + 1):
        batches = [arguments[2][step - 1] for arguments in case.arguments]
        models = [w - lr * wraps.gradient(w, *batch) for w, batch in zip(models, batches, strict=True)]
        if step % every == 0 or step == len(first):
            models = [np.mean(models, axis=0)] * case.ranks
    return [w.astype(start.dtype) for w in models]


LOCAL_SGD_EPOCH = Exercise(
    reference=local_sgd_epoch,
    cases=epoch_cases,
    expected=epoch_in_one_process,
    mistakes={
        "the parameters are never averaged: each rank has a model of its own": {
            "step % every == 0 or step == len(batches)": "False"
        },
        "the parameters are averaged in every step: nothing is saved": {
            "step % every == 0 or step == len(batches)": "True"
        },
        "the average at the end of the epoch is missing where `every` does not divide the number of steps": {
            " or step == len(batches)": ""
        },
        "the parameters are averaged only at the end of the epoch; `every` is not used": {
            "step % every == 0 or ": ""
        },
        "the parameters are averaged one step too early: counted from 0, the averages come after steps "
        "0, every, 2 every, …": {", start=1": "", "== len(batches)": "== len(batches) - 1"},
        "the sum of the ranks' parameters is not divided by the number of ranks": {
            "            params /= comm.size\n": ""
        },
        "the gradients are averaged, not the parameters; between averages the models drift apart, and an "
        "average of gradients does not bring them back together": {
            "params -= lr * gradient(params, x, y)": "own = gradient(params, x, y)",
            "comm.Allreduce(MPI.IN_PLACE, params)": "comm.Allreduce(MPI.IN_PLACE, own)",
            "            params /= comm.size\n": "            own /= comm.size\n        params -= lr * own\n",
        },
        "the ranks are weighted by their numbers of samples; the task says: equal weights": {
            "comm.Allreduce(MPI.IN_PLACE, params)": (
                "mine = sum(len(x) for x, _ in batches)\n"
                "            params *= mine / comm.allreduce(mine)\n"
                "            comm.Allreduce(MPI.IN_PLACE, params)"
            ),
            "            params /= comm.size\n": "",
        },
        "the step goes uphill: subtract the gradient": {"params -= lr": "params += lr"},
        "… params[": {"params -= lr": "params = params - lr"},
    },
    hints=(
        "In each step, every rank updates its own parameters and sends no message.",
        "Average the parameters after steps `every`, 2 · `every`, … and after the last step.",
        "comm.Allreduce(MPI.IN_PLACE, params) sums them over the ranks; then divide in place.",
    ),
    result_in=1,
)


QUESTIONS = {
    "06-root": "Only for root: rank 0 sends (p-1)n bytes, each other rank n; in ring and all-gather all "
    "ranks send the same. Never make the rank with the slow link the root.",
    "06-thousand": "There are p(p-1)/2 pairs, but p/2 disjoint pairs can measure at once. So p-1 rounds "
    "are enough, if the pairs share no link. Or search by halves: run an all-reduce in each half of the "
    "ranks, and go on with the slow half.",
    "06-long-arrows": "Those to and from the slow rank. In the ring there are two in every round, so each "
    "round waits for the slow link. Through rank 0, only two of all messages are long: the slow rank's "
    "gradient and the mean that goes back to it. (On real hosts, all arrows are about equally long.)",
    "06-factor-2": "Compare the two speed-ups that the cell prints. Against the slow link, leaving out "
    "gains less than before: each other rank computes p / (p - 1) times as much, and there is less to "
    "win. Local SGD loses less, as it also saves transfers over the usual links. Against the straggler, "
    "shards by speed and leaving out still come near the healthy run; local SGD saves only transfers. A "
    "larger batch helps against neither: its steps take longer by more than their number falls. (On a "
    "busy machine, speed-ups that differ by a tenth say nothing.)",
}
