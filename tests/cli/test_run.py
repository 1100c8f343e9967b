"""Programs that cannot run, and where the ranks' record goes: `labkit run` and `mpiwatch -n`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.conftest import DEADLINE_S

BIN = Path(sys.executable).parent
LAUNCHERS = pytest.mark.parametrize(
    "launcher", [("labkit", "run"), ("mpiwatch",)], ids=["labkit", "mpiwatch"]
)
P = 3


def run(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )  # fmt: skip


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Return a folder of programs that Python cannot run."""
    (tmp_path / "syntax.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "nul.py").write_bytes(b"x = 1\ny = 2\0\n")
    (tmp_path / "coding.py").write_text("# coding: nosuch\n")
    (tmp_path / "binary").write_bytes(b"\x7fELF\xe0\xff" * 20)
    (tmp_path / "folder").mkdir()
    (tmp_path / "package").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with ZipFile(tmp_path / "without_main.zip", "w") as archive:
        archive.writestr("x.py", "")
    return tmp_path


@LAUNCHERS
@pytest.mark.parametrize(
    "words",
    [
        *[("missing.py",), ("syntax.py",), ("folder",), ("loop",), ("without_main.zip",)],
        *[("-m", "nosuch"), ("nul.py",), ("coding.py",), ("binary",), ("-m", "syntax")],
    ],
    ids=" ".join,
)
def test_a_program_that_cannot_run_gets_pythons_message_once(
    words: tuple[str, ...], launcher: tuple[str, ...], programs: Path
) -> None:
    plain = run(sys.executable, *words, folder=programs)
    ours = run(BIN / launcher[0], *launcher[1:], "-n", str(P), *words, folder=programs)
    assert ours.returncode == plain.returncode and ours.stdout == ""
    last = ours.stderr.splitlines()[-1]
    assert ours.stderr.count(last) == 1 and "Traceback" not in ours.stderr
    if words[0] in ("nul.py", "coding.py", "binary", "-m"):  # compilers differ in their words
        assert last.startswith(plain.stderr.splitlines()[-1].partition(":")[0])
    else:
        assert ours.stderr == plain.stderr
    if words == ("nul.py",):
        assert 'nul.py", line 2' in ours.stderr


@LAUNCHERS
def test_a_named_pipe_is_no_program(launcher: tuple[str, ...], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    done = run(BIN / launcher[0], *launcher[1:], "fifo", folder=tmp_path)
    assert done.returncode == 2 and "fifo': expected a plain file or a folder" in done.stderr


@LAUNCHERS
def test_the_record_is_written_without_mpi_and_to_standard_output(
    launcher: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "alone.py").write_text("import sys\nsys.exit(3)")
    (tmp_path / "mpi.py").write_text("from mpi4py import MPI\nMPI.COMM_WORLD.Barrier()")
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1" if sys.platform == "linux" else "/dev/fd/1")
    start = [BIN / launcher[0], *launcher[1:], "-n", str(P), "--json"]
    assert run(*start, "record", "alone.py", folder=tmp_path).returncode == 3
    assert json.loads((tmp_path / "record").read_text())["exit_code"] == 3
    done = run(*start, "stdout", "mpi.py", folder=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["exit_codes"] == [0] * P
    assert (tmp_path / "stdout").is_symlink()


def test_each_rank_of_another_launcher_refuses_a_folder_for_its_record_before_the_program(
    tmp_path: Path,
) -> None:
    (tmp_path / "alone.py").write_text("print('ran')")
    done = run(sys.executable, "-m", "mpiwatch", "--json", tmp_path, "alone.py", folder=tmp_path)
    assert done.returncode == 2 and "ran" not in done.stdout and str(tmp_path) in done.stderr


@pytest.mark.skipif(not shutil.which("ssh"), reason="needs ssh")
def test_each_machine_that_is_not_ready_has_a_row(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("one.invalid\ntwo.invalid\n")
    (tmp_path / "program.py").write_text("")
    done = run(BIN / "labkit", "run", "--hosts", "hosts.txt", "program.py", folder=tmp_path)
    assert done.returncode == 2, done.stderr
    head, *rows = done.stderr.splitlines()
    assert head == "Error: Nothing was started, because a machine is not ready."
    assert [row.split(": ")[0] for row in rows] == ["one.invalid", "two.invalid", "this machine"], done.stderr
