"""`labkit progress`: the exercises of all notebooks and what is done."""

from __future__ import annotations

import click


@click.command()
def command() -> None:
    """List the exercises of all notebooks: difficulty, points, and which are done, tried or not yet.

    The notebooks' checks keep this list; $LABKIT_PROGRESS is its file if it is set.
    """
    from labkit.exercises import progress  # noqa: PLC0415

    click.echo(str(progress()))
