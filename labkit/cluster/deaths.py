"""Which rank died first, and of what, from the lines that the ranks' witnesses leave (see witness.py)."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True)
class Death:
    """A rank's end; `code` is its exit code, or minus the number of the signal that killed it."""

    rank: int
    code: int

    def __str__(self) -> str:
        if self.code < 0:
            return f"rank {self.rank} was killed by signal {-self.code} ({signal.Signals(-self.code).name})"
        return f"rank {self.rank} ended with exit code {self.code}"


def first_death(lines: str, pids: dict[int, int]) -> Death | None:
    """Return the first death among `pids` ({process id: rank}) that the witnesses' lines tell of."""
    for line in lines.splitlines():
        pid, code = map(int, line.split())
        if pid in pids:
            return Death(pids[pid], code)
    return None


class RankDied(RuntimeError):
    """A rank died, and MPI ended the others with it."""

    def _render_traceback_(self) -> list[str]:  # IPython shows these lines in place of a traceback
        return [f"RankDied: {self}"]
