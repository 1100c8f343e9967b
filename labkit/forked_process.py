"""A process that another one, which has imported what it needs, forks for this process.

It takes the place of `subprocess.Popen`: see `serve` in labkit/forking.py. Without a process that forks, as
on other systems than Linux, `start` starts a new program.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from labkit import forking

FORKED_S = 60.0  # for the process to be forked, which takes milliseconds
TOLD_S = 1.0  # from the end of the process until its exit code is known, too


def start(
    address: str,
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    stdin: int = subprocess.DEVNULL,
    joins_stderr: bool = False,
    before: Sequence[str] = (),
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Run `python -m` with these words, forked by the process at this address if it can.

    Its standard output is a pipe to this process. `stdin`: a file's number, `subprocess.PIPE` or
    `subprocess.DEVNULL`. `joins_stderr`: its standard error goes to the same pipe as its output. `before`:
    the words before `python`, such as a supervisor's, if it is started as a new program.
    """
    if address:
        with suppress(OSError):
            return ForkedProcess(address, words, env, cwd, stdin, joins_stderr)
    return subprocess.Popen(
        [*before, sys.executable, "-P", "-m", *words],
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if joins_stderr else None,
        start_new_session=True,
    )


class ForkedProcess:
    """A process that another one has forked for this process.

    It is killed when this process ends, or when this object is deleted.
    """

    def __init__(  # noqa: PLR0917 (as `start`)
        self,
        address: str,
        words: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        stdin: int,
        joins_stderr: bool,
    ) -> None:
        """Ask for the process. Raise OSError if it cannot be forked."""
        self.returncode: int | None = None
        self.stdin: Any = None
        self.stdout: Any = None
        self._pidfd: int | None = None  # a file by which the system tells of the end, and takes signals
        self._connection = socket.socket(socket.AF_UNIX)
        files: list[int] = []  # of the process: its input, output and errors
        try:
            files.append(self._open_stdin(stdin))
            out, its_stdout = os.pipe()
            files.append(its_stdout)
            self.stdout = open(out, "rb")  # noqa: SIM115  (closed by `__exit__`)
            files.append(os.dup(its_stdout if joins_stderr else 2))
            request = forking.request_for([*words], [0, 1, 2], dict(env), cwd or os.getcwd())
            self._connection.settimeout(FORKED_S)
            self._connection.connect(f"\0{address}")
            forking.send(self._connection, request, files)
            pid = self._connection.recv(forking.STATUS.size, socket.MSG_WAITALL)
            if not pid:
                raise ConnectionError("the process that forks has forked none")
            self.pid: int = forking.STATUS.unpack(pid)[0]
            self._connection.settimeout(None)  # the end may be hours away
            # Linux before 5.3, and some builds of Python, have no such files; or the process has ended.
            with suppress(OSError, AttributeError):
                self._pidfd = os.pidfd_open(self.pid)
        except BaseException:
            self._close()
            raise
        finally:
            for file in files:
                os.close(file)

    def _open_stdin(self, stdin: int) -> int:
        """Return the file from which the process reads; for a pipe, `self.stdin` becomes its other end."""
        if stdin == subprocess.PIPE:
            its_stdin, into = os.pipe()
            self.stdin = open(into, "wb")  # noqa: SIM115  (closed by `__exit__`)
            return its_stdin
        return os.open(os.devnull, os.O_RDONLY) if stdin == subprocess.DEVNULL else os.dup(stdin)

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal, of a process that has ended; else None."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code. Raise subprocess.TimeoutExpired after so many seconds."""
        if self.returncode is None:
            files: list[Any] = [self._connection, *([] if self._pidfd is None else [self._pidfd])]
            if not select.select(files, [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            self.returncode = self._read_end()
        return self.returncode

    def _read_end(self) -> int:
        """Return how the process has ended; the process that forks tells it, or stands still."""
        end = b""
        if select.select([self._connection], [], [], TOLD_S)[0]:
            with suppress(OSError):
                end = self._connection.recv(forking.STATUS.size, socket.MSG_WAITALL)
        return int(forking.STATUS.unpack(end)[0]) if end else -signal.SIGKILL

    def send_signal(self, number: int) -> None:
        """Send it a signal: directly, or through the process that forks."""
        if self.returncode is None:
            with suppress(OSError):
                if self._pidfd is not None:
                    signal.pidfd_send_signal(self._pidfd, number)
                else:
                    self._connection.send(bytes([number]))

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.stdin is not None:
            with suppress(OSError):
                self.stdin.close()
        self.wait()
        self._close()

    def _close(self) -> None:
        for file in self.stdin, self.stdout, self._connection:
            if file is not None:
                with suppress(OSError):
                    file.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
