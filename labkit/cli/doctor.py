"""`labkit doctor`: what commonly breaks an MPI lab, looked for here."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

import click

COLOURS = {"ok": "green", "note": "yellow", "fault": "red"}


@click.command
@click.option("--json", "as_json", is_flag=True, help="Print the findings as a list of objects.")
def command(as_json: bool) -> None:
    """Find what commonly breaks here, and say how to fix it.

    One line for each check: ok; note, where the lab works, but something costs time or refuses what you type
    yourself; fault, where the lab does not work. The exit status is 1 if there is a fault.
    """
    try:
        import psutil  # noqa: PLC0415 (--help must not wait for it)

        from labkit.doctor.examine import examine  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException(f"{error}: this environment is incomplete; `make env` fixes it.") from None

    try:
        environment = psutil.Process().environ()  # the user's own, as it was before `labkit` put its settings
    except psutil.Error:
        environment = dict(os.environ)
    findings = examine(environment)
    if as_json:
        click.echo(json.dumps([asdict(one) for one in findings], indent=1))
    else:
        for one in findings:
            click.echo(f"{click.style(f'{one.status:6}', fg=COLOURS[one.status])}{one.check:15}{one.found}")
        for one in findings:
            if one.fix:
                click.echo(f"\n{one.check}: {one.why}\n  To fix it: {one.fix}")
    sys.exit(any(one.status == "fault" for one in findings))
