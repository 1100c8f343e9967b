"""Run a script or a module as `python` does, and print its errors without the lab's frames."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys
import zipfile
from importlib.machinery import SourceFileLoader
from types import FrameType, ModuleType, TracebackType

from mpiwatch.flight_recorder.source import own_folders


def run(words: tuple[str, ...], is_module: bool) -> None:
    """Run a program as `__main__`; `words` are its path or module and its arguments.

    Return when the program ends, or raise its SystemExit or uncaught exception.
    """
    program = words[0]
    sys.argv[:] = words
    if is_module:
        runpy.run_module(program, run_name="__main__", alter_sys=True)
        return
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = os.path.dirname(os.path.realpath(program))
    if os.path.isdir(program) or zipfile.is_zipfile(program):
        runpy.run_path(program, run_name="__main__")
        return
    path = os.path.abspath(program)  # like Python's own `__file__`
    # Functions that run at exit expect the program's `__main__`; runpy would remove its module before that.
    main = ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __builtins__=builtins, __loader__=loader, __cached__=None)
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def show(error: BaseException) -> None:
    """Print an uncaught error of the program as Python does."""
    _without_own_frames(error)
    sys.excepthook(type(error), error, error.__traceback__)


def _without_own_frames(error: BaseException) -> None:
    """Remove the lab's frames from the tracebacks of an error and of the errors that caused it."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            each.__traceback__ = _foreign(each.__traceback__)
            left += [each.__cause__, each.__context__]


def _foreign(traceback: TracebackType | None) -> TracebackType | None:
    frames = []
    while traceback is not None:
        if not _is_own(traceback.tb_frame):
            frames.append(traceback)
        traceback = traceback.tb_next
    rest = None
    for each in reversed(frames):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest


def _is_own(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith((*own_folders(), "<frozen runpy", runpy.__file__))
