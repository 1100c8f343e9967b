"""Schedules on ranks: the right sums, whatever the size, type, operation and length of a segment."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from labkit.comm import run
from labkit.comm.running import RECEIVE, RECEIVE_TEMPORARY, REDUCE, SEND, WAIT, plan
from labkit.schedules import (
    ALLREDUCE,
    Round,
    Schedule,
    chunk_bounds,
    collective,
    hierarchical,
    reduce_round,
    ring_allgather,
    ring_reduce,
    ring_reduce_scatter,
    root_broadcast,
    root_reduce,
    tree_broadcast,
    tree_reduce,
)


def allreduces(p: int) -> list[Schedule]:
    """All that there are: the hierarchical one on nodes of unequal sizes."""
    return [*(make(p) for make in ALLREDUCE.values()), hierarchical(p, tuple(r // 2 % 2 for r in range(p)))]


def check_a_large_array_in_segments_of_the_usual_length(comm: MPI.Intracomm) -> None:
    n = 1_500_007  # several segments in each chunk
    pattern = np.arange(n, dtype=np.float32) % 1000
    for schedule in [*allreduces(comm.size), all_to_all(comm.size)]:
        array = pattern + comm.rank
        run(comm, schedule, array)
        assert (array == pattern * comm.size + sum(range(comm.size))).all(), schedule.name


def check_any_operation_that_commutes(comm: MPI.Intracomm) -> None:
    xor = MPI.Op.Create(lambda a, b, _: np.bitwise_xor(a, b, np.frombuffer(b, np.uint8)), commute=True)
    everyone = range(comm.size)
    for op, expected in (
        (MPI.MAX, max(everyone)),
        (MPI.MIN, min(everyone)),
        (MPI.PROD, 0),
        (xor, np.bitwise_xor.reduce([r % 256 for r in everyone])),
    ):
        for schedule in allreduces(comm.size):
            array = np.full(11, comm.rank, np.uint8)
            run(comm, schedule, array, op, segment_bytes=2)
            np.testing.assert_array_equal(array, expected)
    xor.Free()


@collective("allreduce", lambda p: 1)
def all_to_all(p: int):  # type: ignore[no-untyped-def]
    """Everything is sent and added to at the same time: what is sent is what was there before."""
    source, dest = np.divmod(np.arange(p * p), p)
    yield reduce_round(source[source != dest], dest[source != dest], 0)


def check_run_gives_the_bits_of_a_run_round_by_round(comm: MPI.Intracomm) -> None:
    p = comm.size
    makes = [*ALLREDUCE.values(), ring_reduce, tree_reduce, root_reduce, ring_reduce_scatter, ring_allgather]
    makes += [root_broadcast, tree_broadcast, all_to_all]
    random_rounds = [schedule for schedule in map(at_random, range(200)) if schedule.p == p]
    for schedule in [*allreduces(p), *(make(p) for make in makes), *random_rounds]:
        for n in (0, 1, 7, 101):
            every = [np.random.default_rng(rank).normal(size=n).astype(np.float32) for rank in range(p)]
            array = every[comm.rank].copy()
            run(comm, schedule, array, segment_bytes=40)
            expected = by_the_book(schedule, every)[comm.rank]
            np.testing.assert_array_equal(array, expected, f"{schedule.name}, {n} values")


def check_no_plan_deadlocks_or_sends_a_changed_value(comm: MPI.Intracomm) -> None:
    """Walk the plans of all ranks with messages that go as early and as late as MPI allows."""
    if comm.size > 1:
        return
    schedules = [schedule for p in range(1, 7) for schedule in allreduces(p)]
    for schedule in [*schedules, *map(at_random, range(150))]:
        for n, segment in ((schedule.p - 1, 1), (13, 2), (13, 1000)):
            expected = by_the_book(schedule, [np.arange(n) + rank for rank in range(schedule.p)])
            for early in (True, False):
                for array, right in zip(walk(schedule, n, segment, early), expected, strict=True):
                    np.testing.assert_array_equal(
                        array, right, f"{schedule}, {n} values, segments of {segment}"
                    )


def at_random(seed: int) -> Schedule:
    """Rounds of transfers: in each, a rank's chunks are overwritten by one rank or added to by several."""
    chance = random.Random(seed)
    p, chunks = chance.randint(2, 5), chance.randint(1, 3)

    def rounds() -> Iterator[Round]:
        again = random.Random(seed)
        for _ in range(again.randint(1, 5)):
            chosen = []
            for dest in range(p):
                first = again.randrange(chunks)
                stop, add = again.randint(first + 1, chunks), again.random() < 0.6
                others = [source for source in range(p) if source != dest]
                sources = again.sample(others, again.randint(0, len(others)) if add else 1)
                chosen += [(source, dest, first, stop, add) for source in sources]
            again.shuffle(chosen)
            columns = (np.array(column) for column in zip(*chosen, strict=True))
            if chosen:
                yield Round(*columns)

    return Schedule("at_random", "allreduce", p, chunks, rounds)


