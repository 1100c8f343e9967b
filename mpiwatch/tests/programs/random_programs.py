"""Random programs in plain mpi4py: correct ones, and the same programs with one fault on one rank.

What the ranks of a program send depends on its seed, so a message of another program is a wrong result.
"""

# ruff: noqa: E501 (lines of the programs)

from __future__ import annotations

import random
import re
from collections.abc import Callable
from textwrap import indent

from corpus.program import Program

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

# In the texts of steps, C is a communicator, which is put in later.

# Blocking collectives of arrays, and what is true after each.
COLLECTIVES = (
    ("Barrier()", "True"),
    ("Bcast(x, root=root)", "(x == SEED + root + 1).all()"),
    (
        "Reduce(x, y, op=MPI.SUM, root=root)",
        "C.rank != root or (y == C.size * (2 * SEED + C.size + 1) // 2).all()",
    ),
    ("Allreduce(MPI.IN_PLACE, x, op=MPI.MAX)", "(x == SEED + C.size).all()"),
    ("Gather(x, z, root=root)", "C.rank != root or (z[:, 0] == SEED + np.arange(C.size) + 1).all()"),
    ("Allgather(x, z)", "(z[:, 0] == SEED + np.arange(C.size) + 1).all()"),
    ("Alltoall(np.tile(x, C.size), z)", "z[0, 0] == SEED + 1"),
    ("Scan(x, y)", "y[0] == (C.rank + 1) * (2 * SEED + C.rank + 2) // 2"),
)
OBJECTS = (
    "assert C.bcast((SEED, C.rank), root=root) == (SEED, root)",
    "assert C.allreduce(SEED + C.rank) == C.size * (2 * SEED + C.size - 1) // 2",
    "assert C.allgather([SEED] * 3)[0] == [SEED] * 3",
    "assert C.gather(C.rank, root=root) in (None, list(range(C.size)))",
    "assert C.scatter([7] * C.size, root=root) == 7",
)
STARTED = (
    "x = np.full(1000, 1.0)\nC.Iallreduce(MPI.IN_PLACE, x).Wait()\nassert x[0] == C.size",
    "C.Ibarrier().Wait()",
    f"x = np.full(500, C.rank)\nrequest = C.Ibcast(x, root=0)\n{TESTING}\nassert x[0] == 0",
)
ENDS = "x, y = np.full(n, SEED + C.rank), np.empty(n, int)\nleft, right = (C.rank - 1) % C.size, (C.rank + 1) % C.size\n"
# Messages to the next rank.
RINGS = (
    "C.Sendrecv(x, right, tag, y, left, tag)",
    "MPI.Request.Waitall([C.Irecv(y, left, tag), C.Isend(x, right, tag)])",
    "request = C.Isend(x, right, tag)\nC.Recv(y, source=left, tag=tag)\nrequest.Wait()",
    "request = C.Irecv(y, left, tag)\nC.Send(x, right, tag)\nrequest.Wait()",
    "request = C.isend(x, right, tag)\ny = C.recv(source=left, tag=tag)\nrequest.wait()",
    "request = C.Isend(x, right, tag)\nC.Probe(left, tag)\nC.Recv(y, left, tag)\nrequest.wait()",
    "requests = [C.Send_init(x, right, tag), C.Recv_init(y, left, tag)]\n"
    "MPI.Prequest.Startall(requests)\nMPI.Request.Waitall(requests)\nfor each in requests:\n    each.Free()",
    "requests = [C.Irecv(y, left, tag), C.Isend(x, right, tag)]\n"
    "while MPI.Request.Waitany(requests) != MPI.UNDEFINED:\n    pass",
)
# Blocking messages: in a safe order, many small ones, from any rank, or along a chain with a late start.
MESSAGES = (
    """if C.size > 1 and C.rank % 2 == 0:
    C.Send(x, right, tag); C.Recv(y, left, tag)
elif C.size > 1:
    C.Recv(y, left, tag); C.Ssend(x, right, tag)
assert C.size == 1 or (y == SEED + left).all()""",
    """if C.size > 1:  # MPICH does not buffer a message that a rank sends to itself
    for _ in range(30):
        C.Send(np.zeros(8), right, tag)
    C.send("last", right, tag + 100)
    assert C.recv(source=left, tag=tag + 100) == "last"
    for _ in range(30):
        C.Recv(np.empty(8), left, tag)""",
    """if C.rank == 0:
    got = [C.recv(source=MPI.ANY_SOURCE, tag=tag)[0] for _ in range(C.size - 1)]
    assert sorted(got) == list(range(SEED + 1, SEED + C.size))
else:
    C.send(x, 0, tag)""",
    """if C.rank == 0:
    time.sleep(late)
else:
    C.Recv(y, C.rank - 1, tag)
if C.rank < C.size - 1:
    C.Ssend(x, C.rank + 1, tag)""",
)
WINDOWS = (
    "window.Fence()\nwindow.Put(np.array([C.rank]), right)\nwindow.Fence()\n",
    "C.Barrier()\nwindow.Lock(right)\nwindow.Put(np.array([C.rank]), right)\nwindow.Unlock(right)\nC.Barrier()\n",
)
# A communicator that is made, used and freed.
SPLITS = (
    "part = C.Split(C.rank // 2)\npart.Barrier()\npart.Free()",
    "grid = C.Create_cart([C.size], periods=[True])\nassert grid.allreduce(1) == C.size\ngrid.Free()",
    "part = C.Dup()\npart.Barrier()\npart.Free()",
)
Step = Callable[[random.Random, int], str]


