"""The recording of a program: each rank writes its log beside the trace, which one process makes of them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from time import monotonic

from mpiwatch.output import destination, write_whole
from mpiwatch.processes import print_error
from mpiwatch.trace import chrome_trace, merge
from mpiwatch.trace_log import end_log, read_file


def log_file(trace: str, rank: int) -> str:
    """Return the path of a rank's log: beside the trace, so that ranks of several machines may share it."""
    path = destination(Path(trace)) or Path(trace)
    return str(path.absolute().with_name(f".{path.name[:40]}.rank-{rank}"))


def remove_logs(trace: str, size: int) -> None:
    """Remove the logs of an earlier run, or of this one."""
    for rank in range(size):
        with contextlib.suppress(OSError):
            os.unlink(log_file(trace, rank))


def note_end(trace: str, rank: int) -> None:
    """Note in a rank's log that the rank ends now, unless it has noted that itself."""
    with contextlib.suppress(OSError, ValueError):
        end_log(log_file(trace, rank), monotonic())


def write_trace(trace: str, size: int) -> None:
    """Write the trace of a program that has ended, and remove the ranks' logs; print what is missing."""
    logs = []
    for rank in range(size):
        with contextlib.suppress(OSError, ValueError):
            logs.append(read_file(log_file(trace, rank)))
    remove_logs(trace, size)
    if not logs:
        print_error(f"mpiwatch: no rank has recorded anything, so there is no {trace}.\n")
        return
    merged = merge(logs)
    try:
        write_whole(Path(trace), chrome_trace(merged) + "\n")
    except OSError as error:
        print_error(f"mpiwatch: the trace could not be written to {trace}: {error.strerror}\n")
        return
    if merged.lost_ranks:
        missing = ", ".join(map(str, merged.lost_ranks))
        folder = os.path.dirname(log_file(trace, 0))
        print_error(
            f"mpiwatch: {trace} lacks what these ranks have recorded: {missing}. Ranks of several machines "
            f"can be recorded if {folder} is a folder that the machines share.\n"
        )
    for rank, lost in merged.lost.items():
        print_error(f"mpiwatch: {trace} lacks the last {lost} events of rank {rank}: there was no room.\n")
