"""The `labkit` command. It imports the module of a subcommand when it is called, so `labkit --help` is quick.

To add a subcommand, add its module to COMMANDS. The module defines a click command called `command`, or of
the subcommand's name, and imports slow modules (NumPy, MPI) inside it.
"""

from __future__ import annotations

import os
from importlib import import_module

import click

from labkit import __version__, jupyter_server
from labkit.cli.ranks import CommandsOnRanks
from mpiwatch import launch

# Each command's module and help line. The help lines stand here, so that `labkit --help` imports no module.
COMMANDS = {
    "lab": ("labkit.cli.lab", "Start MPI engines and open JupyterLab on the first notebook."),
    "doctor": ("labkit.cli.doctor", "Find what commonly breaks on this machine, and say how to fix it."),
    "data": ("labkit.cli.data", "List the data sets, and download those that are not embedded."),
    "hosts": ("labkit.cli.hosts", "Make hosts on this machine, with links of a chosen bandwidth."),
    "bench": (
        "labkit.cli.bench",
        "Measure your program, and collectives, against PyTorch, MPI and lower bounds.",
    ),
    "run": (
        "labkit.cli.run",
        "Run an mpi4py program, unchanged, and report a hang: labkit run -n 4 program.py.",
    ),
    "train": ("labkit.cli.train", "Train a model on all ranks: mpiexec -n 4 labkit train."),
    "checklist": (
        "labkit.cli.train",
        "Hold a run's record against the checklist of docs/checklist.md.",
    ),
    "contest": (
        "labkit.cli.exercises",
        "Print a class's table: all-reduce schedules, or an incident.",
    ),
    "release": ("labkit.cli.release", "Copy the notebooks for students: stubs and no outputs."),
    "solutions": ("labkit.cli.release", "Copy the notebooks for instructors: with all solutions."),
    "course": ("labkit.cli.course_command", "Collect, regrade and pass on what a class hands in."),
    "progress": ("labkit.cli.exercises", "List the exercises and what is done."),
    "collect": ("labkit.cli.exercises", "Assemble what you have written into a program: my_ddp.py."),
    "report": ("labkit.cli.report", "Write a report on your program, from a prediction to one page."),
    "export": ("labkit.cli.export", "Write a notebook's %%px cells as a program for mpiexec."),
}


class _Lazy(CommandsOnRanks):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        names = vars(import_module(COMMANDS[cmd_name][0]))
        candidates = (names.get(name) for name in (cmd_name, "command"))  # `run` may be a function it imports
        return next(member for member in candidates if isinstance(member, click.Command))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=_Lazy)
@click.version_option(__version__)
def main() -> None:
    """Allreduce Lab: data-parallel training by hand, on real MPI ranks."""
    os.environ.update(launch.settings())  # before a subcommand imports NumPy or MPI
    jupyter_server.leave_grammar_out()  # jsonschema checks notebooks here, too
