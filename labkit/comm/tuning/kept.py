"""Fitted costs on the disk: one JSON file in the user's cache folder for each place where ranks run.

A file is used only where all that it names is the same: the MPI library and its version, the processor, the
ranks of each host, the links, and the lab's own code for all-reduces. Another file, or a damaged one, counts
as none.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from mpi4py import MPI
from platformdirs import user_cache_path

import labkit
from labkit.comm.emulation.communicator import EmulatedComm
from labkit.comm.tuning.timing import Times
from labkit.files import atomic_write
from labkit.hosts import state
from labkit.hosts.namespaces import TOKEN
from labkit.units import format_bandwidth

FOLDER = "LABKIT_COSTS"  # environment variable with the path of another folder
CODE = ("schedules", "comm/running", "comm/averaging", "comm/tuning")  # what it does decides the times


@dataclass(frozen=True)
class Place:
    """Where ranks run: costs measured at one place do not hold at another."""

    library: str
    processor: str
    ranks_per_host: tuple[int, ...]
    links: str
    code: str

    def path(self) -> Path:
        """Return the file for the costs of this place, whether it exists or not."""
        digest = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()
        return folder() / f"{digest[:16]}.json"


def folder() -> Path:
    """Return the folder of the costs: $LABKIT_COSTS, or one in the user's cache folder."""
    chosen = os.environ.get(FOLDER)
    return Path(chosen) if chosen else user_cache_path("allreduce-lab") / "costs"


def place_of(comm: MPI.Intracomm) -> Place:
    """Return where the ranks of a communicator run, as rank 0 sees it. Collective."""
    hosts = MPI.Intracomm.allgather(comm, MPI.Get_processor_name())
    counts = Counter(hosts)
    if isinstance(comm, EmulatedComm):
        links = comm.emulated
    elif len(counts) == 1:
        links = "shared memory"
    else:
        links = _links(sorted(counts))
    place = Place(
        " ".join(MPI.Get_library_version().splitlines()[0].split()),
        _processor(),
        tuple(counts[name] for name in sorted(counts)),
        links,
        _code(),
    )
    return MPI.Intracomm.bcast(comm, place)


def load(place: Place) -> tuple[Times, str]:
    """Return the costs kept for a place and when the last were measured; ({}, "") if there are none."""
    try:
        kept = json.loads(place.path().read_bytes())
        times = {
            int(size): {str(name): float(seconds) for name, seconds in by_name.items()}
            for size, by_name in kept["seconds"].items()
        }
        fine = kept["place"] == json.loads(json.dumps(asdict(place))) and all(
            size > 0 and by_name and all(0 < seconds < math.inf for seconds in by_name.values())
            for size, by_name in times.items()
        )
        return (times, str(kept["measured"])) if fine else ({}, "")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}, ""


def save(place: Place, times: Times, measured: str) -> str:
    """Keep the costs of a place; return why they cannot be kept, or an empty text."""
    kept = {"place": asdict(place), "measured": measured, "seconds": times}
    try:
        place.path().parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(place.path()) as file:
            file.write(json.dumps(kept, indent=1).encode())
    except OSError as error:
        return f"not kept: cannot write to {folder()}: {error.strerror}"
    return ""


def forget(place: Place) -> None:
    """Delete the costs kept for a place."""
    try:
        place.path().unlink(missing_ok=True)
    except OSError:  # `save` will say that the folder cannot be written to
        return


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


def _code() -> str:
    """Return a digest of the lab's code that carries out all-reduces."""
    top, digest = Path(labkit.__file__).parent, hashlib.sha256()
    for room in CODE:
        for path in sorted((top / room).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
