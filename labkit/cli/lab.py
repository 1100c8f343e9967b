"""`labkit lab`: start JupyterLab on the notebooks, and end it with this command."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import click
import psutil

from labkit import fonts, jupyter_server
from labkit.checks.exercise import ORIGINALS
from labkit.children import start_child
from labkit.cli import server_secrets
from labkit.cli.course import RECORD
from labkit.cli.inputs import MOST_RANKS, Finite, InputError, NonEmptyPath, Whole, one_line
from labkit.cli.ranks import HOSTS, hosts_option, ignore_signals, stop_at_signals
from labkit.cluster import PROFILE, RANKS
from labkit.exercises import record, start_page

STANDSTILL_S = 60.0  # JupyterLab has failed if it has neither computed nor written for so long
FIRST_LINE_S = 20.0  # until a line says what this command waits for; each further line after twice the time
LOOK_S = 1.0  # between two looks at what JupyterLab does
POLL_S = 0.1  # until JupyterLab answers
END_POLL_S = 1.0  # until it ends, for hours
ENGINES_S = 5.0  # for supervisors of engines and checks to clean up after JupyterLab has ended
PAGE_S = 60.0  # for writing the start page anew
LAST_LINES = 20  # of the log, shown if JupyterLab fails
LOG = "jupyterlab.log"
JUPYTERLAB = jupyter_server.command("jupyterlab.labapp")


class JupyterLab:
    """A JupyterLab that serves the current folder and opens a file in it. It ends with the `with` block.

    It has a runtime folder of its own, for its log, connection files and the kernels' sockets. The folder is
    removed afterwards; if JupyterLab fails, the log stays.
    """

    def __init__(self, first: Path) -> None:
        # Below /tmp, because a socket's path has at most 103 bytes on macOS, and other folders are too deep.
        place = "/tmp" if os.access("/tmp", os.W_OK) else None
        self._folder = Path(tempfile.mkdtemp(prefix="labkit-lab-", dir=place))
        self.log = self._folder / LOG
        self._path = f"lab/tree/{first.as_posix()}"
        self._secrets = server_secrets.ServerSecrets(Path.cwd())
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        """Start JupyterLab with this folder's secrets."""
        options = [*transport(self._folder), "--ServerApp.log_level=WARN", "--LabApp.log_level=WARN"]
        options += [f"--ServerApp.port={self._secrets.port}", *export_options()]
        if self._secrets.are_old:
            options.append("--ServerApp.port_retries=0")  # whoever has taken the port may know the token
        if self._secrets.cookie_secret_file is not None:
            options.append(f"--ServerApp.cookie_secret_file={self._secrets.cookie_secret_file}")
        options += [f"--ServerApp.root_dir={Path.cwd()}", f"--LabApp.default_url=/{self._path}"]
        if os.geteuid() == 0:
            options.append("--allow-root")
        if sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            options.append("--no-browser")  # otherwise it opens a text browser in this terminal
        variables = {"JUPYTER_TOKEN": self._secrets.token, "JUPYTER_RUNTIME_DIR": str(self._folder)}
        with self.log.open("w") as log:
            return start_child(
                [*JUPYTERLAB, *options],
                remove=str(self._folder),
                supervisors_s=ENGINES_S,
                env={**os.environ, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> JupyterLab:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.process.terminate()
        self.process.wait()
        self._secrets.close()
        if not isinstance(error, click.ClickException):
            shutil.rmtree(self._folder, ignore_errors=True)

    def is_running(self) -> bool:
        """Return whether JupyterLab runs; raise an error with its last messages if it has failed."""
        status = self.process.poll()
        if status:
            raise self._failure(f"JupyterLab ended with exit status {status}.")
        return status is None

    def wait_until_it_serves(self, limit_s: float | None = None) -> str:
        """Return the address of the first page, once the server listens.

        Without a limit, wait as long as JupyterLab makes progress. Raise ClickException if it ends or stands
        still, or at the limit.
        """
        progress = StartProgress(self.process.pid, self.log)
        while True:
            if self._has_lost_its_port():
                self._secrets.renew()
                self.process = self._start()
                progress = StartProgress(self.process.pid, self.log)
            if not self.is_running():
                raise self._failure("JupyterLab ended before it could be reached.")
            for path in self._folder.glob("jpserver-*.json"):
                try:
                    server = json.loads(path.read_text())
                    socket.create_connection((server["hostname"], server["port"])).close()
                except (OSError, ValueError):  # the file is being written, or the server does not listen yet
                    continue
                self._secrets.keep(server["port"])
                return f"{server['url']}{self._path}?token={self._secrets.token}"
            time.sleep(POLL_S)
            progress.look()
            if limit_s is not None and progress.seconds() > limit_s:
                raise self._failure(
                    f"JupyterLab did not start within {limit_s:g} s, in which it computed for "
                    f"{progress.computed_s:.1f} s. `labkit lab --timeout {2 * limit_s:g}` waits longer."
                )
            if limit_s is None and progress.standstill_s() > STANDSTILL_S:
                raise self._failure(
                    f"JupyterLab did not start: for {STANDSTILL_S:.0f} s it has neither computed nor written "
                    f"a message. `labkit doctor` finds the usual causes."
                )

    def _has_lost_its_port(self) -> bool:
        """Return whether JupyterLab has ended because another program took the port of an open tab."""
        has_failed = bool(self.process.poll())
        return has_failed and self._secrets.are_old and not server_secrets.is_free(self._secrets.port)

    def _failure(self, what: str) -> click.ClickException:
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return click.ClickException("\n".join([what, *lines, f"All of its messages: {self.log}"]))


class StartProgress:
    """What JupyterLab does while it starts. It says so at FIRST_LINE_S, and then at twice the time each."""

    def __init__(self, pid: int, log: Path) -> None:
        self.supervisor = psutil.Process(pid)
        self.log = log
        self.began = self.last_progress = self.next_look = time.monotonic()
        self.next_line = self.began + FIRST_LINE_S
        self.computed_s = 0.0
        self.written_bytes = 0

    def seconds(self) -> float:
        return time.monotonic() - self.began

    def standstill_s(self) -> float:
        """Return for how long there has been no progress."""
        return time.monotonic() - self.last_progress

    def look(self) -> None:
        """Note whether JupyterLab has computed or written since the last look. It can be called often."""
        now = time.monotonic()
        if now < self.next_look:
            return
        self.next_look = now + LOOK_S
        computed_s, written_bytes = self._computed_s(), self.log.stat().st_size
        if (computed_s, written_bytes) != (self.computed_s, self.written_bytes):
            self.last_progress = now
        self.computed_s = computed_s
        self.written_bytes = written_bytes
        if now > self.next_line:
            self.next_line = now + self.seconds()
            click.echo(
                f"JupyterLab is still loading its modules: it has computed for {computed_s:.0f} s in "
                f"{self.seconds():.0f} s. Its first start takes longer, and so does a busy machine."
            )

    def _computed_s(self) -> float:
        """Return the computing time of JupyterLab and its supervisor."""
        total_s = 0.0
        try:
            for process in [self.supervisor, *self.supervisor.children(recursive=True)]:
                total_s += sum(process.cpu_times()[:2])
        except psutil.Error:  # one of them has just ended
            pass
        return total_s


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


def export_options() -> list[str]:
    """Return options that take formats which cannot work here out of *Save and Export Notebook As*.

    Some need pandoc or TeX, and PDF by a browser needs Playwright. A plain script cannot run `%%px` cells, so
    the lab's own format, Program, takes its place. Slides that are longer than the screen can be scrolled.
    """
    refused = ["ScriptExporter", "QtPDFExporter", "QtPNGExporter"]
    if shutil.which("pandoc") is None:
        refused += ["ASCIIDocExporter", "LatexExporter", "RSTExporter"]  # and PDF, which is made from LaTeX
    if shutil.which("pandoc") is None or shutil.which("xelatex") is None:
        refused.append("PDFExporter")
    if importlib.util.find_spec("playwright") is None:
        refused.append("WebPDFExporter")
    return [f"--{name}.enabled=False" for name in refused] + ["--SlidesExporter.reveal_scroll=True"]


COPIES = Path("my-notebooks")
FIRST = "00_meet_the_cluster.ipynb"


@click.command("lab")
@click.option(
    "-n",
    "ranks",
    type=Whole(max=MOST_RANKS),
    envvar=RANKS,
    show_envvar=True,
    help="Number of MPI ranks of each notebook, whatever its connect() asks for. [default: what it asks for]",
)
@click.option(
    "--folder",
    type=NonEmptyPath(),
    default=COPIES,
    show_default=True,
    help="Folder of the notebooks, here. The default holds your own copies of them.",
)
@hosts_option
@click.option("--copy-only", is_flag=True, help="Update your copies of the notebooks, and start nothing.")
@click.option("--page-only", is_flag=True, hidden=True)  # write the start page anew
@click.option(
    "--timeout",
    "timeout_s",
    type=Finite(min=0, min_open=True),
    metavar="S",
    help="Seconds that JupyterLab may take to start. [default: as long as it makes progress]",
)
def command(
    ranks: int | None, folder: Path, copy_only: bool, page_only: bool, timeout_s: float | None
) -> None:
    """Open JupyterLab on a page that lists the notebooks and what you have done. Ctrl-C ends all of it.

    Each notebook starts its own ranks. In another folder than your own copies, open the notebook saved last.
    """
    if page_only:
        write_page()
        return
    if copy_only:
        _prepare(folder)
        return
    stop_at_signals(after_ctrl_c=0)
    _let_notebooks_know(ranks)
    _prepare_elsewhere(folder)
    click.echo("Starting JupyterLab …")
    with JupyterLab(first_to_open(folder)) as lab:
        try:
            address = lab.wait_until_it_serves(timeout_s)
            settings = [f"{name}={os.environ[name]}" for name in (RANKS, PROFILE) if os.environ.get(name)]
            for_notebooks = f" ({', '.join(settings)})" if settings else ""
            click.echo(
                f"JupyterLab: {address}\nIts log: {lab.log}\n"
                f"Each notebook starts its ranks in its cell with connect(){for_notebooks}.\n"
                f"Ctrl-C ends JupyterLab and the ranks."
            )
            _wait_for_an_end(lab, folder)
        finally:
            ignore_signals()
            click.echo("Stopping …")


def _let_notebooks_know(ranks: int | None) -> None:
    """Set the environment variables by which connect() in the notebooks knows the ranks and the profile.

    Raise ClickException if the profile does not exist, or if a machine of the host file is not ready.
    """
    if ranks is not None:
        os.environ[RANKS] = str(ranks)
    hosts = click.get_current_context().meta.get(HOSTS)
    if hosts:
        from labkit.cluster.errors import ClusterError  # noqa: PLC0415
        from labkit.cluster.places import ssh  # noqa: PLC0415  (--help must not wait for it)

        with one_line(ClusterError, has_rows=True):
            ssh.prepare(hosts.absolute(), ranks)
        os.environ.update({PROFILE: "ssh", ssh.FILE: str(hosts.absolute())})
    elif os.environ.get(PROFILE):
        from labkit.cluster import clusters  # noqa: PLC0415
        from labkit.cluster.errors import ClusterError  # noqa: PLC0415

        with one_line(ClusterError):
            clusters.check_profile(os.environ[PROFILE])


def _prepare_elsewhere(folder: Path) -> None:
    """Run `labkit lab --copy-only`; exit with its status if it fails.

    So what reads notebooks does not stay in memory for the hours that this program runs.
    """
    words = ["-P", "-m", "labkit", "lab", "--copy-only", f"--folder={folder}"]
    status = subprocess.run([sys.executable, *words], check=False).returncode
    if status:
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
        write_page()
    fonts.hand_out()
    if not (folder / FIRST).exists():
        raise InputError(f"{folder} has no {FIRST}. Give the folder of the notebooks, or leave --folder out.")


def write_page() -> None:
    """Write the start page of the copies, as far as that is possible: the notebooks work without it."""
    from labkit.checks.exercise import HeadingError  # noqa: PLC0415

    with suppress(OSError, HeadingError):
        start_page.write(COPIES)


def has_page(folder: Path) -> bool:
    """Return whether a folder has the start page; elsewhere than in the copies, such a file is the user's."""
    return folder == COPIES and (folder / start_page.NAME).exists()


def first_to_open(folder: Path) -> Path:
    """Return the start page of a student's copies; without one, the notebook that was saved last."""
    return folder / start_page.NAME if has_page(folder) else last_used(folder)


def last_used(folder: Path) -> Path:
    """Return the copy that was saved last since the copies were made; the first notebook if none was."""
    record = folder / RECORD
    made_at = record.stat().st_mtime if record.exists() else math.inf
    saved = {path.stat().st_mtime: path for path in folder.glob("*.ipynb")}
    return saved[max(saved)] if max(saved) > made_at else folder / FIRST


def _wait_for_an_end(lab: JupyterLab, folder: Path) -> None:
    """Wait until JupyterLab ends (File > Shut Down), or `make` if `make` started this command.

    Meanwhile, write the start page anew whenever a check has noted what was done.
    """
    parent = os.getppid()
    noted = changed_ns(record.path(folder))
    while lab.is_running() and ("MAKELEVEL" not in os.environ or os.getppid() == parent):
        time.sleep(END_POLL_S)
        now = changed_ns(record.path(folder))
        if now != noted and has_page(folder):
            # In a process of its own: this one stays small for the hours that it runs.
            words = ["-P", "-m", "labkit", "lab", "--page-only"]
            with suppress(subprocess.TimeoutExpired):
                command = [sys.executable, *words]
                subprocess.run(command, check=False, capture_output=True, timeout=PAGE_S)
        noted = now


def changed_ns(path: Path) -> int:
    """Return when a file was changed; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
