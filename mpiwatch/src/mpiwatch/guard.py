"""Let what looks after a program survive the faults of that program.

A watchdog, a hub or a supervisor is a loop that looks at things which it cannot trust: frames that change,
files that vanish, processes that end. An error in one step must end neither the loop nor the steps after it,
because nothing would report a hang from then on. So such a loop names its steps in a tuple `STEPS` and lets a
`Guard` do them; tests let each step raise an error, or take seconds, one after the other.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from time import sleep
from typing import Any

PAUSE_S = 0.02
DEBUG = "MPIWATCH_DEBUG"  # if set, the errors of steps are printed


class Guard:
    """Does the steps of a loop, and survives their errors.

    `errors`: how often each step has raised an error, by its name.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.errors: dict[str, int] = {}

    def do(self, name: str, step: Callable[..., Any], *arguments: Any) -> Any:
        """Do a step and return its result; None if it has raised an error."""
        try:
            return step(*arguments)
        except Exception:
            self.errors[name] = self.errors.get(name, 0) + 1
            if self.errors[name] == 1 and os.environ.get(DEBUG):
                print(f"{self.owner}: an error in {name}:\n{traceback.format_exc()}", file=sys.stderr)
            sleep(PAUSE_S)  # a step that always fails must not take a core
            return None
