"""Random programs in plain mpi4py: correct ones, and the same programs with one fault on one rank.

What the ranks of a program send depends on its seed, so a message of another program is a wrong result.
"""

# ruff: noqa: E501 (lines of the programs)

from __future__ import annotations

import random
import re
from collections.abc import Callable
from textwrap import indent

from tests.corpus.program import Program

MAKE = "dup, half = comm.Dup(), comm.Split(comm.rank % 2, comm.rank)\n"
FREE = "half.Free()\ndup.Free()\n"
HEAD = f"import sys, time\n{MAKE}"
TAIL = f"for c in (comm, dup, half):\n    c.Barrier()\n{FREE}"
FAULTS = (
    *("skips", "raises", "returns", "root", "operation", "tag", "no receive", "never sent", "order", "fence"),
    *("count", "dtype", "reduction", "circle"),
)
CIRCLE = re.compile(" in a circle| wait for messages from one another")
TESTING = "while not request.Test():\n    pass"
Step = Callable[[random.Random, str, int, int], str]


def collective(random_: random.Random, c: str, p: int, number: int) -> str:
    """A blocking collective of arrays."""
    n, root, kind = random_.choice((1, 7, 3000, 50_000)), random_.randrange(p), random_.choice("fdi")
    lines = [f"x = np.full({n}, SEED + {c}.rank + 1, '{kind}')", f"root = {root} % {c}.size"]
    op = random_.choice(
        ("Barrier", "Bcast", "Reduce", "Allreduce", "Gather", "Allgather", "Alltoall", "Scan")
    )
    if op == "Barrier":
        lines += [f"{c}.Barrier()"]
    elif op == "Bcast":
        lines += [f"{c}.Bcast(x, root=root)", "assert (x == SEED + root + 1).all()"]
    elif op == "Reduce":
        lines += ["y = np.zeros_like(x)", f"{c}.Reduce(x, y, op=MPI.SUM, root=root)"]
        lines += [f"assert {c}.rank != root or (y == {c}.size * (2 * SEED + {c}.size + 1) // 2).all()"]
    elif op == "Allreduce":
        lines += [f"{c}.Allreduce(MPI.IN_PLACE, x, op=MPI.MAX)", f"assert (x == SEED + {c}.size).all()"]
    elif op == "Gather":
        lines += [f"y = np.zeros(({c}.size, x.size), x.dtype)", f"{c}.Gather(x, y, root=root)"]
        lines += [f"assert {c}.rank != root or (y[:, 0] == SEED + np.arange({c}.size) + 1).all()"]
    elif op == "Allgather":
        lines += [f"y = np.zeros(({c}.size, x.size), x.dtype)", f"{c}.Allgather(x, y)"]
        lines += [f"assert (y[:, 0] == SEED + np.arange({c}.size) + 1).all()"]
    elif op == "Alltoall":
        lines += [f"y = np.zeros({c}.size * {n}, x.dtype)", f"{c}.Alltoall(np.tile(x, {c}.size), y)"]
        lines += ["assert y[0] == SEED + 1"]
    else:
        lines += [
            "y = np.zeros_like(x)",
            f"{c}.Scan(x, y)",
            f"assert y[0] == ({c}.rank + 1) * (2 * SEED + {c}.rank + 2) // 2",
        ]
    return "\n".join(lines)


def objects(random_: random.Random, c: str, p: int, number: int) -> str:
    """A collective of objects."""
    root = random_.randrange(p)
    return random_.choice(
        (
            f"root = {root} % {c}.size\nassert {c}.bcast((SEED, {c}.rank), root=root) == (SEED, root)",
            f"assert {c}.allreduce(SEED + {c}.rank) == {c}.size * (2 * SEED + {c}.size - 1) // 2",
            f"assert {c}.allgather([SEED] * 3)[0] == [SEED] * 3",
            f"root = {root} % {c}.size\nassert {c}.gather({c}.rank, root=root) in (None, list(range({c}.size)))",
            f"root = {root} % {c}.size\nassert {c}.scatter([7] * {c}.size, root=root) == 7",
        )
    )


