"""Figures of a training run: losses, contributions and times of the ranks by epoch.

Ranks keep their colour in all figures: those of Okabe and Ito, which colour-blind people tell apart too;
markers differ as well, for print without colour.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe, Ito: Color Universal Design, 2008; black is left to what concerns all ranks.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def losses(local: Sequence[Sequence[float]], over_all: Sequence[float]) -> Figure:
    """Return the loss by epoch: one curve for each rank's own samples, a black one for all of them.

    Shapes: local (ranks, epochs), over_all (epochs,).
    """
    figure, axes = _by_epoch("Loss (mean over samples)")
    _rank_curves(axes, local)
    axes.plot(np.arange(1, len(over_all) + 1), over_all, color="black", linewidth=2.5, label="all ranks")
    axes.legend()
    return figure


def contributions(by_rank: Sequence[Sequence[float]], parameter: str) -> Figure:
    """Return each rank's contribution to one parameter's gradient by epoch, with a line at 100 %.

    Shapes: by_rank (ranks, epochs), fractions: 1 is 100 %.
    """
    figure, axes = _by_epoch(f"Contribution to the gradient of {parameter} (%)")
    _rank_curves(axes, 100 * np.asarray(by_rank))
    axes.axhline(100, color="black", linewidth=1, linestyle=":")
    axes.legend()
    return figure


def sync_times(wait_s: Sequence[Sequence[float]], transfer_s: Sequence[Sequence[float]]) -> Figure:
    """Return the times of synchronising by epoch, on a logarithmic axis: waiting beside transferring.

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
            color=COLOURS[rank % len(COLOURS)],
            marker=MARKERS[rank % len(MARKERS)],
            markersize=4,
            markevery=max(1, len(curve) // 10),
            label=f"rank {rank}",
        )
