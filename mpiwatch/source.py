"""Where a rank is: a student's line, such as `cell line 4: comm.Barrier()`, and another process's stack.

A process answers a signal with its stack, whatever it is doing, inside MPI or in a loop. The signal handler
is faulthandler's, in C: it does not wait for the interpreter.
"""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import os
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from time import monotonic, sleep
from types import CodeType, FrameType
from typing import BinaryIO

import mpiwatch
from mpiwatch.recorder import FILE_BYTES, fit

MAX_LINE_CHARACTERS = 80
_LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
)

SIGNAL = signal.SIGUSR2
ANSWER_TIMEOUT_S = 0.5
SETTLED_S = 0.004  # an answer is written line by line: it is complete when nothing has followed for so long
POLL_S = 0.0005


def own_folders() -> tuple[str, ...]:
    """Return the folders of this package and of the libraries on top of it: see `mpiwatch.libraries`."""
    modules = (sys.modules.get(name) for name in mpiwatch.libraries)
    return tuple(
        os.path.dirname(module.__file__) + os.sep for module in modules if module and module.__file__
    )


def is_cell(file: str) -> bool:
    """Tell whether a file's name is the name of a notebook's cell."""
    return "/ipykernel_" in file or file.startswith(("<ipython-input", "<string>"))


def cell_number(file: str) -> str:
    """Return the number of a cell in its notebook; empty if its first line does not say it."""
    found = re.match(r"\s*# cell \[(\d+)\]", _line(file, 1))
    return found[1] if found else ""


def file_label(file: str) -> bytes:
    """Return `cell`, or a file's name without its folder, as a note of a call has room for it."""
    return b"cell" if is_cell(file) else fit(os.path.basename(file), FILE_BYTES)


def student_line_of(frame: FrameType | None) -> str:
    """Return the student's line that led to a frame; see `student_line`."""
    frames = []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return student_line(frames)


def line_of(code: CodeType, instruction: int) -> str:
    """Return the line of an instruction (a frame's `f_lasti`): `cell line 4: comm.Irecv(x, 1)`."""
    lines = (line for first, end, line in code.co_lines() if first <= instruction < end)
    return student_line([(code.co_filename, next(lines, None) or code.co_firstlineno)])


def student_line(frames: Sequence[tuple[str, int]]) -> str:
    """Return the student's line among frames (file and line), which are given innermost first.

    This is the innermost line of a cell, else of a program that is not a library, else the innermost line. It
    includes the number of the cell unless that cell is running. The result is empty without frames.
    """
    own = [frame for frame in frames if not frame[0].startswith((*own_folders(), "<frozen", *_LIBRARIES))]
    candidates = [frame for frame in own if is_cell(frame[0])] or own or list(frames)
    if not candidates:
        return ""
    file, line = candidates[0]
    label = file_label(file).decode()
    if is_cell(file) and file != [each for each, _ in frames if is_cell(each)][-1] and cell_number(file):
        label = f"cell [{cell_number(file)}]"
    text = _line(file, line)
    source = text if len(text) <= MAX_LINE_CHARACTERS else text[: MAX_LINE_CHARACTERS - 1] + "…"
    return f"{label} line {line}" + (f": `{source}`" if source else "")


def describe(error: BaseException) -> str:
    """Return a line of text with an error and the student's line that raised it."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    at = student_line(frames[::-1])
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}{': ' * bool(text)}{text}{' at ' * bool(at)}{at}"


def _line(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    if not text and is_cell(file):
        # Each rank files a cell in a folder of its own, under the same name.
        name = os.path.basename(file)
        same = [known for known in linecache.cache if is_cell(known) and os.path.basename(known) == name]
        text = linecache.getline(same[0], line).strip() if same else ""
    return text


def write_stack_on_signal(file: BinaryIO) -> None:
    """From now on, write this process's stack to a file, opened for appending, when the signal arrives."""
    with contextlib.suppress(ValueError):  # not the main thread
        # An interpreter that ends puts back what was there before: by default, the signal kills the process.
        signal.signal(SIGNAL, signal.SIG_IGN)
    faulthandler.register(SIGNAL, file, all_threads=False)


def request_stack(pid: int, file: BinaryIO) -> list[tuple[str, int]]:
    """Return the frames of a process (file and line), innermost first; empty if it does not answer.

    The caller holds the recorder's lock, because all processes answer into the same file.
    """
    os.ftruncate(file.fileno(), 0)
    try:
        os.kill(pid, SIGNAL)
    except OSError:
        return []
    deadline = monotonic() + ANSWER_TIMEOUT_S
    size, since = 0, monotonic()
    while monotonic() < deadline and not (size and monotonic() - since > SETTLED_S):
        sleep(POLL_S)
        if (now := os.fstat(file.fileno()).st_size) != size:
            size, since = now, monotonic()
    return frames_in(file)


def frames_in(file: BinaryIO) -> list[tuple[str, int]]:
    """Return the frames (file and line), innermost first, of the last stack that faulthandler has written."""
    text = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
    return [(_unescaped(name), int(line)) for name, line in re.findall(r'File "(.*)", line (\d+) in ', text)]


def _unescaped(name: str) -> str:
    """Return a file's name as it was before faulthandler wrote it in ASCII."""
    return re.sub(
        r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))",
        lambda escape: chr(int(next(filter(None, escape.groups())), 16)),
        name,
    )
