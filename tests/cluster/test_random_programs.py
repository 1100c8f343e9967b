"""After any program that fails at any call, a correct one in the same session gives the right results."""

from __future__ import annotations

import random
from pathlib import Path
from textwrap import indent

import pytest

from programs.random_programs import programs
from tests.cluster.shared import kernel, world
from tests.cluster_fixtures import Kernel, by_rank, wait_until
from tests.conftest import thorough

__all__ = ["kernel", "world"]
RANKS, DEADLINE_S = 4, 1.5
CONNECT = f"from labkit.cluster import connect\nrc = connect({RANKS}, deadline_s={DEADLINE_S})"
LEFT = "left_behind = comm.isend('left', (rank + 1) % size, 10)\n"  # a tag of the first step
ASLEEP = "if rank {}:\n    open({!r}, 'w').close()\n    time.sleep(600)"
# Faults on one rank or on all, and by the user; an empty text stands for one of the random program's own.
RAISES, RAISES_ON_ONE = LEFT + "1 / 0", LEFT + "if rank == 1:\n    1 / 0"
KILLED = "import os\nif rank == 1:\n    os.kill(os.getpid(), 9)"
RARE = 0.03  # is killed: new engines take a while


def start(kernel: Kernel) -> None:
    said = kernel.run(CONNECT)
    assert f"{RANKS} ranks" in said, said


def a_program(seed: int, number: int, fault: str = "") -> str:
    """Return the correct program (0) of a seed or the faulty one (1)."""
    return programs(seed, RANKS, DEADLINE_S, fault)[number].source


def fail_then_succeed(kernel: Kernel, seed: int, folder: Path) -> str:
    """Run a faulty program, then a correct one; return what was wrong, if anything."""
    draw, mark = random.Random(seed), folder / f"{seed}"
    asleep = [ASLEEP.format("== 2", str(mark)), LEFT + ASLEEP.format(">= 0", str(mark))]
    fault = draw.choice(["", "", RAISES, RAISES_ON_ONE, *asleep]) if draw.random() > RARE else KILLED
    body = a_program(seed, 1, fault)
    if draw.random() < 0.2:  # the program does something else after its error, and raises another one
        body = f"try:\n{indent(body, '    ')}\nfinally:\n    1 / 0"
    message = kernel.start(f"%%px\n{body}")
    if fault in asleep:
        wait_until(mark.exists, "a rank has reached its fault")
        kernel.manager.interrupt_kernel()
    said = kernel.finish(message)
    if "RankDied" in said or "engines were ended" in said:
        start(kernel)
    right = a_program(1000 + seed, 0)
    after = kernel.run(f"%%px\n{right}\nprint('right')")
    return (
        "" if by_rank(after).count("right\n") == RANKS else f"seed {seed}:\n{body}\n{said}\n{right}\n{after}"
    )


@pytest.mark.clusters
@pytest.mark.parametrize("number", [6, thorough(200)])
def test_a_correct_program_after_a_random_fault_is_right(kernel: Kernel, number: int, tmp_path: Path) -> None:
    start(kernel)
    assert [wrong for seed in range(number) if (wrong := fail_then_succeed(kernel, seed, tmp_path))] == []
