"""Let what guards a cell, a cluster or a check survive the faults of what it looks at.

A guardian is a loop: the wait for a cell, the live view, a supervisor, the process that forks ranks, the hub,
a nanny, the judge of a check. Each names its calls in a tuple `STEPS` and makes them through a `Guard`, so an
error in one of them ends neither the loop nor the calls after it. tests/cluster/test_guardians.py lets each
step of each loop raise errors, or take seconds.

Supervisors use this module: it imports the standard library alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import sleep

TYPE_CHECKING = False
if TYPE_CHECKING:  # every engine waits for the start of its supervisor, which does not wait for the import
    from typing import Any

TRIES = 5
PAUSE_S = 0.02  # after an error: a step that always fails must not take a core


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


class Guard:
    """Does the steps of a loop, survives their errors, and notes the first error of each step.

    `note` is called with the line. `answers`: errors that are a step's result, and are not survived.
    `errors`: how often each step has raised an error, by its name.
    """

    def __init__(
        self,
        owner: str,
        note: Callable[[str], None] = note_on_stderr,
        answers: tuple[type[BaseException], ...] = (),
    ) -> None:
        self.owner = owner
        self.errors: dict[str, int] = {}
        self.note, self.answers = note, answers

    def do(self, name: str, step: Callable[..., Any], *arguments: Any) -> Any:
        """Do a step and return its result; None if it has raised an error."""
        return self._tried(name, step, arguments)[1]

    def insist(self, name: str, step: Callable[..., Any], *arguments: Any) -> Any:
        """Do a step that has no later turn: after an error, try again, a few times."""
        for _ in range(TRIES):
            is_done, result = self._tried(name, step, arguments)
            if is_done:
                return result
        return None

    def is_done(self, name: str, step: Callable[..., Any], *arguments: Any) -> bool:
        """Do a step, and return whether it has raised no error."""
        return self._tried(name, step, arguments)[0]

    def _tried(self, name: str, step: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        try:
            return True, step(*arguments)
        except self.answers:
            raise
        except Exception as error:
            self.errors[name] = self.errors.get(name, 0) + 1
            if self.errors[name] == 1:
                self.note(f"{self.owner} goes on after an error in {name}: {type(error).__name__}: {error}")
            sleep(PAUSE_S)
            return False, None
