"""The recording of a program: each rank writes its log beside the trace, which one process makes of them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from mpiwatch.output import destination, write_whole
from mpiwatch.processes import print_error
from mpiwatch.trace import Trace, chrome_trace, merge
from mpiwatch.trace_log import end_log, read_file

# A file's name has 255 bytes at most; that of a log is a little longer than the trace's.
MOST_NAME_BYTES, NAME_CHARACTERS = 230, 40

OTHERS_S = 0.1  # in which the other ranks of a job that was killed end, too


def log_file(trace: str, rank: int) -> str:
    """Return the path of a rank's log: beside the trace, so that ranks of several machines may share it."""
    path = destination(Path(trace)) or Path(trace)
    name = path.name
    if len(name.encode()) > MOST_NAME_BYTES:
        # The whole name counts: traces of two runs may differ in its end alone.
        name = f"{name[:NAME_CHARACTERS]}.{sha256(name.encode()).hexdigest()[:16]}"
    return str(path.absolute().with_name(f".{name}.rank-{rank}"))


def remove_logs(trace: str, size: int) -> None:
    """Remove the logs of an earlier run, or of this one."""
    _remove([log_file(trace, rank) for rank in range(size)])


def _remove(paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def note_end(trace: str, rank: int) -> None:
    """Note in a rank's log that the rank ends now, unless it has noted that itself."""
    with contextlib.suppress(OSError, ValueError):
        end_log(log_file(trace, rank), monotonic())


def write_trace(trace: str, size: int) -> None:
    """Write the trace of a program that has ended, and remove the ranks' logs; print what is missing."""
    _write(trace, [log_file(trace, rank) for rank in range(size)])


def _write(trace: str, paths: Sequence[str]) -> None:
    """Write a trace of the logs at these paths, by rank, and remove them."""
    logs = []
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            logs.append(read_file(path))
    try:
        if logs:
            _write_merged(trace, merge(logs))
        else:
            print_error(f"mpiwatch: no rank has recorded anything, so there is no {trace}.\n")
    finally:  # and not before: this process may be killed at any time
        _remove(paths)


def _write_merged(trace: str, merged: Trace) -> None:
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


def start_keeper(trace: str, size: int) -> IO[bytes] | None:
    """Start a process that writes the trace if this one is killed before; return what keeps it waiting.

    If a rank dies or calls `Abort`, the launcher kills all processes of the job at once. As that process is
    in a session of its own and no child of this one, it is not killed with them.
    """
    words = [sys.executable, "-P", "-m", "mpiwatch.trace_files", trace, str(size)]
    read, write = os.pipe()
    try:
        subprocess.run(
            ["sh", "-c", '"$@" <&0 &', "sh", *words],  # without `<&0`, sh gives it no input
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
    except OSError:  # it is only a safeguard
        os.close(write)
        return None
    finally:
        os.close(read)
    return os.fdopen(write, "wb")


def keep(trace: str, size: int) -> None:
    """Wait until the process that has started this one ends; then write the trace if that has not done it."""
    has_written = bool(sys.stdin.buffer.read())
    if has_written:  # and removed the logs; others of this name are those of the next run
        return
    # Under other names: the program may be run again at once.
    paths = [f"{log_file(trace, rank)}.{os.getpid()}" for rank in range(size)]
    for rank, path in enumerate(paths):
        with contextlib.suppress(OSError):
            os.rename(log_file(trace, rank), path)
    if any(map(os.path.exists, paths)):
        sleep(OTHERS_S)
        _write(trace, paths)


if __name__ == "__main__":
    keep(sys.argv[1], int(sys.argv[2]))
