"""`labkit lab`: start MPI engines and JupyterLab, and end both with this command."""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from labkit import fonts
from labkit.children import start_child
from labkit.cli import UNUSED
from labkit.cli.course import RECORD
from labkit.cli.inputs import MOST_RANKS, InputError, Place, Whole, one_line
from labkit.cli.ranks import HOSTS, hosts_option, ignore_signals, stop_at_signals
from labkit.cluster import PROFILE, RANKS
from labkit.exercises.exercise import ORIGINALS

START_S = 60.0  # how long JupyterLab may take to answer
POLL_S = 0.1  # until JupyterLab answers
END_POLL_S = 1.0  # until it ends, for hours
LAST_LINES = 20  # of the log, shown if JupyterLab fails
LOG = "jupyterlab.log"
JUPYTERLAB = f"import sys; sys.modules[{UNUSED!r}] = None; from jupyterlab.labapp import main; main()"


class JupyterLab:
    """A JupyterLab that serves the current folder and opens a notebook in it. It ends with the `with` block.

    It has a runtime folder of its own, for its log, connection files and the kernels' sockets. The folder is
    removed afterwards; if JupyterLab fails, the log stays.
    """

    def __init__(self, notebook: Path) -> None:
        # Below /tmp, because a socket's path has at most 103 bytes on macOS, and other folders are too deep.
        place = "/tmp" if os.access("/tmp", os.W_OK) else None
        self._folder = folder = Path(tempfile.mkdtemp(prefix="labkit-lab-", dir=place))
        self.log = folder / LOG
        self._path = f"lab/tree/{notebook.as_posix()}"
        self._token = secrets.token_hex(24)
        options = [*transport(folder), "--ServerApp.log_level=WARN", "--LabApp.log_level=WARN"]
        options += [f"--ServerApp.root_dir={Path.cwd()}", f"--LabApp.default_url=/{self._path}"]
        if os.geteuid() == 0:
            options.append("--allow-root")
        if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            options.append("--no-browser")  # otherwise it opens a text browser in this terminal
        own = {"JUPYTER_TOKEN": self._token, "JUPYTER_RUNTIME_DIR": str(folder)}
        with self.log.open("w") as log:
            self.process = start_child(
                [sys.executable, "-c", JUPYTERLAB, *options],
                remove=str(folder),
                env={**os.environ, **own},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> JupyterLab:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.process.terminate()
        self.process.wait()
        if not isinstance(error, click.ClickException):
            shutil.rmtree(self._folder, ignore_errors=True)

    def is_running(self) -> bool:
        """Return whether JupyterLab runs; raise an error with its last messages if it has failed."""
        if status := self.process.poll():
            raise self._failure(f"JupyterLab ended with exit status {status}.")
        return status is None

    def wait_until_it_serves(self) -> str:
        """Return the address of the notebook, once the server listens."""
        deadline = time.monotonic() + START_S
        while self.is_running() and time.monotonic() < deadline:
            for path in self._folder.glob("jpserver-*.json"):
                try:
                    server = json.loads(path.read_text())
                    socket.create_connection((server["hostname"], server["port"])).close()
                except (OSError, ValueError):  # the file is being written, or the server does not listen yet
                    continue
                return f"{server['url']}{self._path}?token={self._token}"
            time.sleep(POLL_S)
        raise self._failure(
            f"JupyterLab did not start within {START_S:.0f} s. `labkit doctor` finds the usual causes."
        )

    def _failure(self, what: str) -> click.ClickException:
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return click.ClickException("\n".join([what, *lines, f"All of its messages: {self.log}"]))


def transport(folder: Path) -> list[str]:
    """Return the options for kernels that listen on sockets in the folder, if sockets work there.

    Only this user can open them. By default kernels listen on TCP without encryption, and warn about it.
    """
    longest = folder / f"kernel-{'0' * 36}-ipc-5"
    try:
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(str(longest))
    except OSError:
        return []
    longest.unlink()
    return ["--KernelManager.transport=ipc"]


COPIES = Path("my-notebooks")
FIRST = "00_meet_the_cluster.ipynb"


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
@hosts_option
@click.option("--copy-only", is_flag=True, help="Update your copies of the notebooks, and start nothing.")
def command(ranks: int, folder: Path, copy_only: bool) -> None:
    """Start MPI engines and open JupyterLab on the first notebook. Ctrl-C ends both.

    With the environment variable LABKIT_PROFILE=slurm (or hosts), each notebook starts its ranks itself.
    """
    if copy_only:
        _prepare(folder)
        return
    stop_at_signals(after_ctrl_c=0)
    import ipyparallel as ipp  # noqa: PLC0415  (--help must not wait for it)

    from labkit.cluster import clusters, connect, ssh  # noqa: PLC0415
    from labkit.cluster.errors import ClusterError  # noqa: PLC0415

    if hosts := click.get_current_context().meta.get(HOSTS):  # for the notebooks' connect(), too
        os.environ.update({PROFILE: "ssh", ssh.FILE: str(hosts.absolute())})
    profile = os.environ.get(PROFILE) or clusters.DEFAULT_PROFILE
    with one_line(ClusterError):
        clusters.check_profile(profile)
    _prepare_elsewhere(folder)
    has_engines = profile in (clusters.DEFAULT_PROFILE, "ssh")
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
            profile=clusters.prepare_profile(profile, ranks),
            parent=None,
            log=clusters.quiet,
        )
        if profile == "ssh":
            with one_line(ClusterError):
                ssh.before_controller(cluster)
    with JupyterLab(last_used(folder)) as lab:
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
            ignore_signals()
            click.echo("Stopping …")
            lab.process.terminate()  # ends while the engines do
            if cluster:
                if Path(cluster.cluster_file).exists():  # it names engines started since by kernels
                    clusters.attach(Path(cluster.cluster_file)).stop_engines_sync()
                cluster.stop_engines_sync()  # before the controller, which waits for its engines
                cluster.stop_controller_sync()


