"""After any program that fails at any call, a correct one in the same session gives the right results."""

from __future__ import annotations

import os
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.shared import kernel, world
from tests.cluster_fixtures import Kernel, wait_until
from tests.conftest import thorough

__all__ = ["kernel", "world"]
RANKS = 4
CONNECT = f"from labkit.cluster import connect\nrc = connect({RANKS}, deadline_s=1.5)"
SETUP = (
    "%%px\nfrom mpi4py import MPI\nimport os, time\nright, left = (rank + 1) % size, (rank - 1) % size\n"
    "half = comm.Split(rank // 2)\nline = comm.Create_cart([size], [True])\n"
)
FAULTS = (
    *("raise", "raise everywhere", "missing", "wrong tag", "wrong source", "interrupt", "interrupt all"),
    *("caught and raised", "exit"),
)
RARE_FAULT, RARE = "kill", 0.03  # new engines take a while


class Step(NamedTuple):
    """A call or two, in which each rank makes `result`; `expected` returns it for a rank."""

    code: str
    expected: Callable[[int], float]


def a_step(draw: random.Random, value: int) -> Step:
    """Return a random step with values that no other step has."""
    n = draw.choice([1, 7, 1000, 40_000])
    tag = draw.choice([0, 0, 1, 5])
    root, other = draw.sample(range(RANKS), 2)
    name = draw.choice(["comm", "comm", "comm", "line", "half"])
    mine = f"{value} + {name}.rank"

    def from_left(rank: int) -> float:
        in_half = name == "half"
        return value + ((rank % 2 - 1) % 2 if in_half else (rank - 1) % RANKS)

    def total(rank: int) -> float:
        size = 2 if name == "half" else RANKS
        return size * value + size * (size - 1) / 2

    near = f"dest=({name}.rank + 1) % {name}.size, tag={tag}"
    far = f"source=({name}.rank - 1) % {name}.size, tag={tag}"
    new = f"x, y = np.full({n}, float({mine})), np.zeros({n})"
    first = "result = float(y[-1])"
    return draw.choice(
        [
            Step(f"{new}\nr = {name}.Isend(x, {near})\n{name}.Recv(y, {far})\nr.Wait()\n{first}", from_left),
            Step(f"{new}\nr = {name}.Irecv(y, {far})\n{name}.Send(x, {near})\nr.Wait()\n{first}", from_left),
            Step(f"r = {name}.isend({mine}, {near})\nresult = {name}.recv({far})\nr.wait()", from_left),
            Step(
                f"{new}\nrs = [{name}.Irecv(y, {far}), {name}.Isend(x, {near})]\n"
                f"MPI.Request.Waitall(rs)\n{first}",
                from_left,
            ),
            Step(
                f"{new}\n{name}.Sendrecv(x, {near.replace('tag', 'sendtag')}, recvbuf=y, "
                f"{far.replace('tag', 'recvtag')})\n{first}",
                from_left,
            ),
            Step(
                f"result = {name}.sendrecv({mine}, {near.replace('tag', 'sendtag')}, "
                f"{far.replace('tag', 'recvtag')})",
                from_left,
            ),
            Step(
                f"r = {name}.isend({mine}, {near})\n{name}.probe({far})\n"
                f"result = {name}.recv({far})\nr.wait()",
                from_left,
            ),
            Step(
                f"result = 0\nif rank == {root}:\n    comm.send([{value}] * {n}, dest={other}, tag={tag})\n"
                f"if rank == {other}:\n    result = comm.recv(source={root}, tag={tag})[-1]",
                lambda rank: value if rank == other else 0,
            ),
            Step(
                f"if rank != {root}:\n    comm.send({value} + rank, dest={root}, tag={tag})\nresult = 0\n"
                f"if rank == {root}:\n    result = sum(comm.recv(tag={tag}) for _ in range(size - 1))\n"
                "comm.Barrier()",  # the next step may receive from any rank, too
                lambda rank: (3 * value + 6 - root) if rank == root else 0,
            ),
            Step(f"result = {name}.allreduce({mine})", total),
            Step(f"{new}\n{name}.Allreduce(x, y)\n{first}", total),
            Step(f"{new}\n{name}.Iallreduce(x, y).Wait()\n{first}", total),
            Step(f"result = {name}.bcast({mine}, root=1)", lambda rank: value + 1),
            Step(f"{new}\n{name}.Bcast(x, root=0)\nresult = float(x[-1])", lambda rank: value),
            Step(f"result = sum({name}.allgather({mine}))", total),
            Step(f"{name}.Barrier()\nresult = 0", lambda rank: 0),
        ]
    )


def a_program(draw: random.Random, base: int) -> list[Step]:
    """Return a random program."""
    return [a_step(draw, base + 100 * i) for i in range(draw.randint(2, 8))]


