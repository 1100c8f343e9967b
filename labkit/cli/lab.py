"""`labkit lab`: start MPI engines and JupyterLab, and end both with this command."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labkit.cli.inputs import MOST_RANKS, InputError, Place, Whole, one_line
from labkit.cluster import PROFILE, RANKS

if TYPE_CHECKING:
    from labkit.cli.jupyterlab import JupyterLab

COPIES = Path("my-notebooks")
FIRST = "00_meet_the_cluster.ipynb"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_S = 0.1


@click.command("lab")
@click.option(
    "-n",
    "ranks",
    type=Whole(max=MOST_RANKS),
    default=4,
    show_default=True,
    envvar=RANKS,
    show_envvar=True,
    help="Number of MPI ranks.",
)
@click.option(
    "--folder",
    type=Place(),
    default=COPIES,
    show_default=True,
    help="Folder of the notebooks, here. The default holds your own copies of them.",
)
@click.option("--copy-only", is_flag=True, help="Update your copies of the notebooks, and start nothing.")
def command(ranks: int, folder: Path, copy_only: bool) -> None:
    """Start MPI engines and open JupyterLab on the first notebook. Ctrl-C ends both.

    With the environment variable LABKIT_PROFILE=slurm (or hosts), each notebook starts its ranks itself.
    """
    if copy_only:
        _prepare(folder)
        return
    for signum in SIGNALS:
        signal.signal(signum, _stop)
    import ipyparallel as ipp  # noqa: PLC0415  (--help must not wait for it)

    from labkit.cli import jupyterlab  # noqa: PLC0415
    from labkit.cluster import clusters, connect  # noqa: PLC0415
    from labkit.cluster.errors import ClusterError  # noqa: PLC0415

    profile = os.environ.get(PROFILE) or clusters.DEFAULT_PROFILE
    with one_line(ClusterError):
        clusters.check_profile(profile)
    _prepare(folder)
    has_engines = profile == clusters.DEFAULT_PROFILE
    click.echo(f"Starting JupyterLab{f' and {ranks} MPI ranks' * has_engines} …")
    # After Ctrl-C, asyncio would warn about tasks that have not finished.
    logging.getLogger("asyncio").addHandler(logging.NullHandler())
    cluster = None
    if has_engines:
        # Kernels of this JupyterLab try to connect to these engines first (see labkit.cluster.clusters).
        os.environ[clusters.CHOSEN] = f"{clusters.LAB}{clusters.THIS_PROCESS}"
        cluster = ipp.Cluster(
            n=ranks,
            cluster_id=os.environ[clusters.CHOSEN],
            profile="default",
            parent=None,
            log=clusters.quiet,
        )
    with jupyterlab.started(folder / FIRST) as lab:
        try:
            if cluster:
                cluster.start_cluster_sync()
            address = lab.wait_until_it_serves()
            if cluster:
                connect(ranks).close()
            else:
                click.echo(f"{PROFILE}={profile}: each notebook starts its own ranks.")
            click.echo(f"JupyterLab: {address}\nIts log: {lab.log}\nCtrl-C ends JupyterLab and the ranks.")
            _wait_for_an_end(lab)
        finally:
            for signum in SIGNALS:
                signal.signal(signum, signal.SIG_IGN)  # a second Ctrl-C must not interrupt the ending
            click.echo("Stopping …")
            lab.process.terminate()  # ends while the engines do
            if cluster:
                if Path(cluster.cluster_file).exists():  # it names engines started since by kernels
                    clusters.attach(Path(cluster.cluster_file)).stop_engines_sync()
                cluster.stop_engines_sync()  # before the controller, which waits for its engines
                cluster.stop_controller_sync()


def _prepare(folder: Path) -> None:
    """Update the student's copies of the notebooks; raise InputError if the folder has no notebooks."""
    from labkit.cli import working_copies  # noqa: PLC0415
    from labkit.cli.course.folders import ORIGINALS  # noqa: PLC0415

    if folder == COPIES:
        try:
            lines = working_copies.update(ORIGINALS, COPIES)
        except OSError as error:
            raise click.ClickException(
                f"the notebooks could not be copied to {COPIES.resolve()}: {error.strerror}. "
                f"Start in a folder that you may write to and that has room for them."
            ) from error
        click.echo("".join(f"{line}\n" for line in lines), nl=False)
    if not (folder / FIRST).exists():
        raise InputError(f"{folder} has no {FIRST}. Give the folder of the notebooks, or leave --folder out.")


def _stop(signum: int, frame: object) -> None:
    raise SystemExit(0 if signum == signal.SIGINT else 128 + signum)


def _wait_for_an_end(lab: JupyterLab) -> None:
    """Wait until JupyterLab ends (File > Shut Down), or `make` if `make` started this command."""
    parent = os.getppid()
    while lab.is_running() and ("MAKELEVEL" not in os.environ or os.getppid() == parent):
        time.sleep(POLL_S)
