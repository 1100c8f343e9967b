"""The command line of a watched program, for `python -m mpiwatch` on every rank."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from mpiwatch import HANG_EXIT_CODE

# Ranks count as stuck only if all of them have been inside one MPI call for this long, each without a line of
# Python in between. Few calls take a minute, even with a slow disk or network.
DEADLINE_S = 60.0
NAME = "python -m mpiwatch"


@dataclass(frozen=True)
class Options:
    """A program and how to watch it.

    `words`: the program's path or module, and its own arguments. `command`: the command that runs it, for
    messages.
    """

    words: tuple[str, ...]
    is_module: bool = False
    deadline_s: float = DEADLINE_S
    strict: bool = False
    json: str | None = None
    command: str = NAME


def command_line(options: Options) -> list[str]:
    """Return the command line that runs one rank of the program; `parse` is the inverse."""
    words = [sys.executable, "-m", "mpiwatch", "--deadline", f"{options.deadline_s!r}"]
    words += ["--strict"] * options.strict
    words += [] if options.json is None else ["--json", options.json]
    return [*words, *["-m"] * options.is_module, *options.words]


def findings_file(json: str) -> str:
    """Return the path of the file that hands strict mode's findings from the program to its parent."""
    return f"{json}.strict"


def parse(arguments: Sequence[str]) -> Options:
    """Return the options in a command line's arguments; on a usage error, print it and exit with status 2."""
    parser = argparse.ArgumentParser(
        prog=NAME,
        description="Run an mpi4py program on the ranks that mpiexec or srun has started, and watch them. "
        "A hang is reported on standard error, "
        f"and the job ends with exit code {HANG_EXIT_CODE}.",
    )
    parser.add_argument("--deadline", type=_seconds, default=DEADLINE_S, metavar="S", help="seconds [60]")
    parser.add_argument("--strict", action="store_true", help="let sends wait for their receives")
    parser.add_argument("--json", metavar="FILE", help="write the report and the exit codes to a file")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the program is a module")
    parser.add_argument("program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    found = parser.parse_args(arguments)
    words = found.program, *found.arguments
    return Options(words, found.is_module, found.deadline, found.strict, found.json)


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError
    return value
