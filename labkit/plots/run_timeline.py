"""The timeline of a run: when each rank computed, waited and communicated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.plots.style import INK

if TYPE_CHECKING:
    from labkit.train.steps import Step  # a notebook's kernel draws figures, but must not load MPI

# Shades of grey and hatches: a colour would stand for a rank.
STYLES: dict[str, dict[str, Any]] = {
    "compute": {"facecolor": "#C8C8C8"},
    "wait": {"facecolor": "white", "hatch": "////"},
    "transfer": {"facecolor": INK},
}
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
