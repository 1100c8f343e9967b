"""`labkit hosts`: hosts of their own on this machine, with real links of a chosen rate."""

# ruff: noqa: PLC0415 (imports inside functions: --help must be quick)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def _told() -> Iterator[None]:
    from labkit.hosts import HostsError

    try:
        yield
    except HostsError as error:
        raise click.ClickException(str(error)) from None


@click.group
def command() -> None:
    """Make hosts on this machine, each with a name, an address and a network card, on links of a chosen rate.

    Needs Linux and iproute2; root's rights where the system lets no one else make network namespaces.
    """


@command.command
@click.option("--n", "n", default=4, show_default=True, help="Number of hosts, lab0, lab1, …")
@click.option("--rate", default="1gbit", show_default=True, help="Rate of each link, in both directions.")
@click.option("--slow", multiple=True, metavar="HOST=RATE", help="Another rate for a host: 3=100mbit.")
def up(n: int, rate: str, slow: tuple[str, ...]) -> None:
    """Bring hosts up; they stay until `labkit hosts down`."""
    from labkit import hosts

    exceptions = {}
    for word in slow:
        host, separator, value = word.partition("=")
        if not separator or not host.isdigit():
            raise click.BadParameter(
                f"expected HOST=RATE, as in 3=100mbit; got {word!r}", param_hint="--slow"
            )
        exceptions[int(host)] = value
    with _told():
        hosts.up(n, rate, exceptions)
        _show()
    click.echo("labkit hosts run python program.py  starts a program on them, one rank on each.")


@command.command
def status() -> None:
    """Show the hosts, their links and the bytes that went over them."""
    with _told():
        _show()


@command.command
def down() -> None:
    """Take the hosts down, and end what runs on them."""
    from labkit import hosts

    with _told():
        click.echo("The hosts are down." if hosts.down() else "No hosts were up.")


@command.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "ranks", type=int, help="Number of ranks.  [default: one on each host]")
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def run(ranks: int | None, program: tuple[str, ...]) -> None:
    """Run a program on the hosts under MPI: labkit hosts run python program.py."""
    from labkit.hosts.mpi import execute

    with _told():
        execute(list(program), ranks)


def _show() -> None:
    from labkit import hosts
    from labkit.hosts.links import shown

    counters = hosts.counters()
    click.echo("host   address      link       received        sent  (bytes)")
    for host in hosts.running().hosts:
        count = counters[host.name]
        click.echo(
            f"{host.name:6} {host.address:12} {shown(host.rate):8} {count.received:10d}  {count.sent:10d}"
        )
