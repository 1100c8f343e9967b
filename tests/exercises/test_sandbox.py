"""What a command in a sandbox sees, and where there is no sandbox."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from labkit.checks import job_modules, sandbox, system_calls
from labkit.checks.launching import clean_environment
from labkit.exercises import catalogue
from tests.exercises import hostile_run

pytestmark = pytest.mark.exercises
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs words in a sandbox, and that returns what they have printed."""
    if sandbox.refusal():
        pytest.skip(sandbox.refusal())

    def run_words(*words: str) -> subprocess.CompletedProcess[str]:
        handover = sandbox.Handover()
        environment = {**clean_environment(), **sandbox.variables()}
        with subprocess.Popen(
            sandbox.command(words, tmp_path, group=handover.group),
            stdin=handover.theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            try:
                handover.folder(DEADLINE_S)
                handover.start_command()
                output, errors = process.communicate(timeout=DEADLINE_S)
            finally:
                handover.close()
                process.kill()
        return subprocess.CompletedProcess(words, process.returncode, output, errors)

    return run_words


def test_the_exit_status_and_the_output_are_the_command_s(run: Run) -> None:
    done = run("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)
    assert run("sh", "-c", "kill -9 $$").returncode == 128 + 9


def test_a_command_has_a_machine_of_its_own(run: Run) -> None:
    done = run(
        "sh",
        "-c",
        "hostname; pwd; ls -A; whoami; ls /proc | grep -c '^[0-9]'; ls /sys/class/net; cat /proc/net/dev",
    )
    lines = done.stdout.splitlines()
    assert lines[:3] == ["localhost", f"{sandbox.FOLDER}/work", "student"]
    assert int(lines[3]) < 10
    assert [line.split(":")[0].strip() for line in lines if ":" in line] == ["lo"]


def test_a_command_sees_no_file_of_people(run: Run) -> None:
    """Of a clone, of homes and of other places where a course may lie, nothing is there."""
    kept = {path.parts[1] for path in sandbox.visible()}
    seen = set(run("ls", "-A", "/").stdout.split())
    assert seen <= kept | {"dev", "etc", "proc", "run", "tmp"}
    inside = run(
        "find", "/", "-path", "/proc", "-prune", "-o", "-path", "*/labkit/*", "-print"
    ).stdout.split()
    assert inside == [f"{sandbox.SHOWN}/inside.py"]
    assert run("ls", "-A", "/tmp").stdout.split() == ["job", "shm"]
    assert not run("ls", str(ROOT / "labkit")).stdout


def test_no_file_that_a_command_sees_holds_a_reference(run: Run) -> None:
    words = [
        f"def {name}\\("
        for name in ("average_by_allgather", "ring_reduce_scatter", "max_pool", "ring_rounds")
    ]
    places = [str(path) for path in sandbox.visible() if path.is_dir() and not str(path).startswith("/sys")]
    names = [f"--include=*.{ending}" for ending in ("py", "ipynb", "md", "template", "txt")]
    found = run("grep", "-rlE", *names, "|".join(words), *places, "/run", "/etc", "/tmp")
    assert found.stdout == ""
    # The search finds what is there.
    assert run("grep", "-rlE", "def main\\(folder", "/run").stdout.split() == [f"{sandbox.SHOWN}/inside.py"]


def test_a_command_cannot_write_but_to_its_folder(run: Run) -> None:
    places = [
        "/",
        "/dev",
        "/usr",
        "/usr/bin",
        "/etc",
        "/run",
        sandbox.SHOWN,
        sys.prefix,
        "/tmp",
        "/tmp/job",
        "/dev/shm",
    ]
    script = 'for place in "$@"; do touch "$place/new" 2>/dev/null && echo "$place"; done'
    assert run("sh", "-c", script, "sh", *places).stdout.split() == ["/tmp", "/tmp/job", "/dev/shm"]


def test_a_command_cannot_change_settings_of_the_kernel(run: Run) -> None:
    """Not those of its own namespaces either."""
    code = (
        "import os\n"
        "for at, folders, files in os.walk('/proc/sys'):\n"
        "    for name in files:\n"
        "        try:\n"
        "            os.close(os.open(os.path.join(at, name), os.O_WRONLY))\n"
        "            print(at, name)\n"
        "        except OSError: pass\n"
    )
    done = run(sys.executable, "-I", "-S", "-c", code)
    assert (done.stdout, done.returncode) == ("", 0)


def test_if_memory_runs_out_the_command_ends_first(run: Run) -> None:
    assert run("cat", "/proc/self/oom_score_adj").stdout == "1000\n"


@pytest.mark.parametrize("name", catalogue.exercises())
def test_a_job_gets_no_module_with_references(name: str, tmp_path: Path) -> None:
    exercise = catalogue.find(name)
    job_modules.copy_for_job(exercise, list(exercise.cases()), tmp_path)
    modules = {path.stem for path in tmp_path.rglob("*.py")}
    assert "job" in modules
    assert not [module for module in modules if module.startswith(("nb0", "nb1", "on_call"))]
    assert not {"catalogue", "judge", "checking", "algorithms", "average", "allreduce_contest"} & modules
    for path in tmp_path.rglob("*.py"):
        assert f"def {name}(" not in path.read_text(), path


def test_jobs_of_an_exercise_share_copies_of_modules_that_are_compiled(tmp_path: Path) -> None:
    """Each process of each job compiled all of them: that was most of the time of grading."""
    exercise = catalogue.find("average_gradients")
    cases = list(exercise.cases())
    places = job_modules.copies_for_job(exercise, cases, tmp_path)
    assert job_modules.copies_for_job(exercise, cases, tmp_path) == places
    assert {*tmp_path.iterdir()} == {*places.values()}
    done = subprocess.run(
        [sys.executable, "-Pvc", "import labkit.checks.job, mpiwatch.strict"],
        check=True,
        env={"PYTHONPATH": ":".join(map(str, places.values())), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    read = [line for line in done.stderr.splitlines() if line.startswith("# code object from")]
    ours = [line for line in read if str(tmp_path) in line]
    assert ours and all(line.endswith(".pyc'") for line in ours)


def test_a_job_in_a_sandbox_knows_which_lines_are_the_labs(tmp_path: Path) -> None:
    """Otherwise findings name lines of the lab, which the student has not written."""
    exercise = catalogue.find("shift_right")
    job_modules.copy_for_job(exercise, list(exercise.cases()), tmp_path)
    job_modules.copy_mpiwatch(tmp_path)
    code = "import labkit.comm; from mpiwatch.packages import libraries, wrappers; print(libraries, wrappers)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(
        command, check=False, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout == "['mpiwatch', 'labkit'] ['mpiwatch', 'labkit.comm']\n", done.stderr


def test_a_clone_and_a_course_stay_away_wherever_they_are(tmp_path: Path) -> None:
    packages = tmp_path / "lib/python3.13/site-packages"
    for name in ("labkit/exercises", "numpy", "labkit_of_others"):
        (packages / name).mkdir(parents=True)
    assert sandbox.hidden([tmp_path / "lib"]) == [str(packages / "labkit")]
    assert sandbox.hidden([packages.parent]) == [str(packages / "labkit")]
    assert sandbox.hidden([packages]) == [str(packages / "labkit")]
    assert str(ROOT) not in map(str, sandbox.visible())


def outside(
    user: str, places: Sequence[Path], words: Sequence[str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Run words as a user, on a machine that has this clone at other places, with a course beside it."""
    view = ["bwrap", "--dev-bind", "/", "/", "--die-with-parent"]
    if os.getuid() == 0:
        view += ["--cap-add", "ALL"]
    for place in places:
        view += ["--perms", "0755", "--tmpfs", str(place.parent), "--ro-bind", str(ROOT), str(place)]
        view += ["--ro-bind", str(folder), f"{place.parent}/course"]
    first = places[0]
    environment = {**os.environ, "PYTHONPATH": str(first), "PYTHONDONTWRITEBYTECODE": "1"}
    view += ["--chdir", f"{first.parent}/course"]
    command = [*view, *hostile_run.as_user(user), sys.executable, *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=DEADLINE_S, check=False, env=environment
    )


LOOKS = """
import os, subprocess
for at, folders, files in os.walk('/'):
    folders[:] = [name for name in folders if name not in ('proc', 'sys', 'site-packages')]
    for name in [*folders, *files]:
        if name in ('gradebook.db', 'nb00.py', 'nb01.py', '.git', 'submitted', 'course'):
            print('HARM', at, name)
for place in PLACES:
    words = ['git', '-c', 'safe.directory=*', '-C', place, 'show', 'HEAD:labkit/exercises/nb00.py']
    shown = subprocess.run(words, capture_output=True)
    if shown.stdout: print('HARM git', place)
    if os.path.exists(place + '/labkit'): print('HARM', place)
def linear_backward(dy, x, w): return 0
"""


@pytest.mark.parametrize("user", hostile_run.USERS)
def test_a_clone_in_opt_or_usr_local_cannot_be_read(user: str, run: Run, tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can lay this machine's /opt out anew")
    course = tmp_path / "course"
    (course / "submitted/ada").mkdir(parents=True)
    (course / "gradebook.db").write_text("grades")
    for path in (tmp_path, course):
        path.chmod(0o755)
    places = [
        Path(name)
        for name in ("/opt/lab/clone", "/usr/local/share/lab/clone", "/usr/src/lab/clone", "/srv/lab/clone")
    ]
    text = LOOKS.replace("PLACES", repr([str(place) for place in places]))
    program = (
        "import json, sys\nfrom dataclasses import asdict\nimport labkit\n"
        "from labkit.checks import judging, sandbox\n"
        "from labkit.exercises import catalogue\n"
        "print(labkit.__file__, repr(sandbox.refusal()))\n"
        "found = judging.grade_text(catalogue.find('linear_backward'), sys.argv[1], sandboxed=True)\n"
        "print(json.dumps(asdict(found)))"
    )
    done = outside(user, places, ["-c", program, text], course)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert lines[0] == f"{places[0]}/labkit/__init__.py ''"
    verdict = json.loads(lines[1])
    assert "HARM" not in verdict["printed"]
    assert "the result is an int" in verdict["finding"], verdict


def test_without_bubblewrap_there_is_no_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "install bubblewrap" in sandbox.refusal.__wrapped__()


def test_a_system_that_forbids_namespaces_is_found_out(run: Run) -> None:
    """Inside a sandbox there can be no other one: bubblewrap is there, and is refused."""
    code = "from labkit.checks import sandbox; print(sandbox.refusal())"
    as_nobody = hostile_run.as_user("user")
    apart = ["bwrap", "--dev-bind", "/", "/", "--unshare-user", "--disable-userns"]
    done = subprocess.run(
        [*as_nobody, *apart, sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout.startswith("bwrap: "), done.stderr


def test_another_system_than_linux_has_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "LINUX", False)
    assert "needs Linux" in sandbox.refusal.__wrapped__()


def test_a_systemd_that_starts_nothing_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first words of a command come from systemd only if a trial shows that it runs commands."""
    program = tmp_path / "systemd-run"
    for script, is_used in {
        "exit 0": False,
        "exit 1": False,
        'while [ "$1" != -- ]; do shift; done; shift; "$@"': True,
    }.items():
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        words = sandbox.scope.__wrapped__()
        assert bool(words) == is_used
    assert any(word.startswith("MemoryMax=") for word in words)


REFUSED_CALLS = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
for name, arguments in {
    "unshare": (0x10000000,), "setns": (0, 0), "umount2": (b"/proc", 2),
    "mount": (b"x", b"/tmp", b"tmpfs", 0, None),
    "chroot": (b"/tmp",), "memfd_create": (b"x", 0), "shmget": (0, 4096, 0o1600), "semget": (0, 1, 0o1600),
    "msgget": (0, 0o1600), "ptrace": (0, 0, 0, 0),
}.items():
    failed = getattr(libc, name)(*arguments) == -1
    print(name, failed and os.strerror(ctypes.get_errno()))
"""


def test_calls_that_leave_or_that_take_memory_are_refused(run: Run) -> None:
    if not system_calls.call_filter():
        pytest.skip("this machine's numbers of system calls are not known")
    lines = run(sys.executable, "-c", REFUSED_CALLS).stdout.splitlines()
    assert len(lines) == 10
    assert {line.split(" ", 1)[1] for line in lines} == {"Operation not permitted"}


def test_a_machine_whose_calls_are_not_known_gets_no_filter() -> None:
    assert system_calls.call_filter("sparc64") == b""
    for machine in system_calls.MACHINES:
        assert len(system_calls.call_filter(machine)) % 8 == 0