def cell_of(
    steps: list[Step], before: dict[int, str] | None = None, only: dict[int, str] | None = None
) -> str:
    """Return a program as a cell. `before`: code that runs before a step; `only`: the condition of a step."""
    lines = ["%%px", "found = []"]
    for i, step in enumerate(steps):
        lines += [(before or {}).get(i, "")]
        code = f"{step.code}\nfound.append(result)"
        if only and i in only:
            code = f"if {only[i]}:\n    " + code.replace("\n", "\n    ")
        lines.append(code)
    return "\n".join([*lines, "print('found', found)"])


def faulty(  # noqa: PLR0911
    draw: random.Random, steps: list[Step], mark: Path
) -> tuple[str, str]:
    """Return the kind of a random fault, and the program with it as a cell. `mark`: a file to create."""
    kind = RARE_FAULT if draw.random() < RARE else draw.choice(FAULTS)
    at, rank = draw.randrange(len(steps)), draw.randrange(RANKS)
    step = steps[at]
    where = f"if rank == {rank}:"
    sleeping = f"    open({str(mark)!r}, 'w').close()\n    time.sleep(600)"
    match kind:
        case "raise":
            return kind, cell_of(steps, {at: f"{where}\n    1 / 0"})
        case "raise everywhere":
            return kind, cell_of(steps, {at: "1 / 0"})
        case "caught and raised":
            doubled = f"try:\n    {step.code}\nfinally:\n    1 / 0".replace("\n", "\n    ", 1)
            return kind, cell_of(
                steps, {at: f"comm.isend('left', right, 0)\n{where}\n    1 / 0", at + 1: doubled}
            )
        case "exit":
            return kind, cell_of(
                steps, {at: f"comm.Isend(np.full(9000, -1.0), left, 1)\n{where}\n    raise SystemExit"}
            )
        case "missing":
            return kind, cell_of(steps, only={at: f"rank != {rank}"})
        case "wrong tag":
            wrong = step.code.replace("tag=", f"tag=(rank == {rank}) * 3 + ")
            return kind, cell_of([*steps[:at], Step(wrong, step.expected), *steps[at + 1 :]])
        case "wrong source":
            wrong = step.code.replace("source=(", f"source=(2 * (rank == {rank}) + ")
            return kind, cell_of([*steps[:at], Step(wrong, step.expected), *steps[at + 1 :]])
        case "interrupt":
            return kind, cell_of(steps, {at: f"{where}\n{sleeping}"})
        case "interrupt all":
            return kind, cell_of(steps, {at: f"comm.isend('left', right, 0)\nif True:\n{sleeping}"})
        case _:
            return kind, cell_of(steps, {at: f"{where}\n    os.kill(os.getpid(), 9)"})


def start(kernel: Kernel) -> None:
    """Connect, and define what the programs use."""
    said = kernel.run(CONNECT)
    assert f"{RANKS} ranks" in said, said
    kernel.run(SETUP)


def fail_then_succeed(kernel: Kernel, seed: int) -> tuple[str, str]:
    """Run a faulty program, then a correct one; return the kind of fault, and what was wrong, if anything."""
    draw = random.Random(seed)
    mark = Path(tempfile.gettempdir()) / f"labkit-random-{os.getpid()}-{seed}"
    kind, cell = faulty(draw, a_program(draw, 10_000 + 7 * (seed % 100)), mark)
    message = kernel.start(cell)
    if kind.startswith("interrupt"):
        wait_until(mark.exists, "the rank has reached its fault")
        kernel.manager.interrupt_kernel()
    said = kernel.finish(message)
    mark.unlink(missing_ok=True)
    if "RankDied" in said or "engines were ended" in said:
        kind += ", new engines" * (kind != RARE_FAULT)
        start(kernel)
    steps = a_program(draw, 50_000_000 + 13 * seed)
    after = kernel.run(cell_of(steps))
    found = dict(re.findall(r"^\[stdout:(\d)\] found (.*)$", after, re.MULTILINE))
    expected = {str(rank): str([float(step.expected(rank)) for step in steps]) for rank in range(RANKS)}
    got = {rank: str([float(each) for each in eval(text)]) for rank, text in found.items()}
    wrong = (
        ""
        if got == expected
        else f"seed {seed}, {kind}:\n{cell}\n{said}\n{cell_of(steps)}\n{after}\n{expected}"
    )
    return kind, wrong


@pytest.mark.clusters
@pytest.mark.parametrize("number", [6, thorough(200)])
def test_a_correct_program_after_a_random_fault_is_right(kernel: Kernel, number: int) -> None:
    start(kernel)
    assert [wrong for seed in range(number) if (wrong := fail_then_succeed(kernel, seed)[1])] == []
