"""`labkit hosts`: emulate several hosts on this machine, with real links of a chosen bandwidth."""

# ruff: noqa: PLC0415 (imports inside functions: --help must be quick)

from __future__ import annotations

import re
import subprocess
import sys

import click

from labkit.cli.inputs import MOST_RANKS, Whole, one_line
from mpiwatch.processes import supervised


@click.group
def command() -> None:
    """Make hosts on this machine, each with a name, an address and a network card.

    Their links have a chosen bandwidth. This needs Linux and iproute2, and root if only root may make network
    namespaces on this system.
    """


@command.command
@click.option(
    "--n",
    "n",
    type=Whole(max=MOST_RANKS),
    default=4,
    show_default=True,
    help="Number of hosts, lab0, lab1, …",
)
@click.option("--bandwidth", default="1gbit", show_default=True, help="Of each link, in each direction.")
@click.option(
    "--slow",
    multiple=True,
    metavar="HOST=BANDWIDTH",
    help="Give one host a slow link, for example 3=100mbit.",
)
def up(n: int, bandwidth: str, slow: tuple[str, ...]) -> None:
    """Start hosts; they stay up until `labkit hosts down`."""
    from labkit import hosts

    exceptions = {}
    for word in slow:
        host, separator, value = word.partition("=")
        if not separator or not re.fullmatch("[0-9]{1,4}", host):
            raise click.BadParameter(
                f"expected HOST=BANDWIDTH such as 3=100mbit, got {word!r}", param_hint="--slow"
            )
        exceptions[int(host)] = value
    with one_line(hosts.HostsError):
        hosts.up(n, bandwidth, exceptions)
        _show()
    click.echo("`labkit hosts run python program.py` starts a program with one rank on each host.")


@command.command
def status() -> None:
    """Show the hosts, their links and how many bytes they received and sent."""
    from labkit import hosts

    with one_line(hosts.HostsError):
        _show()


@command.command
def down() -> None:
    """Stop the hosts and all programs on them."""
    from labkit import hosts

    with one_line(hosts.HostsError):
        click.echo("The hosts are down." if hosts.down() else "No hosts were up.")


@command.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "ranks", type=Whole(max=MOST_RANKS), help="Number of ranks.  [default: one on each host]")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run_program(ranks: int | None, program: tuple[str, ...]) -> None:
    """Run an MPI program on the hosts: labkit hosts run python program.py."""
    # The supervisor removes the shared memory of ranks that are killed.
    ranks_option = [] if ranks is None else ["-n", str(ranks)]
    line = [*supervised(), sys.executable, "-P", "-m", "labkit.hosts.mpi", *ranks_option, *program]
    sys.exit(subprocess.run(line, check=False).returncode)


def _show() -> None:
    from labkit import hosts
    from labkit.units import format_bandwidth

    counters = hosts.counters()
    click.echo("host   address      link       received        sent  (bytes)")
    for host in hosts.running().hosts:
        count = counters[host.name]
        click.echo(
            f"{host.name:6} {host.address:12} {format_bandwidth(host.bandwidth):8} "
            f"{count.received:10d}  {count.sent:10d}"
        )
