"""`%debug` in a notebook: after a `%%px` cell that has failed, it opens the frame of a rank that failed."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from IPython.core.error import StdinNotImplementedError
from IPython.core.magics.execution import ExecutionMagics

from labkit.cluster import failed_frame
from labkit.cluster.errors import ErrorOfCell
from labkit.cluster.ranks import Ranks
from labkit.text import ranks_phrase

ENDS = "q", "quit", "exit", "EOF"
HELP = "p x shows x, u and d go up and down, l shows lines, q ends."
NO_KEYBOARD = "There is no way to type commands here. In JupyterLab, %debug asks for them."


def register(shell: Any, ranks: Ranks) -> None:
    """Let `%debug` look at these ranks if a cell on them was the last to fail; else do as before."""
    shell.register_magic_function(partial(debug, shell, ranks), "line", "debug")


def debug(shell: Any, ranks: Ranks, line: str = "") -> None:
    """Open the frame of the first rank that failed, or of rank N: `%debug N`."""
    error = getattr(sys, "last_value", None)
    if not isinstance(error, ErrorOfCell):
        ExecutionMagics(shell).debug(line)
        return
    failed = error.failed_ranks
    if not failed:
        print("No rank has raised an error that %debug could open.")
        return
    chosen = line.strip()
    if chosen and not (chosen.isdecimal() and int(chosen) in failed):
        print(f"`%debug {chosen}`: expected a rank that has failed: {ranks_phrase(failed)}.")
        return
    rank = int(chosen) if chosen else failed[0]
    others = [other for other in failed if other != rank]
    more = f" `%debug {others[0]}` opens rank {others[0]}." if others else ""
    print(f"Rank {rank}, where it failed. {HELP}{more}")
    try:
        print(ask(ranks, rank, ""))
        command = next_command(rank)
        while command not in ENDS:
            print(ask(ranks, rank, command or "where"))
            command = next_command(rank)
    finally:
        if rank in ranks.client.ids:  # not if a command has ended the engines
            ranks.client[rank].apply_sync(failed_frame.close)


def next_command(rank: int) -> str:
    """Return what the user types; a command that ends if nothing can be typed, or at the stop button."""
    try:
        return input(f"rank {rank}> ").strip()
    except (StdinNotImplementedError, EOFError):
        print(NO_KEYBOARD)
    except KeyboardInterrupt:
        print("%debug has ended.")
    return ENDS[0]


def ask(ranks: Ranks, rank: int, command: str) -> str:
    """Return a rank's answer; raise CellStopped if the user stops a command that takes long."""
    result = ranks.client[rank].apply_async(failed_frame.look, command)
    try:
        return str(result.get())
    except KeyboardInterrupt:
        raise ranks.stop(result) from None
