"""Run checks on ranks, and go on with the others when one leaves the ranks stuck. See run_checks.py."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jobs import kill_tree, started

PROGRAM = Path(__file__).with_name("run_checks.py")
DEADLINE_S = 60.0  # for one check; none takes more than a few seconds on an idle machine
START_S = 120.0  # for the ranks to start, on a busy machine


def checks_in(files: Sequence[Path]) -> list[str]:
    """Return PATH:NAME of all checks, without importing them: that would make pytest an MPI process."""
    return [
        f"{file}:{node.name}"
        for file in files
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]


def run_checks(
    p: int, checks: Sequence[str], deadline_s: float = DEADLINE_S, program: Path = PROGRAM
) -> dict[str, str]:
    """Run the checks on p ranks; return what went wrong, rank by rank, for those that failed.

    `program` is run_checks.py, or one that prepares the ranks and calls its `main`. One job runs all
    of them. A check that the ranks cannot leave ends it; a new one runs the checks after it.
    """
    faults: dict[str, str] = {}
    while checks:
        parent = os.environ.get("IPYTHONDIR")  # that of a run that is killed is removed by the next run
        with tempfile.TemporaryDirectory(prefix="mpiwatch-checks-", dir=parent) as name:
            folder = Path(name)
            (folder / "todo").write_text("\n".join(checks))
            with started(p, program, folder, str(deadline_s)) as job:
                try:
                    output, _ = job.communicate(timeout=deadline_s * len(checks) + START_S)
                except subprocess.TimeoutExpired:
                    kill_tree(job)
                    output, _ = job.communicate()
            of_ranks = [_states(folder, rank) for rank in range(p)]
        ending = f"the job ended with exit status {job.returncode}:\n{output}"
        reached = [check for check in checks if any(check in states for states in of_ranks)]
        if not reached:
            raise RuntimeError(f"a job of {p} ranks did not begin a check; {ending}")
        for check in reached:
            states = [states.get(check, "did not begin") for states in of_ranks]
            if set(states) != {"passed"}:
                faults[check] = "\n".join(f"rank {rank} of {p} {state}" for rank, state in enumerate(states))
        if job.returncode:
            faults[reached[-1]] = f"{faults.get(reached[-1], 'all ranks passed')}\n{ending}"
        checks = checks[len(reached) :]
    return faults


def _states(folder: Path, rank: int) -> dict[str, str]:
    """Return how far a rank came in each check that it began."""
    file, stack = folder / f"{rank}.jsonl", folder / f"{rank}.stack"
    states = dict(map(json.loads, file.read_text().splitlines())) if file.exists() else {}
    if states and (last := list(states)[-1]) and states[last] == "began":
        states[last] = f"did not leave the check:\n{stack.read_text()}"
    return states
