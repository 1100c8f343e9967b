"""`labkit train`: its options, made from `labkit.train.settings`, and the figures that it leaves.

`labkit checklist` reads the record of such a run.
"""

# ruff: noqa: PLC0415 (imports inside functions: NumPy and MPI load only where the command runs)

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import Field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labkit.cli.inputs import Finite, InputFolder, OutputFolder, Whole, one_line
from labkit.cli.ranks import HOSTS, FolderOfRankZero, ending_together, hosts_option, on_ranks, under_mpiexec
from labkit.train.checklist import ITEMS, missing
from labkit.train.presets import PRESETS
from labkit.train.settings import RECIPES, THE_RUN, Settings
from mpiwatch.launch import Options, refuse_world_of_one
from mpiwatch.program import begin_watching

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.train.steps import Epoch, Step

NAME = "labkit train"
# The deadline of PyTorch's process groups with Gloo. No epoch, checkpoint or emulated link keeps all ranks
# inside one MPI call for so long. A rank that fails or dies, or ranks that wait in a circle, are reported at
# once.
DEADLINE_S = 1800.0
STEPS_DRAWN = 8  # the last steps, in timeline.png; trace.json has all that were recorded

Option = Callable[[Any], Any]


def _option(setting: Field[Any]) -> Option:
    """Return the option of a setting. An option that is not given is None, or an empty tuple."""
    name, kind, text = setting.name.replace("_", "-"), str(setting.type), setting.metadata
    shown: dict[str, Any] = {"help": text["help"], "metavar": text.get("metavar")}
    if kind.startswith("bool"):
        return click.option(f"--{name}/--{text.get('opposite', f'no-{name}')}", default=None, **shown)
    if kind.startswith("tuple"):
        return click.option(f"--{name}", multiple=True, **shown)
    if "choices" in text:
        shown["type"] = click.Choice(list(text["choices"]))
    elif kind.startswith("int"):
        shown["type"] = Whole(text.get("least", 1))
    elif kind.startswith("float"):
        least = text.get("least", text.get("above"))
        shown["type"] = Finite(least, text.get("below"), min_open="above" in text, max_open=True)
    return click.option(f"--{name}", **shown)


OF_THE_COMMAND: list[Option] = [
    click.option(
        "--preset",
        type=click.Choice(list(PRESETS)),
        help="Run an experiment of a report; other options override its settings.",
    ),
    click.option(
        "--out",
        type=OutputFolder(),
        help="Directory for the results. [required, except with --preset: runs/PRESET, or --resume: RUN]",
    ),
    click.option(
        "--resume",
        type=FolderOfRankZero(),
        metavar="RUN",
        help="Continue the run in this directory from its last checkpoint.",
    ),
    hosts_option,
]
HEADINGS = [(setting.metadata["heading"], _option(setting)) for setting in fields(Settings)]
HEADINGS += [(THE_RUN, option) for option in OF_THE_COMMAND]


class TrainCommand(click.Command):
    """A command whose help lists the options under their headings, and the models below them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter, (heading, _) in zip(self.get_params(ctx), HEADINGS, strict=False):
            record = parameter.get_help_record(ctx)
            if record:
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
        with formatter.section("Models, the data sets that fit them, and their defaults"):
            formatter.write_dl([(model, str(recipe)) for model, recipe in RECIPES.items()])


def with_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options to a command's function."""
    for _, option in reversed(HEADINGS):
        function = option(function)
    return function


@click.command(cls=TrainCommand)
@with_options
def command(preset: str | None, resume: Path | None, out: Path | None, **options: Any) -> None:
    """Train a model on the ranks that mpiexec started: mpiexec -n 4 labkit train --out run.

    With --hosts, the command itself starts the ranks, one for each slot of the host file.

    For each epoch, every rank prints its own and the global loss, its training accuracy, its contribution to
    the averaged gradient, and the time it computed, waited and transferred. At the end, every rank tests its
    own model. Rank 0 writes the results to --out.
    """
    if preset and resume:
        raise click.UsageError("--preset and --resume: a run that is resumed keeps its own settings")
    if out and resume:
        raise click.UsageError("--out and --resume: a run that is resumed stays in its own directory")
    if out is None and preset is None and resume is None:
        raise click.UsageError("Missing option '--out'.")
    if click.get_current_context().meta.get(HOSTS):
        on_ranks(None, None)
    # A signal that asks for a checkpoint must not end this rank before the run handles it.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    # A single process: with other transports, Open MPI would leave shared memory behind.
    if not under_mpiexec():
        os.environ.setdefault("OMPI_MCA_btl", "self")
    if under_mpiexec() and "mpi4py.MPI" not in sys.modules:
        begin_watching(Options(tuple(sys.argv), deadline_s=DEADLINE_S, command=NAME))
    from mpi4py import MPI

    from labkit.train.run import run_training

    comm = MPI.COMM_WORLD
    refuse_world_of_one(NAME, comm.size, MPI.get_vendor()[0])
    chosen = {name: value for name, value in options.items() if value not in (None, ())}
    with ending_together(comm, NAME):
        folder = out or resume or Path("runs", str(preset))
        run_training(comm, chosen, folder, preset=preset, resume=resume is not None, draw=draw)


