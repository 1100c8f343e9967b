"""Programs that know nothing of mpiwatch, run by `mpiwatch -n 3` and `python -m mpiwatch`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from jobs import kill_tree, thorough, wait_until
from mpiwatch.launch import HANG_EXIT_CODE, Options, command_line, parse
from mpiwatch.processes import alive
from mpiwatch.program import Parent
from programs import random_programs

WATCHED = [sys.executable, "-m", "mpiwatch"]
LIMIT_S = 300.0  # for a job that hangs although it should not
P = 3
# Open MPI leaves the shared memory of a rank that no mpiexec has started, whatever the program does.
FOLDER_OF_SEGMENTS = "OMPI_MCA_btl_sm_backing_directory"
RUN_ALL = "import runpy, sys\nfor each in sys.argv[1:]:\n    runpy.run_path(each, run_name='__main__')\n"


def run(*words: object, code: int | None = 0) -> str:
    """Run a command to its end, check its exit code, and return what it has printed."""
    job = subprocess.Popen(
        list(map(str, words)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    try:
        output, _ = job.communicate(timeout=LIMIT_S)
    finally:
        if job.poll() is None:
            kill_tree(job)
    assert code in (None, job.returncode), output
    return output


@pytest.fixture
def program(tmp_path: Path) -> Any:
    """A function that writes a program and returns its path."""

    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


def test_a_report_names_the_programs_line_and_the_helpers(tmp_path: Path) -> None:
    (tmp_path / "dist.py").write_text("def meet(comm):\n    total = 0\n    comm.Barrier()\n")
    path = tmp_path / "program.py"
    path.write_text(
        "from mpi4py import MPI\nimport dist\nif MPI.COMM_WORLD.rank:\n    dist.meet(MPI.COMM_WORLD)\n"
    )
    said = run(*WATCHED, "-n", P, path, code=HANG_EXIT_CODE)
    assert "at program.py line 4: `dist.meet(MPI.COMM_WORLD)` via dist.py line 3: `comm.Barrier()`" in said, (
        said
    )


def test_ranks_that_wait_for_a_rank_which_has_ended_do_not_wait_for_the_deadline(program: Any) -> None:
    path = program("from mpi4py import MPI\nif MPI.COMM_WORLD.rank:\n    MPI.COMM_WORLD.Barrier()\n")
    said = run(*WATCHED, "-n", P, "--deadline", 100 * LIMIT_S, path, code=HANG_EXIT_CODE)
    assert "rank 0 never joined #1: it has ended its program" in said, said


def test_the_command_line_of_a_rank_is_read_as_it_was_written() -> None:
    for options in (
        Options(("a.py", "--deadline", "x", "-m")),
        Options(("package.module", "1"), is_module=True, deadline_s=0.1, strict=True, json="/a b"),
    ):
        assert parse(command_line(options)[3:]) == options


def test_a_program_sees_what_python_would_show_it(program: Any, tmp_path: Path) -> None:
    path = program(
        "import sys, pickle\nclass A: pass\npickle.loads(pickle.dumps(A()))\n"
        "print(__name__, __file__, sys.argv, sys.path[0], sys.modules['__main__'].A is A, sys.stdin.read())\n"
        "1 / 0\n"
    )
    plain, watched = (
        subprocess.run(
            [sys.executable, *words, path.name, "-x"],
            cwd=tmp_path,
            input="in",
            capture_output=True,
            text=True,
            check=False,
        )
        for words in ((), ("-m", "mpiwatch"))
    )
    assert plain.stdout == watched.stdout
    assert plain.stderr == watched.stderr
    assert plain.returncode == watched.returncode == 1


@pytest.mark.parametrize(
    "text",
    [
        "import mpi4py\nmpi4py.rc.initialize = False\nfrom mpi4py import MPI\nMPI.Init()\n"
        "assert type(MPI.COMM_WORLD).__name__ == 'WatchedComm'\nMPI.COMM_WORLD.Barrier()\nMPI.Finalize()",
        "import mpi4py\nmpi4py.rc.threads = False\nfrom mpi4py import MPI\n"
        "assert MPI.Query_thread() == MPI.THREAD_SINGLE\nassert MPI.COMM_WORLD.allreduce(1) == 1",
        "import multiprocessing\nif __name__ == '__main__':\n    from mpi4py import MPI\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        assert pool.map(abs, [-1])",
    ],
    ids=["MPI.Init", "threads", "spawn"],
)
def test_programs_that_use_mpi_in_their_own_way(
    program: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_OF_SEGMENTS, str(tmp_path))
    assert run(sys.executable, "-m", "mpiwatch", program(text)) == ""


@pytest.mark.parametrize(
    ("fault", "code", "cause"),
    [
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            139,
            "rank 1 of 3 was killed by SIGSEGV (segmentation fault).",
        ),
        pytest.param(
            *("os._exit(5)", 5, "rank 1 of 3 ended with exit code 5 in the middle of its program"),
            marks=pytest.mark.thorough,
        ),
        ("raise ValueError('mine')", 86, "it raised ValueError: mine at program.py line 8: `raise Val"),
        ("sys.exit(4)", 86, "never joined #2: it has ended its program"),
        pytest.param("comm.Abort(9)", 9, "", marks=pytest.mark.thorough),
    ],
)
def test_the_rank_that_ends_is_named(program: Any, tmp_path: Path, fault: str, code: int, cause: str) -> None:
    path = program(
        "import os, signal, sys\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\ncomm.Barrier()\n"
        # The report shows the ranks at the moment when one ends: the others must be in the barrier by then.
        "calls = comm.watch.recorder.last_calls\n"
        "while comm.rank == 1 and any(calls(other)[-1].number < 2 for other in (0, 2)): pass\n"
        f"if comm.rank == 1:\n    {fault}\nprint('printed', flush=False)\ncomm.Barrier()\n"
    )
    file = tmp_path / "report.json"
    said = run(*WATCHED, "-n", P, "--deadline", 1, "--json", file, path, code=code)
    assert cause in said
    if cause:
        assert said.count("printed") == P - 1, said  # although it was still in a buffer
        assert "ranks 0, 2 are" in said and "program.py line 10: `comm.Barrier()`" in said
        assert said.count("rank 1 of 3") <= 1, said  # shown once
        content = json.loads(file.read_text())
        assert content["exit_code"] == code
        assert [rank["rank"] for rank in content["report"]["ranks"]] == [0, 1, 2]


def test_abort_on_some_of_the_ranks_accuses_no_other_rank(program: Any, tmp_path: Path) -> None:
    """MPICH then ends the other ranks with the same exit code, as if each had called `os._exit`."""
    path = program(
        "from mpi4py import MPI\ncomm = MPI.COMM_WORLD.Split(0, 0)\ncomm.Barrier()\n"
        "if comm.rank == 1:\n    comm.Abort(9)\ncomm.Barrier()\n"
    )
    file = tmp_path / "report.json"
    said = run(*WATCHED, "-n", P, "--deadline", 1, "--json", file, path, code=9)
    assert "in the middle of its program" not in said
    assert json.loads(file.read_text())["report"] is None


def test_a_rank_in_a_loop_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "größe | 🙂.py"
    path.write_text(
        "from mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
        "if comm.rank == 1:\n    while True: x = 1 | 2\nif comm.rank != 2:\n    comm.Barrier()\n"
    )
    said = run(*WATCHED, "--strict", "-n", P, path, code=86)
    assert "rank 1 never joined #1: it is at größe | 🙂.py line 4: `while True: x = 1 | 2`" in said


THOROUGH = pytest.mark.thorough
ALLREDUCE = "comm.Allreduce([x, n, MPI.DOUBLE], [y, n, MPI.DOUBLE])"
GET = "w = MPI.Win.Create(y, 8, comm=comm); w.Fence(); w.Get([x, n], 0); w.Fence(); w.Free()"


@pytest.mark.parametrize(
    ("name", "call", "mode"),
    [
        pytest.param("Allreduce", ALLREDUCE, (), id="Allreduce"),
        pytest.param("Get", GET, ("--strict",), id="Get, strict"),
        pytest.param("Allreduce", ALLREDUCE, ("--strict",), id="Allreduce, strict", marks=THOROUGH),
        pytest.param("Get", GET, (), id="Get", marks=THOROUGH),
    ],  # checks/buffers.py tries every call
)
def test_a_call_with_more_than_its_array_holds_is_an_error_and_no_rank_hangs(
    program: Any, name: str, call: str, mode: tuple[str, ...]
) -> None:
    path = program(
        "import numpy as np\nfrom mpi4py import MPI\ncomm = MPI.COMM_WORLD\n"
        "n = 9 if comm.rank == 1 else 4\nx, y, z = np.zeros(4), np.zeros(4), np.zeros(4 * comm.size)\n"
        f"{call}\n"
    )
    output = run(*WATCHED, *mode, "-n", P, "--deadline", 5, path, code=None)
    assert f"ValueError: rank 1: {name} was given 9 × " in output
    assert "a buffer that holds 32 bytes (4 float64)" in output


def test_exit_codes_of_a_program_without_a_fault_are_kept(program: Any, tmp_path: Path) -> None:
    path = program("import sys\nfrom mpi4py import MPI\nsys.exit(7 * (MPI.COMM_WORLD.rank == 1))")
    file = tmp_path / "report.json"
    assert "rank" not in run(*WATCHED, "-n", P, "--json", file, path, code=7)
    content = json.loads(file.read_text())
    assert [content[key] for key in ("exit_code", "exit_codes", "report")] == [7, [0, 7, 0], None]


UNCONNECTED = (  # without these variables, MPI does not find the launcher
    "import os\nfor name in list(os.environ):\n"
    "    if name in ('PMI_FD', 'PMI_PORT') or name.startswith('PMIX_'):\n        del os.environ[name]\n"
    "from mpi4py import MPI\nprint('has run')"
)


def test_worlds_of_one_rank_are_refused(program: Any) -> None:
    said = run(*WATCHED, "-n", P, program(UNCONNECTED), code=2)
    assert f"has started {P} processes, but each is an MPI world of one rank" in said
    assert said.count("python -m mpiwatch:") == 1 and "has run" not in said


@pytest.mark.parametrize("rank", [0, 2])
def test_worlds_of_one_rank_are_refused_under_srun(
    program: Any, rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_OF_SEGMENTS, str(tmp_path))
    for name, value in {"STEP_NUM_TASKS": P, "PROCID": rank, "MPI_TYPE": "none"}.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    said = run(sys.executable, "-m", "mpiwatch", program(UNCONNECTED), code=2)
    assert ("`srun --mpi=none` has started 3 processes" in said) == (rank == 0), said
    assert "has run" not in said


@pytest.mark.parametrize("last", [6, thorough(46)])
def test_random_programs_without_a_fault_run_without_a_report(tmp_path: Path, last: int) -> None:
    """Seeds divisible by ten have a rank that computes or sleeps for three deadlines."""
    (tmp_path / "all.py").write_text(RUN_ALL)
    files = [tmp_path / f"{seed}.py" for seed in range(last)]
    for seed, file in enumerate(files):
        file.write_text(random_programs.programs(seed, P, 1.0)[0].source)
    assert run(*WATCHED, "-n", P, "--deadline", 1, tmp_path / "all.py", *files) == ""


@pytest.mark.parametrize("seed", [3, 8, *map(thorough, (5, 6, *range(14, 28)))])
def test_a_fault_in_a_random_program_is_reported_with_its_rank(program: Any, seed: int) -> None:
    _, faulty, culprit = random_programs.programs(seed, P, 1.0)
    said = run(*WATCHED, "-n", P, "--deadline", 1, program(faulty.source), code=86)
    assert random_programs.is_named(culprit, said), f"{faulty}, rank {culprit}: {said}"


def test_the_parent_sends_no_signal_to_the_pid_of_a_program_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By then, the pid may be another process's."""
    child = os.fork()
    if not child:
        os._exit(0)
    wait_until(lambda: not alive(child), "the child has ended", 20)
    here, there = socket.socketpair()
    with here, there, tempfile.TemporaryFile() as stack:
        parent = Parent(child, here, stack, Options(("program.py",)))
        assert parent._ended() == 0
        monkeypatch.setattr(os, "kill", lambda pid, signum: pytest.fail(f"signal {signum} to {pid}"))
        parent._forward(signal.SIGTERM, None)
    assert parent.was_told_to_end


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_signal_that_comes_while_the_parent_looks_for_the_end_of_the_program(
    monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """If the program has ended, its pid is free, and the parent does not know it yet."""
    child = os.fork()
    if not child:
        seconds = 0 if has_ended else 60
        os.execv(sys.executable, [sys.executable, "-c", f"import time; time.sleep({seconds})"])
    if has_ended:
        wait_until(lambda: not alive(child), "the child has ended", 20)
    wait_for = os.waitpid

    def interrupted(pid: int, options: int) -> tuple[int, int]:
        status = wait_for(pid, options)
        parent._forward(signal.SIGTERM, None)
        return status

    here, there = socket.socketpair()
    with here, there, tempfile.TemporaryFile() as stack:
        parent = Parent(child, here, stack, Options(("program.py",)))
        with monkeypatch.context() as patch:
            patch.setattr(os, "waitpid", interrupted)
            assert parent._ended() == (0 if has_ended else None)
    assert parent.was_told_to_end
    if not has_ended:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
