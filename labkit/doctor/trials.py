"""Trials: something real, run in a child that cannot outlive its deadline, nor this process."""

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
from labkit.supervisor import GRACE_S, supervised

DEADLINE_S = 30.0  # a trial takes one second on an idle machine, and all run at once


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: its exit status, None if the deadline ended it, and all that it wrote."""

    code: int | None
    said: str

    @property
    def told(self) -> list[dict[str, Any]]:
        """What its probes told, one record each."""
        lines = self.said.splitlines()
        return [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]

    def end(self) -> str:
        """Say how it ended, with the words that matter: a launcher's first ones, a traceback's last."""
        late = f"did not end within {DEADLINE_S:g} s"
        how = late if self.code is None else f"ended with status {self.code}"
        lines = [line.strip(" =") for line in self.said.splitlines() if not line.startswith(MARK)]
        words = [line for line in lines if any(letter.isalpha() for letter in line)]
        words = words[-3:] if "Traceback" in self.said else words[:3]
        return f"{how}: {' / '.join(words)}" if words else how


class Trial:
    """A command that runs from now on; `finish` waits for it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [*supervised("child"), *command],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def finish(self) -> Outcome:
        """Wait for the end, or make one at the deadline."""
        try:
            said, _ = self._process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            with suppress(psutil.NoSuchProcess):
                for process in psutil.Process(self._process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            try:  # the watcher sees its command end, and ends with it
                said, _ = self._process.communicate(timeout=GRACE_S["child"] + 5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                said = ""
            return Outcome(None, said)
        return Outcome(self._process.returncode, said)


def probing(what: str, environment: Mapping[str, str], *launcher: str) -> Trial:
    """Start a probe (see probe.py), as one process or by a launcher such as `mpiexec -n 4`."""
    return Trial([*launcher, sys.executable, "-m", "labkit.doctor.probe", what], environment)
