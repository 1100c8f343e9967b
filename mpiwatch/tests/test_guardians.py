"""Whatever looks after a program survives the faults of what it looks at."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobs import PROGRAMS, run, thorough
from mpiwatch import processes
from mpiwatch.launch import HANG_EXIT_CODE
from mpiwatch.machines import Hub, Relay
from mpiwatch.processes import FLIGHT_RECORDER
from mpiwatch.program import Parent
from mpiwatch.watchdog import Watchdog

P, DEADLINE_S, LIMIT_S = 2, 2, 90
AT_ONCE = 3  # jobs


def report_of(*words: str | Path) -> str:
    """Run a program whose ranks hang; return what it prints."""
    command = [sys.executable, "-m", "mpiwatch", "-n", str(P), "--deadline", str(DEADLINE_S)]
    done = subprocess.run(
        [*command, *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == HANG_EXIT_CODE, done.stdout + done.stderr
    return done.stdout + done.stderr


# Without these steps, nobody can know that the rank is stuck: they may fail for a while, but not for good.
ESSENTIAL = "note_call", "note_time"


WATCHDOG = *Watchdog.STEPS, "is_late"


def test_a_hang_is_reported_although_each_step_of_the_watchdog_fails_at_first() -> None:
    """All in one job: a step that is not guarded would end the watchdog."""
    text = report_of(PROGRAMS / "guardian_with_a_fault.py", ",".join(WATCHDOG), "often")
    assert "in Fence" in text and "Traceback" not in text, text


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["often", "error", "delay"])
def test_a_hang_is_reported_while_one_step_of_the_watchdog_fails(kind: str) -> None:
    program = PROGRAMS / "guardian_with_a_fault.py"
    steps = [step for step in WATCHDOG if kind != "error" or step not in ESSENTIAL]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        texts = pool.map(lambda step: report_of(program, step, kind), steps)
        for step, text in zip(steps, texts, strict=True):
            assert "in Fence" in text, (step, text)
            assert "Traceback" not in text, (step, text)


FRAMES_WITHOUT_A_LINE = """
import time
from mpi4py import MPI

class Timer:
    def __enter__(self): pass
    def __exit__(self, *error): pass

comm, count, end = MPI.COMM_WORLD, 0, time.monotonic() + 4
while time.monotonic() < end:
    for _ in range(1000):
        with Timer():
            count += 1
window = MPI.Win.Allocate(8, comm=comm)
window.Fence()
if comm.rank == 0:
    window.Fence()
comm.Barrier()
"""


def test_frames_without_a_line_do_not_end_the_watchdog(tmp_path: Path) -> None:
    """Since Python 3.11, a frame's `f_lineno` may be None, as at the end of a `with` block."""
    program = tmp_path / "timers.py"
    program.write_text(FRAMES_WITHOUT_A_LINE)
    text = report_of(program)
    assert "timers.py line 17: `window.Fence()`" in text and "Traceback" not in text, text


SUPERVISOR = """
import os, sys, time
from mpiwatch import processes

name, kind, *arguments = sys.argv[1:]
step, calls = getattr(processes, name), [0]

def faulty(*given):
    calls[0] += 1
    if kind == "error":
        raise OSError("an error in a step, each time")
    if kind == "often" and calls[0] <= 3:
        raise MemoryError("one of the first errors in a step")
    if kind == "delay" and calls[0] == 1:
        time.sleep(2)
    return step(*given)

setattr(processes, name, faulty)
sys.exit(processes.main(arguments))
"""
JOB = """
import os, signal, subprocess, sys, time

child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open(f"{sys.argv[2]}{os.getpid()}-of-a-test", "w").close()
open(sys.argv[1], "w").write(f"{child.pid} {os.getpid()}")
sys.exit(7)
"""
RECORDER = f"{processes.SHM}/{FLIGHT_RECORDER}"  # a file that a job leaves; its creator's pid follows
# Without these, a supervisor cannot know or end what its job has started, or remove what it has left: they
# may fail for a while only.
ESSENTIAL_FOR_ENDING = "own_descendants", "kill", "sweep", "remove"


