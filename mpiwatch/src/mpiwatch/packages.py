"""Packages on top of mpiwatch: a report names the line that called them, not a line of their own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

libraries = ["mpiwatch"]  # packages whose lines a report skips
wrappers = ["mpiwatch"]  # those of them whose methods have mpi4py's names and call mpi4py's methods


def belongs(module: str, packages: Iterable[str]) -> bool:
    """Return whether a module is one of these packages, or lies in one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@cache  # each call of the MPI library asks for one
def is_library(module: str) -> bool:
    """Return whether a module lies in a package whose lines a report skips."""
    return belongs(module, libraries)


@cache  # each collective asks for two modules or three
def is_wrapper(module: str) -> bool:
    """Return whether a module lies in a package whose methods have mpi4py's names and call mpi4py's."""
    return belongs(module, wrappers)


class Advice:
    """What a report advises in an interactive session: see `advise`."""

    def __init__(self) -> None:
        self.more_time = "`comm.deadline_s = {seconds}`"
        self.end_of_call = ""
        self.cell = "cell"


advice = Advice()


def register(package: str, *, wraps: bool = False) -> None:
    """Let reports name the lines that call a package, in place of the package's own lines.

    `wraps`: the package has classes of communicators, whose methods have the names of mpi4py's. Call it as
    the package is imported, for example in its `__init__.py`: `register(__name__)`.
    """
    if not belongs(package, libraries):
        libraries.append(package)
        is_library.cache_clear()
    if wraps and package not in wrappers:
        wrappers.append(package)
        is_wrapper.cache_clear()


def advise(*, more_time: str | None = None, end_of_call: str | None = None, cell: str | None = None) -> None:
    """Set what a report says in an interactive session, in the words of the package that holds it.

    What is None stays as it is. `more_time`: how to allow a longer deadline; `{ranks}` and `{seconds}` stand
    for the numbers. `end_of_call`: how to end a call of the MPI library that no rank can leave. `cell`: what
    the text that the ranks run is called before the number of its line; empty for the line alone.
    """
    if more_time is not None:
        advice.more_time = more_time
    if end_of_call is not None:
        advice.end_of_call = end_of_call
    if cell is not None:
        advice.cell = cell
