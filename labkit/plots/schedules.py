"""Figures of schedules: transfers and contents of each round, traffic by rank, and predicted times.

Where a figure shows what ranks hold, each chunk is a cell with one stripe per rank; a stripe has its rank's
colour if this rank's input is in the sum. Figures are drawn from the schedule itself, even if it is wrong.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from labkit.colours import colour
from labkit.plots.style import (
    COLOURS,
    INK,
    MARKERS,
    Curve,
    centred,
    curve_style,
    legend_above,
    one_panel,
    panels,
    plain_numbers,
    text_colour,
)
from labkit.schedules import (
    Round,
    Schedule,
    TimedTransfer,
    Traffic,
    Transfer,
    contents_by_round,
    longest_wait,
)
from labkit.stepper import MAKE_STEPPER
from labkit.units import approx_size, approx_time

SENT, RECEIVED = "#777777", "#DDDDDD"
WRONG = "#000000"  # the stripe of an input that is in the sum more than once


def traffic_by_rank(traffic: Mapping[str, Traffic], unit: str) -> Figure:
    """Return what each rank sends and receives: one panel per schedule, all on one scale.

    `unit` says what was counted, for instance "values".
    """
    width = max(4.0, min(9.5, 2.4 * len(traffic) + 1))
    figure, all_axes = panels((width, 3.4), columns=len(traffic), sharey=True)
    for axes, (name, counted) in zip(all_axes, traffic.items(), strict=True):
        ranks, style = np.arange(len(counted.sent)), {"edgecolor": INK, "linewidth": 0.5}
        # Two greys: the colours are those of ranks.
        axes.bar(ranks, counted.sent, color=SENT, label="sent", **style)
        received = {"color": RECEIVED, "hatch": "///", "label": "received", **style}
        axes.bar(ranks, counted.received, bottom=counted.sent, **received)
        axes.set_title(f"{name}\nbusiest rank: {counted.busiest} {unit}", fontsize="medium")
        axes.set_xlabel("Rank")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    all_axes[0].set_ylabel(f"Traffic: sent + received ({unit})")
    figure.legend(
        *all_axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
    )
    return figure


def time_by_size(
    sizes: Curve, seconds: Mapping[str, Curve], measured: Mapping[str, tuple[Curve, Curve]] | None = None
) -> Figure:
    """Return time against the array's size, log-log: predicted curves and measured points.

    Shapes: sizes (n,), in bytes; seconds: name → (n,); measured: name → sizes (m,) and seconds (m,). A name
    has the same colour in both.
    """
    figure, axes = one_panel((7.5, 4.4), "Size of the array", "Time")
    measured, handles = measured or {}, []
    for k, name in enumerate(dict.fromkeys([*seconds, *measured])):
        style = curve_style(k)
        if measured:  # only measured points have a marker
            style["marker"] = MARKERS[(k + k // len(COLOURS)) % len(MARKERS)] if name in measured else ""
        if name not in seconds:
            style["linestyle"] = ""
        if name in measured:
            axes.plot(*measured[name], **style | {"linestyle": ""})
        if name in seconds:
            axes.plot(sizes, seconds[name], **style | ({"marker": ""} if measured else {}))
        handles.append(Line2D([], [], **style, label=name))  # of a curve and its points
    if measured and seconds:
        handles.append(Line2D([], [], color=INK, label="line: predicted"))
        handles.append(Line2D([], [], color=INK, linestyle="", marker="o", label="marker: measured"))
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda nbytes, _: approx_size(nbytes)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time, _: approx_time(time)))
    axes.legend(handles=handles)
    return figure


def busiest_by_ranks(ranks: Sequence[int], traffic: Mapping[str, Curve], unit: str) -> Figure:
    """Return the busiest rank's traffic against the number of ranks, on logarithmic axes.

    Equal curves share a label. Shapes: ranks (n,); traffic: name → (n,), in `unit`.
    """
    figure, axes = one_panel((6.6, 3.9), "Number of ranks p", f"Traffic of the busiest rank ({unit})")
    by_curve: dict[tuple[float, ...], str] = {}  # equal curves share a label
    for name, values in traffic.items():
        curve = tuple(values)
        by_curve[curve] = f"{by_curve[curve]}; {name}" if curve in by_curve else name
    for k, (curve, label) in enumerate(by_curve.items()):
        axes.plot(ranks, curve, **curve_style(k))
        end = ranks[-1], curve[-1]
        axes.annotate(label, end, xytext=(8, 0), textcoords="offset points", va="center")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(ranks, [str(count) for count in ranks])
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(0.9 * ranks[0], 3.6 * ranks[-1])
    return figure


def times_by_ranks(
    ranks: Sequence[int], times: Mapping[str, Mapping[str, tuple[Curve, Curve]]], measured_on: int
) -> Figure:
    """Return times of algorithms against the number of ranks, log-log: a panel for each size of array.

    Shapes: ranks (n,); times: size → algorithm → (predicted (n,), measured (m,)), in s, measured on
    2, 3 … m + 1 ranks. What lies beyond `measured_on` ranks is shaded. Markers stand a little aside, so that
    equal ones do not hide each other.
    """
    figure, sides = panels((9.5, 4.1), columns=len(times), sharey=True)
    for axes, (size, by_name) in zip(sides, times.items(), strict=True):
        for k, (name, (predicted, measured)) in enumerate(by_name.items()):
            style = curve_style(k)
            axes.plot(ranks, 1e3 * np.asarray(predicted), **{**style, "marker": ""})
            aside = np.arange(2, 2 + len(measured)) * 1.05 ** (k - (len(by_name) - 1) / 2)
            axes.plot(aside, 1e3 * np.asarray(measured), **{**style, "linestyle": ""})
            axes.plot([], [], label=name, **style)  # the legend shows both
        axes.axvspan(measured_on + 0.5, 1.1 * max(ranks), color="black", alpha=0.05, lw=0)
        axes.set(xscale="log", yscale="log", xlim=(1.7, 1.1 * max(ranks)), xlabel="Number of ranks")
        axes.set_title(f"All-reduce of {size}")
        axes.set_xticks([2, *(4**power for power in range(1, 9) if 4**power <= max(ranks))])
        axes.yaxis.set_major_locator(LogLocator(subs=(1,)))
        axes.grid(alpha=0.3)
        plain_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
    sides[0].set_ylabel("Time (ms)")
    legend_above(figure, sides)
    return figure


def fits(nbytes: Curve, seconds: Curve, fitted: Mapping[str, Curve]) -> Figure:
    """Return measured times of messages beside fits (left), and the fits' relative errors (right).

    Shapes: nbytes, seconds (n,); fitted: name → (n,), in seconds. The legend has each fit's largest error.
    """
    figure, (left, right) = panels((9.2, 3.6), columns=2)
    sizes, measured_s = np.asarray(nbytes), np.asarray(seconds)
    left.plot(sizes, 1e6 * measured_s, "o", color=INK, markersize=4, label="measured", zorder=3)
    for k, (name, fitted_s) in enumerate(fitted.items()):
        error = 100 * (np.asarray(fitted_s) / measured_s - 1)
        label = f"{name}: off by up to {np.abs(error).max():.0f} %"
        left.plot(sizes, 1e6 * np.asarray(fitted_s), **{**curve_style(k), "marker": ""}, label=label)
        right.plot(sizes, error, **curve_style(k))
    left.set(yscale="log", ylabel="Time (µs)")
    right.axhline(0, color=INK, linewidth=0.8)
    right.set(ylabel="Relative error: fit / measured - 1 (%)")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes[::3], [approx_size(size) for size in sizes[::3]])
        axes.set_xlabel("Size of the message")
        axes.grid(alpha=0.3)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def times_on_networks(sizes: Curve, seconds: Mapping[str, Mapping[str, Curve]]) -> Figure:
    """Return time against the array's size, log-log: a panel for each network, a curve for each algorithm.

    Shapes: sizes (n,), in bytes; seconds: network → algorithm → (n,).
    """
    figure, sides = panels((3.2 * len(seconds) + 0.6, 3.9), columns=len(seconds), sharey=True)
    for axes, (network, by_name) in zip(sides, seconds.items(), strict=True):
        for k, (name, times) in enumerate(by_name.items()):
            axes.plot(sizes, times, label=name, **curve_style(k))
        axes.set_title(network, fontsize="medium")
        axes.set_xlabel("Size of the array")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes[::3], [approx_size(nbytes) for nbytes in sizes[::3]])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda time, _: approx_time(time)))
        axes.grid(alpha=0.3)
    sides[0].set_ylabel("Time")
    names = sides[0].get_legend_handles_labels()
    figure.legend(*names, loc="outside lower center", ncols=len(names[1]), frameon=False)
    return figure


def timelines(networks: Mapping[str, Sequence[TimedTransfer]]) -> Figure:
    """Return a panel for each network: what each rank sends (above) and receives (below), in milliseconds.

    A bar has the colour of the rank that sends. A frame marks the longest wait.
    """
    p = 1 + max((max(timed.transfer[:2]) for timeline in networks.values() for timed in timeline), default=0)
    figure, all_axes = panels((9.5, (0.36 * p + 0.8) * len(networks) + 0.3), rows=len(networks))
    for axes, (name, timeline) in zip(all_axes, networks.items(), strict=True):
        last = 1e3 * max((timed.end for timed in timeline), default=1.0)
        for _, (source, dest, *_), start, end in timeline:
            left, width = 1e3 * start, 1e3 * (end - start)
            for rank, peer, lane in ((source, f"→{dest}", -0.2), (dest, f"{source}→", 0.2)):
                fill, style = colour(source), {"edgecolor": INK, "linewidth": 0.5}
                hatch = "///" if lane > 0 else ""
                axes.barh(rank + lane, width, 0.36, left, color=fill, hatch=hatch, **style)
                if width > 0.028 * last and lane < 0:
                    style = {"va": "center_baseline", "color": text_colour(fill)}
                    centred(axes, left + width / 2, rank + lane, peer, 8, **style)
        wait = longest_wait(timeline)
        if wait:
            corner, width = (1e3 * wait.start, wait.rank - 0.45), 1e3 * (wait.end - wait.start)
            axes.add_patch(Rectangle(corner, width, 0.9, fill=False, edgecolor=WRONG, linewidth=2.5))
        title = f"{name}: {last:.0f} ms"
        axes.set_title(f"{title}; {wait}" if wait else title, fontsize=10, loc="left")
        axes.set_yticks(range(p), [f"rank {rank}" for rank in range(p)])
        axes.set_ylim(p - 0.4, -0.6)
        axes.set(xlim=(0, last), xlabel="Time (ms)")
    all_axes[-1].set_xlabel(
        "Time since the start (ms); full: sent, hatched: received, in the sender's colour"
    )
    return figure


def _stripes(axes: Axes, held: np.ndarray, across: tuple[float, float], down: tuple[float, float]) -> None:
    """Draw what ranks hold, one row per rank, lines between cells. Shape: held (ranks, chunks, p)."""
    ranks, chunks, p = held.shape
    own_colours = np.array([to_rgb(colour(rank)) for rank in range(p)])
    image = np.where(held[..., None] > 0, own_colours, 1.0)
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


def step_through(schedule: Schedule) -> Stepper:
    """Return the pictures of all rounds with a slider and buttons to step through them, for a notebook.

    A picture shows the ranks in a circle, the round's transfers as arrows, and what each rank holds after it.
    An arrow's label names its chunks, with + if they are reduced and = if they are copied; chunks written in
    the round have a thick frame. Without scripts, as on GitHub, the output shows the pictures of all rounds.
    As plain text, it lists the transfers.
    """
    rounds = list(schedule)
    figures = [
        _circle(schedule, number, rounds[number - 1] if number else None, held, len(rounds))
        for number, held in enumerate(contents_by_round(schedule))
    ]
    name = f"{schedule.name}, {schedule.p} ranks, round"
    texts = [f"{name} 0 of {len(rounds)}: before the first round"]
    texts += [f"{name} {number} of {len(rounds)}: {round_}" for number, round_ in enumerate(rounds, 1)]
    return Stepper(figures, texts)


def _circle(schedule: Schedule, number: int, round_: Round | None, held: np.ndarray, last: int) -> Figure:
    p, chunks = schedule.p, schedule.chunks
    crowded = p > 5
    figure = Figure(figsize=(7.6, 5.9 if crowded else 4.9))
    axes = figure.add_axes((0, 0, 1, 0.92))
    when = f"after round {number} of {last}" if number else "before the first round"
    figure.text(0.5, 0.94, f"{schedule.name}, {p} ranks: {when}", ha="center", fontsize=13, weight="bold")
    axes.axis("off")
    angle = np.pi / 2 - 2 * np.pi * np.arange(p) / p
    radius = (1.3, 1.0) if crowded else (0.85, 0.72)
    x, y = radius[0] * np.cos(angle), radius[1] * np.sin(angle)
    cell, high = min(0.36, (1.05 if crowded else 1.5) / chunks), 0.16 if crowded else 0.24
    wide = cell * chunks
    written = {(t.dest, chunk) for t in round_ or () for chunk in range(t.first, t.stop)}
    for rank in range(p):
        # The cells are outside the circle, so that no arrow crosses them.
        left = x[rank] + np.cos(angle[rank]) * (0.2 + wide / 2) - wide / 2
        top = y[rank] + np.sin(angle[rank]) * (0.32 if crowded else 0.38) + high / 2
        _stripes(axes, held[rank : rank + 1], (left, left + wide), (top, top - high))
        for chunk in range(chunks):
            at = left + chunk * cell
            thick = (rank, chunk) in written
            axes.add_patch(
                Rectangle((at, top - high), cell, high, fill=False, edgecolor=INK, lw=3.2 if thick else 0.8)
            )
            if chunks > 1:
                place = at + cell / 2, top - high - (0.05 if crowded else 0.075)
                centred(axes, *place, chunk, min(10.5, 36 * cell))
        fill, wide_mark = colour(rank), 20 if crowded else 25
        axes.plot(x[rank], y[rank], "o", markersize=wide_mark, color=fill, markeredgecolor=INK)
        centred(axes, x[rank], y[rank], rank, 13, weight="bold", color=text_colour(fill))
    for transfer in round_ or ():
        _arrow(axes, transfer, (x, y))
    axes.set_xlim(-2.6, 2.6)
    axes.set_ylim(*(-1.7, 1.5) if crowded else (-1.45, 1.35))
    low = axes.get_ylim()[0] + 0.05
    style: dict[str, Any] = {"fontsize": 10, "color": INK, "va": "bottom"}
    axes.text(-2.55, low, "circle: rank\ncells: its chunks\n+ reduced\n= copied", **style)
    stripes = "stripes: the ranks whose\ninputs are in the sum\nthick: written in this round"
    axes.text(2.55, low, stripes, ha="right", **style)
    return figure


def _arrow(axes: Axes, transfer: Transfer, centres: tuple[np.ndarray, np.ndarray]) -> None:
    """Draw a bent arrow, so that arrows in opposite directions are apart; its label is near its tail."""
    tail, tip = np.transpose(centres)[[transfer.source, transfer.dest]]
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
            "linewidth": 1.6,
            "mutation_scale": 16,
            "shrinkA": 14,
            "shrinkB": 14,
        },
    )
    along = tip - tail
    # A quadratic curve; its middle control point is `bend` times its length beside the straight line.
    t, control = 0.27, (tail + tip) / 2 + bend * np.array([along[1], -along[0]])
    where = (1 - t) ** 2 * tail + 2 * t * (1 - t) * control + t**2 * tip
    box = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none", "alpha": 0.9}
    centred(axes, where[0], where[1], str(transfer).split()[1], 12, bbox=box)


# Turns the pictures before it, which all stand there, into one picture with a slider and buttons.
SCRIPT = f"""
(() => {{
    {MAKE_STEPPER}
    const box = document.currentScript.parentElement;
    const images = [...box.querySelectorAll("img")];
    images.forEach(image => {{ image.style.width = "608px"; }});
    makeStepper(box, images.length - 1, "round", round => {{
        images.forEach((image, k) => {{ image.hidden = k != round; }});
        return images[round].alt;
    }});
}})();
"""


class Stepper:
    """Figures to step through in a notebook; `texts` says in words what each of them shows."""

    def __init__(self, figures: Sequence[Figure], texts: Sequence[str]) -> None:
        self.figures, self.texts = list(figures), list(texts)

    def __repr__(self) -> str:
        return "\n".join(self.texts)

    def _repr_html_(self) -> str:
        style = "width: 49%; max-width: 100%; min-width: 300px; height: auto; vertical-align: top"
        images = ""
        for text, figure in zip(self.texts, self.figures, strict=True):
            image = io.BytesIO()
            figure.savefig(image, format="png", dpi=80)
            source = f"data:image/png;base64,{base64.b64encode(image.getvalue()).decode()}"
            images += f'<img alt="{escape(text)}" style="{style}" src="{source}">\n'
        return f"<div>\n{images}<script>{SCRIPT}</script>\n</div>"
