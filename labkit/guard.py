"""Let what guards a cell, a cluster or a check survive the faults of what it looks at.

A guardian is a loop: the wait for a cell, the live view, a supervisor, the process that forks ranks, the hub,
a nanny, the judge of a check. Each names its calls in a tuple `STEPS` and makes them through a `Guard`, so an
error in one of them ends neither the loop nor the calls after it. tests/cluster/test_guardians.py lets each
step of each loop raise errors, or take seconds.

Supervisors use this module: of mpiwatch, it imports only what needs no MPI.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from mpiwatch import processes


def note_on_stderr(text: str) -> None:
    """Write a line to standard error, which is the log of a cluster's processes."""
    print(text, file=sys.stderr, flush=True)


def note_in_log(text: str) -> None:
    """Log a line for `logging.getLogger("labkit.guard")`, which shows nothing in a notebook by itself."""
    import logging  # noqa: PLC0415  (supervisors do without it)

    log = logging.getLogger(__name__)
    if not log.handlers:
        log.addHandler(logging.NullHandler())
    log.warning(text)


class Guard(processes.Guard):
    """Does the steps of a loop, survives their errors, and writes the first error of each step by `write`.

    `answers`: errors that are a step's result, and are not survived. `errors`: how often each step has raised
    an error, by its name.
    """

    def __init__(
        self,
        owner: str,
        write: Callable[[str], None] = note_on_stderr,
        answers: tuple[type[BaseException], ...] = (),
    ) -> None:
        super().__init__(owner, answers)
        self.write = write

    def note(self, name: str, error: Exception) -> None:
        """Write the first error of a step."""
        self.write(f"{self.owner} goes on after an error in {name}: {type(error).__name__}: {error}")