def draw(out: Path, rows: list[Epoch], steps: list[Step], about: dict[str, Any]) -> None:
    """Draw the losses, the last steps of the timeline and, of a preset, what its report draws."""
    from labkit.plots import losses, timeline
    from labkit.plots.style import save

    # If the run was resumed with more ranks, the new ranks have no earlier epochs.
    loss_of = {(row.rank, row.epoch): row.local_loss for row in rows}
    epochs = range(1, 1 + max(row.epoch for row in rows))
    local = [[loss_of.get((rank, epoch), math.nan) for epoch in epochs] for rank in range(about["ranks"])]
    save(out / "loss.png", losses(local, [row.global_loss for row in rows if row.rank == 0]))
    slowed = [*([about["links"]] if "links" in about else []), *about["settings"]["bottleneck"]]
    first = max(1, steps[-1].number - STEPS_DRAWN + 1)
    save(out / "timeline.png", timeline(steps, ", ".join(slowed), first))
    if "preset" in about:
        report = PRESETS[about["preset"]].report
        save(out / f"report-{report.lower()}.png", _side_by_side(out, about["preset"]))


def _side_by_side(out: Path, preset: str) -> Figure:
    """Draw this run and the report's others that lie beside it: report E's by epoch, others by iteration."""
    import numpy as np

    from labkit.plots import comparison
    from labkit.train.run_record import fractions, load_iterations

    report, runs, tables = PRESETS[preset].report, {}, {}
    for name in [
        name for name in PRESETS if PRESETS[name].report == report or name == PRESETS[preset].against
    ]:
        folder = out if name == preset else out.parent / name
        with suppress(OSError, ValueError, KeyError):
            about = json.loads((folder / "run.json").read_text())
            if about["preset"] == name:
                tables[name] = load_iterations(folder / "iterations.csv")
                is_after = about["settings"]["average_after_step"]
                runs[f"{name}, after stepping" if is_after else name] = about
    if report != "E":
        loss, seconds = (
            {name: table[column].mean(axis=0, keepdims=True) for name, table in tables.items()}
            for column in ("loss", "time_s")
        )
        parts = {
            name: {k: float(v.mean()) for k, v in fractions(table).items()} for name, table in tables.items()
        }
        curves = {"Loss (mean of the ranks)": loss, "Time per iteration (s)": seconds}
        figure = comparison("Iteration", curves, parts)
        figure.axes[1].set_ylim(bottom=0)
        return figure
    quantities = {
        "local_accuracy": ("Training accuracy (%)", 100),
        "local_loss": ("Training loss", 1),
        "drift": ("Distance between the ranks' weights (%)", 100),  # of runs that average after stepping
    }
    curves = {}
    for column, (label, factor) in quantities.items():
        for name, about in runs.items():
            of_ranks = [
                [row[column] for row in about["epochs"] if row["rank"] == r] for r in range(about["ranks"])
            ]
            by_rank = np.array(of_ranks, float)  # a rank without samples in an epoch has None there: nan
            if np.isfinite(by_rank).any():
                curves.setdefault(label, {})[name] = factor * by_rank
    return comparison("Epoch", curves)


@click.command
@click.argument("folder", type=InputFolder())
def checklist(folder: Path) -> None:
    """List what the record in a run's FOLDER leaves out, of what a reader needs to judge the run.

    FOLDER is the directory that `labkit train` wrote to. docs/checklist.md explains the items. The exit
    status is 1 if an item is missing.
    """
    with one_line(ValueError, RecursionError):
        left_out = missing(folder)
    for name in left_out:
        click.echo(f"missing: {name}")
    click.echo(f"{len(ITEMS) - len(left_out)} of {len(ITEMS)} items are in the record of {folder}")
    sys.exit(bool(left_out))
