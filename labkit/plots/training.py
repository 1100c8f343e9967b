"""Figures of training runs: losses and accuracies by step and by epoch, times per iteration, a timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator

from labkit.colours import colour
from labkit.plots.style import (
    COLOURS,
    INK,
    LINES,
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

if TYPE_CHECKING:
    from labkit.train.steps import Step  # a notebook's kernel draws figures, but must not load MPI

MANY_RANKS = 16  # more of them are drawn alike, without a name for each
NAMED_OF_MANY = 8  # one of so many has its name beside the timeline


def losses(local: Sequence[Sequence[float]], over_all: Sequence[float]) -> Figure:
    """Return the loss by epoch: one curve for each rank's shard, and a black one for all samples.

    Shapes: local (ranks, epochs), over_all (epochs,).
    """
    figure, axes = one_panel((6.4, 4), "Epoch", "Loss (mean over samples)")
    are_many = len(local) > MANY_RANKS
    if are_many:
        curves = np.asarray(local).T
        thin = axes.plot(np.arange(1, len(curves) + 1), curves, color=colour(0), linewidth=0.5, marker=".")
        thin[0].set_label(f"each of ranks 0–{len(local) - 1}")
        local = []
    for rank, curve in enumerate(local):
        every, mark = max(1, len(curve) // 10), MARKERS[rank % len(MARKERS)]
        (line,) = axes.plot(np.arange(1, len(curve) + 1), curve, color=colour(rank), label=f"rank {rank}")
        line.set(marker=mark, markersize=4, markevery=every, linestyle=LINES[rank % len(LINES)])
    axes.plot(np.arange(1, len(over_all) + 1), over_all, color="black", linewidth=2.5, label="all ranks")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right" if are_many else "best")  # the best of many curves takes long to find
    return figure


def losses_by_step(panels: Mapping[str, Mapping[str, Curve]], x_label: str = "Step") -> Figure:
    """Return the losses of several runs by step: one panel per group of runs, all on one log scale.

    Shapes: panels: group → run → (steps,); one panel has no title. `x_label` names the axis if it does
    not count steps. A loss that is not finite leaves a gap.
    """
    figure = Figure(figsize=(max(6.0, 3.2 * len(panels) + 0.6), 3.7), layout="constrained")
    sides = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, runs) in zip(sides, panels.items(), strict=True):
        _curves(axes, runs)
        axes.set_yscale("log")
        axes.set_xlabel(x_label)
        if len(panels) > 1:
            axes.set_title(title)
    low, high = sides[0].get_ylim()  # of all panels
    ticks = (1.0, 2.0, 5.0) if high > 10 * low else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    for axes in sides:
        axes.yaxis.set_major_locator(LogLocator(subs=ticks))
        plain_numbers(axes.yaxis)
    sides[0].set_ylabel("Loss (mean over samples)")
    legend_above(figure, sides)
    return figure


def tangent_and_chord(values: Curve, losses: Curve, slope: float) -> Figure:
    """Return a loss over one weight, its tangent at 0 with this slope, and the chord from -1 to 1.

    Shapes: values, losses (n,), the values ascending from at most -1 to at least 1.
    """
    figure, axes = one_panel((6.4, 3.6), "Value of the first weight", "Loss (mean squared error)")
    here, left, right = np.interp([0, -1, 1], values, losses)
    axes.plot(values, losses, color="#888888", linewidth=3, label="loss")
    tangent = here + slope * np.asarray(values)
    axes.plot(values, tangent, color=COLOURS[0], label="tangent: derivative by hand")
    axes.plot([-1, 1], [left, right], "s--", color=COLOURS[5], label="chord: difference, h = 1")
    axes.plot(0, here, "o", color=COLOURS[0])
    axes.legend()
    return figure


def errors_by_step_size(steps: Curve, errors: Mapping[str, Curve]) -> Figure:
    """Return the error of a numerical gradient against its step h, a curve for each dtype, log-log.

    Shapes: steps (n,); errors: dtype → (n,).
    """
    figure, axes = one_panel((6.4, 3.4), "Step h", "Relative error of the difference")
    for k, (name, curve) in enumerate(errors.items()):
        axes.loglog(steps, curve, label=name, **curve_style(k))
    axes.legend()
    return figure


def _curves(axes: Axes, curves: Mapping[str, Curve]) -> None:
    """Draw curves over their numbers of values, counted from 1, with marks that are apart."""
    for k, (name, values) in enumerate(curves.items()):
        marks = k, max(1, len(values) // 6)
        axes.plot(np.arange(1, len(values) + 1), values, label=name, markevery=marks, **curve_style(k))
    axes.grid(alpha=0.3)


def comparison(
    x_label: str,
    curves: Mapping[str, Mapping[str, np.ndarray]],
    fractions: Mapping[str, Mapping[str, float]] | None = None,
) -> Figure:
    """Return several runs in a panel for each quantity: thick for the mean of a run's ranks, thin for each.

    Shapes: curves: label of the panel → run → (ranks, n). Another panel shows `fractions`, those of the time
    per iteration that each part takes, by run; they add up to 1.
    """
    figure, sides = panels((4.2 * (len(curves) + bool(fractions)), 4), columns=len(curves) + bool(fractions))
    for axes, (label, runs) in zip(sides, curves.items(), strict=False):
        axes.set(xlabel=x_label, ylabel=label)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        for k, by_rank in enumerate(runs.values()):
            numbers, thin = np.arange(1, by_rank.shape[1] + 1), COLOURS[k % len(COLOURS)]
            axes.plot(numbers, by_rank.T, color=thin, linewidth=0.7, alpha=0.6)
        _curves(axes, {name: by_rank.mean(axis=0) for name, by_rank in runs.items()})
        axes.legend()
    if fractions:
        _bars(sides[-1], fractions)
    return figure


def _bars(axes: Axes, fractions: Mapping[str, Mapping[str, float]]) -> None:
    ends = np.zeros(len(fractions))  # of the bars drawn so far
    for k, part in enumerate(next(iter(fractions.values()))):
        values = 100 * np.array([of_run[part] for of_run in fractions.values()])
        bars = axes.barh(
            list(fractions), values, left=ends, label=part, color=COLOURS[k], edgecolor=INK, height=0.6
        )
        numbers = [f"{value:.0f}" if value >= 6 else "" for value in values]
        axes.bar_label(bars, numbers, label_type="center", color=text_colour(COLOURS[k]))
        ends += values
    axes.set(xlabel="Share of the time per iteration (%)", xlim=(0, 100))
    axes.invert_yaxis()
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False, fontsize=9)


def parts_of_a_step(rows: Mapping[str, Mapping[str, float]]) -> Figure:
    """Return a bar for each row, cut into its parts in ms; parts above a twentieth of the longest are named.

    A part that several rows have keeps its colour. A part with "+" in its name holds two that cannot be told
    apart, and is hatched.
    """
    figure, axes = one_panel((7.5, 3.6), "Time of an iteration (ms), mean of the ranks", "")
    names = list(dict.fromkeys(part for parts in rows.values() for part in parts))
    longest, named = max(sum(parts.values()) for parts in rows.values()), set[str]()
    for row, parts in enumerate(rows.values()):
        left = 0.0
        for part, ms in parts.items():
            fill = COLOURS[names.index(part)]
            label = None if part in named else part
            named.add(part)
            hatch = "//" if "+" in part else None
            axes.barh(row, ms, left=left, color=fill, hatch=hatch, edgecolor="white", label=label, zorder=2)
            if ms > longest / 20:
                box = {"facecolor": fill, "edgecolor": "none", "pad": 1}
                centred(axes, left + ms / 2, row, f"{ms:.0f}", 9, color=text_colour(fill), bbox=box, zorder=3)
            left += ms
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    legend_above(figure, [axes])
    return figure


def scaling(
    ranks: Curve,
    predicted: Mapping[str, Mapping[str, Curve]],
    measured: Mapping[str, Curve],
) -> Figure:
    """Return what weak scaling loses (left) and the speed-up of strong scaling (right), log-log, by network.

    Shapes: ranks (n,); predicted: "weak" or "strong" → network → (n,); measured: "weak" or "strong" → (m,),
    on 1, 2 … m ranks. All are times of one rank / times of the ranks. What lies beyond m ranks is shaded. A
    loss of nothing, as on one rank, has no place on a logarithmic axis.
    """
    figure, sides = panels((9.5, 4.1), columns=2)
    for axes, kind in zip(sides, ("weak", "strong"), strict=True):
        is_loss, reached = kind == "weak", np.asarray(measured[kind])
        for k, (network, gain) in enumerate(predicted[kind].items()):
            shown = lost(np.asarray(gain)) if is_loss else gain
            axes.plot(ranks, shown, color=COLOURS[k], linestyle=LINES[k % len(LINES)], lw=2.5, label=network)
        counts = np.arange(1, len(reached) + 1)
        shown = lost(reached) if is_loss else reached
        axes.plot(counts, shown, "s", color="black", label="these links, measured")
        axes.axvspan(len(reached) + 0.5, 1.1 * max(ranks), color="black", alpha=0.05, lw=0)
        axes.set(xscale="log", yscale="log", xlim=(0.9, 1.1 * max(ranks)), xlabel="Number of ranks")
        axes.set_xticks([4**power for power in range(9) if 4**power <= max(ranks)])
        axes.set_title(f"{kind.capitalize()} scaling")
        axes.grid(alpha=0.3)
        plain_numbers(axes.xaxis)
        plain_numbers(axes.yaxis)
    sides[0].set(ylabel="Part of a step lost to averaging (%)")
    sides[1].plot([1, max(ranks)], [1, max(ranks)], color=INK, lw=1, linestyle=(0, (1, 3)), label="ideal")
    sides[1].set(ylabel="Speed-up")
    legend_above(figure, sides)
    return figure


def lost(efficiency: np.ndarray) -> np.ndarray:
    """Return what is lost (%) at an efficiency (a fraction); NaN if nothing is."""
    return np.where(efficiency < 1, 100 * (1 - efficiency), np.nan)


# Shades of grey and hatches: a colour would stand for a rank.
STYLES: dict[str, dict[str, Any]] = {
    "compute": {"facecolor": "#C8C8C8", "label": "compute"},
    "wait": {"facecolor": "white", "hatch": "////", "label": "wait for the last rank"},
    "transfer": {"facecolor": INK, "label": "transfer"},
}


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
    are_many = len(ranks) > MANY_RANKS
    figure, (axes,) = panels((9, (0.12 if are_many else 0.42) * len(ranks) + 1.5))
    spans: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for step in shown:
        for name, begin, stop in step.spans():
            span = scale * (begin - zero), scale * (stop - begin)
            spans.setdefault((name, step.rank), []).append(span)
    for activity, style in STYLES.items():
        for rank in ranks:
            of_rank = spans.get((activity, rank), [])
            width = 0.0 if are_many else 0.3
            axes.broken_barh(of_rank, (rank - 0.32, 0.64), edgecolor=INK, linewidth=width, **style)
    numbers = sorted({step.number for step in shown})
    for number in numbers:
        begins = min(step.begin for step in shown if step.number == number)
        axes.axvline(scale * (begins - zero), color=INK, linewidth=0.6, linestyle=":", zorder=0)
    named = ranks[::NAMED_OF_MANY] if are_many else ranks
    axes.set_yticks(named, [f"rank {rank}" for rank in named])
    axes.set_ylim(ranks[-1] + 0.6, ranks[0] - 0.6)
    axes.set_xlim(0, scale * (end - zero))
    axes.set_xlabel(f"Time ({unit}); dotted: a step starts; empty: idle")
    axes.set_title(f"{title + ', ' if title else ''}steps {numbers[0]}–{numbers[-1]}", fontsize=11)
    handles = [Patch(edgecolor=INK, **style) for style in STYLES.values()]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
    return figure
