"""What every place offers: checks before its engines start, and what it knows of them afterwards.

The methods of these base classes suit a place that needs no checks and reports nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PACKAGE = __name__.rpartition(".")[0]


class EnginesState(NamedTuple):
    """What a place says about a cluster's engines.

    `text`: the sentence for it, without its full stop. `is_pending`: they wait for machines. `is_ending`: the
    place is ending them, or has ended them.
    """

    text: str = ""
    is_pending: bool = False
    is_ending: bool = False


class Engines:
    """The engines of one cluster, as their place knows them. `file`: the cluster's file `place`."""

    are_on_several_machines = False

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def name(self) -> str:
        """Return what started them, such as "SLURM job 12"."""
        return "the cluster"

    def machines(self) -> list[str]:
        """Return the machine of each rank; an empty list if that is not known before the ranks answer."""
        return []

    def state(self) -> EnginesState:
        """Return their state. It is asked for often, and must not take long."""
        return EnginesState()

    def why_not_wait(self, waited_s: float) -> str:
        """Return why pending engines will not come, or have been pending for too long; else an empty text."""
        return ""

    def why_none(self) -> str:
        """Return the sentence that says why no engine came up; empty if the place does not know."""
        return ""

    def cause_of_end(self, hosts: Mapping[int, str]) -> str:
        """Return why the ranks on these hosts have ended; empty if the place does not know.

        `hosts`: the host's name of each rank. The text is a sentence without its full stop.
        """
        return ""


class Place:
    """Where ranks run."""

    engines: type[Engines] = Engines

    def check(self, n: int) -> None:
        """Raise an error if n engines cannot run here at all; connect() calls this first."""

    def before_start(self, n: int, hosts: str | None) -> dict[str, str]:
        """Return the environment variables for n engines that are to be started.

        `hosts`: the host file that connect() was given. Raise ClusterError if the engines could not start.
        """
        return {}

    def machines_of(self, n: int, hosts: str | None) -> list[str]:
        """Return the machines on which a host file puts n ranks; an empty list if any machine will do."""
        return []


def place(name: str) -> Place:
    """Return the place of a profile."""
    module = f"{PACKAGE}.{name}"
    if importlib.util.find_spec(module) is None:
        return Place()
    chosen: Place = getattr(importlib.import_module(module), "PLACE", Place())
    return chosen
