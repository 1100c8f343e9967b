"""The costs of all-reduce algorithms, kept on the disk: one JSON file for each place where ranks run.

A file holds only where all that its place names is the same: the lab's version, the MPI library and its
version, the processor, the ranks of each host and the links. A damaged file counts as none.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections import Counter
from pathlib import Path

from mpi4py import MPI
from platformdirs import user_cache_path

import labkit
from labkit.comm.emulation import EmulatedComm
from labkit.comm.timing import Times
from labkit.files import atomic_write
from labkit.hosts import state
from labkit.hosts.namespaces import TOKEN
from labkit.units import format_bandwidth

FOLDER = "LABKIT_COSTS"  # environment variable with the path of another folder than the user's cache

_in_memory: dict[str, tuple[Times, str]] = {}  # by place: what this process has loaded or saved


def place_of(comm: MPI.Intracomm) -> str:
    """Return where the ranks of a communicator run, as rank 0 sees it. Collective."""
    ranks = Counter(MPI.Intracomm.allgather(comm, MPI.Get_processor_name()))
    if isinstance(comm, EmulatedComm):
        links = comm.emulated
    elif len(ranks) == 1:
        links = "shared memory"
    else:
        links = _links(sorted(ranks))
    library = " ".join(MPI.Get_library_version().splitlines()[0].split())
    per_host = [ranks[host] for host in sorted(ranks)]
    place = f"labkit {labkit.__version__}; {library}; {_processor()}; {per_host} ranks; {links}"
    return MPI.Intracomm.bcast(comm, place)


def load(place: str) -> tuple[Times, str]:
    """Return the costs kept for a place and when the last were measured; ({}, "") if there are none."""
    if place in _in_memory:
        return _in_memory[place]
    try:
        kept = json.loads(path_of(place).read_bytes())
        times = {
            int(size): {str(name): float(seconds) for name, seconds in by_name.items()}
            for size, by_name in kept["seconds"].items()
        }
        fine = kept["place"] == place and all(
            size > 0 and by_name and all(0 < seconds < math.inf for seconds in by_name.values())
            for size, by_name in times.items()
        )
        return (times, str(kept["measured"])) if fine else ({}, "")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}, ""


def save(place: str, times: Times, measured: str) -> str:
    """Keep the costs of a place; return why they cannot be kept on the disk, or an empty text."""
    _in_memory[place] = times, measured
    path = path_of(place)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            kept = {"place": place, "measured": measured, "seconds": times}
            file.write(json.dumps(kept, indent=1).encode())
    except OSError as error:
        return f"not kept: cannot write to {path.parent}: {error.strerror}"
    return ""


def path_of(place: str) -> Path:
    """Return the file for the costs of a place, whether it exists or not."""
    chosen = os.environ.get(FOLDER)
    folder = Path(chosen) if chosen else user_cache_path("allreduce-lab") / "costs"
    return folder / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"


def _links(hosts: list[str]) -> str:
    """Return the links between these hosts: of those that `labkit hosts` made, also the bandwidths."""
    made = state.load()
    if made and os.environ.get(TOKEN) == made.token:
        bandwidths = [format_bandwidth(host.bandwidth) for host in made.hosts if host.name in hosts]
        return f"hosts with links of {', '.join(bandwidths)}"
    return f"network of {', '.join(hosts)}"


def _processor() -> str:
    """Return the processor's model and its number of cores."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), model)
    except OSError:
        pass  # not Linux
    return f"{model}, {os.cpu_count()} cores"
