"""`labkit data`: which data sets there are, and bringing those that need it into the cache."""

# ruff: noqa: PLC0415 (imports inside functions: NumPy loads only where the command runs)

from __future__ import annotations

import click

EMBEDDED = {
    "linear": "1,250 synthetic samples of 10 features",
    "digits": "1,797 handwritten digits, 8×8, also enlarged to 28×28 and 32×32",
}


@click.group("data")
def command() -> None:
    """List the data sets, and fetch those that are not embedded."""


@command.command("list")
def list_() -> None:
    """Say which data sets there are, what they hold, and which of them are here."""
    from labkit.data import SOURCES, cache, is_cached

    for name, says in EMBEDDED.items():
        click.echo(f"{name:8} embedded     {says}")
    for name, source in SOURCES.items():
        click.echo(f"{name:8} {'in the cache' if is_cached(name) else 'not here yet'} {source.description}")
    click.echo(f"The cache is {cache()}; the variable LABKIT_DATA names another.")


@command.command()
@click.argument("names", nargs=-1, required=True, type=click.Choice(["mnist", "cifar10"]))
def fetch(names: tuple[str, ...]) -> None:
    """Bring data sets into the cache: download, check, unpack.

    A download that broke off goes on where it ended. Files put there by hand are taken if they are the
    originals: run this after it, to see.
    """
    from labkit.data import FetchError, FormatError
    from labkit.data import fetch as bring

    for name in names:
        try:
            click.echo(f"{name} is in {bring(name)}")
        except (FetchError, FormatError) as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(f"cannot write to the cache: {error}") from None
