"""The stack of another process: where it is, whatever it is doing, or nothing if it does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpiwatch.snapshot import request_stack, student_line

PROGRAM = """\
import sys
from mpiwatch.snapshot import write_stack_on_signal
write_stack_on_signal(open(sys.argv[1], "ab", buffering=0))
print("ready", flush=True)
while True: x = 1 | 2
"""


@contextmanager
def looping(program: Path, answers: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run PROGRAM from a file until the end of the block."""
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), str(answers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("name", ["program.py", "größe-漢字-🙂.py", "with space | bar.py"])
def test_a_process_in_a_loop_names_its_line(tmp_path: Path, name: str) -> None:
    answers = tmp_path / "answers"
    with looping(tmp_path / name, answers) as process, answers.open("a+b", buffering=0) as file:
        frames: list[tuple[str, int]] = []
        while not frames or frames[0][1] != 5:  # after "ready", it may be about to enter the loop
            assert process.poll() is None
            frames = request_stack(process.pid, file)
    assert frames == [(str(tmp_path / name), 5)]
    assert student_line(frames) == f"{name} line 5: `while True: x = 1 | 2`"


def test_a_process_that_is_suspended_or_gone_does_not_answer(tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    with looping(tmp_path / "program.py", answers) as process, answers.open("a+b", buffering=0) as file:
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert request_stack(process.pid, file) == []
        process.kill()
        process.wait()
        assert request_stack(process.pid, file) == []
