"""Collectives: ranks call different ones, with different parameters, in another order, or not at all."""

from __future__ import annotations

from collections.abc import Iterator

from corpus.messages import NOT_READ
from corpus.program import BUFFERING, CALL, INVALID, LOCAL, PARAMETER, REQUEST, Program, by_rank, same

# Name -> the call; on two ranks, these arrays are large enough for all of them.
BLOCKING = {
    "Barrier": "comm.Barrier()",
    "Bcast": "comm.Bcast(x, root=0)",
    "Reduce": "comm.Reduce(x, y, root=0)",
    "Allreduce": "comm.Allreduce(x, y)",
    "Gather": "comm.Gather(x, z, root=0)",
    "Scatter": "comm.Scatter(z, y, root=0)",
    "Allgather": "comm.Allgather(x, z)",
    "Alltoall": "comm.Alltoall(x, y)",
    "Scan": "comm.Scan(x, y)",
    "bcast": "comm.bcast(1, root=0)",
    "allreduce": "comm.allreduce(1)",
    "gather": "comm.gather(1, root=0)",
}
HEAD = "z = np.zeros(4 * size)\n"
NAMES = list(BLOCKING)
NONBLOCKING = {
    f"I{name.lower()}": call.replace(f"comm.{name}", f"comm.I{name.lower()}")
    for name, call in BLOCKING.items()
    if name[0].isupper()
}


def _waited(call: str) -> list[str]:
    return [f"request = {call}", "request.Wait()"]


def matching() -> Iterator[Program]:
    """Calls that not all ranks make, or not in the same order."""
    for index, (name, call) in enumerate(BLOCKING.items()):
        other_name = NAMES[(index + 1) % len(NAMES)]
        other = BLOCKING[other_name]
        yield Program(f"coll-{name}", CALL, True, HEAD + same(call, other))
        yield Program(f"coll-{name}-missing", CALL, False, HEAD + by_rank([call], []))
        yield Program(f"coll-{name}-{other_name}", CALL, False, HEAD + by_rank([call], [other]))
        if index % 2:
            swapped = by_rank([call, other], [other, call])
            yield Program(f"coll-order-{name}-{other_name}", CALL, False, HEAD + swapped)
            loop = f"for _ in range(2 + (rank == 1)):\n    {call}\n"
            yield Program(f"coll-loop-{name}", CALL, False, HEAD + loop)
    names = list(NONBLOCKING)
    for index, (name, call) in enumerate(NONBLOCKING.items()):
        other_name = names[(index + 1) % len(names)]
        other = NONBLOCKING[other_name]
        yield Program(f"icoll-{name}", CALL, True, HEAD + same(*_waited(call)))
        yield Program(f"icoll-{name}-missing", CALL, False, HEAD + by_rank(_waited(call), []))
        wrong = by_rank(_waited(call), _waited(other))
        yield Program(f"icoll-{name}-{other_name}", CALL, False, HEAD + wrong)
        yield Program(f"icoll-no-wait-{name}", REQUEST, False, HEAD + same(f"request = {call}"))
    for name in "Barrier", "Bcast", "Allreduce":
        mixed = by_rank([BLOCKING[name]], _waited(NONBLOCKING[f"I{name.lower()}"]))
        yield Program(f"coll-{name}-I{name.lower()}", CALL, False, HEAD + mixed)
        other = BLOCKING[name].replace("comm.", "other.")
        dup = "other = comm.Dup()\n"
        yield Program(f"coll-comm-{name}", CALL, False, HEAD + dup + by_rank([BLOCKING[name]], [other]))
        right = HEAD + dup + same(BLOCKING[name], other, "other.Free()")
        yield Program(f"coll-comms-{name}", CALL, True, right)
        order = by_rank([BLOCKING[name], other], [other, BLOCKING[name]])
        yield Program(f"coll-comm-order-{name}", CALL, False, HEAD + dup + order)
        crossed = by_rank(
            [BLOCKING[name], "comm.Ssend(x, dest=1, tag=1)"],
            ["comm.Recv(y, source=0, tag=1)", BLOCKING[name]],
        )
        yield Program(f"coll-p2p-{name}", CALL, False, HEAD + crossed)
        first = by_rank(
            [f"r = {NONBLOCKING[f'I{name.lower()}']}", "comm.Send(x, dest=1, tag=1)", "r.Wait()"],
            ["comm.Recv(z[:4], source=0, tag=1)", *_waited(NONBLOCKING[f"I{name.lower()}"])],
        )
        yield Program(f"icoll-p2p-{name}", BUFFERING, True, HEAD + first)
    for derive in "comm.Dup()", "comm.Split(rank % 2)", "comm.Create_cart([size])":
        name = derive[5:].partition("(")[0]
        yield Program(f"coll-{name}", CALL, True, f"new = {derive}\nnew.Barrier()\nnew.Free()\n")
        yield Program(f"coll-{name}-missing", CALL, False, by_rank([f"new = {derive}"], []))
    init = "r = comm.Allreduce_init(x, y)\n"
    yield Program("pcoll-Allreduce_init", CALL, True, init + same("r.Start()", "r.Wait()", "r.Free()"))
    yield Program(
        "pcoll-missing", CALL, False, init + by_rank(["r.Start()", "r.Wait()", "r.Free()"], ["r.Free()"])
    )
    yield Program("pcoll-no-wait", REQUEST, False, init + same("r.Start()"))
    yield Program("pcoll-no-start", REQUEST, False, init + same("r.Wait()"))
    yield Program("pcoll-no-free", REQUEST, False, init + same("r.Start()", "r.Wait()"))