def started(random_: random.Random, c: str, p: int, number: int) -> str:
    """A non-blocking collective."""
    return random_.choice(
        (
            f"x = np.full(1000, 1.0)\n{c}.Iallreduce(MPI.IN_PLACE, x).Wait()\nassert x[0] == {c}.size",
            f"{c}.Ibarrier().Wait()",
            f"x = np.full(500, {c}.rank)\nrequest = {c}.Ibcast(x, root=0)\n{TESTING}\nassert x[0] == 0",
        )
    )


def ring(random_: random.Random, c: str, p: int, number: int) -> str:
    """Messages to the next rank, in one of many forms."""
    n, tag = random_.choice((1, 500, 40_000)), 10 + number
    head = f"""x, y = np.full({n}, SEED + {c}.rank), np.empty({n}, int)
left, right = ({c}.rank - 1) % {c}.size, ({c}.rank + 1) % {c}.size
"""
    forms = (
        f"{c}.Sendrecv(x, right, {tag}, y, left, {tag})",
        f"requests = [{c}.Irecv(y, left, {tag}), {c}.Isend(x, right, {tag})]\nMPI.Request.Waitall(requests)",
        f"request = {c}.Isend(x, right, {tag})\n{c}.Recv(y, source=left, tag={tag})\nrequest.Wait()",
        f"request = {c}.Irecv(y, left, {tag})\n{c}.Send(x, right, {tag})\nrequest.Wait()",
        f"request = {c}.isend(x, right, {tag})\ny = {c}.recv(source=left, tag={tag})\nrequest.wait()",
        f"request = {c}.Isend(x, right, {tag})\n{c}.Probe(left, {tag})\n{c}.Recv(y, left, {tag})\nrequest.wait()",
        f"requests = [{c}.Send_init(x, right, {tag}), {c}.Recv_init(y, left, {tag})]\n"
        "MPI.Prequest.Startall(requests)\nMPI.Request.Waitall(requests)\nfor each in requests:\n    each.Free()",
        f"requests = [{c}.Irecv(y, left, {tag}), {c}.Isend(x, right, {tag})]\n"
        "while MPI.Request.Waitany(requests) != MPI.UNDEFINED:\n    pass",
    )
    return f"{head}{random_.choice(forms)}\nassert (y == SEED + left).all()"


def messages(random_: random.Random, c: str, p: int, number: int) -> str:
    """Blocking messages: in a safe order, many small ones, from any rank, or along a chain with a late start."""
    n, tag = random_.choice((1, 1000, 50_000, 1_000_000)), 10 + number
    head = f"""x, y = np.full({n}, SEED + {c}.rank), np.empty({n}, int)
left, right = ({c}.rank - 1) % {c}.size, ({c}.rank + 1) % {c}.size
"""
    forms = (
        f"""if {c}.size > 1 and {c}.rank % 2 == 0:
    {c}.Send(x, right, {tag}); {c}.Recv(y, left, {tag})
elif {c}.size > 1:
    {c}.Recv(y, left, {tag}); {c}.Ssend(x, right, {tag})
assert {c}.size == 1 or (y == SEED + left).all()""",
        f"""if {c}.size > 1:  # MPICH does not buffer a message that a rank sends to itself
    for _ in range(30):
        {c}.Send(np.zeros(8), right, {tag})
    {c}.send("last", right, {tag + 100})
    assert {c}.recv(source=left, tag={tag + 100}) == "last"
    for _ in range(30):
        {c}.Recv(np.empty(8), left, {tag})""",
        f"""if {c}.rank == 0:
    got = [{c}.recv(source=MPI.ANY_SOURCE, tag={tag})[0] for _ in range({c}.size - 1)]
    assert sorted(got) == list(range(SEED + 1, SEED + {c}.size))
else:
    {c}.send(x, 0, {tag})""",
        f"""if {c}.rank == 0:
    time.sleep({random_.random() / 2:.2f})
else:
    {c}.Recv(y, {c}.rank - 1, {tag})
if {c}.rank < {c}.size - 1:
    {c}.Ssend(x, {c}.rank + 1, {tag})""",
    )
    return f"{head}{random_.choice(forms)}"