@pytest.mark.parametrize("kind", ["error", thorough("often"), thorough("delay")])
def test_a_supervisor_ends_its_job_while_one_of_its_steps_fails(tmp_path: Path, kind: str) -> None:
    program = tmp_path / "job.py"
    program.write_text(JOB)

    def ended(step: str) -> tuple[str, int, str]:
        pid_file = tmp_path / f"pid-{step}"
        command = [sys.executable, str(program), str(pid_file), RECORDER]
        arguments = processes.supervised(0.5)[-3:]  # GRACE SUPERVISORS STARTER
        words = [sys.executable, "-c", SUPERVISOR, step, kind, *arguments, *command]
        done = subprocess.run(words, timeout=LIMIT_S, check=False, capture_output=True, text=True)
        return pid_file.read_text(), done.returncode, done.stderr

    steps = [step for step in processes.STEPS if kind != "error" or step not in ESSENTIAL_FOR_ENDING]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for step, (pids, code, errors) in zip(steps, pool.map(ended, steps), strict=True):
            assert code == 7, (step, errors)
            child, job = map(int, pids.split())
            assert not processes.alive(child), step
            assert not Path(f"{RECORDER}{job}-of-a-test").exists(), step


SWEEPER = """
import sys
from mpiwatch import processes

step, calls = processes.sweep, 0

def faulty(*given):
    global calls
    calls += 1
    if calls <= 3:
        raise OSError("one of the first errors in a step")
    step(*given)

processes.sweep = faulty
processes.main([processes.SWEEP, sys.argv[1]])
"""


@pytest.mark.skipif(not processes.LINUX, reason="elsewhere, segments are no files")
def test_what_sweeps_after_ranks_without_a_supervisor_tries_again_after_an_error() -> None:
    program = f"import os\nopen(f'{RECORDER}{{os.getpid()}}-of-a-test', 'w').close()\nprint(os.getpid())"
    job = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    pid = job.stdout.strip()
    subprocess.run([sys.executable, "-c", SWEEPER, pid], check=True, timeout=LIMIT_S)
    assert not Path(f"{RECORDER}{pid}-of-a-test").exists()


PARENT = """
import sys, time
from mpiwatch import program, __main__

names, kind, *arguments = sys.argv[1:]

def faulty(step):
    calls = 0

    def call(*given):
        nonlocal calls
        calls += 1
        if kind == "often" and calls <= 3:
            raise MemoryError("one of the first errors in a step")
        if kind == "delay" and calls == 1:
            time.sleep(2)
        return step(*given)

    return call

for name in names.split(","):
    setattr(program.Parent, name, faulty(getattr(program.Parent, name)))
sys.argv[1:] = arguments
__main__.main()
"""
KINDS = "often", "delay"


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        (",".join(Parent.STEPS), "often"),
        *(pytest.param(step, kind, marks=pytest.mark.thorough) for step in Parent.STEPS for kind in KINDS),
    ],
)
def test_a_hang_is_reported_while_steps_of_a_programs_parent_fail(
    tmp_path: Path, steps: str, kind: str
) -> None:
    program = tmp_path / "hangs.py"
    program.write_text("from mpi4py import MPI\nif MPI.COMM_WORLD.rank:\n    MPI.COMM_WORLD.recv()\n")
    done = run(P, "-c", PARENT, steps, kind, "--deadline", str(DEADLINE_S), str(program))
    assert "rank 1 is waiting in recv" in done.stdout, done.stdout


def test_a_program_ends_with_its_code_although_its_parent_cannot_read_the_reports(tmp_path: Path) -> None:
    program = tmp_path / "ends.py"
    program.write_text("import sys\nfrom mpi4py import MPI\nsys.exit(3)\n")
    broken = PARENT.replace('kind == "often" and calls <= 3', "True")
    done = run(P, "-c", broken, "end_after_report", "error", str(program))
    assert done.returncode == 3, done.stdout


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        *((kind.__name__, ",".join(kind.STEPS)) for kind in (Hub, Relay)),
        *(
            pytest.param(kind.__name__, step, marks=pytest.mark.thorough)
            for kind in (Hub, Relay)
            for step in kind.STEPS
        ),
    ],
)
def test_a_hub_and_its_relays_survive_errors_in_their_steps(kind: str, steps: str) -> None:
    done = run(P, PROGRAMS / "on_machines.py", 1, PROGRAMS / "machines_with_a_fault.py", kind, steps)
    assert "rank 1 is waiting in recv: no matching send from rank 0" in done.stdout, done.stdout