def collective(random_: random.Random, number: int) -> str:
    n, root, kind = random_.choice((1, 7, 3000, 50_000)), random_.randrange(60), random_.choice("fdi")
    call, expected = random_.choice(COLLECTIVES)
    return f"""x = np.full({n}, SEED + C.rank + 1, '{kind}')
y, z, root = np.zeros_like(x), np.zeros((C.size, x.size), x.dtype), {root} % C.size
C.{call}
assert {expected}"""


def objects(random_: random.Random, number: int) -> str:
    return f"root = {random_.randrange(60)} % C.size\n{random_.choice(OBJECTS)}"


def started(random_: random.Random, number: int) -> str:
    return random_.choice(STARTED)


def ring(random_: random.Random, number: int) -> str:
    n = random_.choice((1, 500, 40_000))
    return f"n, tag = {n}, {10 + number}\n{ENDS}{random_.choice(RINGS)}\nassert (y == SEED + left).all()"


def messages(random_: random.Random, number: int) -> str:
    n, late = random_.choice((1, 1000, 50_000, 1_000_000)), random_.random() / 2
    return f"n, tag, late = {n}, {10 + number}, {late:.2f}\n{ENDS}{random_.choice(MESSAGES)}"


def window(random_: random.Random, number: int) -> str:
    return f"""right = (C.rank + 1) % C.size
window = MPI.Win.Allocate(8, comm=C)
local = np.frombuffer(window, int)
local[:] = -1
{random_.choice(WINDOWS)}assert local[0] in (-1, (C.rank - 1) % C.size)
window.Free()"""


def split(random_: random.Random, number: int) -> str:
    return random_.choice(SPLITS)


def slow(random_: random.Random, p: int) -> str:
    """A rank that computes, or sleeps, for three deadlines."""
    busy = "end = time.monotonic() + SLOW\n    while time.monotonic() < end:\n        pass"
    return f"if rank == {random_.randrange(p)}:\n    {random_.choice((busy, 'time.sleep(SLOW)'))}"


STEPS: tuple[Step, ...] = (collective, collective, objects, started, ring, messages, window, split)


def on(communicator: str, step: str) -> str:
    """Return a step on a communicator."""
    return re.sub(r"\bC\b", communicator, step)


def steps_of(random_: random.Random, p: int, is_slow: bool) -> list[str]:
    """Return the steps of a program."""
    steps = [
        on(random_.choice(("comm", "dup", "half")), random_.choice(STEPS)(random_, number))
        for number in range(random_.randrange(3, 8))
    ]
    if is_slow:
        steps.insert(random_.randrange(len(steps)), slow(random_, p))
    return steps


def only_others(culprit: int, step: str, instead: str = "pass") -> str:
    return f"if rank != {culprit}:\n{indent(step, '    ')}\nelse:\n{indent(instead, '    ')}"


