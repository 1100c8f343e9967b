"""A hang as a picture: ranks as rows, collectives as columns."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from labkit.watch.flight_recorder.report import table

# Okabe, Ito: Color Universal Design, 2008.
DONE, WAITS, AWAY = "#009E73", "#E69F00", "#D55E00"


def hang(report: dict[str, Any]) -> Figure:
    """Return the picture of a hang's report: done, waiting, or what a rank does instead.

    `report` is a HangError's, or what `labkit.cluster.last_hang()` returns; one of messages has no columns,
    and is an empty picture with its words as the title.
    """
    header, rows = table(report)
    columns = header[1:]
    figure = Figure(figsize=(2.5 + 1.7 * max(1, len(columns)), 1.3 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for y, (_, *cells) in enumerate(rows):
        for x, text in enumerate(cells):
            colour = DONE if text == "✓" else WAITS if text.startswith("waits") else AWAY
            axes.barh(y, 0.9, left=x - 0.45, height=0.8, color=colour)
            axes.text(
                x, y, text.replace("✓", "done").removeprefix("– "), ha="center", va="center", fontsize=8
            )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.invert_yaxis()
    axes.xaxis.tick_top()
    axes.set_title(report["text"].splitlines()[0], fontsize=10)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    return figure
