"""What `labkit lab` keeps, so that an open tab goes on after a restart: token, port, cookie secret.

Each folder that is served has a folder of secrets, which only this user can open. A lock that is held while
the server runs keeps a second server of the same folder from using them: it gets secrets of its own, which
are not kept. If another program has taken the port meanwhile, the tab may have sent it the token: then
everything is made anew, and the tab has to be opened again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import stat
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_state_path

from labkit.files import atomic_write, locked

FIRST_PORT = 8888  # Jupyter's own
FREE_S = 5.0  # a server whose `labkit lab` was killed ends within this time
POLL_S = 0.1
SECRET_BYTES = 32
MOST_BYTES = 4096  # of a file of ours
RECORD, COOKIE_SECRET = "server.json", "cookie_secret"
UNREADABLE = (OSError, ValueError, TypeError, KeyError, RecursionError)  # of a file that anybody has written


class Address(NamedTuple):
    """What an open tab knows of its server."""

    token: str
    port: int


class ServerSecrets:
    """The secrets of the server of one folder, from the start to `close`.

    `cookie_secret_file` is None if nothing can be kept: Jupyter then makes a secret for this run.
    `are_old`: an open tab may know them, so the server must listen on their port or not at all.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._folder = folder_of(root)
        self._lock = ExitStack()
        self._may_keep = False
        self.are_old = False
        self.cookie_secret_file: Path | None = None
        self.token, self.port = Address(secrets.token_hex(24), FIRST_PORT)
        try:
            _make_private(self._folder)
            self._lock.enter_context(locked(self._folder / "lock", wait_s=0))
        except OSError:  # another server of this folder runs, or the home folder cannot be written to
            return
        self._may_keep = True
        address = _read(self._folder)
        if address is None or not _becomes_free(address.port):
            self.renew()
            return
        self.token, self.port = address
        self.are_old = True
        self.cookie_secret_file = self._folder / COOKIE_SECRET

    def renew(self) -> None:
        """Make all secrets anew, because others may know the old ones, or because there are none."""
        self.are_old = False
        self.cookie_secret_file = None
        self.token = secrets.token_hex(24)
        self.port = _port_of_no_other_folder(self._folder)
        if not self._may_keep:
            return
        try:
            for name in RECORD, COOKIE_SECRET:  # not replaced: the new file would get the mode of the old one
                (self._folder / name).unlink(missing_ok=True)
            # Not by Jupyter: it uses what is left of a file that it has not written to its end.
            _write(self._folder / COOKIE_SECRET, secrets.token_hex(SECRET_BYTES).encode())
        except OSError:
            self._may_keep = False
        else:
            self.cookie_secret_file = self._folder / COOKIE_SECRET

    def keep(self, port: int) -> None:
        """Keep the secrets of a server that has started and listens on a port."""
        if self._may_keep:
            content = {"root": str(self._root), "token": self.token, "port": port}
            with suppress(OSError):
                _write(self._folder / RECORD, json.dumps(content).encode())

    def close(self) -> None:
        """Let the next server of this folder use the secrets."""
        self._lock.close()


def all_folders() -> Path:
    """Return the folder with a folder of secrets for each folder that is served."""
    return user_state_path("allreduce-lab") / "servers"


def folder_of(root: Path) -> Path:
    """Return the folder of the secrets of the server of `root`."""
    return all_folders() / hashlib.sha256(os.fsencode(root.resolve())).hexdigest()[:16]


def is_free(port: int) -> bool:
    """Return whether a server could listen on a port of this machine."""
    for family, address in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"):
        with suppress(OSError):  # a machine without this family
            trial = socket.socket(family)
            with trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Jupyter's server does
                try:
                    trial.bind((address, port))
                except OSError as error:
                    if error.errno == errno.EADDRINUSE:
                        return False
    return True


def _becomes_free(port: int) -> bool:
    """Return whether a port is free, or becomes so while a server ends whose `labkit lab` was killed."""
    deadline = time.monotonic() + FREE_S
    while not is_free(port):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _make_private(folder: Path) -> None:
    """Make a folder that this user alone can open. Raise OSError if it is another user's, or a link."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in folder.parent, folder:
        status = path.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "expected a folder of this user", str(path))
        path.chmod(0o700)


def _write(path: Path, content: bytes) -> None:
    """Write a file that this user alone can read."""
    with atomic_write(path) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(content)


def _read(folder: Path) -> Address | None:
    """Return the token and the port in a folder; None if something is missing, damaged, or open to others."""
    try:
        record = json.loads(_read_private(folder / RECORD))
        token, port = record["token"], record["port"]
        cookie_secret = _read_private(folder / COOKIE_SECRET)
    except UNREADABLE:
        return None
    is_token = type(token) is str and re.fullmatch("[0-9a-f]{48}", token) is not None
    is_port = type(port) is int and 1024 <= port <= 65535
    # An empty secret would let everybody make a cookie.
    is_whole = is_token and is_port and len(cookie_secret) >= SECRET_BYTES
    return Address(token, port) if is_whole else None


def _read_private(path: Path) -> bytes:
    """Return the content of a plain file that this user alone can read or write. Raise OSError otherwise."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        is_private = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077
        if not stat.S_ISREG(status.st_mode) or not is_private:
            raise OSError(errno.EPERM, "expected a file that this user alone can read", str(path))
        return file.read(MOST_BYTES)


def _port_of_no_other_folder(folder: Path) -> int:
    """Return a free port that no other folder's server keeps. Forget the servers of folders that are gone."""
    taken = set()
    for other in all_folders().glob("*"):
        if other == folder:
            continue
        try:
            record = json.loads(_read_private(other / RECORD))
            root, port = record["root"], record["port"]
            is_gone = not os.path.lexists(root)
        except UNREADABLE:
            continue
        if is_gone:
            with suppress(OSError), locked(other / "lock", wait_s=0):
                shutil.rmtree(other, ignore_errors=True)
        else:
            taken.add(port)
    return next(port for port in range(FIRST_PORT, 65536) if port not in taken and is_free(port))
