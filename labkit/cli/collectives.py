"""`labkit bench collectives`: how long it takes to add up over ranks, by size and by algorithm."""

# ruff: noqa: PLC0415 (imports inside functions: NumPy and MPI load only where the command runs)

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import click

from labkit import units
from labkit.cli.ranks import ending_together, on_ranks, under_mpiexec

if TYPE_CHECKING:
    from mpi4py import MPI

    from labkit.bench.collectives import Times
    from labkit.bench.modelled import Modelled

DEADLINE_S = 900.0  # all of a run takes about a minute
SIGN_EVERY_S = 2.0
ALIKE = {"hand-written", "shared-memory-copied"}  # not drawn: each lies on or between curves that are


def _sizes(context: click.Context, option: click.Parameter, text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    sizes = set()
    for word in text.split(","):
        try:
            size = units.parse_size(word)
        except ValueError:
            size = 0
        if not size or size % 4:
            raise click.BadParameter(
                f"expected sizes such as 4B,1KiB,64MiB, each a multiple of 4 bytes (float32), got {word!r}"
            )
        sizes.add(size)
    return tuple(sorted(sizes))


def _bandwidth(context: click.Context, option: click.Parameter, text: str | None) -> float | None:
    try:
        return None if text is None else units.parse_bandwidth(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks to start, if mpiexec has not. [default: 4]")
@click.option("--sizes", callback=_sizes, help="Say 1KiB,64MiB. [default: 4B to 64MiB by powers of 4]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=2.0,
    show_default=True,
    help="Time for each size; six rounds are made at least.",
)
@click.option(
    "--rate", callback=_bandwidth, help="What each link can do, say 1gbit: adds rows against that bound."
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as a list of objects.")
@click.option(
    "--plot", type=click.Path(path_type=Path, dir_okay=False), help="PNG: time against size, and the model."
)
def collectives(ranks: int | None, **options: object) -> None:
    """Time every way to add up over all ranks, against the MPI library's own Allreduce.

    Alone it starts its ranks itself; under mpiexec it takes those. Also against a ring written by hand, and
    gloo where PyTorch is installed. algbw is bytes / time, busbw is algbw · 2(p-1)/p; "model" is what α, β
    and γ, fitted to some of the sizes, predict for the others.
    """
    if not under_mpiexec():
        on_ranks(ranks or 4, DEADLINE_S)
    from mpi4py import MPI

    from labkit.comm import raise_together

    comm = MPI.COMM_WORLD
    with ending_together(comm, "labkit bench collectives"):
        raise_together(
            comm,
            f"expected {ranks} ranks (--ranks), got {comm.size} from mpiexec"
            if ranks not in (None, comm.size)
            else None,
        )
        _run(comm, **options)  # type: ignore[arg-type]


def _run(
    comm: MPI.Intracomm,
    *,
    sizes: tuple[int, ...] | None,
    seconds: float,
    rate: float | None,
    as_json: bool,
    plot: Path | None,
) -> None:
    from mpi4py import MPI

    from labkit.bench import collectives as bench
    from labkit.bench import modelled, table
    from labkit.bench.contenders import contenders
    from labkit.bench.rounds import measure
    from labkit.comm import raise_together, sleeping_barrier

    raise_together(comm, _unwritable(plot) if plot and comm.rank == 0 else None)
    hosts = len(set(comm.allgather(MPI.Get_processor_name())))
    place = f"p{comm.size}" if hosts == 1 else "hosts"
    with contenders(comm) as algorithms:
        times = measure(comm, algorithms, sizes or bench.SIZES, seconds, _progress(comm))
    if comm.rank == 0:
        model = modelled.modelled(times, comm.size)
        predicted = modelled.rows(times, model, place) if model else []
        if as_json:
            rows = bench.rows(times, comm.size, place, rate) + predicted
            click.echo(json.dumps([asdict(row) for row in rows], indent=1))
        else:
            click.echo(bench.table(times, comm.size))
            if model:
                click.echo(f"\n{model}\n\n{table(predicted)}")
        if plot:
            _draw(plot, times, model)
    sleeping_barrier(comm)  # rank 0 draws


def _unwritable(path: Path) -> str | None:
    """Return what is in the way of a file, if anything: better before a long run than after it."""
    if os.access(path if path.exists() else path.parent, os.W_OK):
        return None
    return f"cannot write to --plot {path}: no such directory, or not yours to write to"


def _draw(path: Path, times: Times, model: Modelled | None) -> None:
    from labkit.files import atomic_write
    from labkit.plots.schedules import cost_curves

    measured: dict[str, tuple[list[float], list[float]]] = {}
    for size, medians in times.items():
        for name, time in medians.items():
            if name not in ALIKE:
                at, took = measured.setdefault(name, ([], []))
                at.append(size)
                took.append(time)
    sizes, seconds = model.curves() if model else ([], {})
    figure = cost_curves(sizes, seconds, measured)
    with atomic_write(path) as file:
        figure.savefig(file, format="png", dpi=150)


def _progress(comm: MPI.Intracomm) -> Callable[[str], None]:
    """Return a function that tells what happens now: on rank 0, every two seconds, on standard error."""
    from labkit.bench.rounds import note

    last = monotonic()

    def tell(text: str) -> None:
        nonlocal last
        if monotonic() - last >= SIGN_EVERY_S:
            note(comm, text)
            last = monotonic()

    return tell
