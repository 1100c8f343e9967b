"""Figures of a training run: the ranks' losses, contributions and synchronisation times by epoch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from labkit.plots.style import rank_style


def losses(local: Sequence[Sequence[float]], over_all: Sequence[float]) -> Figure:
    """Return the loss by epoch: one curve for each rank's shard, and a black one for all samples.

    Shapes: local (ranks, epochs), over_all (epochs,).
    """
    figure, axes = _by_epoch("Loss (mean over samples)")
    _rank_curves(axes, local)
    axes.plot(np.arange(1, len(over_all) + 1), over_all, color="black", linewidth=2.5, label="all ranks")
    axes.legend()
    return figure


def contributions(by_rank: Sequence[Sequence[float]], parameter: str) -> Figure:
    """Return each rank's contribution to one parameter's gradient by epoch, with a dotted line at 100 %.

    Shape: by_rank (ranks, epochs), as fractions: 1 is 100 %.
    """
    figure, axes = _by_epoch(f"Contribution to the gradient of {parameter} (%)")
    _rank_curves(axes, 100 * np.asarray(by_rank))
    axes.axhline(100, color="black", linewidth=1, linestyle=":")
    axes.legend()
    return figure


def sync_times(wait_s: Sequence[Sequence[float]], transfer_s: Sequence[Sequence[float]]) -> Figure:
    """Return the synchronisation times by epoch, on a log axis: waiting on the left, transfer on the right.

    Shapes: both (ranks, epochs), in seconds.
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    sides = figure.subplots(1, 2, sharey=True)
    for axes, times, title in zip(sides, (wait_s, transfer_s), ("Wait", "Transfer"), strict=True):
        _label(axes, f"{title} (ms)")
        _rank_curves(axes, 1e3 * np.asarray(times))
        axes.set_yscale("log")
    sides[1].legend()
    return figure


def _by_epoch(label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    _label(axes, label)
    return figure, axes


def _label(axes: Axes, label: str) -> None:
    axes.set_xlabel("Epoch")
    axes.set_ylabel(label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)


def _rank_curves(axes: Axes, values: Sequence[Sequence[float]] | np.ndarray) -> None:
    for rank, curve in enumerate(values):
        axes.plot(
            np.arange(1, len(curve) + 1),
            curve,
            markersize=4,
            markevery=max(1, len(curve) // 10),
            **rank_style(rank),
        )
