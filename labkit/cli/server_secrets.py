"""What `labkit lab` keeps, so that an open tab goes on after a restart: token, port, cookie secret.

They are in a folder that only this user can open. If another program has taken the port meanwhile, the tab
may have sent it the token: then everything is made anew, and the tab has to be opened again.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from platformdirs import user_state_path

from labkit.files import atomic_write

FIRST_PORT = 8888  # Jupyter's own


class ServerSecrets(NamedTuple):
    """What lets a browser's tab talk to the server. `cookie_secret_file` is Jupyter's, which makes it."""

    token: str
    port: int
    cookie_secret_file: Path | None


def folder() -> Path:
    """Return the folder of the kept secrets."""
    return user_state_path("allreduce-lab") / "server"


def obtain() -> ServerSecrets:
    """Return the secrets of this user's last server if its port is free, otherwise new ones."""
    try:
        folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        folder().chmod(0o700)
        kept = _read()
        if kept is not None and _is_free(kept.port):
            return kept
        (folder() / "cookie_secret").unlink(missing_ok=True)
        return ServerSecrets(secrets.token_hex(24), FIRST_PORT, folder() / "cookie_secret")
    except OSError:  # the home folder cannot be written to
        return ServerSecrets(secrets.token_hex(24), FIRST_PORT, None)


def keep(token: str, port: int) -> None:
    """Keep the token and the port of a server that has started."""
    with suppress(OSError), atomic_write(folder() / "server.json") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(json.dumps({"token": token, "port": port}).encode())


def _read() -> ServerSecrets | None:
    """Return what is kept; None if there is nothing, or if others could have read or written it."""
    path = folder() / "server.json"
    try:
        status = path.stat()
        kept = json.loads(path.read_text())
        token, port = str(kept["token"]), int(kept["port"])
    except (OSError, ValueError, TypeError, KeyError):
        return None
    is_own = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
    if not is_own or not re.fullmatch("[0-9a-f]{48}", token) or not 1024 <= port <= 65535:
        return None
    return ServerSecrets(token, port, folder() / "cookie_secret")


def _is_free(port: int) -> bool:
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
