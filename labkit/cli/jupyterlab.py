"""JupyterLab as a child process, whose messages go to a log file instead of this terminal."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from mpiwatch.supervisor import supervised

START_S = 60.0  # how long JupyterLab may take to answer
POLL_S = 0.1
LAST_LINES = 20  # of the log, shown if JupyterLab fails
LOG = "jupyterlab.log"


class JupyterLab:
    """A running JupyterLab; see `started`."""

    def __init__(self, folder: Path, notebook: Path) -> None:
        self.log = folder / LOG
        self._folder = folder
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
            self.process = subprocess.Popen(
                [*supervised(remove=str(folder)), sys.executable, "-m", "jupyterlab", *options],
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches `labkit lab` alone, which ends everything in order
            )

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
                    url = json.loads(path.read_text())["url"]
                except (OSError, ValueError):  # being written
                    continue
                return f"{url}{self._path}?token={self._token}"
            time.sleep(POLL_S)
        raise self._failure(
            f"JupyterLab did not start within {START_S:.0f} s. `labkit doctor` finds the usual causes."
        )

    def _failure(self, what: str) -> click.ClickException:
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return click.ClickException("\n".join([what, *lines, f"All of its messages: {self.log}"]))


@contextmanager
def started(notebook: Path) -> Iterator[JupyterLab]:
    """Start a JupyterLab that serves the current folder and opens a notebook in it; end it with the block.

    It has a runtime folder of its own, for its log, connection files and the kernels' sockets. The folder is
    removed afterwards; if JupyterLab fails, the log stays.
    """
    # Below /tmp, because the path of a socket has at most 103 bytes on macOS, and other folders are too deep.
    folder = Path(tempfile.mkdtemp(prefix="labkit-lab-", dir="/tmp" if os.access("/tmp", os.W_OK) else None))
    lab = None
    failed = False
    try:
        lab = JupyterLab(folder, notebook)
        yield lab
    except click.ClickException:
        failed = True
        raise
    finally:
        if lab:
            lab.process.terminate()
            lab.process.wait()
        if not failed:
            shutil.rmtree(folder, ignore_errors=True)


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
