"""The figures that `labkit train` leaves in the run's folder."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from labkit.files import atomic_write
from labkit.plots import losses, timeline
from labkit.train.experiment import Results

STEPS_DRAWN = 8  # the last steps, in timeline.png; trace.json has all that were recorded


def draw(out: Path, results: Results) -> None:
    """Draw the losses and the last steps of the timeline."""
    rows, steps, run = results.rows, results.steps, results.run
    local = [[row.local_loss for row in rows if row.rank == rank] for rank in range(run["ranks"])]
    write(out / "loss.png", losses(local, [row.global_loss for row in rows if row.rank == 0]))
    slowed = [*([run["links"]] if "links" in run else []), *run["settings"]["bottleneck"]]
    write(out / "timeline.png", timeline(steps, ", ".join(slowed), max(1, steps[-1].step - STEPS_DRAWN + 1)))


def write(path: Path, figure: Figure) -> None:
    """Write a figure as PNG."""
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=150)