def window(random_: random.Random, c: str, p: int, number: int) -> str:
    """One-sided communication."""
    head = f"right = ({c}.rank + 1) % {c}.size\nwindow = MPI.Win.Allocate(8, comm={c})\n"
    head += "local = np.frombuffer(window, int)\nlocal[:] = -1\n"
    put = "window.Fence()\nwindow.Put(np.array([RANK]), right)\nwindow.Fence()\n".replace("RANK", f"{c}.rank")
    lock = (
        f"{c}.Barrier()\nwindow.Lock(right)\nwindow.Put(np.array([{c}.rank]), right)\nwindow.Unlock(right)\n"
    )
    lock += f"{c}.Barrier()\n"
    return (
        head
        + random_.choice((put, lock))
        + f"assert local[0] in (-1, ({c}.rank - 1) % {c}.size)\nwindow.Free()"
    )


def split(random_: random.Random, c: str, p: int, number: int) -> str:
    """A communicator that is made, used and freed."""
    return random_.choice(
        (
            f"part = {c}.Split({c}.rank // 2)\npart.Barrier()\npart.Free()",
            f"grid = {c}.Create_cart([{c}.size], periods=[True])\nassert grid.allreduce(1) == {c}.size\ngrid.Free()",
            f"part = {c}.Dup()\npart.Barrier()\npart.Free()",
        )
    )


def slow(random_: random.Random, c: str, p: int, number: int) -> str:
    """A rank that computes, or sleeps, for three deadlines."""
    how = random_.choice(
        ("end = time.monotonic() + SLOW\n    while time.monotonic() < end:\n        pass", "time.sleep(SLOW)")
    )
    return f"if rank == {random_.randrange(p)}:\n    {how}"


STEPS: tuple[Step, ...] = (collective, collective, objects, started, ring, messages, window, split)


def steps_of(random_: random.Random, p: int, is_slow: bool) -> list[str]:
    """Return the steps of a program."""
    steps = []
    for number in range(random_.randrange(3, 8)):
        steps.append(random_.choice(STEPS)(random_, random_.choice(("comm", "dup", "half")), p, number))
    if is_slow:
        steps.insert(random_.randrange(len(steps)), slow(random_, "comm", p, 0))
    return steps


def only_others(culprit: int, step: str, instead: str = "pass") -> str:
    return f"if rank != {culprit}:\n{indent(step, '    ')}\nelse:\n{indent(instead, '    ')}"