def parameters() -> Iterator[Program]:
    """Roots, counts, dtypes and reductions that differ between the ranks."""
    for name in "Bcast", "Reduce", "Gather", "Scatter", "bcast", "gather":
        call = BLOCKING[name].replace("root=0", "root=rank")
        yield Program(f"coll-root-{name}", PARAMETER, False, HEAD + same(call))
        yield Program(
            f"coll-root1-{name}", PARAMETER, True, HEAD + same(BLOCKING[name].replace("root=0", "root=1"))
        )
        if name[0].isupper():
            icall = NONBLOCKING[f"I{name.lower()}"].replace("root=0", "root=rank")
            yield Program(f"icoll-root-I{name.lower()}", PARAMETER, False, HEAD + same(*_waited(icall)))
    for name in "Bcast", "Reduce", "Allreduce", "Scan":
        for what, new in ("count", "np.zeros(4 + rank)"), ("dtype", "np.zeros(4, ['f8', 'i4'][rank])"):
            head = HEAD + f"x, y = {new}, {new}\n"
            yield Program(f"coll-{what}-{name}", PARAMETER, False, head + same(BLOCKING[name]))
            icall = NONBLOCKING[f"I{name.lower()}"]
            yield Program(f"icoll-{what}-I{name.lower()}", PARAMETER, False, head + same(*_waited(icall)))
    for name in "Reduce", "Allreduce", "Scan":
        call = BLOCKING[name].replace("x, y", "x, y, op=[MPI.SUM, MPI.MAX][rank]")
        yield Program(f"coll-op-{name}", PARAMETER, False, HEAD + same(call))
        right = BLOCKING[name].replace("x, y", "x, y, op=MPI.MAX")
        yield Program(f"coll-max-{name}", PARAMETER, True, HEAD + same(right))
        icall = call.replace(f"comm.{name}", f"comm.I{name.lower()}")
        yield Program(f"icoll-op-I{name.lower()}", PARAMETER, False, HEAD + same(*_waited(icall)))


def counts_for_each_rank() -> Iterator[Program]:
    """Counts for each rank that are those of the other ranks' calls, or not."""
    head = "z, counts, wrong = np.zeros(4 * size), [2] * size, [2] * (size - 1) + [3]\n"
    calls = {
        "Gatherv": "comm.Gatherv(x[:2], [z, counts], root=0)",
        "Scatterv": "comm.Scatterv([z, counts], x[:2], root=0)",
        "Allgatherv": "comm.Allgatherv(x[:2], [z, counts])",
        "Alltoallv": "comm.Alltoallv([x, [2] * size], [z, counts])",
    }
    for name, call in calls.items():
        yield Program(f"coll-counts-{name}-right", PARAMETER, True, head + same(call))
        yield Program(f"coll-counts-{name}", PARAMETER, False, head + same(call.replace("counts]", "wrong]")))


def invalid() -> Iterator[Program]:
    """Parameters that no call accepts."""
    for name, call in BLOCKING.items():
        if "root=0" in call:
            yield Program(
                f"invalid-root-{name}", INVALID, False, HEAD + same(call.replace("root=0", "root=9"))
            )
            one = call.replace("root=0", "root=9 if rank == 1 else 0")
            yield Program(f"invalid-root-one-{name}", INVALID, False, HEAD + same(one))
        if "x, y)" in call and name != "Alltoall":
            null = call.replace("x, y", "x, y, op=MPI.OP_NULL")
            yield Program(f"invalid-op-{name}", INVALID, False, HEAD + same(null))
    for name in "Barrier", "Bcast", "Allreduce":
        call = BLOCKING[name]
        null = HEAD + same(call.replace("comm.", "MPI.COMM_NULL."))
        yield Program(f"invalid-comm-{name}", INVALID, False, null)
        freed = HEAD + same("new = comm.Dup()", "new.Free()", call.replace("comm.", "new."))
        yield Program(f"invalid-freed-{name}", INVALID, False, freed)


def touched_buffers() -> Iterator[Program]:
    """Buffers that the program uses while a non-blocking collective is under way."""
    for name in "Ibcast", "Iallreduce", "Ireduce", "Igather", "Iscan":
        begun = f"request = {NONBLOCKING[name]}"
        write = ["x[0] = 99"] if name != "Ibcast" else ["if rank == 0:", "    x[0] = 99"]
        yield Program(f"local-write-{name}", LOCAL, False, HEAD + same(begun, *write, "request.Wait()"))
        yield Program(f"local-after-{name}", LOCAL, True, HEAD + same(begun, "request.Wait()", *write))
    read = HEAD + same("request = comm.Iallreduce(x, y)", "s = y.sum()", "request.Wait()")
    yield Program("local-read-Iallreduce", LOCAL, False, read, blind=NOT_READ)
    both = HEAD + same("a = comm.Iallreduce(x, y)", "b = comm.Iscan(x, y)", "a.Wait()", "b.Wait()")
    yield Program("local-two-collectives", LOCAL, False, both)
    two = HEAD + same("a = comm.Iallreduce(x, y)", "b = comm.Iscan(x, z[:4])", "a.Wait()", "b.Wait()")
    yield Program("local-two-collectives-right", LOCAL, True, two)


def programs() -> Iterator[Program]:
    """Return all programs with collectives."""
    yield from matching()
    yield from parameters()
    yield from counts_for_each_rank()
    yield from invalid()
    yield from touched_buffers()
