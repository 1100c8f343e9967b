"""Objects that are never freed, parameters that no message accepts, and one-sided accesses."""

from __future__ import annotations

from collections.abc import Iterator

from corpus.messages import NOT_READ
from corpus.program import (
    CALL,
    GLOBAL,
    INVALID,
    LEAK,
    LOCAL,
    PARAMETER,
    REQUEST,
    Program,
    by_rank,
    same,
)

MADE = {
    "Dup": ("new = comm.Dup()", "new.Free()"),
    "Split": ("new = comm.Split(rank % 2)", "new.Free()"),
    "Create_cart": ("new = comm.Create_cart([size])", "new.Free()"),
    "Create": ("group = comm.Get_group()\nnew = comm.Create(group)\ngroup.Free()", "new.Free()"),
    "Sub": ("grid = comm.Create_cart([size, 1])\nnew = grid.Sub([True, False])\ngrid.Free()", "new.Free()"),
    "Get_group": ("new = comm.Get_group()", "new.Free()"),
    "Incl": ("group = comm.Get_group()\nnew = group.Incl([0])\ngroup.Free()", "new.Free()"),
    "Excl": ("group = comm.Get_group()\nnew = group.Excl([0])\ngroup.Free()", "new.Free()"),
    "Create_contiguous": ("new = MPI.DOUBLE.Create_contiguous(2).Commit()", "new.Free()"),
    "Create_vector": ("new = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()", "new.Free()"),
    "Create_indexed": ("new = MPI.DOUBLE.Create_indexed([1, 1], [0, 2]).Commit()", "new.Free()"),
    "Create_struct": ("new = MPI.Datatype.Create_struct([1], [0], [MPI.DOUBLE]).Commit()", "new.Free()"),
    "Create_subarray": ("new = MPI.DOUBLE.Create_subarray([4], [2], [1]).Commit()", "new.Free()"),
    "Op": ("new = MPI.Op.Create(lambda a, b, t: None)", "new.Free()"),
    "Info": ("new = MPI.Info.Create()", "new.Free()"),
    "Win.Allocate": ("new = MPI.Win.Allocate(32, 8, comm=comm)", "new.Free()"),
    "Win.Create": ("new = MPI.Win.Create(y, 8, comm=comm)", "new.Free()"),
    "Allreduce_init": ("new = comm.Allreduce_init(x, y)\nnew.Start()\nnew.Wait()", "new.Free()"),
}


def leaks() -> Iterator[Program]:
    """Objects that a program makes and does not free."""
    for name, (make, free) in MADE.items():
        yield Program(f"leak-{name}", LEAK, False, same(make))
        yield Program(f"leak-{name}-right", LEAK, True, same(make, free))
        if name in ("Dup", "Get_group", "Create_vector", "Create_contiguous"):
            for_one = same(*make.splitlines(), "if rank == 0 or size > 9:", f"    {free}")
            if name != "Dup":
                yield Program(f"leak-{name}-one-rank", LEAK, False, for_one)
            loop = "for _ in range(5):\n" + "".join(f"    {line}\n" for line in make.splitlines())
            yield Program(f"leak-{name}-loop", LEAK, False, loop + free + "\n")
            yield Program(f"leak-{name}-loop-right", LEAK, True, loop + f"    {free}\n")


def invalid() -> Iterator[Program]:
    """Parameters that no message accepts."""
    right = {"Send": "comm.Recv(y, source=0, tag=1)", "Isend": "comm.Recv(y, source=0, tag=1)"}
    right |= {
        "Send_init": right["Send"],
        "Recv": "comm.Send(x, dest=0, tag=1)",
        "Irecv": "comm.Send(x, dest=0, tag=1)",
    }
    for kind, other in right.items():
        peer = "dest" if "end" in kind else "source"
        wrongs = {
            "rank": f"comm.{kind}(x, {peer}=9, tag=1)",
            "negative-rank": f"comm.{kind}(x, {peer}=-77, tag=1)",
            "tag": f"comm.{kind}(x, {peer}=1, tag=-9)",
            "count": f"comm.{kind}([x, -1, MPI.DOUBLE], {peer}=1, tag=1)",
            "datatype": f"comm.{kind}([x, 4, MPI.DATATYPE_NULL], {peer}=1, tag=1)",
            "comm": f"MPI.COMM_NULL.{kind}(x, {peer}=1, tag=1)",
        }
        for what, wrong in wrongs.items():
            if kind in ("Send", "Irecv") or what in ("rank", "tag", "datatype"):
                yield Program(f"invalid-{what}-{kind}", INVALID, False, by_rank([f"q = {wrong}"], [other]))
    null = by_rank(["comm.Send(x, dest=MPI.PROC_NULL, tag=1)"], ["comm.Recv(y, source=MPI.PROC_NULL, tag=1)"])
    yield Program("invalid-proc-null-right", INVALID, True, null)
    freed = [
        "t = MPI.DOUBLE.Create_contiguous(2).Commit()",
        "t.Free()",
        "comm.Send([x, 1, t], dest=1, tag=1)",
    ]
    yield Program("invalid-freed-datatype", INVALID, False, by_rank(freed, [right["Send"]]))
    open_ = ["t = MPI.DOUBLE.Create_contiguous(2)", "comm.Send([x, 1, t], dest=1, tag=1)", "t.Free()"]
    yield Program("invalid-not-committed", INVALID, False, by_rank(open_, [right["Send"]]))
    used = ["t = MPI.DOUBLE.Create_contiguous(2).Commit()", "comm.Send([x, 2, t], dest=1, tag=1)", "t.Free()"]
    yield Program("invalid-committed-right", INVALID, True, by_rank(used, [right["Send"]]))


