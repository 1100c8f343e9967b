"""A hang report as a figure: ranks as rows, collectives as columns."""

from __future__ import annotations

from matplotlib.figure import Figure

from labkit.plots.style import centred
from mpiwatch.report import Report, Status, table, title

# Not the colours of ranks, which have rows here: grey, yellow, vermilion of Okabe and Ito, 2008.
COLOURS = {Status.DONE: "#DDDDDD", Status.WAITING: "#F0E442", Status.ABSENT: "#D55E00"}


def hang(report: Report) -> Figure:
    """Draw how far each rank got with the last collectives: done, waiting, or what the rank does instead.

    If there are many ranks, those that do the same share a row. `report` is a HangError's report or the
    result of `labkit.cluster.last_hang()`. A report about a message has no collectives; its figure shows the
    ranks, and the error as the title.
    """
    columns, rows = table(report)
    width, height = 2.5 + 1.7 * max(1, len(columns)), 1.3 + 0.5 * len(rows)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    for y, (_, entries) in enumerate(rows):
        for x, entry in enumerate(entries):
            axes.barh(y, 0.9, left=x - 0.45, height=0.8, color=COLOURS[entry.status])
            centred(axes, x, y, entry.label, 9)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), [label for label, _ in rows])
    axes.invert_yaxis()
    axes.xaxis.tick_top()
    sentence = title(report)
    axes.set_title(sentence[:1].upper() + sentence[1:], fontsize=10, weight="bold", pad=14)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure
