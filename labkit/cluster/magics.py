"""ipyparallel's `%%px`, with one thing more: a cell whose rank died says which one, and what to do next."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import ipyparallel as ipp
from ipyparallel.client.magics import ParallelMagics
from ipyparallel.error import NoEnginesRegistered, RemoteError
from IPython import get_ipython

from labkit.cluster.death import RankDied, first_death

# Set where outputs are compared (nbval): no progress bars in them, which come and go with the load.
NONINTERACTIVE = os.environ.get("IPP_NONINTERACTIVE", "") not in ("", "0")
ADVICE = (
    "Call `connect()` for working engines, then run the notebook's setup cells again: "
    "the ranks' variables are gone."
)


class Ranks:
    """The engines behind a client, as `connect()` met them: `pids` is {process id: rank}."""

    def __init__(self, client: ipp.Client, pids: dict[int, int], deaths: Path) -> None:
        self.client = client
        self.pids = pids
        self.deaths = deaths

    def lost(self, patience: float = 2.0) -> RankDied | None:
        """Return the error to raise if engines have gone; wait `patience` seconds for all to be noticed."""
        ranks = sorted(self.pids.values())
        deadline = time.monotonic() + patience
        if set(self.client.ids) == set(ranks):
            return None
        while self.client.ids and time.monotonic() < deadline:
            time.sleep(0.02)
        lines = self.deaths.read_text() if self.deaths.exists() else ""
        death = first_death(lines, self.pids)
        if death is None:
            gone = ", ".join(str(rank) for rank in ranks if rank not in self.client.ids)
            return RankDied(f"ranks {gone} have ended. {ADVICE}")
        others = len(ranks) > 1
        return RankDied(f"{death}{', and MPI ended the other ranks with it' * others}. {ADVICE}")


class RankMagics(ParallelMagics):
    """The parallel magics over ranks that can die."""

    ranks: Ranks
    progress_after_seconds = 86400 if NONINTERACTIVE else 2
    signal_on_interrupt = None  # ipyparallel's own handling swallows the interrupt: "Run All" would go on

    def parallel_execute(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().parallel_execute(*args, **kwargs)
        except (RemoteError, NoEnginesRegistered):
            # An engine's end is known here some milliseconds before or after its last message.
            died = self.ranks.lost()
            if died is not None:
                raise died from None
            raise
        except (KeyboardInterrupt, TimeoutError) as error:
            # Unstreamed, ipyparallel goes on from the interrupt to show outputs, which are not there yet.
            if not any(isinstance(one, KeyboardInterrupt) for one in (error, error.__context__)):
                raise
            self.ranks.client.send_signal("SIGINT", block=False)  # ends what a rank computes in Python
            raise KeyboardInterrupt from None


def activate(ranks: Ranks) -> None:
    """Register `%px` and `%%px` for all ranks in the notebook, if this is one."""
    shell = get_ipython()
    if shell is not None:
        view = ranks.client.direct_view("all")
        view.block = True
        magics = RankMagics(shell, view)
        magics.ranks = ranks
        shell.magics_manager.register(magics)