def faulty(random_: random.Random, p: int, kind: str) -> tuple[int, str]:  # noqa: PLR0912
    """Return the rank at fault and the step with the fault."""
    culprit, root = random_.randrange(p), random_.randrange(p)
    c = random_.choice(("comm", "dup"))
    if kind == "skips":
        step = random_.choice((collective, started, split, ring))(random_, c, p, 90)
        # If a rank skips a non-blocking broadcast that no other rank waits for, the program does not hang.
        text = only_others(
            culprit,
            step.replace(TESTING, "request.Wait()")
            .replace("Ibcast(x, root=0)", "Ibarrier()")
            .replace("assert x[0] == 0", "pass"),
        )
    elif kind == "raises":
        text = f"if rank == {culprit}:\n    {{}}['missing']\n{collective(random_, c, p, 90)}\n{c}.Barrier()"
    elif kind == "returns":
        text = f"if rank == {culprit}:\n    sys.exit({random_.choice(('', 3))})\n{c}.Barrier()"
    elif kind == "root":
        call = random_.choice(
            ("Bcast(np.ones(9), ROOT)", "bcast(rank, ROOT)", "Reduce(np.ones(9), np.ones(9), MPI.SUM, ROOT)")
        )
        call = f"{c}.{call}".replace("ROOT", f"{root} if rank != {culprit} else {(root + 1) % p}")
        text = f"{call}\n{c}.Barrier()"
    elif kind == "operation":
        first, second = random_.sample(
            ("Barrier()", "allreduce(1)", "Allreduce(MPI.IN_PLACE, np.ones(5))", "allgather(1)"), 2
        )
        text = only_others(culprit, f"{c}.{first}", f"{c}.{second}")
    elif kind == "tag":
        call = random_.choice(
            (
                "Recv(np.empty(3), left, 5)",
                "recv(source=left, tag=5)",
                "Irecv(np.empty(3), left, 5).Wait()",
                "Probe(left, 5)",
            )
        )
        text = f"left, right = (rank - 1) % size, (rank + 1) % size\nrequest = {c}.Isend(np.ones(3), right, 5 + (rank == {culprit}))\n"
        text += f"{c}.{call}\nrequest.Wait()"
        if "recv(s" in call:
            text = text.replace(f"{c}.Isend(np.ones(3)", f"{c}.isend(1")
    elif kind == "no receive":
        call = random_.choice(
            (
                "Ssend(np.ones(4), right, 6)",
                "Issend(np.ones(4), right, 6).Wait()",
                "Send(np.ones(900_000), right, 6)",
                "ssend(1, right, 6)",
            )
        )
        text = f"right = {culprit}\nif rank == {(culprit + 1) % p}:\n    {c}.{call}\n"
    elif kind == "never sent":
        wait = random_.choice(
            (
                f"MPI.Request.Waitall([{c}.Irecv(np.empty(3), {(culprit + 1) % p}, 77)])",
                f"{c}.Probe(source={(culprit + 1) % p}, tag=77)",
                f"MPI.Request.Waitany([{c}.Irecv(np.empty(3), tag=77)])",
                f"{c}.recv(tag=77)",
            )
        )
        text = f"if rank == {culprit}:\n    {wait}\n{c}.Barrier()"
    elif kind == "order":
        text = only_others(culprit, "comm.Barrier()\ndup.Barrier()", "dup.Barrier()\ncomm.Barrier()")
    elif kind in ("count", "dtype", "reduction"):
        values = {
            "count": f"np.ones(9 + (rank == {culprit}))",
            "dtype": f"np.ones(9, 'fd'[rank == {culprit}])",
        }
        op = f"MPI.SUM if rank != {culprit} else MPI.MAX" if kind == "reduction" else "MPI.SUM"
        text = f"x = {values.get(kind, 'np.ones(9)')}\n{c}.{random_.choice(('Allreduce', 'Scan'))}(x, x.copy(), {op})"
    elif kind == "circle":
        members = random_.sample(range(p), random_.randrange(2, p + 1))
        culprit = members[0]
        calls = [f"{c}.Recv(np.empty(1), peer, 8)", f"{c}.Send(np.zeros(1 << 17), peer, 8)"]
        if len(members) > 2:  # with two ranks, it would be a message
            calls += [f"{c}.ssend(0, peer, 8) if place % 2 else {c}.recv(source=peer, tag=8)"]
        if len(members) == p:
            calls += [f"{c}.Probe(tag=8)"]
        call = random_.choice(calls)
        text = f"members = {members}\nif rank in members:\n    place = members.index(rank)\n"
        text += f"    peer = members[place - 1]\n    {call}"
    else:
        text = f"window = MPI.Win.Allocate(8, comm={c})\nwindow.Fence()\n{only_others(culprit, 'window.Fence()')}\n{c}.Barrier()\nwindow.Free()"
    return culprit, text


def programs(seed: int, p: int, deadline_s: float, fault: str = "") -> tuple[Program, Program, int]:
    """Return a correct program for p ranks, the same program with a fault, and the rank at fault.

    By default, the fault is one of FAULTS. A `fault` that is given is code of all ranks.
    """
    random_ = random.Random(seed)
    steps = steps_of(random_, p, seed % 10 == 0)
    head = f"{HEAD}SEED, SLOW = {1000 * seed}, {3 * deadline_s}\n"
    right = "\n".join([*steps, TAIL])
    kind = FAULTS[seed % len(FAULTS)]
    culprit, step = (0, fault) if fault else faulty(random_, p, kind)
    # Last, so that no rank is stuck inside MPI when the circle is reported.
    place = len(steps) if kind == "circle" else random_.randrange(len(steps) + 1)
    steps.insert(place, step)
    # A rank that tests in a loop looks like a rank that computes, so the others wait for it.
    wrong = "\n".join([*steps, TAIL]).replace(TESTING, "request.Wait()")
    return (
        Program(f"{seed}", "random", True, head + right, p),
        Program(f"{seed}-{kind}", "random", False, head + wrong, p),
        culprit,
    )


def is_named(culprit: int, said: str) -> bool:
    """Return whether a report has a line for this rank alone, or says that a rank waits for it."""
    return re.search(rf"^  rank {culprit} |(from|to) rank {culprit}\b", said, re.MULTILINE) is not None
