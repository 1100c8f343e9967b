"""`labkit hosts`: emulate several hosts on this machine, with real links of a chosen bandwidth."""

# ruff: noqa: PLC0415 (imports inside functions: --help must be quick)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def _reporting_errors() -> Iterator[None]:
    from labkit.hosts import HostsError

    try:
        yield
    except HostsError as error:
        raise click.ClickException(str(error)) from None


@click.group
def command() -> None:
    """Make hosts on this machine, each with a name, an address and a network card.

    Their links have a chosen bandwidth. This needs Linux and iproute2, and root if only root may make network
    namespaces on this system.
    """


@command.command
@click.option("--n", "n", default=4, show_default=True, help="Number of hosts, lab0, lab1, …")
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
        if not separator or not host.isdigit():
            raise click.BadParameter(
                f"expected HOST=BANDWIDTH such as 3=100mbit, got {word!r}", param_hint="--slow"
            )
        exceptions[int(host)] = value
    with _reporting_errors():
        hosts.up(n, bandwidth, exceptions)
        _show()
    click.echo("`labkit hosts run python program.py` starts a program with one rank on each host.")


@command.command
def status() -> None:
    """Show the hosts, their links and how many bytes they received and sent."""
    with _reporting_errors():
        _show()


@command.command
def down() -> None:
    """Stop the hosts and all programs on them."""
    from labkit import hosts

    with _reporting_errors():
        click.echo("The hosts are down." if hosts.down() else "No hosts were up.")


@command.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "ranks", type=int, help="Number of ranks.  [default: one on each host]")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run(ranks: int | None, program: tuple[str, ...]) -> None:
    """Run an MPI program on the hosts: labkit hosts run python program.py."""
    from labkit.hosts.mpi import execute

    with _reporting_errors():
        execute(list(program), ranks)


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
