"""Errors that a notebook shows on purpose, where papermill runs it.

papermill runs on behind a cell with the tag `raises-exception`, but then takes each error in the notebook's
output for a failure and ends with 1. So such an error is printed there, as text. Everywhere else it stays an
error, with the colour and the place of one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import psutil


def is_run_by_papermill() -> bool:
    """Return whether the program `papermill` has started this kernel."""
    try:
        words = psutil.Process().parent().cmdline()
    except (psutil.Error, AttributeError):  # it has ended, or there is none
        return False
    return any(Path(word).stem == "papermill" for word in words[:3])  # python [-m] papermill


def register(shell: Any) -> None:
    """Let errors be printed in cells that are meant to raise them, if papermill runs this notebook."""
    if is_run_by_papermill():
        shell.set_custom_exc((Exception,), show)


def show(shell: Any, kind: type, error: Exception, traceback: Any, tb_offset: int | None = None) -> None:
    """Print the text of an error in a cell that is meant to raise one; show others as ever."""
    request = shell.get_parent().get("content") or {}
    if request.get("stop_on_error", True):  # the cell's tags do not say that it raises an exception
        shell.showtraceback((kind, error, traceback), tb_offset=1)
        return
    lines = getattr(error, "_render_traceback_", None)
    shown = lines() if lines else shell.InteractiveTB.structured_traceback(kind, error, traceback, 1)
    print("\n".join(shown), file=sys.stderr)
