"""The `labkit` command. A subcommand's module is imported when it is called, so `labkit --help` is quick.

To add one, name its module below; the module holds a click command called `command`, and imports what is
slow (NumPy, MPI) inside of it.
"""

from __future__ import annotations

from importlib import import_module

import click

from labkit import __version__, env

# Name → module, one line of help (said here, so that the list needs no import).
COMMANDS = {
    "lab": ("labkit.cli.lab", "Start MPI engines and open JupyterLab on the first notebook."),
    "doctor": ("labkit.cli.doctor", "Find what commonly breaks here, and say how to mend it."),
    "data": ("labkit.cli.data", "List the data sets, and fetch those that are not embedded."),
    "hosts": ("labkit.cli.hosts", "Make hosts on this machine with links of a chosen rate."),
    "bench": (
        "labkit.cli.bench",
        "Measure a training step against PyTorch, collectives against MPI's own.",
    ),
    "train": ("labkit.cli.train", "Train a model on all ranks: mpiexec -n 4 labkit train."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, says) for name, (_, says) in COMMANDS.items()])


@click.group(cls=_Lazy)
@click.version_option(__version__)
def main() -> None:
    """Allreduce Lab: data-parallel training by hand, on real MPI ranks."""
    env.apply()  # before a subcommand imports NumPy or MPI