def _prepare_elsewhere(folder: Path) -> None:
    """Run `labkit lab --copy-only`; exit with its status if it fails.

    So what reads notebooks does not stay in memory for the hours that this program runs.
    """
    words = ["-m", "labkit", "lab", "--copy-only", f"--folder={folder}"]
    if status := subprocess.run([sys.executable, *words], check=False).returncode:
        sys.exit(status)


def _prepare(folder: Path) -> None:
    """Update the student's copies of the notebooks; raise InputError if the folder has no notebooks."""
    from labkit.cli.course.folders import update  # noqa: PLC0415

    if folder == COPIES:
        try:
            lines = update(ORIGINALS, COPIES)
        except OSError as error:
            raise click.ClickException(
                f"the notebooks could not be copied to {COPIES.resolve()}: {error.strerror}. "
                f"Start in a folder that you may write to and that has room for them."
            ) from error
        click.echo("".join(f"{line}\n" for line in lines), nl=False)
    fonts.hand_out()
    if not (folder / FIRST).exists():
        raise InputError(f"{folder} has no {FIRST}. Give the folder of the notebooks, or leave --folder out.")


def last_used(folder: Path) -> Path:
    """Return the copy that was saved last since the copies were made; the first notebook if none was."""
    record = folder / RECORD
    made_at = record.stat().st_mtime if record.exists() else math.inf
    saved = {path.stat().st_mtime: path for path in folder.glob("*.ipynb")}
    return saved[max(saved)] if max(saved) > made_at else folder / FIRST


def _wait_for_an_end(lab: JupyterLab) -> None:
    """Wait until JupyterLab ends (File > Shut Down), or `make` if `make` started this command."""
    parent = os.getppid()
    while lab.is_running() and ("MAKELEVEL" not in os.environ or os.getppid() == parent):
        time.sleep(END_POLL_S)
