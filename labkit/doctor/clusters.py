"""Checks of ipyparallel: the settings for engines, and what clusters have left behind."""

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

from labkit.doctor import versions
from labkit.doctor.findings import Finding, fault, note, ok
from mpiwatch.wording import counted


def settings(prefix: str = sys.prefix) -> Finding:
    """Check that this environment has the settings with which `ipcluster` and connect() start engines."""
    file = Path(prefix, "etc", "ipython", "ipcluster_config.py")
    if file.exists():
        return ok("settings", str(file))
    return fault(
        "settings",
        f"{file} is missing",
        "Engines start without MPI or by another mpiexec, as n worlds of one rank.",
        versions.reinstall(),
    )


def stale_files(folders: Iterable[Path] | None = None) -> Finding:
    """Check for files of clusters that no longer run, in these profile folders, by default all of the user's.

    Skip clusters whose controller may run on another machine (with the same home folder, or in a batch job).
    """
    # Imported here because it imports ipyparallel, which takes a second, while trials are running.
    from labkit.cluster import clusters, ipyparallel_private  # noqa: PLC0415
    from labkit.cluster.supervisor import cluster_files  # noqa: PLC0415

    files = []
    for folder in folders if folders is not None else ipyparallel_private.profile_dirs():
        security = folder / "security"
        for path in sorted(security.glob("cluster-*.json")):
            client = cluster_files(str(folder), clusters.id_of(path))["client"]
            state = read_json(path)
            local = is_on_this_machine(read_json(Path(client)), default=True)
            if (
                local
                and ipyparallel_private.controller_pid(state) is not None
                and not clusters.is_controller_running(state)
            ):
                files.append(path)
        for path in sorted(security.glob("ipcontroller*.json")):
            connection = read_json(path)
            if (
                is_on_this_machine(connection, default=False)
                and "registration" in connection
                and not is_listening(connection)
            ):
                files.append(path)
    if not files:
        return ok("clusters", "no files of clusters that no longer run")
    return note(
        "clusters",
        f"{counted(len(files), 'file')} of clusters that no longer run: "
        f"{', '.join(sorted({path.stem for path in files}))}",
        "`ipyparallel.Client()` reads them, and waits for engines that are gone.",
        f"rm -f {' '.join(shlex.quote(str(path)) for path in files)}",
    )


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; an empty one if the file is missing, incomplete or something else."""
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text())
        return content if isinstance(content, dict) else {}
    return {}


def is_on_this_machine(connection: dict[str, Any], *, default: bool) -> bool:
    """Return whether the controller of a connection file is on this machine; `default` if it does not say."""
    location = connection.get("location")
    return default if location is None else location in (socket.gethostname(), "localhost", "127.0.0.1")


def is_listening(connection: dict[str, Any]) -> bool:
    """Return whether a program listens on a controller's registration port; True if that is unknown."""
    address = str(connection.get("interface", "")).removeprefix("tcp://")
    if "://" in address:  # not TCP
        return True
    try:
        host = "127.0.0.1" if address in ("", "*", "0.0.0.0") else address
        socket.create_connection((host, int(connection["registration"])), timeout=1).close()
    except ConnectionRefusedError:
        return False
    except (OSError, ValueError):  # no answer in time, or no valid address
        return True
    return True


def segments(paths: Sequence[str]) -> Finding:
    """Report shared memory that killed ranks left. `paths`: from mpiwatch.leftovers.forgotten_segments()."""
    size = 0
    for path in paths:
        with suppress(OSError):
            size += os.stat(path).st_blocks * 512
    if not paths:
        return ok("segments", "no shared memory of ranks that no longer run")
    return note(
        "segments",
        f"{counted(len(paths), 'segment')} of ranks that no longer run held {size >> 10} KiB",
        "They fill /dev/shm until they are removed. The lab removes only what its own jobs have made.",
        f"rm -f {' '.join(map(shlex.quote, paths))}",
    )
