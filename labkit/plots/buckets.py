"""Figures about buckets and overlap: when gradients are complete, when the link is busy, what is exposed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from labkit.plots.style import COLOURS, INK, Curve, one_panel, panels, plain_numbers


def gradients_over_time(layers: Sequence[str], seconds: Curve, nbytes: Curve) -> Figure:
    """Return two panels: the complete bytes over time; each layer's fraction of the bytes and of the time.

    `layers` is in the order of the backward pass. Shapes: seconds (layers,), when each layer's gradient is
    complete, from the start of the backward pass; nbytes (layers,), the size of its gradient.
    """
    times, sizes = 1e3 * np.asarray(seconds), np.asarray(nbytes) / 1024
    figure, (left, right) = panels((9.5, 3.8), columns=2)
    done = np.cumsum(sizes)
    left.step([0, *times], [0, *done], where="post", color=COLOURS[0], linewidth=2)
    left.plot(times, done, "o", color=COLOURS[0], markersize=5)
    last_t, last_y = -np.inf, -np.inf
    for name, t, y in zip(layers, times, done, strict=True):
        # Above the point and to its left: to its right, a name would stand at the next point.
        place = {"xytext": (0, 6), "ha": "left" if t < 0.1 * times[-1] else "right"}
        if t - last_t < 0.15 * times[-1] and y - last_y < 0.06 * done[-1]:
            place = {"xytext": (0, -15), "ha": "center"}  # below, where no name stands
        last_t, last_y = t, y
        left.annotate(name, (t, y), textcoords="offset points", fontsize=9, **place)
    left.set(xlabel="Time since the backward pass began (ms)", ylabel="Complete gradients (KiB)")
    left.set_ylim(0, 1.1 * done[-1])
    left.set_xlim(-0.05 * times[-1], 1.12 * times[-1])
    rows = np.arange(len(layers))
    fractions = {
        "of the gradient's bytes": sizes / sizes.sum(),
        "of the backward pass's time": np.diff(times, prepend=0) / times[-1],
    }
    for k, (label, fraction) in enumerate(fractions.items()):
        hatch = {"hatch": "////", "edgecolor": "white"} if k else {}
        bars = right.barh(
            rows + 0.2 * (2 * k - 1), 100 * fraction, 0.38, color=COLOURS[k], label=label, **hatch
        )
        right.bar_label(bars, [f"{100 * part:.2g}" for part in fraction], padding=3, fontsize=8)
    right.set_yticks(rows, layers)
    right.invert_yaxis()
    right.set_xlabel("Fraction (%)")
    right.margins(x=0.1)  # room for the numbers
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, frameon=False, fontsize=9)
    return figure


def memory_over_step(steps: Mapping[str, tuple[Curve, Curve, float, float]]) -> Figure:
    """Return the memory in a step over time: a panel for each way to train, on the same axes, with its peak.

    Each has two arrays (n,), times since the step began (s) and the most bytes per parameter since the time
    before, and when its forward pass and its backward pass ended. The backward pass is shaded.
    """
    figure, all_axes = panels((9.5, 3.2), columns=len(steps), sharex=True, sharey=True)
    for k, (axes, name) in enumerate(zip(all_axes, steps, strict=True)):
        seconds, nbytes, forward_s, backward_s = steps[name]
        times = 1e3 * np.asarray(seconds)
        axes.fill_between(times, nbytes, step="pre", color=COLOURS[k], alpha=0.35, linewidth=0)
        axes.plot(times, nbytes, color=COLOURS[k], drawstyle="steps-pre")
        axes.axvspan(1e3 * forward_s, 1e3 * backward_s, color=INK, alpha=0.12, linewidth=0)
        axes.axhline(max(nbytes), color=INK, linewidth=1, linestyle=":")
        axes.set_title(f"{name}\npeak {max(nbytes):.1f}", fontsize=10)
        axes.set_xlabel("Time (ms)")
    all_axes[0].set(ylabel="Memory (bytes per parameter)", ylim=(0, None))
    return figure


def exposed_by_bucket_size(
    kib: Curve, model_ms: Curve, measured_kib: Curve, measured_ms: Curve, whole_ms: float
) -> Figure:
    """Return what averaging adds to a step against the bucket size: the cost model's curve, measured points.

    All sizes for which the model is near its best are marked. Shapes: kib, model_ms (n,); measured_kib,
    measured_ms (k,).
    `whole_ms` is what the model adds without overlap.
    """
    figure, axes = one_panel((7.5, 4.2), "Bucket size (KiB)", "Added to the passes (ms)")
    axes.plot(kib, model_ms, color=COLOURS[0], label="cost model")
    axes.plot(measured_kib, measured_ms, "o", color=COLOURS[1], markeredgecolor=INK, label="measured")
    axes.axhline(whole_ms, color=INK, linewidth=1, linestyle=":", label="no overlap")
    good = np.asarray(model_ms) <= 1.25 * min(model_ms)
    ranges = "\n".join(f"{kib[first]:.0f} to {kib[last]:.0f} KiB" for first, last in _runs(good))
    axes.fill_between(
        kib,
        0,
        1,
        where=good,
        transform=axes.get_xaxis_transform(),
        color=COLOURS[2],
        alpha=0.2,
        linewidth=0,
        zorder=0,
        label=f"model at most 25 % above its best:\n{ranges}",
    )
    axes.set_xscale("log", base=2)
    plain_numbers(axes.xaxis)
    axes.set_ylim(0, None)
    axes.legend(frameon=False)
    return figure


def _runs(flags: Curve) -> list[tuple[int, int]]:
    """Return the first and the last index of each unbroken run of true values."""
    places = np.flatnonzero(flags)
    return [
        (int(group[0]), int(group[-1])) for group in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    ]


def hidden_by_ratio(ratios: Curve, hidden: Curve) -> Figure:
    """Return the fraction of the communication that overlap hides, against communication / backward time.

    Shapes: ratios, hidden (n,), as fractions. A line shows the bound min(1, 1 / ratio).
    """
    ratio = "Communication time / time of the backward pass"
    figure, axes = one_panel((7.5, 3.9), ratio, "Hidden fraction of the\ncommunication time (%)")
    x = np.geomspace(min(ratios) / 1.3, max(ratios) * 1.3, 200)
    bound = 100 * np.minimum(1, 1 / x)
    axes.plot(x, bound, color=INK, linestyle="--", label="bound: the time of the backward pass")
    axes.fill_between(x, bound, 130, color=INK, alpha=0.08, linewidth=0, label="impossible")
    axes.plot(ratios, 100 * np.asarray(hidden), "o", color=COLOURS[0], markeredgecolor=INK, label="measured")
    axes.set_xscale("log", base=2)
    plain_numbers(axes.xaxis)
    axes.set_ylim(0, 110)
    axes.legend(frameon=False, loc="lower left")
    return figure
