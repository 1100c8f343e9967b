"""Figures about shards: which rank holds which samples, and which labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from labkit.colours import colour
from labkit.plots.style import INK, centred, text_colour


def shards(owners: Mapping[str, np.ndarray], labels: Sequence[object]) -> Figure:
    """Return one row of boxes per scheme, one box per sample: its colour is its rank, its text its label.

    Shapes: owners: scheme → (n,), the rank of each sample; labels (n,).
    """
    rows = {name: (owner, labels) for name, owner in owners.items()}
    return _boxes(rows, "rank", "Sample, in the order of the data set (text: its label)")


def shards_of_ranks(by_rank: Sequence[Mapping[str, np.ndarray]], labels: Sequence[object]) -> Figure:
    """Return the figure of `shards` from what the ranks hold; `by_rank`: each rank's indices, by scheme.

    Shape: labels (n,). Raise ValueError if a sample is not on exactly one rank.
    """
    owners = {}
    for scheme in by_rank[0]:
        owner = np.full(len(labels), -1)
        for rank, held in enumerate(by_rank):
            owner[held[scheme]] = rank
        count = sum(len(held[scheme]) for held in by_rank)
        if count != len(labels) or -1 in owner:
            raise ValueError(
                f"{scheme}: expected each of {len(labels)} samples on one rank, got {count} in all"
            )
        owners[scheme] = owner
    return shards(owners, labels)


def steps_of_ranks(by_rank: Sequence[Mapping[str, Sequence[np.ndarray]]], batch: int) -> Figure:
    """Return the figure of `samples_by_step`, with one rank's steps of `batch` samples in the first row.

    `by_rank`: the samples that each rank uses in each step, by scheme.
    """
    n = sum(len(samples) for schemes in by_rank for samples in next(iter(schemes.values())))
    rows: dict[str, tuple[np.ndarray, Sequence[object]]] = {"one rank": (np.arange(n) // batch, [0] * n)}
    for scheme in by_rank[0]:
        steps, ranks = np.empty(n, int), np.empty(n, int)
        for rank, schemes in enumerate(by_rank):
            for step, samples in enumerate(schemes[scheme]):
                steps[samples], ranks[samples] = step, rank
        rows[scheme] = steps, ranks.tolist()
    return samples_by_step(rows)


def samples_by_step(rows: Mapping[str, tuple[np.ndarray, Sequence[object]]]) -> Figure:
    """Return one row of boxes per run, one box per sample: darker for a later step; its text is its rank.

    Shapes: rows: run → the steps (n,) and the ranks (n,) of the samples.
    """
    steps = 1 + max(int(numbers.max()) for numbers, _ in rows.values())
    greys = [to_hex(colormaps["Greys"](0.2 + 0.35 * step / max(1, steps - 1))) for step in range(steps)]
    label = "Sample, in the order of the data set (text: the rank that holds it)"
    return _boxes(rows, "step", label, greys.__getitem__)


def label_counts(counts: Mapping[str, np.ndarray]) -> Figure:
    """Return the number of samples of each label on each rank as text and shade: one panel per scheme.

    Shapes: counts: scheme → (ranks, labels), integers.
    """
    ranks = len(next(iter(counts.values())))
    figure = Figure(figsize=(3.6 * len(counts), 1.6 + 0.4 * min(ranks, 16)), layout="constrained")
    panels = figure.subplots(1, len(counts), sharey=True, squeeze=False)[0]
    most = max(int(table.max()) for table in counts.values())
    for axes, (name, table) in zip(panels, counts.items(), strict=True):
        axes.imshow(table, cmap="Blues", vmin=0, vmax=most, aspect="auto")
        for (rank, label), count in np.ndenumerate(table):
            ink = "white" if count > most / 2 else "black"
            centred(axes, label, rank, count, 8, color=ink, in_layout=False)
        axes.set_title(name)
        axes.set_xlabel("Label")
        axes.set_xticks(range(table.shape[1]))
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("Rank")
    return figure


def _boxes(
    rows: Mapping[str, tuple[np.ndarray, Sequence[object]]],
    noun: str,
    x_label: str,
    colour_of: Callable[[int], str] = colour,
) -> Figure:
    """Draw one row of boxes per entry of `rows`; the legend calls the numbers `noun`.

    Shapes: rows: name → the numbers (n,), from 0, that give the colours, and the texts (n,).
    """
    figure = Figure(figsize=(10, 0.55 * len(rows) + 1), layout="constrained")
    axes = figure.add_subplot()
    for row, (numbers, texts) in enumerate(rows.values()):
        for sample, (number, text) in enumerate(zip(numbers, texts, strict=True)):
            axes.barh(row, 1, left=sample - 0.5, height=0.8, color=colour_of(number), edgecolor="white")
            ink = text_colour(colour_of(number))
            centred(axes, sample, row, text, 9, color=ink, in_layout=False)  # to measure all is slow
        axes.set_xlim(-0.5, len(numbers) - 0.5)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    shown = sorted({int(number) for numbers, _ in rows.values() for number in numbers})
    handles = [
        Patch(facecolor=colour_of(number), edgecolor=INK, label=f"{noun} {number}") for number in shown
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(len(shown), 8))
    return figure
