"""Import modules in a program's process as if the files beside the program were not there.

A file random.py beside the program must not take the place of Python's own in mpiwatch and NumPy.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

program_folder = ""  # which Python puts before all other places of modules; set before the program begins


@contextmanager
def from_environment_alone() -> Iterator[None]:
    """Import modules inside the block from everywhere but the program's folder."""
    places = sys.path.copy()
    of_the_program = {name: module for name, module in sys.modules.items() if _is_beside(name, module)}
    for name in of_the_program:
        del sys.modules[name]
    sys.path[:] = [place for place in places if os.path.abspath(place) != program_folder]
    try:
        yield
    finally:
        sys.path[:] = places
        sys.modules.update(of_the_program)


def _is_beside(name: str, module: ModuleType) -> bool:
    """Return whether a module is a file beside the program."""
    file = getattr(module, "__file__", None)
    if not file or not program_folder or name == "__main__":
        return False
    return os.path.dirname(os.path.abspath(file)) == program_folder
