"""Figures of schedules: who sends what to whom, who holds what, the bytes of each rank, and what it costs.

In pictures of what ranks hold, every piece is a cell with a stripe for each rank: coloured, in that rank's
colour, once its contribution is in. All are drawn from the schedule itself, a wrong one too.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape

import numpy as np
from IPython.display import HTML
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator, NullLocator

from labkit.plots.collectives import INK, colour
from labkit.plots.training import COLOURS, MARKERS
from labkit.schedules import Round, Schedule, Transfer, contents_by_round
from labkit.schedules.traffic import Traffic

Curve = Sequence[float] | np.ndarray
LINES = ("-", "--", "-.", ":")
WRONG = "#000000"  # a stripe of a contribution that is in more than once


def one_round(schedule: Schedule, number: int) -> Figure:
    """Return the ranks in a circle, the arrows of one round, and what each rank holds after it.

    Round 0 is what they hold before the first. An arrow is labelled with its pieces, + if they are added and
    = if they are put in place; cells written in the round have a thick frame.
    """
    rounds, held = list(schedule), list(contents_by_round(schedule))
    if not 0 <= number <= len(rounds):
        raise ValueError(f"expected a round from 0 to {len(rounds)}, got {number}")
    return _circle(schedule, number, rounds[number - 1] if number else None, held[number], len(rounds))


def stepping(schedule: Schedule) -> HTML:
    """Return all rounds as pictures with a slider to step through them; in a notebook it shows itself."""
    rounds = list(schedule)
    pictures = []
    for number, held in enumerate(contents_by_round(schedule)):
        one = rounds[number - 1] if number else None
        picture = io.BytesIO()
        _circle(schedule, number, one, held, len(rounds)).savefig(picture, format="png", dpi=80)
        words = f"{schedule.name}, {schedule.p} ranks, round {number} of {len(rounds)}"
        words += f": {one}" if one else ": before the first"
        source = base64.b64encode(picture.getvalue()).decode()
        pictures.append(
            f'<img alt="{escape(words)}" src="data:image/png;base64,{source}"{" hidden" * (number > 0)}>'
        )
    show = (
        "[...this.closest('div').querySelectorAll('img')].forEach((one, k) => one.hidden = k != this.value)"
    )
    return HTML(
        f'<div><label>round <input type="range" min="0" max="{len(rounds)}" value="0" oninput="{show}">'
        f"</label><br>{''.join(pictures)}</div>"
    )


def who_holds_what(schedule: Schedule) -> Figure:
    """Return a grid of ranks by pieces for the start and for every round: whose contributions are where."""
    held = list(contents_by_round(schedule))
    columns = min(len(held), 4 if schedule.chunks > 1 else 7)
    rows = math.ceil(len(held) / columns)
    size = 9.5 / columns
    height = min(size, 0.45 + 0.22 * schedule.p)
    figure = Figure(figsize=(9.5, rows * (height + 0.35) + 0.3), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for number, axes in enumerate(grid.flat):
        if number >= len(held):
            axes.set_visible(False)
            continue
        _stripes(axes, held[number], (0, schedule.chunks), (0, schedule.p))
        axes.set_xticks(np.arange(schedule.chunks) + 0.5, [str(chunk) for chunk in range(schedule.chunks)])
        axes.set_yticks(np.arange(schedule.p) + 0.5, [str(rank) for rank in range(schedule.p)])
        axes.tick_params(length=0, labelsize=8)
        axes.set_title(f"after round {number}" if number else "before", fontsize=9)
        axes.set_ylim(schedule.p, 0)
    figure.supxlabel("Piece (stripes: the ranks whose contributions are in)", fontsize=9)
    figure.supylabel("Rank", fontsize=9)
    return figure


def busiest(traffic: Mapping[str, Traffic]) -> Figure:
    """Return the bytes that each rank sends and receives, a panel for each schedule, all on one scale."""
    figure = Figure(figsize=(max(4.0, min(9.5, 2.4 * len(traffic) + 1)), 3.4), layout="constrained")
    panels = figure.subplots(1, len(traffic), sharey=True, squeeze=False)[0]
    highest = max(one.busiest for one in traffic.values())
    step = 2 ** math.ceil(math.log2(max(highest, 4) / 5))
    for axes, (name, one) in zip(panels, traffic.items(), strict=True):
        ranks = np.arange(len(one.sent))
        axes.bar(ranks, one.sent, color=COLOURS[0], edgecolor=INK, linewidth=0.5, label="sent")
        axes.bar(
            ranks,
            one.received,
            bottom=one.sent,
            color=COLOURS[1],
            edgecolor=INK,
            linewidth=0.5,
            hatch="///",
            label="received",
        )
        axes.set_title(f"{name}\nbusiest: {_bytes(one.busiest)}", fontsize="medium")
        axes.set_xlabel("Rank")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MultipleLocator(step))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: _bytes(size)))
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("Bytes sent and received")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def cost_curves(
    sizes: Curve, seconds: Mapping[str, Curve], measured: Mapping[str, tuple[Curve, Curve]] | None = None
) -> Figure:
    """Return time against the array's size, log-log: the model's curves, and the measured points on them.

    Shapes: sizes (n,), in bytes; seconds: name → (n,); measured: name → two of (m,), sizes and seconds. A
    name has the same colour in both.
    """
    return _costs(sizes, seconds, measured, "Size of the array", _bytes)


def against_ranks(
    ranks: Curve, seconds: Mapping[str, Curve], measured: Mapping[str, tuple[Curve, Curve]] | None = None
) -> Figure:
    """Return time against the number of ranks, log-log, otherwise as `cost_curves`."""
    return _costs(ranks, seconds, measured, "Number of ranks p", lambda p: f"{p:g}")


def _costs(
    places: Curve,
    seconds: Mapping[str, Curve],
    measured: Mapping[str, tuple[Curve, Curve]] | None,
    what: str,
    words: Callable[[float], str],
) -> Figure:
    measured = measured or {}
    figure = Figure(figsize=(7.5, 4.4), layout="constrained")
    axes = figure.add_subplot()
    for k, name in enumerate(dict.fromkeys([*seconds, *measured])):
        own = COLOURS[k % len(COLOURS)]
        if name in measured:
            label = name if name not in seconds else "_"  # a curve's name stands for its points, too
            marker = MARKERS[(k + k // len(COLOURS)) % len(MARKERS)]
            axes.plot(*measured[name], color=own, marker=marker, linestyle="", label=label)
        if name in seconds:
            axes.plot(places, seconds[name], color=own, linestyle=LINES[k % len(LINES)], label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda place, _: words(place)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time, _: _time(time)))
    axes.set_xlabel(what)
    axes.set_ylabel("Time")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _circle(schedule: Schedule, number: int, one: Round | None, held: np.ndarray, last: int) -> Figure:
    p, chunks = schedule.p, schedule.chunks
    figure = Figure(figsize=(7.6, 5.6))
    axes = figure.add_axes((0, 0, 1, 0.93))
    what = f"after round {number} of {last}" if number else "before the first round"
    figure.text(0.5, 0.95, f"{schedule.name}, {p} ranks: {what}", ha="center", fontsize=11, weight="bold")
    axes.axis("off")
    angle = np.pi / 2 - 2 * np.pi * np.arange(p) / p
    x, y = 1.3 * np.cos(angle), np.sin(angle)
    cell, high = min(0.2, 1.0 / chunks), 0.15
    wide = cell * chunks
    written = {(t.dest, chunk) for t in one or () for chunk in range(t.first, t.stop)}
    for rank in range(p):
        # Beside the circle, so that no arrow crosses the cells.
        left = x[rank] + np.cos(angle[rank]) * (0.16 + wide / 2) - wide / 2
        top = y[rank] + np.sin(angle[rank]) * 0.3 + high / 2
        _stripes(axes, held[rank : rank + 1], (left, left + wide), (top, top - high))
        for chunk in range(chunks):
            at = left + chunk * cell
            thick = (rank, chunk) in written
            axes.add_patch(
                Rectangle((at, top - high), cell, high, fill=False, edgecolor=INK, lw=2.4 if thick else 0.6)
            )
            if chunks > 1:
                axes.text(at + cell / 2, top - high - 0.045, str(chunk), ha="center", va="center", fontsize=7)
        axes.plot(x[rank], y[rank], "o", markersize=19, color=colour(rank), markeredgecolor=INK)
        ink = "white" if np.dot(to_rgb(colour(rank)), (0.299, 0.587, 0.114)) < 0.4 else "black"
        axes.text(
            x[rank], y[rank], str(rank), ha="center", va="center", fontsize=10, weight="bold", color=ink
        )
    for transfer in one or ():
        _arrow(axes, transfer, (x, y))
    axes.set_xlim(-2.6, 2.6)
    axes.set_ylim(-1.5, 1.5)
    axes.text(
        -2.55,
        -1.45,
        "+ added   = put in its place\nstripes: whose contributions are in",
        fontsize=8,
        color=INK,
        va="bottom",
    )
    return figure


def _arrow(axes: Axes, transfer: Transfer, places: tuple[np.ndarray, np.ndarray]) -> None:
    """Draw a bent arrow, so that those there and back lie side by side, with its pieces near its tail."""
    tail, tip = np.transpose(places)[[transfer.source, transfer.dest]]
    bend = 0.12
    axes.annotate(
        "",
        tip,
        tail,
        arrowprops={
            "arrowstyle": "-|>",
            "connectionstyle": f"arc3,rad={bend}",
            "color": INK,
            "linestyle": "-" if transfer.reduce else "--",
            "shrinkA": 11,
            "shrinkB": 11,
        },
    )
    along = tip - tail
    # A quadratic curve whose middle control point lies `bend` of its length beside the straight line.
    t, control = 0.27, (tail + tip) / 2 + bend * np.array([along[1], -along[0]])
    where = (1 - t) ** 2 * tail + 2 * t * (1 - t) * control + t**2 * tip
    axes.text(
        where[0],
        where[1],
        str(transfer).split()[1],
        ha="center",
        va="center",
        fontsize=8.5,
        bbox={"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.9},
    )


def _stripes(axes: Axes, held: np.ndarray, across: tuple[float, float], down: tuple[float, float]) -> None:
    """Draw what ranks hold, (ranks, pieces, contributors), a row for each rank, with lines between cells."""
    ranks, chunks, p = held.shape
    own = np.array([to_rgb(colour(rank)) for rank in range(p)])
    image = np.where(held[..., None] > 0, own, 1.0)
    image[held > 1] = to_rgb(WRONG)
    axes.imshow(
        image.reshape(ranks, chunks * p, 3),
        extent=(*across, down[1], down[0]),
        aspect="auto",
        interpolation="nearest",
    )
    for x in np.linspace(*across, chunks + 1):
        axes.plot((x, x), down, color=INK, linewidth=0.8)
    for y in np.linspace(*down, ranks + 1):
        axes.plot(across, (y, y), color=INK, linewidth=0.8)


def _bytes(size: float) -> str:
    for unit, name in (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.3g} B"


def _time(seconds: float) -> str:
    for unit, name in (1.0, "s"), (1e-3, "ms"):
        if seconds >= unit * (1 - 1e-9):
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e6:.3g} µs"
