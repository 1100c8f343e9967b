"""On a rank: look at the variables of the frame in which a cell has failed, by commands of Python's debugger.

A rank has no keyboard, so its debugger cannot ask for commands. The notebook asks, in its `%debug`
(labkit/cluster/post_mortem.py), and sends each command here.
"""

from __future__ import annotations

import pdb
import sys
from io import StringIO
from types import TracebackType
from typing import Any

from labkit.cluster.tracebacks import shortened
from mpiwatch.sessions import cell_number

# They would let the cell go on, or read from the keyboard.
REFUSED = (
    *("c", "cont", "continue", "n", "next", "s", "step", "r", "return", "unt", "until", "j", "jump"),
    *("b", "break", "tbreak", "condition", "commands", "interact", "debug", "run", "restart"),
)
ENDED = "The cell has ended, so it cannot go on. p, pp, u, d, l, ll, w and a look at it; q ends."
NOTHING = "No cell has failed on this rank."


class Breakpoint(Exception):
    """A cell has called breakpoint()."""


class FailedFrame:
    """A debugger of the last error on this rank. Each command has a text as its answer."""

    def __init__(self, traceback: TracebackType) -> None:
        self.answer = StringIO()
        self.traceback = traceback
        self.debugger = pdb.Pdb(stdout=self.answer, nosigint=True, readrc=False)
        self.debugger.reset()
        self.debugger.setup(None, traceback)

    def where(self) -> str:
        """Return the line that has failed."""
        self.debugger.print_stack_entry(self.debugger.stack[self.debugger.curindex])
        return self.take_answer()

    def do(self, command: str) -> str:
        """Return the answer to a command, such as `p x`; a text that is no command is an expression."""
        word = command.partition(" ")[0]
        if word in REFUSED:
            return ENDED
        try:
            self.debugger.onecmd(command)
        except Exception as error:
            return f"*** {type(error).__name__}: {error}"
        return self.take_answer()

    def take_answer(self) -> str:
        """Return what the debugger has written, with the notebook's names of cells."""
        text = self.answer.getvalue()
        self.answer.seek(0)
        self.answer.truncate()
        for frame, _ in self.debugger.stack:
            file = frame.f_code.co_filename
            number = cell_number(file)
            if number:
                text = text.replace(file, f"Cell In[{number}]")
        return text.rstrip("\n")


_open: FailedFrame | None = None


def look(command: str = "") -> str:
    """Return the answer to a command; without one, begin anew and return the line that has failed."""
    global _open  # noqa: PLW0603
    traceback = shortened(getattr(sys, "last_traceback", None))
    # The first frame is IPython's.
    if traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return NOTHING
    if _open is None or not command:
        _open = FailedFrame(traceback)
        return _open.where()
    return _open.do(command)


def close() -> None:
    """Forget the frame and its variables, as far as the debugger holds them."""
    global _open  # noqa: PLW0603
    _open = None


def replace_debuggers(shell: Any) -> None:
    """Let `breakpoint()` and `pdb.set_trace()` end a cell on this rank, and `%debug` say where it works."""
    sys.breakpointhook = stop_here
    pdb.set_trace = stop_here
    shell.register_magic_function(say_where_debug_works, "line", "debug")


def stop_here(*_: Any, **__: Any) -> None:
    """Raise Breakpoint."""
    raise Breakpoint(
        "the cell stops here, because a rank cannot ask for commands. `%debug` in the next cell, without "
        "%px, looks at the variables of this line."
    )


def say_where_debug_works(_: str = "") -> None:
    """Say that `%debug` is for an ordinary cell."""
    print("Run %debug without %px, in a cell of its own: it opens the rank that has failed.")
