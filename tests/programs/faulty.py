"""A process of the lab's, one of whose steps has a fault: faulty.py ROLE [ARGUMENT …], or `--serve …`.

FAULT in the environment, JSON, says in which process (`where`), which step and what kind: `error`: an error
each time; `often`: in the first calls; `delay`: the first call takes seconds. CALLS is a file that gets a
line for each fault.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

FAULT, CALLS = "LABKIT_TEST_FAULT", "LABKIT_TEST_CALLS"
ERRORS, DELAY_S = 3, 2.0
ME = "tests.programs.faulty"  # as a module that `python -m` runs


class Fault(NamedTuple):
    """A step of a loop, and what is wrong with it."""

    where: str  # the process
    module: str
    owner: str  # the class in the module; empty for the module itself
    step: str
    kind: str

    def __str__(self) -> str:
        return f"{self.where}-{self.owner}-{self.step}-{self.kind}"


def faulty(step: Callable[..., Any], kind: str, note: Callable[[], object]) -> Callable[..., Any]:
    """Return a step with a fault, which notes each time that it has one."""
    calls = 0

    def call(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if kind == "error":
            note()
            raise TypeError("an error in a step, each time")
        if kind == "often" and calls <= ERRORS:
            note()
            raise MemoryError("one of the first errors in a step")
        if kind == "delay" and calls == 1:
            note()
            time.sleep(DELAY_S)
        return step(*arguments)

    return call


def note_fault(calls: str) -> None:
    """Append a line to the file of faults."""
    with open(calls, "a") as file:
        file.write(".\n")


def inject(where: str) -> None:
    """Give this process its fault, if it is the one that has one."""
    fault = json.loads(os.environ[FAULT])
    if fault["where"] != where:
        return
    note = partial(note_fault, os.environ[CALLS])  # a rank or a supervisor gets another environment
    owner = importlib.import_module(fault["module"])
    for name in filter(None, fault["owner"].split(".")):
        owner = getattr(owner, name)
    setattr(owner, fault["step"], faulty(getattr(owner, fault["step"]), fault["kind"], note))


def main(role: str, arguments: list[str]) -> None:
    """Be one of the lab's processes."""
    inject(role)
    sys.argv[1:] = arguments
    if role.startswith("supervisor"):
        from labkit.cluster import supervisor  # noqa: PLC0415

        supervisor.ENGINE = ME
        sys.exit(supervisor.main(arguments))
    if role == "stand-in":
        from labkit import forking  # noqa: PLC0415

        forking.main(arguments)
    if role == "ssh":
        from labkit.cluster.places import ssh  # noqa: PLC0415

        ssh.main(arguments)
    if role == "controller":
        from labkit.cluster.adapter import controller  # noqa: PLC0415

        controller.Controller.launch_instance()
    if role == "--fork":  # the process that forks engines
        from labkit.cluster.adapter import engine  # noqa: PLC0415

        sys.argv[1:] = ["--fork", *arguments]
        engine.main()
        return
    if role == "--serve" and len(arguments) == 0:  # the same, for stand-ins
        from labkit.cluster.adapter import engine  # noqa: PLC0415

        sys.argv[1:] = ["--serve"]
        engine.main()
    if role == "--serve":  # the process that forks judges
        from labkit.checks import forked  # noqa: PLC0415

        forked.main(["--serve", *arguments])
    inject("judge")
    sys.argv[1:] = [role]
    runpy.run_module("labkit.checks.judge", run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
