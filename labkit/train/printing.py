"""The lines that a run prints.

Lines have at most 100 columns for up to 10 ranks and 999 epochs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import psutil
from mpi4py import MPI
from tqdm import tqdm

from labkit.comm import tags
from labkit.nn import Model
from labkit.text import ranks_phrase
from labkit.train.callbacks import ALL, Callback
from labkit.train.settings import Settings
from labkit.train.steps import Epoch, Step

LAUNCHERS = "mpiexec", "mpirun", "prterun", "orterun", "srun"
TERMINALS = "/dev/pts/", "/dev/tty"
BAR = 80  # columns of the progress bar, at most
OVER_100 = (
    "A contribution over 100 %: the ranks' gradients point in different directions, so their sum is\n"
    "shorter than that rank's part of it."
)


class Printer(Callback):
    """Print a line or two of each rank for each epoch, and its loss every `log_every` iterations.

    On a terminal, rank 0 also shows a progress bar with its loss and the images that all ranks train on per
    second. `steps` is their number in the whole run. Use the printer as a context: at the end of the block,
    the bar is removed.
    """

    def __init__(self, comm: MPI.Intracomm, steps: int, log_every: int | None = None) -> None:
        self._comm = comm
        self._log_every = log_every
        self._explained = False
        columns = terminal_columns() if comm.rank == 0 else 0
        shown = {"disable": not columns, "ncols": min(BAR, columns), "leave": False}
        self._bar = tqdm(total=steps, unit=" steps", file=sys.stderr, **shown)

    def __enter__(self) -> Printer:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def after_step(self, step: Step) -> None:
        if not self._bar.disable:
            rate = (self._bar.format_dict["rate"] or 0.0) * step.global_batch
            self._bar.set_postfix_str(f"loss {step.loss:.4f}, {rate:.0f} images/s", refresh=False)
            self._bar.update()
        if self._log_every and step.number % self._log_every == 0:
            self.say(f"iteration {step.number}: loss {step.loss:.4f}, lr {step.lr:.4g}")

    def after_epoch(self, model: Model, epoch: Epoch) -> None:
        head = f"epoch {epoch.epoch}: "
        words = [f"{head}loss {epoch.local_loss:.4f} (all {epoch.global_loss:.4f})"]
        if epoch.local_accuracy is not None:
            words.append(f"accuracy {100 * epoch.local_accuracy:.1f} %")
        scale, unit = (1, "s") if epoch.time_s >= 1 else (1e3, "ms")
        parts = f"wait {scale * epoch.wait_s:.3g}, transfer {scale * epoch.transfer_s:.3g}"
        lines = [", ".join([*words, f"{scale * epoch.time_s:.3g} {unit} ({parts})"])]
        lines += [
            f"{head}gradient{'' if name == ALL else f' of {name}'}: mean {epoch.gradient_mean[name]:.4g}, "
            f"norm {epoch.gradient_norm[name]:.4g}, contribution {100 * contribution:.4g} %"
            for name, contribution in epoch.contribution.items()
        ]
        if epoch.drift is not None:
            lines.append(f"{head}weights {100 * epoch.drift:.3g} % apart")
        self.say(*lines)
        if epoch.contribution and not self._explained:
            largest = self._comm.allreduce(max(epoch.contribution.values()), MPI.MAX)
            self._explained = largest > 1
            if self._explained:
                self.note(OVER_100)

    def say(self, *lines: str) -> None:
        """Print lines of every rank, as `[rank 2] …`, in the order of ranks. Collective.

        The ranks send their lines to rank 0, which alone writes them: MPI does not define how a launcher
        forwards output, so lines of several ranks may be mixed up.
        """
        comm, text = self._comm, "".join(f"[rank {self._comm.rank}] {line}\n" for line in lines)
        if comm.rank:
            comm.send(text, 0, tags.PRINT)
            return
        for rank in range(comm.size):
            tqdm.write(comm.recv(source=rank, tag=tags.PRINT) if rank else text, end="")
            sys.stdout.flush()

    def note(self, text: str) -> None:
        """Print what concerns the whole run, on rank 0; the other ranks do nothing."""
        if self._comm.rank == 0:
            tqdm.write(text)
            sys.stdout.flush()


def start_lines(settings: Settings, about: Mapping[str, Any], parameters: int, steps: int) -> str:
    """Return a line with what is trained, on what, and for how long, from the settings and the run's record.

    The second line says "rank 0 on n1; ranks 1, 2 on n2"; the last line, what the algorithm "auto" is in this
    run, unless it is the MPI library's.
    """
    p, samples = about["ranks"], about["batches"]["samples"]
    which = f"{settings.model} ({parameters:,} parameters) on {settings.data} ({samples:,} samples)"
    batch = f"{settings.batch} samples" if settings.batch else "all samples"
    lines = [f"{p} {'rank' if p == 1 else 'ranks'}: {which}, {steps:,} steps of {batch}"]
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(about["hosts"]):
        ranks.setdefault(host, []).append(rank)
    lines.append(
        "; ".join(f"{ranks_phrase(ranks_of_host)} on {host}" for host, ranks_of_host in ranks.items())
    )
    how = {"shared-memory": "in shared memory", "ring": "by the ring"}.get(about.get("auto", ""))
    if how:
        lines.append(f"gradients averaged {how} (--algorithm auto)")
    return "\n".join(lines)


def terminal_columns() -> int:
    """Return the width of the terminal that shows this process's standard error; 0 if none does.

    A launcher gives its ranks a pipe, and writes what it reads from it to its own standard error. Where the
    system does not tell where that leads (macOS), no terminal shows it.
    """
    with suppress(OSError, psutil.Error):
        if sys.stderr.isatty():
            return os.get_terminal_size(sys.stderr.fileno()).columns or BAR
        launchers = [
            parent.pid for parent in psutil.Process().parents() if parent.name().startswith(LAUNCHERS)
        ]
        output = f"/proc/{launchers[-1]}/fd/2" if launchers else ""
        if output and os.readlink(output).startswith(TERMINALS):
            with open(output, opener=lambda path, flags: os.open(path, flags | os.O_NOCTTY)) as terminal:
                return os.get_terminal_size(terminal.fileno()).columns or BAR
    return 0
