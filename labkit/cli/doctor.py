"""`labkit doctor`: check this machine for what commonly breaks an MPI lab."""

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
    """Find what commonly breaks on this machine, and say how to fix it.

    Each check prints one line: "ok"; "note" if the lab works, but something is slow or fails when you type it
    yourself; "fault" if the lab does not work. The exit status is 1 if there is a fault.
    """
    try:
        import psutil  # noqa: PLC0415 (--help must not wait for it)

        from labkit.doctor.examine import examine  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException(
            f"{error}: this environment is incomplete. Install the lab again: `make env`, or pip for a wheel."
        ) from None

    try:
        environment = psutil.Process().environ()  # the user's own, before `labkit` added its settings
    except psutil.Error:
        environment = dict(os.environ)
    findings = examine(environment)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            status = click.style(f"{finding.status:6}", fg=COLOURS[finding.status])
            click.echo(f"{status}{finding.check:15}{finding.found}")
        for finding in findings:
            if finding.fix:
                click.echo(f"\n{finding.check}: {finding.why}\n  To fix it: {finding.fix}")
    sys.exit(any(finding.status == "fault" for finding in findings))
