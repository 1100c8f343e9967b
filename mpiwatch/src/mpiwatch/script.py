"""Run a program as Python runs it, and refuse one that Python cannot run with Python's own words."""

from __future__ import annotations

import builtins
import io
import os
import runpy
import stat
import sys
import time
import traceback
import zipfile
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import NoReturn

from mpiwatch import imports
from mpiwatch.launch import FIRST_S, is_first
from mpiwatch.processes import print_error

# What compiling a text of any content can raise, besides SyntaxError.
NOT_PYTHON = SyntaxError, ValueError, OverflowError, RecursionError, MemoryError


def load(program: str, *, is_module: bool) -> CodeType | None:
    """Do what `load_script` does with a program's path, or what `check_module` does with a module's name."""
    if not is_module:
        return load_script(program)
    check_module(program)
    return None


def load_script(program: str) -> CodeType | None:
    """Return the compiled text of a program, without running it; None for a folder or a zip file.

    If Python cannot run it, print what Python prints, and exit with Python's status: 2 if there is no such
    file, 1 if it is not Python.
    """
    path = os.path.abspath(program)
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode) or (stat.S_ISREG(mode) and zipfile.is_zipfile(path)):
            refuse_without_main(Path(path))
            return None
        if not stat.S_ISREG(mode):  # a named pipe may never get a writer, and a device may never end
            refuse(f"{sys.executable}: can't open file {path!r}: expected a plain file or a folder\n", 2)
        with io.open_code(path) as file:
            text = file.read()
    except OSError as error:
        refuse(f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}\n", 2)
    try:
        return compile(text, path, "exec", dont_inherit=True)
    except NOT_PYTHON as error:
        why: BaseException = error
    if b"\0" in text:  # the compiler does not say where it is
        line = 1 + text[: text.index(b"\0")].count(b"\n")
        why = SyntaxError("source code cannot contain null bytes", (path, line, None, None))
    refuse("".join(traceback.format_exception_only(why)), 1)


def check_module(name: str) -> None:
    """Exit as Python does if there is no module of this name, without importing anything.

    That of a package's module is seen only when it runs, because its package must be imported first.
    """
    first, _, inside = name.partition(".")
    spec = PathFinder.find_spec(first, [os.getcwd(), *sys.path]) if first else None
    if spec is None and first not in (*sys.builtin_module_names, *sys.stdlib_module_names):
        refuse(f"{sys.executable}: No module named {name or repr(name)}\n", 1)
    origin = "" if spec is None or spec.submodule_search_locations else str(spec.origin)
    if not inside and origin.endswith(".py"):
        load_script(origin)


def refuse_without_main(path: Path) -> None:
    """Exit as Python does if a folder or zip file holds no __main__ module."""
    names = os.listdir(path) if path.is_dir() else zipfile.ZipFile(path).namelist()
    if not {"__main__.py", "__main__.pyc"} & {*names}:
        refuse(f"{sys.executable}: can't find '__main__' module in {str(path)!r}\n", 1)


def refuse(message: str, status: int) -> NoReturn:
    """Print why the program cannot run, and exit.

    All ranks of a job find the same. The first one prints it, and its end makes the launcher end the others.
    If it does not, another rank has a reason of its own.
    """
    wait_for_the_first()
    print_error(message)
    sys.exit(status)


def wait_for_the_first() -> None:
    """Leave the first rank time to print what all ranks would, and the launcher to end this rank."""
    if not is_first():
        time.sleep(FIRST_S)


def run_script(words: tuple[str, ...], code: CodeType | None, *, is_module: bool) -> None:
    """Run a program as `__main__`; `words` are its path or module and its arguments.

    `code`: what `load` has returned. Return when the program ends, or raise its SystemExit or uncaught
    exception. Exit as Python does if there is no such module.
    """
    program = words[0]
    sys.argv[:] = words
    if not os.environ.get("PYTHONSAFEPATH"):
        imports.program_folder = os.getcwd() if is_module else os.path.dirname(os.path.realpath(program))
        sys.path.insert(0, imports.program_folder)
    if is_module:
        try:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        except ImportError as error:
            if is_from_the_program(error):
                raise
            refuse(f"{sys.executable}: {error}\n", 1)
        return
    if code is None:
        runpy.run_path(program, run_name="__main__")
        return
    path = os.path.abspath(program)  # like Python's own `__file__`
    # Functions that run at exit expect the program's `__main__`; runpy would remove its module before that.
    main = ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    vars(main).update(__file__=path, __builtins__=builtins, __loader__=loader, __cached__=None)
    sys.modules["__main__"] = main
    exec(code, vars(main))


def is_from_the_program(error: BaseException) -> bool:
    """Return whether a line of the program has raised an error, and not what loads the program."""
    loading = __file__, runpy.__file__, "<frozen "
    frames = traceback.walk_tb(error.__traceback__)
    files = [frame.f_code.co_filename for frame, _ in frames]
    return not all(file.startswith((*loading, os.path.dirname(__file__))) for file in files)
