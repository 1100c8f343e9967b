"""Notebook 09 accepts its own job script, and names the errors in others."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from labkit.supervisor import supervised

NOTEBOOK = Path(__file__).parents[2] / "notebooks/09_beyond_one_machine.ipynb"
USED = os, shlex, shutil, signal, subprocess, time, psutil


@pytest.fixture
def cells(tmp_path: Path) -> dict[str, Any]:
    """Return the names that the cells of exercise 2 define: the solution and the functions of the check."""
    names: dict[str, Any] = {module.__name__: module for module in USED}
    names |= {"Path": Path, "supervised": supervised, "folder": tmp_path}
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        if cell.id in ("job-solution", "job-check"):
            exec(cell.source, names)
    return names


def without(line: str) -> Callable[[str], str]:
    return lambda script: script.replace(f"{line}\n", "")


def replaced(old: str, new: str) -> Callable[[str], str]:
    return lambda script: script.replace(old, new)


def test_the_solution_is_right(cells: dict[str, Any]) -> None:
    assert cells["faults"](cells["job_script_solution"]) == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (without("#!/bin/bash"), "first line"),
        (without("#SBATCH --requeue"), "--requeue"),
        (without("#SBATCH --open-mode=append"), "--open-mode=append"),
        (replaced("--nodes=4", "--nodes=2"), "expected --nodes=4, found 2"),
        (without("#SBATCH --cpus-per-task=1"), "expected --cpus-per-task=1, found none"),
        (replaced("00:30:00", "30:00:00"), "time limit of at most half an hour"),
        (replaced("B:USR1@60", "USR1@60"), "--signal=B:USR1@S"),
        (replaced("B:USR1@60", "B:USR1@10"), "--signal=B:USR1@S"),
        (replaced("B:USR1@60", "B:USR1@60s"), "--signal=B:USR1@S"),
        (replaced("00:30:00", "half"), "as --time=HH:MM:SS"),
        (replaced("--nodes=4", '--nodes="4'), "cannot be read"),
        (replaced("#!/bin/bash\n", "#!/bin/bash\ncd /tmp\n"), "below the first command"),
    ],
)
def test_a_wrong_option_is_named(cells: dict[str, Any], change: Callable[[str], str], finding: str) -> None:
    wrong = change(cells["job_script_solution"])
    assert wrong != cells["job_script_solution"]
    assert finding in "\n".join(cells["option_faults"](wrong))


@pytest.mark.parametrize(
    "change",
    [
        replaced("--nodes=4", "--nodes 4"),
        replaced("--nodes=4", "-N 4  # nodes"),
        replaced("--nodes=4\n#SBATCH --ntasks-per-node=1", "--nodes=4 --ntasks-per-node=1"),
    ],
)
def test_an_option_can_be_written_in_another_way(cells: dict[str, Any], change: Callable[[str], str]) -> None:
    other = change(cells["job_script_solution"])
    assert other != cells["job_script_solution"]
    assert list(cells["option_faults"](other)) == []


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (replaced("export OMP_NUM_THREADS=1 ", "export "), ": OMP_NUM_THREADS is not 1"),
        (replaced(" OPENBLAS_NUM_THREADS=1", ""), "OPENBLAS_NUM_THREADS is not 1"),
        (replaced("labkit train", "echo"), "labkit train --out"),
        (replaced("lenet5 --data", "linear --data"), "--model lenet5"),
        (replaced('[ -e "$1/checkpoint.npz" ]', "true"), "labkit train --out"),
        (replaced("done\n", "done\nsleep 60\n"), "still runs"),
        (replaced('"$SLURM_NTASKS"', "4"), "expected `mpiexec -n 3"),
        (replaced("(--resume", "(--out"), "labkit train --resume"),
        (replaced("trap 'kill -USR1 $ranks' USR1", "trap 'true' USR1"), "did not pass it on"),
        (replaced("trap 'kill -USR1 $ranks' USR1", ""), "does not catch SIGUSR1"),
        (replaced("exit $status", "exit 0"), ", the script with 0"),
        (replaced("mpiexec", "true"), "without calling mpiexec"),
    ],
)
@pytest.mark.thorough
def test_a_wrong_command_is_named(cells: dict[str, Any], change: Callable[[str], str], finding: str) -> None:
    wrong = change(cells["job_script_solution"])
    assert wrong != cells["job_script_solution"]
    assert finding in "\n".join(cells["run_faults"](wrong))


@pytest.mark.parametrize(
    ("limit", "seconds"), [("5", 300), ("5:30", 330), ("01:00:00", 3600), ("1-0", 86400), ("1-2:30", 95400)]
)
def test_time_limits_of_slurm(cells: dict[str, Any], limit: str, seconds: int) -> None:
    assert cells["seconds_of"](limit) == seconds
