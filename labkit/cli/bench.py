"""`labkit bench`: a student's program and the collectives, measured as rows of ratios."""

# ruff: noqa: PLC0415 (imports inside functions: NumPy reads the number of threads when it loads)

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from labkit import units
from labkit.cli.inputs import Finite, InputError, InputFile, OutputFile, Whole, one_line
from labkit.cli.ranks import ending_together, on_ranks, ranks_option
from labkit.files import read_input
from mpiwatch import launch

if TYPE_CHECKING:
    from labkit.bench.collectives import Curves
    from labkit.bench.rows import Row
    from labkit.comm.timing import Times

MOST_BYTES = 4 << 30
NOT_DRAWN = {"hand-written", "shared-memory-copied", "auto"}  # their curves lie on or between the others
DEADLINE_S = 3600.0  # the defaults take seconds or minutes; large batches of VGG-11 take longer

json_option = click.option("--json", "as_json", is_flag=True, help="Print the rows as a list of objects.")


@click.group
def command() -> None:
    """Measure rows of ratios: each compares measurements that took turns in one run."""


def print_rows(rows: list[Row], as_json: bool, text: str = "") -> None:
    """Print rows as JSON, or else the text, by default their table."""
    from labkit.bench.rows import table

    click.echo(json.dumps([asdict(row) for row in rows], indent=1) if as_json else text or table(rows))


def measure_on_ranks(
    module: str,
    ranks: int | None,
    as_json: bool,
    draw: Callable[..., None] | None = None,
    *,
    command_of: str = "labkit",
    **options: Any,
) -> None:
    """Call `compare(comm, **options)` of a module on all ranks, each with one BLAS thread; print the rows.

    The command starts the ranks, unless a launcher has; it is one of `python -m command_of`. End all if that
    raises on any. Raise CollectiveError on every rank unless there are as many as --ranks asks for.
    """
    on_ranks(ranks, DEADLINE_S, command_of)
    os.environ.update(launch.ONE_THREAD)
    from mpi4py import MPI

    from labkit.comm import raise_together, sleeping_barrier

    comm = MPI.COMM_WORLD
    with ending_together(comm, module.replace(".", " ")):
        fault = f"expected {ranks} ranks (--ranks), got {comm.size} from mpiexec"
        raise_together(comm, None if ranks in (None, comm.size) else fault)
        with redirect_stdout(sys.stderr):  # what a student's program prints
            rows, text, *more = import_module(module).compare(comm, **options)
        unwritten = None
        if comm.rank == 0:
            print_rows(rows, as_json, text)
            try:
                if draw:
                    draw(*more)
            except OSError as error:
                unwritten = f"cannot draw to {error.filename}: {error.strerror}"
        sleeping_barrier(comm)  # the others wait asleep for rank 0
        raise_together(comm, unwritten)


@command.command
@click.argument("program", type=InputFile())
@ranks_option
@click.option("--model", help="One of the program's models. [default: its first]")
@click.option(
    "--average",
    help="One of the program's averages, but not overlapped, sharded or zero. [default: ring, or else mpi]",
)
@click.option("--batch", type=Whole(), default=16, show_default=True, help="Local batch, of each rank.")
@click.option("--rounds", type=Whole(), default=51, show_default=True)
@json_option
def mine(program: Path, **options: Any) -> None:
    """Time the training step of PROGRAM, the my_ddp.py that `labkit collect` writes.

    Gradient (of a network of layers, also each kind of layer), averaging and update are compared with
    labkit's; the averaging and the step also with MPI's Allreduce in its place. A sentence names the part
    that costs most. If PyTorch is installed, the step is also compared with DistributedDataParallel's,
    one thread on each rank: the forward and backward pass, the all-reduce over gloo during it, and SGD.
    """
    try:
        with one_line(OSError):
            ast.parse(read_input(program))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two: nested too deeply
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InputError(f"{program}{line}: not a Python program: {error.args[0]}") from None
    measure_on_ranks("labkit.bench.mine", program=program, **options)


class Bandwidth(click.ParamType):
    """A bandwidth such as 10gbit, in bit/s."""

    name = "bandwidth"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return units.parse_bandwidth(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


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


@command.command
@ranks_option
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
    type=Bandwidth(),
    help="Each link's bandwidth, for example 1gbit: adds rows against the least time on such links.",
)
@json_option
@click.option("--plot", type=OutputFile(), help="Draw time against size, as a PNG file.")
def collectives(plot: Path | None, **options: Any) -> None:
    """Time every all-reduce algorithm against the MPI library's own Allreduce.

    The command starts its own ranks, unless mpiexec has started it on ranks. It also measures a ring written
    by hand, and gloo if PyTorch is installed. algbw is bytes / time, busbw is algbw · 2(p-1)/p. A cost
    model is fitted to the times of each schedule, if there are at least three sizes.
    """
    draw = None if plot is None else partial(_draw, plot)
    measure_on_ranks("labkit.bench.collectives", draw=draw, **options)


def _draw(path: Path, times: Times, curves: tuple[list[int], Curves]) -> None:
    from labkit.plots.schedules import time_by_size
    from labkit.plots.style import save

    measured: dict[str, tuple[list[float], list[float]]] = {}
    for size, medians in times.items():
        for name in [name for name in medians if name not in NOT_DRAWN]:
            sizes, seconds = measured.setdefault(name, ([], []))
            sizes.append(size)
            seconds.append(medians[name])
    save(path, time_by_size(*curves, measured))