def by_the_book(schedule: Schedule, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Return what all ranks hold in the end, if each round begins when the one before it is over."""
    now = [array.copy() for array in arrays]
    ends = chunk_bounds(now[0].size, schedule.chunks)
    for one in schedule:
        before = [array.copy() for array in now]
        for source, dest, first, stop, add in one:
            part, came = now[dest][ends[first] : ends[stop]], before[source][ends[first] : ends[stop]]
            part[:] = part + came if add else came
    return now


def walk(schedule: Schedule, n: int, segment: int, early: bool) -> list[np.ndarray]:
    """Carry out the plans of all ranks; a message goes once both its ends are started, or one waited for."""
    p, order = schedule.p, random.Random(26)
    plans = [plan(schedule, rank, n, segment) for rank in range(p)]
    arrays = [np.arange(n) + rank for rank in range(p)]
    temporaries = [np.zeros(one.temporary, np.int64) for one in plans]
    ends: list[list] = [[None] * one.messages for one in plans]  # of each message: key, place, done
    halves: dict = {}
    at = [0] * p
    counts: dict = {}

    def start(rank, number, kind, peer, place):  # type: ignore[no-untyped-def]
        pair = (rank, peer) if kind == "send" else (peer, rank)
        nth = counts[kind, pair] = counts.get((kind, pair), -1) + 1
        ends[rank][number] = end = {"pair": (*pair, nth), "place": place, "done": False}
        halves.setdefault((*pair, nth), {})[kind] = end
        if early:
            go(end)

    def go(end):  # type: ignore[no-untyped-def]
        both = halves[end["pair"]]
        if len(both) == 2 and not end["done"]:
            both["recv"]["place"][:] = both["send"]["place"]
            both["recv"]["done"] = both["send"]["done"] = True
        return end["done"]

    def step(rank):  # type: ignore[no-untyped-def]
        if at[rank] >= len(plans[rank].instructions):
            return all([go(end) for end in ends[rank]]) and "over"
        do, start_, stop, peer, slot, number = plans[rank].instructions[at[rank]]
        own, other = arrays[rank][start_:stop], temporaries[rank][slot : slot + stop - start_]
        if do == SEND:
            start(rank, number, "send", peer, own)
        elif do in (RECEIVE, RECEIVE_TEMPORARY):
            start(rank, number, "recv", peer, own if do == RECEIVE else other)
        elif do == WAIT:
            if not go(ends[rank][number]):
                return False
        elif do == REDUCE:
            own += other
        else:
            own[:] = other
        at[rank] += 1
        return True

    while True:
        moved = [step(rank) for rank in order.sample(range(p), p)]
        if all(one == "over" for one in moved):
            return arrays
        assert any(one is True for one in moved) or any(step(rank) == "over" for rank in range(p)), (
            f"{schedule.name} on {p} ranks stands still"
        )
