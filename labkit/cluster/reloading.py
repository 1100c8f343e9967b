"""Load a student's own modules again when their files have changed, as they are edited beside a notebook.

IPython's `%autoreload` looks at every module before every cell, on each rank. This looks only at modules of
the notebook's folder, and lets IPython's extension load those that have changed: functions that
`from helper import f` has bound are updated in place.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from contextlib import suppress
from types import ModuleType
from typing import Any

NOT_RELOADED = "labkit", "mpiwatch"  # in case the folder is that of the lab's sources
Stamp = tuple[int, int]  # of a file: when it was changed, and its size
NO_STAMP: Stamp = (0, 0)


class Reloader:
    """Knows the modules of a folder that this process has imported, and the state of their files then."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.join(os.path.realpath(folder), "")
        self.stamps: dict[str, Stamp] = {}  # by module
        self.modules_seen = 0  # how many this process had imported at the last look
        self.began_ns = time.time_ns()  # when the current cell began
        self.old_objects: dict[tuple[str, str], list[object]] = {}  # for IPython, which updates them
        self.note_new_modules()

    def begin_cell(self, _: object = None) -> None:
        """Load the modules again whose files have changed; print a line for each that cannot be loaded."""
        self.began_ns = time.time_ns()
        self.note_new_modules()
        for name, stamp in list(self.stamps.items()):
            module = sys.modules.get(name)
            if module is None:
                del self.stamps[name]
                continue
            now = stamp_of(module)
            if now not in (stamp, NO_STAMP):
                self.stamps[name] = now
                self.reload(module)

    def end_cell(self, _: object = None) -> None:
        """Note the modules that the cell has imported."""
        self.note_new_modules()

    def note_new_modules(self) -> None:
        """Note the state of the files of modules that are new. It is quick if no module was imported."""
        if len(sys.modules) == self.modules_seen:
            return
        self.modules_seen = len(sys.modules)
        for name, module in list(sys.modules.items()):
            if name in self.stamps or not self.is_students(name, module):
                continue
            stamp = stamp_of(module)
            # A file that has changed since the cell began may have changed after its import.
            self.stamps[name] = stamp if stamp[0] < self.began_ns else NO_STAMP

    def is_students(self, name: str, module: ModuleType) -> bool:
        """Return whether a module is a file of the folder, and not of an environment in it."""
        # `getattr` could block: a student may have put an object with a `__getattr__` into sys.modules.
        file = vars(module).get("__file__") if type(module) is ModuleType else None
        return (
            isinstance(file, str)
            and file.endswith(".py")
            and name != "__main__"
            and name.partition(".")[0] not in NOT_RELOADED
            and os.path.realpath(file).startswith(self.folder)
            and "site-packages" not in file
            and not os.path.realpath(file).startswith(os.path.join(os.path.realpath(sys.prefix), ""))
        )

    def reload(self, module: ModuleType) -> None:
        """Load a module again; if that fails, print why and keep the module as it is."""
        from IPython.extensions.autoreload import superreload  # noqa: PLC0415  (most sessions need it never)

        file = module.__file__ or ""
        # The compiled copy names the second of the file's last change: it may be that of an earlier text.
        with suppress(OSError):
            os.unlink(importlib.util.cache_from_source(file))
        try:
            superreload(module, load_again, self.old_objects)
        except Exception as error:
            file = os.path.basename(file)
            reason = f"{type(error).__name__}: {error}"
            print(f"{file} has changed and cannot be loaded: {reason}. Its earlier version stays in use.")


of_kernel: Reloader | None = None


def register(shell: Any) -> None:
    """Let a notebook's kernel, too, load changed modules again before each cell."""
    global of_kernel  # noqa: PLW0603
    if of_kernel is None:
        of_kernel = Reloader(os.getcwd())
        shell.events.register("pre_run_cell", of_kernel.begin_cell)
        shell.events.register("post_run_cell", of_kernel.end_cell)


def stamp_of(module: ModuleType) -> Stamp:
    """Return the state of a module's file; NO_STAMP if the file is gone, as while an editor saves it."""
    try:
        status = os.stat(module.__file__ or "")
    except OSError:
        return NO_STAMP
    return status.st_mtime_ns, status.st_size


def load_again(module: ModuleType) -> ModuleType:
    """Load a module; raise ImportError if it would end this process."""
    try:
        return importlib.reload(module)
    except SystemExit as error:
        raise ImportError(f"it calls exit: {error}") from error
