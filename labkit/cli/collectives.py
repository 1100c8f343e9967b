"""`labkit bench collectives`: the time of all-reduce algorithms by size."""

# ruff: noqa: PLC0415 (imports inside functions: NumPy and MPI load only where the command runs)

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labkit import units
from labkit.cli.inputs import MOST_RANKS, Finite, Place, Whole
from labkit.cli.ranks import check_ranks, ending_together, json_option, on_ranks, under_mpiexec

if TYPE_CHECKING:
    from mpi4py import MPI

    from labkit.bench.prediction import Prediction
    from labkit.comm.timing import Times

MOST_BYTES = 4 << 30
DEADLINE_S = 900.0  # a complete run takes about a minute
NOT_DRAWN = {"hand-written", "shared-memory-copied", "auto"}  # their curves lie on or between the others


def _sizes(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    sizes = set()
    for word in text.split(","):
        try:
            size = units.parse_size(word)
        except ValueError:
            size = 0
        if not size or size % 4 or size > MOST_BYTES:
            raise click.BadParameter(
                "expected sizes such as 4B,1KiB,64MiB, each a multiple of 4 bytes (float32) and at most "
                f"{units.format_size(MOST_BYTES)}, got {word!r}"
            )
        sizes.add(size)
    return tuple(sorted(sizes))


def _bandwidth(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else units.parse_bandwidth(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command
@click.option("--ranks", type=Whole(max=MOST_RANKS), help="Ranks to start without mpiexec. [default: 4]")
@click.option(
    "--sizes", callback=_sizes, help="For example 1KiB,64MiB. [default: 4B to 64MiB by powers of 4]"
)
@click.option(
    "--seconds",
    type=Finite(min=0),
    default=2.0,
    show_default=True,
    help="Time for each size; at least six rounds are measured.",
)
@click.option(
    "--bandwidth",
    callback=_bandwidth,
    help="Each link's bandwidth, for example 1gbit: adds rows against the least time on such links.",
)
@click.option("--refit", is_flag=True, help="Measure anew what the algorithm auto chooses by.")
@json_option
@click.option("--plot", type=Place(dir_okay=False), help="Draw time against size, as a PNG file.")
def collectives(ranks: int | None, **options: object) -> None:
    """Time every all-reduce algorithm against the MPI library's own Allreduce.

    The command starts its own ranks, unless mpiexec has started it on ranks. It also measures a ring written
    by hand, and gloo if PyTorch is installed. algbw is bytes / time, busbw is algbw · 2(p-1)/p. The rows
    "model" compare the other sizes with the cost model's prediction, fitted to some of the sizes.
    """
    if not under_mpiexec():
        on_ranks(ranks or 4, DEADLINE_S)
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    with ending_together(comm, "labkit bench collectives"):
        check_ranks(comm, ranks)
        _run(comm, **options)  # type: ignore[arg-type]


def _run(
    comm: MPI.Intracomm,
    *,
    sizes: tuple[int, ...] | None,
    seconds: float,
    bandwidth: float | None,
    refit: bool,
    as_json: bool,
    plot: Path | None,
) -> None:
    from mpi4py import MPI

    from labkit.bench import collectives as bench
    from labkit.bench import prediction, table
    from labkit.bench.algorithms import allreduce_algorithms
    from labkit.comm import raise_together, sleeping_barrier
    from labkit.comm.auto import choose, refit_costs
    from labkit.comm.timing import measure

    raise_together(comm, _unwritable(plot) if plot and comm.rank == 0 else None)
    hosts = len(set(comm.allgather(MPI.Get_processor_name())))
    place = f"p{comm.size}" if hosts == 1 else "hosts"
    sizes = sizes or bench.SIZES
    if refit:
        refit_costs(comm)
    choices = [choose(comm, size) for size in sizes]
    with allreduce_algorithms(comm) as algorithms:
        times = measure(comm, algorithms, sizes, seconds, progress(comm))
    if comm.rank == 0:
        predicted = prediction.predict(times, comm.size)
        model_rows = prediction.rows(times, predicted, place) if predicted else []
        if as_json:
            rows = bench.rows(times, comm.size, place, bandwidth) + model_rows
            click.echo(json.dumps([asdict(row) for row in rows], indent=1))
        else:
            click.echo(bench.table(times, comm.size))
            click.echo("\n" + "\n".join(map(str, choices)))
            if predicted:
                click.echo(f"\n{predicted}\n\n{table(model_rows)}")
        if plot:
            _draw(plot, times, predicted)
    sleeping_barrier(comm)  # rank 0 draws


def _unwritable(path: Path) -> str | None:
    """Return why a file cannot be written, or None: to know it before a long run rather than after it."""
    if os.access(path if path.exists() else path.parent, os.W_OK):
        return None
    return f"cannot write to --plot {path}: there is no such directory, or you may not write to it"


def _draw(path: Path, times: Times, predicted: Prediction | None) -> None:
    from labkit.files import atomic_write
    from labkit.plots.schedules import time_by_size

    measured: dict[str, tuple[list[float], list[float]]] = {}
    for size, medians in times.items():
        for name, time in medians.items():
            if name not in NOT_DRAWN:
                sizes, seconds = measured.setdefault(name, ([], []))
                sizes.append(size)
                seconds.append(time)
    figure = time_by_size(*(predicted.curves() if predicted else ([], {})), measured)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=150)


def progress(comm: MPI.Intracomm) -> Callable[[str], None]:
    """Return a function that prints a line about the progress, at most every two seconds."""
    from labkit.comm.timing import progress

    return progress(comm)
