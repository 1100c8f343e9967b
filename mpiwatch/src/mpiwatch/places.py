"""At which line of the program a rank is: `cell line 4: comm.Barrier()`.

The program's own lines are those of cells and of files that are neither a library nor this package or one on
top of it. If the innermost of them stands in another file or cell than the program itself, both are named:
`train.py line 12: ring(x)` via `ring.py line 4: comm.Recv(part)`.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from functools import cache
from types import CodeType, FrameType
from typing import BinaryIO, NamedTuple

from mpiwatch import packages
from mpiwatch.recorder import FILE_BYTES, fit
from mpiwatch.report import numbered_line

MAX_LINE_CHARACTERS = 80

_LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
)

Frames = Sequence[tuple[str, int]]  # file and line, innermost first


class Located(NamedTuple):
    """The program's line as text, and what the text says last: a file or cell, and a line of it."""

    text: str
    label: str
    line: int


def own_folders() -> tuple[str, ...]:
    """Return the folders of this package and of the libraries on top of it: see mpiwatch.packages."""
    return _folders_of(tuple(packages.libraries))


@cache  # a recording asks for every frame that leads to a new line
def _folders_of(libraries: tuple[str, ...]) -> tuple[str, ...]:
    modules = (sys.modules.get(name) for name in libraries)
    return tuple(
        os.path.dirname(module.__file__) + os.sep for module in modules if module and module.__file__
    )


def is_own_code(code: CodeType) -> bool:
    """Return whether code is the program's own, and not of a library."""
    return not is_foreign(code.co_filename)


def is_foreign(file: str) -> bool:
    """Return whether a file is part of a library: of Python, of this package, or of one on top of it."""
    return file.startswith((*own_folders(), "<frozen", *_LIBRARIES)) or file.endswith((".pyx", ".pxi"))


def is_cell(file: str) -> bool:
    """Tell whether a file's name is the name of a notebook's cell."""
    return "/ipykernel_" in file or file.startswith(("<ipython-input", "<string>"))


def cell_number(file: str) -> str:
    """Return the number of a cell in its notebook; empty if its first line does not say it."""
    match = re.match(r"\s*# cell \[(\d+)\]", _source(file, 1))
    return match[1] if match else ""


def file_label(file: str) -> bytes:
    """Return `cell`, or a file's name without its folder, as a note of a call has room for it."""
    return fit(packages.advice.cell if is_cell(file) else os.path.basename(file), FILE_BYTES)


def here() -> str:
    """Return the line of the program that led here."""
    return place_of(sys._getframe(1))


def place_of(frame: FrameType | None) -> str:
    """Return the program's line that led to a frame; see `place_in`."""
    return located(frame).text


def located(frame: FrameType | None) -> Located:
    """Return the program's line that led to a frame, as text and as data."""
    frames: list[tuple[str, int]] = []
    at = frame
    while at is not None:
        if is_own_code(at.f_code):
            frames.append((at.f_code.co_filename, line_number(at.f_code, at.f_lasti)))
        at = at.f_back
    if not frames and frame is not None:
        frames.append((frame.f_code.co_filename, line_number(frame.f_code, frame.f_lasti)))
    return _located_in(frames)


def line_number(code: CodeType, instruction: int) -> int:
    """Return the line of an instruction (a frame's `f_lasti`), or the last line before it that there is.

    A frame's own `f_lineno` may be None: at the end of a `with` block, for example.
    """
    line = code.co_firstlineno
    for first, _, number in code.co_lines():
        if first > instruction:
            break
        line = number or line
    return line


def place_of_instruction(code: CodeType, instruction: int, *, is_running: bool = True) -> str:
    """Return the line of an instruction (a frame's `f_lasti`): `cell line 4: comm.Irecv(x, 1)`.

    Unless its cell is the one that runs, the cell is named with its number.
    """
    return _located_at(code.co_filename, line_number(code, instruction), is_running=is_running).text


def place_in(frames: Frames) -> str:
    """Return the program's line among frames, or the innermost line if no frame is the program's own.

    A cell is named with its number unless it is the one that runs. The result is empty without frames.
    """
    return _located_in(frames).text


def _located_in(frames: Frames) -> Located:
    program_frames = [frame for frame in frames if not is_foreign(frame[0])]
    if not program_frames:
        return _located_at(*frames[0], is_running=False) if frames else Located("", "", 0)
    cells = [file for file, _ in program_frames if is_cell(file)]
    program = cells[-1] if cells else program_frames[-1][0]
    inner_file, inner_line = program_frames[0]
    inner = _located_at(inner_file, inner_line, is_running=inner_file == program)
    if inner_file == program:
        return inner
    outer_line = next(line for file, line in program_frames if file == program)
    outer = _located_at(program, outer_line, is_running=True)
    return inner._replace(text=f"{outer.text} via {inner.text}")


def _located_at(file: str, line: int, is_running: bool) -> Located:
    """Return `cell line 4: comm.Barrier()`; `is_running`: it is a line of the program itself."""
    label = file_label(file).decode()
    if is_cell(file) and not is_running and cell_number(file):
        label = f"cell [{cell_number(file)}]"
    text = _source(file, line)
    source = text if len(text) <= MAX_LINE_CHARACTERS else text[: MAX_LINE_CHARACTERS - 1] + "…"
    numbered = numbered_line(label, line)
    return Located(f"{numbered}: `{source}`" if source else numbered, label, line)


def describe(error: BaseException) -> str:
    """Return a line of text with an error and the program's line that raised it."""
    frames = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    parts = [type(error).__name__]
    text = text_of(error)
    if text:
        parts.append(f": {text}")
    place = place_in(frames[::-1])
    if place:
        parts.append(f" at {place}")
    return "".join(parts)


def text_of(error: BaseException) -> str:
    """Return an error's text as one line: the first one, or of MPI's errors the last one, which says why.

    MPICH's errors list calls between a heading and the reason: `Invalid rank, error stack:`.
    """
    try:
        lines = str(error).splitlines()
    except Exception:  # the text of a program's own class
        return ""
    return one_line(lines)


def one_line(lines: Sequence[str]) -> str:
    """Return what the lines of an error say, in one line: see `text_of`."""
    if not lines:
        return ""
    heading, colon, _ = lines[0].partition(", error stack:")
    if not colon or len(lines) == 1:
        return lines[0]
    reason = re.sub(r"^\w+\(\d*\)\.*: *", "", lines[-1])
    return reason if reason.startswith(heading) else f"{heading}: {reason}"


def _source(file: str, line: int) -> str:
    try:
        text = linecache.getline(file, line).strip()
        if not text and is_cell(file):
            # Each rank files a cell in a folder of its own, under the same name.
            name = os.path.basename(file)
            same = [
                other
                for other in tuple(linecache.cache)
                if is_cell(other) and os.path.basename(other) == name
            ]
            text = linecache.getline(same[0], line).strip() if same else ""
    except KeyError:  # another thread has just removed it
        return ""
    return text


def frames_in(file: BinaryIO) -> list[tuple[str, int]]:
    """Return the frames (file and line), innermost first, of the last stack that faulthandler has written."""
    text = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode(errors="replace")
    matches = re.findall(r'File "(.*)", line (\d+) in ', text)
    # faulthandler writes in ASCII, with escapes as in Python's texts.
    return [(name.encode().decode("unicode_escape", "replace"), int(line)) for name, line in matches]
