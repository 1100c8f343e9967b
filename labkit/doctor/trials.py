"""Trials: commands run in a child process that ends at a deadline, or with this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil

from labkit.doctor.probe import MARK
from mpiwatch.supervisor import GRACE_S, supervised

DEADLINE_S = 30.0  # a trial takes one second on an idle machine, and several run at once


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: its exit status, None if it reached the deadline, and all of its output."""

    status: int | None
    output: str

    @property
    def records(self) -> list[dict[str, Any]]:
        """Return what its probes reported, one record each."""
        lines = self.output.splitlines()
        return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]

    def describe(self) -> str:
        """Return how it ended, with the lines that matter: the last of a traceback, else the first."""
        late = f"did not end within {DEADLINE_S:g} s"
        how = late if self.status is None else f"ended with status {self.status}"
        lines = [line.strip(" =") for line in self.output.splitlines() if not line.startswith(MARK)]
        words = [line for line in lines if any(letter.isalpha() for letter in line)]
        words = words[-3:] if "Traceback" in self.output else words[:3]
        return f"{how}: {' / '.join(words)}" if words else how


class Trial:
    """A command that starts at once; `finish` waits for it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [*supervised(), *command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def finish(self) -> Outcome:
        """Wait until the command has ended, and end it at the deadline."""
        try:
            output, _ = self._process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            with suppress(psutil.NoSuchProcess):
                for process in psutil.Process(self._process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            try:  # the supervisor ends after its command
                output, _ = self._process.communicate(timeout=GRACE_S + 5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                output = ""
            return Outcome(None, output)
        return Outcome(self._process.returncode, output)


def start_probe(name: str, environment: Mapping[str, str], *launcher: str) -> Trial:
    """Start a probe (labkit.doctor.probe) as one process, or by a launcher such as `mpiexec -n 4`."""
    return Trial([*launcher, sys.executable, "-m", "labkit.doctor.probe", name], environment)