WINDOW = "mem = np.zeros(8)\nwin = MPI.Win.Create(mem, 8, comm=comm)\nother = np.ones(4)\n"
OPERATIONS = {
    "Put": "win.Put(x, 1, 0)",
    "Get": "win.Get(y, 1, 0)",
    "Accumulate": "win.Accumulate(x, 1, 0)",
}
LOCAL_OPERATIONS = {"store": "mem[1] = 5", "load": "s = mem.sum()"}


def _fenced(*bodies: list[str]) -> str:
    return WINDOW + "win.Fence()\n" + by_rank(*bodies) + "win.Fence()\nwin.Free()\n"


def _locked(kind: str, *bodies: list[str]) -> str:
    locked = [[f"win.Lock(1, MPI.LOCK_{kind})", *body, "win.Unlock(1)"] if body else [] for body in bodies]
    return WINDOW + by_rank(*locked) + "comm.Barrier()\nwin.Free()\n"


def windows() -> Iterator[Program]:
    """One-sided accesses: epochs, parameters, and accesses to the same memory."""
    for name, call in OPERATIONS.items():
        yield Program(f"rma-{name}", GLOBAL, True, _fenced([call], []))
        yield Program(f"rma-lock-{name}", GLOBAL, True, _locked("EXCLUSIVE", [call], []))
        yield Program(f"rma-no-epoch-{name}", REQUEST, False, WINDOW + by_rank([call], []) + "win.Free()\n")
        unclosed = WINDOW + "win.Fence()\n" + by_rank([call], []) + "win.Free()\n"
        yield Program(f"rma-no-fence-{name}", REQUEST, False, unclosed)
        unlocked = WINDOW + by_rank(["win.Lock(1)", call], []) + "comm.Barrier()\nwin.Free()\n"
        yield Program(f"rma-no-unlock-{name}", REQUEST, False, unlocked)
        missing = WINDOW + "win.Fence()\n" + by_rank([call, "win.Fence()"], []) + "win.Free()\n"
        yield Program(f"rma-fence-missing-{name}", CALL, False, missing)
        far = call.replace(", 1, 0", ", 9, 0")
        yield Program(f"rma-rank-{name}", INVALID, False, _fenced([far], []))
        for other_name, other in OPERATIONS.items():
            second = other.replace(", 1, 0", ", 1, 1").replace("(x", "(other").replace("(y", "(other")
            apart = other.replace(", 1, 0", ", 1, 4").replace("(x", "(other").replace("(y", "(other")
            is_atomic = name == other_name != "Put"
            yield Program(f"rma-{name}-{other_name}", GLOBAL, is_atomic, _fenced([call], [second]))
            yield Program(f"rma-apart-{name}-{other_name}", GLOBAL, True, _fenced([call], [apart]))
            if name <= other_name:
                yield Program(
                    f"rma-same-rank-{name}-{other_name}", GLOBAL, is_atomic, _fenced([call, second], [])
                )
                shared = _locked("SHARED", [call], [second])
                yield Program(f"rma-shared-{name}-{other_name}", GLOBAL, is_atomic, shared)
                exclusive = _locked("EXCLUSIVE", [call], [second])
                yield Program(f"rma-exclusive-{name}-{other_name}", GLOBAL, True, exclusive)
        for local_name, local in LOCAL_OPERATIONS.items():
            reads = name == "Get" and local_name == "load"
            blind = NOT_READ if local_name == "load" and not reads else ""
            yield Program(f"rma-{name}-{local_name}", GLOBAL, reads, _fenced([call], [local]), blind=blind)
            later = WINDOW + "win.Fence()\n" + by_rank([call], []) + "win.Fence()\n" + by_rank([], [local])
            yield Program(f"rma-{name}-then-{local_name}", GLOBAL, True, later + "win.Fence()\nwin.Free()\n")
    received = _fenced(
        ["win.Put(x, 1, 0)", "comm.Send(other, dest=1, tag=1)"], ["comm.Recv(mem[:4], source=0, tag=1)"]
    )
    yield Program("rma-Put-Recv", GLOBAL, False, received)
    yield Program("local-Put-write", LOCAL, False, _fenced(["win.Put(x, 1, 0)", "x[0] = 9"], []))
    yield Program(
        "local-Put-Recv",
        LOCAL,
        False,
        _fenced(["win.Put(x, 1, 0)", "comm.Recv(x, source=1, tag=1)"], ["comm.Send(y, dest=0, tag=1)"]),
    )
    yield Program("local-Get-write", LOCAL, False, _fenced(["win.Get(y, 1, 0)", "y[0] = 9"], []))
    yield Program(
        "local-Get-read", LOCAL, False, _fenced(["win.Get(y, 1, 0)", "s = y.sum()"], []), blind=NOT_READ
    )
    yield Program("local-Get-Get", LOCAL, False, _fenced(["win.Get(y, 1, 0)", "win.Get(y, 1, 4)"], []))
    yield Program(
        "local-Get-Get-right", LOCAL, True, _fenced(["win.Get(y[:2], 1, 0)", "win.Get(y[2:], 1, 4)"], [])
    )
    yield Program("local-Put-after", LOCAL, True, _fenced(["win.Put(x, 1, 0)"], []) + "x[0] = 9\n")
    for name, make in (
        ("Allocate", "MPI.Win.Allocate(32, 8, comm=comm)"),
        ("Create", "MPI.Win.Create(y, 8, comm=comm)"),
    ):
        yield Program(f"rma-{name}-missing", CALL, False, by_rank([f"win = {make}"], []))
    yield Program("rma-op-null", INVALID, False, _fenced(["win.Accumulate(x, 1, 0, MPI.OP_NULL)"], []))
    free = WINDOW + by_rank(["win.Free()"], [])
    yield Program("rma-Free-missing", CALL, False, free)
    size = _fenced(["win.Put(np.zeros(4, np.float32), 1, [0, 4, MPI.FLOAT])"], [])
    yield Program("rma-typed-right", PARAMETER, True, size)


