"""`labkit data`: list the data sets, and download them into the cache."""

# ruff: noqa: PLC0415 (imports inside functions: NumPy loads only where the command runs)

from __future__ import annotations

import click

EMBEDDED = {
    "linear": "1,250 synthetic samples of 10 features",
    "report-a": "the same, but 250 samples do not fit the others",
    "digits": "1,797 handwritten digits, 8×8, also enlarged to 28×28 and 32×32",
}


@click.group("data")
def command() -> None:
    """List the data sets, and download those that are not embedded."""


@command.command("list")
def list_() -> None:
    """List the data sets, what they contain, and which are in the cache."""
    from labkit.data import SOURCES, cache, is_cached

    for name, contents in EMBEDDED.items():
        click.echo(f"{name:8} embedded     {contents}")
    for name, source in SOURCES.items():
        click.echo(f"{name:8} {'in the cache' if is_cached(name) else 'not cached  '} {source.description}")
    click.echo(f"The cache is {cache()}; to use another folder, set LABKIT_DATA.")


@command.command()
@click.argument("names", nargs=-1, required=True, type=click.Choice(["mnist", "cifar10"]))
def fetch(names: tuple[str, ...]) -> None:
    """Download data sets into the cache, check and unpack them.

    Files that you copied into the cache yourself are used if they are the originals: run this command after
    copying to check them.
    """
    from labkit.data import FetchError
    from labkit.data import fetch as download

    for name in names:
        try:
            click.echo(f"{name} is in {download(name)}")
        except FetchError as error:
            raise click.ClickException(str(error)) from None
        except OSError as error:
            raise click.ClickException(f"cannot write to the cache: {error}") from None
