"""The timeline of a run: when each rank computed, waited and communicated; and one step with its buckets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.plots.style import INK, text_colour

if TYPE_CHECKING:
    from labkit.train.steps import Step  # a notebook's kernel draws figures, but must not load MPI

# Shades of grey and hatches: a colour would stand for a rank. Only exposed communication stands out.
FORWARD, BACKWARD, BUCKETS = "white", ("#C8C8C8", "#E2E2E2"), (INK, "#909090")
EXPOSED = "#D55E00"
STYLES: dict[str, dict[str, Any]] = {
    "compute": {"facecolor": BACKWARD[0]},
    "wait": {"facecolor": "white", "hatch": "////"},
    "transfer": {"facecolor": INK},
}
HEIGHT = 0.38
LABELS = {"compute": "compute", "wait": "wait for the last rank", "transfer": "transfer"}


def timeline(steps: Sequence[Step], title: str = "", first: int = 1, last: int | None = None) -> Figure:
    """Return a timeline of all ranks in steps first … last (counted from 1; to the end without `last`).

    `steps` come from `Timeline.gather`. Time 0 is the start of the first step shown. Raise ValueError if
    there is no such step.
    """
    shown = [step for step in steps if first <= step.number <= (last or step.number)]
    if not shown:
        raise ValueError(f"no step in {first} … {last or 'end'} among the {len(steps)} steps given")
    ranks = sorted({step.rank for step in shown})
    zero, end = min(step.begin for step in shown), max(step.done for step in shown)
    scale, unit = (1.0, "s") if end - zero >= 2 else (1e3, "ms")
    figure = Figure(figsize=(9, 0.42 * len(ranks) + 1.5), layout="constrained")
    axes = figure.add_subplot()
    for activity, style in STYLES.items():
        for rank in ranks:
            spans = [
                (scale * (begin - zero), scale * (stop - begin))
                for step in shown
                if step.rank == rank
                for name, begin, stop in step.spans()
                if name == activity
            ]
            axes.broken_barh(spans, (rank - 0.32, 0.64), edgecolor=INK, linewidth=0.3, **style)
    for number in sorted({step.number for step in shown}):
        begins = min(step.begin for step in shown if step.number == number)
        axes.axvline(scale * (begins - zero), color=INK, linewidth=0.6, linestyle=":", zorder=0)
    axes.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axes.set_ylim(ranks[-1] + 0.6, ranks[0] - 0.6)
    axes.set_xlim(0, scale * (end - zero))
    axes.set_xlabel(f"Time ({unit}); dotted: a step starts; empty: idle")
    numbers = sorted({step.number for step in shown})
    axes.set_title(f"{title + ', ' if title else ''}steps {numbers[0]}–{numbers[-1]}", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        handles=[Patch(edgecolor=INK, label=LABELS[activity], **style) for activity, style in STYLES.items()],
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=9,
    )
    return figure


def overlap(steps: Sequence[Step], step: int, title: str = "") -> Figure:
    """Return a figure of one step (counted from 1) on all ranks, from `Timeline.gather`.

    Of each rank, the upper row shows the backward pass by layer, the last layer first, and the lower row the
    transfers of the buckets. What is transferred after the backward pass is exposed communication. Raise
    ValueError if the step is not among those given, or was averaged without buckets.
    """
    shown = sorted((each for each in steps if each.number == step), key=lambda each: each.rank)
    if not shown or not all(each.layers for each in shown):
        raise ValueError(f"expected step {step} of a run with buckets among the {len(steps)} steps given")
    zero, end = min(each.begin for each in shown), max(each.done for each in shown)
    scale, unit = (1.0, "s") if end - zero >= 2 else (1e3, "ms")
    figure = Figure(figsize=(9, 0.85 * len(shown) + 1.6), layout="constrained")
    axes = figure.add_subplot()

    def bar(y: float, begin: float, stop: float, colour: str, label: str = "") -> None:
        axes.broken_barh(
            [(scale * (begin - zero), scale * (stop - begin))],
            (y - HEIGHT / 2, HEIGHT),
            facecolor=colour,
            edgecolor=INK,
            linewidth=0.4,
        )
        if label and stop - begin > (end - zero) / 40:
            middle = scale * ((begin + stop) / 2 - zero)
            axes.text(middle, y, label, ha="center", va="center", fontsize=7, color=text_colour(colour))

    for each in shown:
        y = float(each.rank)
        # Layers without parameters leave the start as it is: they are drawn with the layer before them.
        layers = [list(group) for _, group in groupby(each.layers, key=lambda layer: layer[0])]
        began = layers[0][0][1]
        bar(y - 0.2, each.begin, began, FORWARD)
        for number, layer in enumerate(layers):
            stop = layer[-1][1]
            bar(y - 0.2, began, stop, BACKWARD[number % 2])
            began = stop
        bar(y - 0.2, each.end, each.done, FORWARD)
        for transfer in each.transfers:
            bar(y + 0.2, transfer.begin, transfer.end, BUCKETS[transfer.bucket % 2], str(transfer.bucket + 1))
        _mark_exposed(axes, y, scale * (each.ready - zero), scale * (each.end - zero))
    ranks = [each.rank for each in shown]
    axes.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axes.set_ylim(ranks[-1] + 0.55, ranks[0] - 0.55)
    axes.set_xlim(0, scale * (end - zero))
    axes.set_xlabel(f"Time ({unit})")
    axes.set_title(f"{title + ', ' if title else ''}step {step}", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles=[
            Patch(facecolor=FORWARD, edgecolor=INK, label="forward pass, update"),
            Patch(facecolor=BACKWARD[0], edgecolor=INK, label="backward pass, by layer"),
            Patch(facecolor=BUCKETS[0], edgecolor=INK, label="transfer of a bucket"),
            Patch(facecolor="none", edgecolor=EXPOSED, hatch="////", label="exposed communication"),
        ],
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=8,
    )
    return figure


def _mark_exposed(axes: Axes, y: float, ready: float, end: float) -> None:
    axes.broken_barh(
        [(ready, end - ready)],
        (y - 0.2 - HEIGHT / 2, HEIGHT),
        facecolor="none",
        edgecolor=EXPOSED,
        hatch="////",
        linewidth=1.2,
    )
