"""The progress bar of rank 0, for a terminal only."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psutil
from tqdm import tqdm

from labkit.train.callbacks import Callback
from labkit.train.steps import Step

LAUNCHERS = ("mpiexec", "mpirun", "prterun", "orterun", "srun")
WIDEST = 100


class ProgressBar(Callback):
    """A progress bar with rank 0's loss and the images that all ranks train on per second.

    It is shown on the standard error of rank 0, if that is a terminal. `steps` is their number in the whole
    run. Give it to `train` as a callback; use it as a context, so that it is removed at the end.
    """

    def __init__(self, rank: int, steps: int) -> None:
        columns = terminal_columns() if rank == 0 else None
        self._bar = tqdm(
            total=steps,
            unit=" steps",
            file=sys.stderr,
            disable=columns is None,
            ncols=min(columns or WIDEST, WIDEST),
            leave=False,
        )

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def after_step(self, step: Step) -> None:
        if self._bar.disable:
            return
        rate = self._bar.format_dict["rate"] or 0.0
        self._bar.set_postfix_str(
            f"loss {step.loss:.4f}, {rate * step.global_batch:.0f} images/s", refresh=False
        )
        self._bar.update()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Remove the bar from the terminal while the block prints."""
        if not self._bar.disable:
            self._bar.clear()
        yield
        if not self._bar.disable:
            self._bar.refresh()


def terminal_columns() -> int | None:
    """Return the width of the terminal that shows this process's standard error; None if there is none.

    A launcher gives its ranks a pipe, and writes what it reads from it to its own standard error. Where the
    system does not tell where that leads (macOS), the answer is None.
    """
    with suppress(OSError, ValueError):
        if sys.stderr.isatty():
            return os.get_terminal_size(sys.stderr.fileno()).columns
    launchers = []
    with suppress(psutil.Error):
        launchers = [
            parent.pid for parent in psutil.Process().parents() if parent.name().startswith(LAUNCHERS)
        ]
    with suppress(OSError):
        if launchers and os.readlink(f"/proc/{launchers[-1]}/fd/2").startswith(("/dev/pts/", "/dev/tty")):
            terminal = os.open(f"/proc/{launchers[-1]}/fd/2", os.O_WRONLY | os.O_NOCTTY)
            try:
                return os.get_terminal_size(terminal).columns
            finally:
                os.close(terminal)
    return None
