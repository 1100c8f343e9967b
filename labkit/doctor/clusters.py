"""Checks of ipyparallel: the engines' settings, and what clusters that are gone have left."""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from labkit.doctor.findings import Finding, fault, note, ok


def settings(prefix: str = sys.prefix) -> Finding:
    """Does this environment hold the settings by which `ipcluster` and connect() start engines?"""
    file = Path(prefix, "etc", "ipython", "ipcluster_config.py")
    if file.exists():
        return ok("settings", str(file))
    return fault(
        "settings",
        f"{file} is missing",
        "Engines start without MPI, or by another mpiexec: n worlds of one rank.",
        f"{shlex.quote(sys.executable)} -m pip install --force-reinstall --no-deps --editable .   "
        "(in the lab's folder)",
    )


def stale(folders: Iterable[Path] | None = None) -> Finding:
    """Do files in these profile folders, by default all of this user's, tell of clusters that run no more?

    Those of clusters whose controller runs elsewhere (another host with this home, a batch job) are passed
    over: from here nobody can tell.
    """
    from labkit.cluster import discovery  # noqa: PLC0415 (imports ipyparallel: while the trials run)

    files = []
    for folder in folders if folders is not None else map(Path, discovery.all_profile_dirs()):
        security = folder / "security"
        for path in sorted(security.glob("cluster-*.json")):
            name = discovery.name_of(path)
            client = security / (f"ipcontroller-{name}-client.json" if name else "ipcontroller-client.json")
            state = read(path)
            has_pid = isinstance(state.get("controller", {}).get("state", {}).get("pid"), int)
            if has_pid and is_here(read(client), unless=True) and not discovery.runs(state):
                files.append(path)
        for path in sorted(security.glob("ipcontroller*.json")):
            connection = read(path)
            if is_here(connection) and "registration" in connection and not listens(connection):
                files.append(path)
    if not files:
        return ok("clusters", "no files of clusters that run no more")
    return note(
        "clusters",
        f"{len(files)} file{'s' * (len(files) > 1)} of clusters that run no more: "
        f"{', '.join(sorted({path.stem for path in files}))}",
        "`ipyparallel.Client()` believes them, and waits for engines that are gone.",
        f"rm -f {' '.join(shlex.quote(str(path)) for path in files)}",
    )


def read(path: Path) -> dict[str, Any]:
    """Return what a JSON file says; nothing if it is gone, or being written."""
    with suppress(OSError, ValueError):
        said = json.loads(path.read_text())
        return said if isinstance(said, dict) else {}
    return {}


def is_here(connection: dict[str, Any], *, unless: bool = False) -> bool:
    """Tell whether the controller of a connection file is on this host; `unless` where the file is silent."""
    place = connection.get("location")
    return unless if place is None else place in (socket.gethostname(), "localhost", "127.0.0.1")


def listens(connection: dict[str, Any]) -> bool:
    """Tell whether something answers at the port where a controller registers engines and clients."""
    address = str(connection.get("interface", "")).removeprefix("tcp://")
    if "://" in address:  # sockets of another kind
        return True
    try:
        host = "127.0.0.1" if address in ("", "*", "0.0.0.0") else address
        socket.create_connection((host, int(connection["registration"])), timeout=1).close()
    except ConnectionRefusedError:
        return False
    except (OSError, ValueError):  # no telling
        return True
    return True


def segments(paths: Sequence[str]) -> Finding:
    """Have ranks that were killed left shared memory behind? `paths` is lifeline's forgotten_segments()."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += os.stat(path).st_blocks * 512
    if not paths:
        return ok("segments", "no shared memory of ranks that run no more")
    return note(
        "segments",
        f"{len(paths)} segment{'s' * (len(paths) > 1)} of ranks that run no more held {size >> 10} KiB",
        "They take room in /dev/shm until somebody removes them.",
        "Nothing to do: what the lab starts removes them when it ends, and the trials just now did. "
        f"By hand: rm -f {' '.join(map(shlex.quote, paths))}",
    )
