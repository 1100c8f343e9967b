"""The lines that a run prints: on its start, for each epoch and iteration, and on its end.

Lines have at most 100 columns for up to 10 ranks and 999 epochs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mpi4py import MPI

from labkit.comm import print_by_rank
from labkit.nn import Model
from labkit.train.callbacks import ALL, Callback
from labkit.train.experiment.progress import ProgressBar
from labkit.train.steps import Epoch, Step
from mpiwatch.wording import ranks_phrase

OVER_100 = (
    "A contribution over 100 %: the ranks' gradients point in different directions, so their sum is\n"
    "shorter than that rank's part of it."
)


class Printer(Callback):
    """Print a line or two of each rank for each epoch, and its loss every `log_every` iterations."""

    def __init__(
        self, comm: MPI.Intracomm, progress: ProgressBar, *, ordered: bool, log_every: int | None
    ) -> None:
        self._comm, self._progress = comm, progress
        self._ordered, self._log_every = ordered, log_every
        self._explained = False

    def after_step(self, step: Step) -> None:
        if self._log_every and step.number % self._log_every == 0:
            self.say(f"iteration {step.number}: loss {step.loss:.4f}, lr {step.lr:.4g}")

    def after_epoch(self, model: Model, epoch: Epoch) -> None:
        self.say(epoch_line(epoch), *gradient_lines(epoch))
        if epoch.contribution and not self._explained:
            largest = self._comm.allreduce(max(epoch.contribution.values()), MPI.MAX)
            self._explained = largest > 1
            if self._explained:
                self.note(OVER_100)

    def say(self, *lines: str) -> None:
        """Print lines of every rank. Collective."""
        with self._progress.hidden():
            print_by_rank(self._comm, f"\n[rank {self._comm.rank}] ".join(lines), self._ordered)

    def note(self, text: str) -> None:
        """Print what concerns the whole run, on rank 0; the other ranks do nothing."""
        if self._comm.rank == 0:
            with self._progress.hidden():
                print(text, flush=True)


def start_line(settings: Mapping[str, Any], ranks: int, parameters: int, samples: int, steps: int) -> str:
    """Return a line with what is trained, on what, and for how long."""
    which = f"{settings['model']} ({parameters:,} parameters) on {settings['data']} ({samples:,} samples)"
    batch = f"{settings['batch']} samples" if settings["batch"] else "all samples"
    return f"{ranks} {'rank' if ranks == 1 else 'ranks'}: {which}, {steps:,} steps of {batch}"


def hosts_line(hosts: Sequence[str]) -> str:
    """Return a line such as "rank 0 on n1; ranks 1, 2 on n2", from each rank's host."""
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        ranks.setdefault(host, []).append(rank)
    return "; ".join(f"{ranks_phrase(own)} on {host}" for host, own in ranks.items())


def epoch_line(row: Epoch) -> str:
    """Return a line such as "epoch 3: loss 0.2341 (all 0.2401), accuracy 93.1 %, 120 ms (wait …)"."""
    words = [f"epoch {row.epoch}: loss {row.local_loss:.4f} (all {row.global_loss:.4f})"]
    if row.local_accuracy is not None:
        words.append(f"accuracy {100 * row.local_accuracy:.1f} %")
    scale, unit = (1, "s") if row.time_s >= 1 else (1e3, "ms")
    parts = f"wait {scale * row.wait_s:.3g}, transfer {scale * row.transfer_s:.3g}"
    words.append(f"{scale * row.time_s:.3g} {unit} ({parts})")
    return ", ".join(words)


def gradient_lines(row: Epoch) -> list[str]:
    """Return the line of an epoch's gradient norms and contributions, and of the drift; none if unknown."""
    lines = []
    if row.contribution:
        named = {name: "" if name == ALL else f"{name} " for name in row.contribution}
        norms = ", ".join(f"{name}{row.gradient_norm[key]:.4g}" for key, name in named.items())
        parts = ", ".join(f"{name}{100 * row.contribution[key]:.4g} %" for key, name in named.items())
        lines.append(f"epoch {row.epoch}: gradient norm {norms}; contribution {parts}")
    if row.drift is not None:
        lines.append(f"epoch {row.epoch}: weights {100 * row.drift:.3g} % apart")
    return lines


def end_line(loss: float, accuracy: float | None, total_s: float, samples: int) -> str:
    """Return a line with what a rank's own model is worth on the test set, and how fast it was trained."""
    found = f"test loss {loss:.4f}"
    if accuracy is not None:
        found += f", test accuracy {100 * accuracy:.2f} %"
    rate = samples / total_s if total_s else math.nan
    return f"{found}; trained for {total_s:.3g} s, {rate:,.0f} samples/s"