# Calls in which one rank's argument, or its whole call, is another one.
ROOTS = "Bcast(np.ones(9), ROOT)", "bcast(rank, ROOT)", "Reduce(np.ones(9), np.ones(9), MPI.SUM, ROOT)"
OPERATIONS = "Barrier()", "allreduce(1)", "Allreduce(MPI.IN_PLACE, np.ones(5))", "allgather(1)"
TAGGED = (
    "Recv(np.empty(3), left, 5)",
    "recv(source=left, tag=5)",
    "Irecv(np.empty(3), left, 5).Wait()",
    "Probe(left, 5)",
)
SENDS = (
    *("Ssend(np.ones(4), right, 6)", "Issend(np.ones(4), right, 6).Wait()"),
    *("Send(np.ones(900_000), right, 6)", "ssend(1, right, 6)"),
)
WAITS = (
    *("MPI.Request.Waitall([C.Irecv(np.empty(3), next_, 77)])", "C.Probe(source=next_, tag=77)"),
    *("MPI.Request.Waitany([C.Irecv(np.empty(3), tag=77)])", "C.recv(tag=77)"),
)


def faulty(random_: random.Random, p: int, kind: str) -> tuple[int, str]:  # noqa: PLR0912
    """Return the rank at fault and the step with the fault."""
    culprit, root = random_.randrange(p), random_.randrange(p)
    c = random_.choice(("comm", "dup"))
    if kind == "skips":
        # If a rank skips a non-blocking broadcast that no other rank waits for, the program does not hang.
        step = random_.choice((collective, started, split, ring))(random_, 90).replace(
            TESTING, "request.Wait()"
        )
        step = step.replace("Ibcast(x, root=0)", "Ibarrier()").replace("assert x[0] == 0", "pass")
        text = only_others(culprit, step)
    elif kind == "raises":
        text = f"if rank == {culprit}:\n    {{}}['missing']\n{collective(random_, 90)}\nC.Barrier()"
    elif kind == "returns":
        text = f"if rank == {culprit}:\n    sys.exit({random_.choice(('', 3))})\nC.Barrier()"
    elif kind == "root":
        roots = f"{root} if rank != {culprit} else {(root + 1) % p}"
        text = f"C.{random_.choice(ROOTS).replace('ROOT', roots)}\nC.Barrier()"
    elif kind == "operation":
        first, second = random_.sample(OPERATIONS, 2)
        text = only_others(culprit, f"C.{first}", f"C.{second}")
    elif kind == "tag":
        call = random_.choice(TAGGED)
        sent = "isend(1" if "recv(s" in call else "Isend(np.ones(3)"
        text = f"left, right = (rank - 1) % size, (rank + 1) % size\nrequest = C.{sent}, right, 5 + (rank == {culprit}))\n"
        text += f"C.{call}\nrequest.Wait()"
    elif kind == "no receive":
        text = f"right = {culprit}\nif rank == {(culprit + 1) % p}:\n    C.{random_.choice(SENDS)}\n"
    elif kind == "never sent":
        text = f"next_ = {(culprit + 1) % p}\nif rank == {culprit}:\n    {random_.choice(WAITS)}\nC.Barrier()"
    elif kind == "order":
        text = only_others(culprit, "comm.Barrier()\ndup.Barrier()", "dup.Barrier()\ncomm.Barrier()")
    elif kind in ("count", "dtype", "reduction"):
        values = {
            "count": f"9 + (rank == {culprit})",
            "dtype": f"9, 'fd'[rank == {culprit}]",
            "reduction": "9",
        }[kind]
        op = f"MPI.SUM if rank != {culprit} else MPI.MAX" if kind == "reduction" else "MPI.SUM"
        text = f"x = np.ones({values})\nC.{random_.choice(('Allreduce', 'Scan'))}(x, x.copy(), {op})"
    elif kind == "circle":
        members = random_.sample(range(p), random_.randrange(2, p + 1))
        culprit = members[0]
        calls = ["C.Recv(np.empty(1), peer, 8)", "C.Send(np.zeros(1 << 17), peer, 8)"]
        if len(members) > 2:  # with two ranks, it would be a message
            calls += ["C.ssend(0, peer, 8) if place % 2 else C.recv(source=peer, tag=8)"]
        if len(members) == p:
            calls += ["C.Probe(tag=8)"]
        text = f"members = {members}\nif rank in members:\n    place = members.index(rank)\n"
        text += f"    peer = members[place - 1]\n    {random_.choice(calls)}"
    else:
        fence = only_others(culprit, "window.Fence()")
        text = f"window = MPI.Win.Allocate(8, comm=C)\nwindow.Fence()\n{fence}\nC.Barrier()\nwindow.Free()"
    return culprit, on(c, text)


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
