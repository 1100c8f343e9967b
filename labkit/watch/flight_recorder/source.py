"""Lines of a student's program, in words: `cell line 4: comm.Barrier()`."""

from __future__ import annotations

import linecache
import os
import sysconfig
from collections.abc import Sequence
from types import FrameType

_ROOM = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep
_LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


def is_cell(file: str) -> bool:
    """Tell whether a file's name is that of a notebook's cell."""
    return "/ipykernel_" in file or file.startswith(("<ipython-input", "<string>"))


def label(file: str) -> bytes:
    """Return a file's name as it fits a note on the board."""
    return b"cell" if is_cell(file) else os.path.basename(file).encode()[:31]


def where(frame: FrameType | None) -> str:
    """Return the student's line that has led to a frame: of a cell, else of a program, else the innermost."""
    frames = []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return place(frames)


def place(frames: Sequence[tuple[str, int]]) -> str:
    """Return the student's line among frames, innermost first; empty if there are none."""
    own = [one for one in frames if not one[0].startswith((_ROOM, "<frozen", *_LIBRARIES))]
    for file, line in [one for one in own if is_cell(one[0])] or own or list(frames):
        source = _line(file, line)
        return f"{label(file).decode()} line {line}" + (f": `{source}`" if source else "")
    return ""


def _line(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    if not text and is_cell(file):
        # Each rank files a cell under a folder of its own, and under the same name.
        name = os.path.basename(file)
        same = [known for known in linecache.cache if is_cell(known) and os.path.basename(known) == name]
        text = linecache.getline(same[0], line).strip() if same else ""
    return text if len(text) <= 80 else text[:79] + "…"
