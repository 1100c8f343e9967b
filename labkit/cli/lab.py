"""`labkit lab`: start MPI engines and JupyterLab, and end both with this command."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

import click

NOTEBOOKS = Path("notebooks")
FIRST = NOTEBOOKS / "00_meet_the_cluster.ipynb"
START_S = 60.0  # how long JupyterLab may take to answer
POLL_S = 0.1


@click.command("lab")
@click.option("-n", "ranks", default=4, show_default=True, help="Number of MPI ranks.")
def command(ranks: int) -> None:
    """Start MPI engines and open JupyterLab on the first notebook. Ctrl-C ends both."""
    import ipyparallel as ipp  # noqa: PLC0415  (--help must not wait for it)

    from labkit.cluster import connect, discovery  # noqa: PLC0415

    if not FIRST.exists():
        raise click.ClickException(f"{FIRST} is not here: run `labkit lab` in the folder of the lab.")
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, _stop)
    # Kernels of this JupyterLab try to connect to these engines first (see labkit.cluster.discovery).
    os.environ[discovery.CHOSEN] = f"lab-{os.getpid()}"
    os.environ["JUPYTER_TOKEN"] = token = secrets.token_hex(24)
    jupyter = cluster = None
    try:
        jupyter = _start_jupyter()
        cluster = ipp.Cluster(
            n=ranks,
            cluster_id=os.environ[discovery.CHOSEN],
            profile="default",
            parent=None,
            log=discovery.quiet,
        )
        cluster.start_cluster_sync()
        url = _wait_for_jupyter(jupyter, token)
        click.echo(f"JupyterLab: {url}lab/tree/{FIRST.as_posix()}?token={token}")
        connect(ranks).close()
        click.echo("Ctrl-C ends JupyterLab and the engines.")
        _wait_for_an_end(jupyter)
    finally:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the ending
        click.echo("Stopping …")
        if jupyter:
            jupyter.terminate()
        if cluster:
            cluster.stop_engines_sync()  # first, because a controller waits for its engines
            cluster.stop_controller_sync()
        if jupyter:
            jupyter.wait()


def _stop(signum: int, frame: object) -> None:
    raise SystemExit(0 if signum == signal.SIGINT else 128 + signum)


def _start_jupyter() -> subprocess.Popen[bytes]:
    from labkit.supervisor import supervised  # noqa: PLC0415

    options = ["--ServerApp.log_level=ERROR", "--LabApp.log_level=ERROR"]
    options += [f"--ServerApp.root_dir={Path.cwd()}", f"--LabApp.default_url=/lab/tree/{FIRST.as_posix()}"]
    if os.geteuid() == 0:
        options.append("--allow-root")
    if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        options.append("--no-browser")  # otherwise it opens a text browser in this terminal
    # In a session of its own: Ctrl-C reaches this process alone, which then ends both in order.
    return subprocess.Popen(
        [*supervised("child"), sys.executable, "-m", "jupyterlab", *options],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _wait_for_jupyter(jupyter: subprocess.Popen[bytes], token: str) -> str:
    """Return the URL of the Jupyter server that has this token, once it listens."""
    from jupyter_core.paths import jupyter_runtime_dir  # noqa: PLC0415

    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and jupyter.poll() is None:
        for path in Path(jupyter_runtime_dir()).glob("jpserver-*.json"):
            try:
                server = json.loads(path.read_text())
            except (OSError, ValueError):  # being written or removed
                continue
            if server.get("token") == token:
                return str(server["url"])
        time.sleep(POLL_S)
    raise click.ClickException("JupyterLab did not start: see its messages above.")


def _wait_for_an_end(jupyter: subprocess.Popen[bytes]) -> None:
    """Wait until JupyterLab ends (File > Shut Down), or `make` if `make` started this command."""
    parent = os.getppid()
    while jupyter.poll() is None and ("MAKELEVEL" not in os.environ or os.getppid() == parent):
        time.sleep(POLL_S)