def parts_of_windows() -> Iterator[Program]:
    """Accesses to parts of a window or of an array, and accesses that a flush has completed."""
    types = "every = MPI.DOUBLE.Create_vector(4, 1, 2).Commit()\n"
    third = "third = MPI.DOUBLE.Create_indexed([1], [2]).Commit()\n"
    for name in "Put", "Accumulate":
        call = f"win.{name}([x, 4, MPI.DOUBLE], 0, [rank, 1, every])"
        yield Program(
            f"rma-interleaved-{name}", GLOBAL, True, types + _fenced([call], [call]) + "every.Free()\n"
        )
    same_part = "win.Put([x, 4, MPI.DOUBLE], 0, [0, 1, every])"
    yield Program(
        "rma-interleaved-same", GLOBAL, False, types + _fenced([same_part], [same_part]) + "every.Free()\n"
    )
    parts = ["win.Get([y, (2, 0), MPI.DOUBLE], 1, 0)", "win.Get([y, 1, third], 1, [3, 1, MPI.DOUBLE])"]
    yield Program("local-Get-parts", LOCAL, True, third + _fenced(parts, []) + "third.Free()\n")
    again = [parts[1], "win.Get([y, (2, 1), MPI.DOUBLE], 1, 0)"]
    yield Program("local-Get-parts-same", LOCAL, False, third + _fenced(again, []) + "third.Free()\n")
    freed = ["third = MPI.DOUBLE.Create_indexed([1], [2]).Commit()", parts[1], "third.Free()"]
    yield Program("local-Get-freed-datatype", LOCAL, True, _fenced(freed, []))
    for flush in "Flush(1)", "Flush_local(1)", "Flush_all()", "Flush_local_all()":
        name = flush.partition("(")[0]
        lines = ["win.Get(y, 1, 0)", f"win.{flush}", "y[0] = 5", "win.Get(y, 1, 0)"]
        yield Program(f"local-Get-{name}", LOCAL, True, _locked("SHARED", lines, []))
    for flush, is_right in ("win.Flush(1)", True), ("pass", False):
        lines = ["win.Put(x, 1, 0)", flush, "win.Get(y, 1, 0)"]
        name = f"rma-Put-Get-{'flushed' if is_right else 'not-flushed'}"
        yield Program(name, GLOBAL, is_right, _locked("SHARED", lines, []))
        told = ["win.Lock_all()", "win.Put(x, 1, 0)", flush, "comm.Send(other, dest=1)", "win.Unlock_all()"]
        reads = ["win.Lock_all()", "comm.Recv(other, source=0)", "win.Get(y, 1, 0)", "win.Unlock_all()"]
        yield Program(f"{name}-told", GLOBAL, is_right, WINDOW + by_rank(told, reads) + "win.Free()\n")
    dynamic = "win = MPI.Win.Create_dynamic(comm=comm)\nwin.Attach(y)\n"
    dynamic += "at = comm.allgather(MPI.Get_address(y))\nwin.Fence()\nwin.Put(x, rank, at[rank])\n"
    yield Program("rma-dynamic", GLOBAL, True, dynamic + "win.Fence()\nwin.Detach(y)\nwin.Free()\n")


def programs() -> Iterator[Program]:
    """Return all other programs."""
    yield from parts_of_windows()
    yield from leaks()
    yield from invalid()
    yield from windows()
