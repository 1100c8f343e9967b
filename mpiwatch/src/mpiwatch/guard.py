"""Let what looks after a program survive the faults of that program.

A watchdog, a hub or a supervisor is a loop that looks at things which it cannot trust: frames that change,
files that vanish, processes that end. An error in one step must end neither the loop nor the steps after it,
because nothing would report a hang from then on. So such a loop names its steps in a tuple `STEPS` and lets a
`Guard` do them; tests let each step raise an error, or take seconds, one after the other.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import sleep
from typing import Any

PAUSE_S = 0.02
DEBUG = "MPIWATCH_DEBUG"  # if set, the errors of steps are printed


class Guard:
    """Does the steps of a loop, and survives their errors.

    `errors`: how often each step has raised an error, by its name. `answers`: errors that are a step's
    result, and are not survived. A class derived from this one may `note` the errors in another way.
    """

    tries = 5  # of a step that has no later turn

    def __init__(self, owner: str, answers: tuple[type[BaseException], ...] = ()) -> None:
        self.owner, self.answers = owner, answers
        self.errors: dict[str, int] = {}

    def do(self, name: str, step: Callable[..., Any], *arguments: Any) -> Any:
        """Do a step and return its result; None if it has raised an error."""
        return self._tried(name, step, arguments)[1]

    def insist(self, name: str, step: Callable[..., Any], *arguments: Any) -> Any:
        """Do a step that has no later turn: after an error, try again, a few times."""
        for _ in range(self.tries):
            is_done, result = self._tried(name, step, arguments)
            if is_done:
                return result
        return None

    def is_done(self, name: str, step: Callable[..., Any], *arguments: Any) -> bool:
        """Do a step, and return whether it has raised no error."""
        return self._tried(name, step, arguments)[0]

    def note(self, name: str, error: Exception) -> None:
        """Print the first error of a step, if MPIWATCH_DEBUG is set."""
        if os.environ.get(DEBUG):
            import traceback  # noqa: PLC0415  (the start of every program would wait for it)

            text = "".join(traceback.format_exception(error))
            print(f"{self.owner}: an error in {name}:\n{text}", file=sys.stderr)

    def _tried(self, name: str, step: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[bool, Any]:
        try:
            return True, step(*arguments)
        except self.answers:
            raise
        except Exception as error:
            self.errors[name] = self.errors.get(name, 0) + 1
            if self.errors[name] == 1:
                self.note(name, error)
            sleep(PAUSE_S)  # a step that always fails must not take a core
            return False, None
