"""Files beside a program that have the names of Python's own modules: mpiwatch does not import them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mpiwatch import launch
from mpiwatch.launch import HANG_EXIT_CODE

MPIWATCH, LABKIT = (str(Path(sys.prefix, "bin", name)) for name in ("mpiwatch", "labkit"))
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(text: str, *command: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "program.py").write_text(text)
        return subprocess.run(
            [*command, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )

    return run


@pytest.fixture
def every_name(tmp_path: Path) -> None:
    """Write a file for each module of Python's, which raises when it is imported."""
    for name in sys.stdlib_module_names | {"numpy", "psutil", "mpiwatch", "labkit"}:
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('the file {name}.py of the student')\n")
    (tmp_path / "helper.py").write_text("value = 42\n")


WATCHED = ([MPIWATCH, "-n", "2"], [LABKIT, "run", "-n", "2"])


@pytest.mark.usefixtures("every_name")
@pytest.mark.parametrize(
    ("command", "strict"),
    [
        pytest.param(WATCHED[0], [], id="mpiwatch"),
        pytest.param(WATCHED[1], ["--strict"], id="labkit run --strict"),
        pytest.param(WATCHED[0], ["--strict"], id="mpiwatch --strict", marks=pytest.mark.thorough),
        pytest.param(WATCHED[1], [], id="labkit run", marks=pytest.mark.thorough),
    ],
)
def test_a_program_among_such_files_runs_and_its_hang_is_reported(
    run: Run, command: list[str], strict: list[str]
) -> None:
    begin = "import helper\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
    done = run(f"{begin}print(helper.value, comm.allreduce(1))", *command, *strict)
    assert (done.returncode, done.stdout) == (0, "42 2\n42 2\n"), done
    done = run(f"{begin}if comm.rank:\n    comm.Barrier()", *command, *strict, "--deadline", "2")
    assert done.returncode == HANG_EXIT_CODE, done
    assert "rank 0 never joined collective #1 (Barrier)" in done.stderr, done
    assert "student" not in done.stderr, done


OWN = """\
import calendar
from mpi4py import MPI
import profile
assert calendar.mine and profile.mine
print("mine", MPI.COMM_WORLD.allreduce(1))
"""


@pytest.mark.parametrize(
    "command",
    [
        *WATCHED,
        [launch.mpiexec(), "-n", "2", sys.executable, "-m", "mpiwatch"],
        [launch.mpiexec(), "-n", "2", sys.executable],
    ],
    ids=["mpiwatch", "labkit run", "python -m mpiwatch", "python"],
)
def test_a_program_imports_its_own_files_before_and_after_mpi(
    run: Run, tmp_path: Path, command: list[str]
) -> None:
    for name in ("calendar", "profile"):
        (tmp_path / f"{name}.py").write_text("mine = True\n")
    done = run(OWN, *command)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["2", "2", "mine", "mine"]), done
