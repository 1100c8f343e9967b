"""The recording of a program: each rank writes its log beside the trace, which one process makes of them."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from time import monotonic, sleep

from mpiwatch.output import destination, write_whole
from mpiwatch.processes import print_error
from mpiwatch.trace import Trace, chrome_trace, merge
from mpiwatch.trace_log import end_log, read_file

# A file's name has 255 bytes at most; that of a log is a little longer than the trace's.
MOST_NAME_BYTES, NAME_CHARACTERS = 230, 40

OTHERS_S = 0.1  # in which the other ranks of a job that was killed end, too
ASK, DONE = b"\n", b"\0"  # what is said to the keeper, and what it says last
ANSWER_S = 60.0  # for the keeper to write a trace; it goes on after that
ANSWER_BYTES = 1 << 16
# sh gives a command in the background /dev/null to read from, also with `<&0`.
IN_BACKGROUND = 'exec 3<&0; "$@" <&3 3<&- &'


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


class Keeper:
    """The process that writes a program's trace, when this one asks for it or has been killed.

    If a rank dies or calls `Abort`, the launcher kills all processes of the job at once; Open MPI's also does
    so if a rank ends with another exit code than 0. The keeper is in a session of its own and no child of
    this process, so it is not killed with them. It alone writes the trace and removes the logs: a process of
    the job might be killed halfway.
    """

    def __init__(self, trace: str, size: int) -> None:
        """Start the process. Raise OSError if that is not possible."""
        self.trace = trace
        words = [sys.executable, "-P", "-m", "mpiwatch.trace_files", trace, str(size)]
        asked, self._ask = os.pipe()
        self._answer, answered = os.pipe()
        try:
            subprocess.run(
                ["sh", "-c", IN_BACKGROUND, "sh", *words],
                stdin=asked,
                stdout=subprocess.DEVNULL,
                stderr=answered,
                start_new_session=True,
                check=False,
            )
        finally:
            os.close(asked)
            os.close(answered)

    def write(self) -> bool:
        """Have the trace written now, and print what is missing in it; return False if there is no keeper."""
        with contextlib.suppress(OSError):  # it has ended: then there is no answer
            os.write(self._ask, ASK)
        answer, deadline = b"", monotonic() + ANSWER_S
        while not answer.endswith(DONE):
            ready, _, _ = select.select([self._answer], [], [], max(0.0, deadline - monotonic()))
            if not ready:
                print_error(f"mpiwatch: {self.trace} is still being written.\n")
                return True
            part = os.read(self._answer, ANSWER_BYTES)
            if not part:
                return False
            answer += part
        text = answer.removesuffix(DONE).decode(errors="replace")
        if text:
            print_error(text)
        return True


def start_keeper(trace: str, size: int) -> Keeper | None:
    """Start the process that writes a trace; return None if this process has to do it."""
    if destination(Path(trace)) is None:  # a device, or an open file of this process
        return None
    try:
        return Keeper(trace, size)
    except OSError:
        return None


def keep(trace: str, size: int) -> None:
    """Wait until the process that has started this one asks for the trace, or ends; then write the trace."""
    is_asked = os.read(sys.stdin.fileno(), len(ASK)) == ASK
    if not is_asked:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  (nobody reads what this one says)
    # Under other names: the program may be run again at once.
    paths = [f"{log_file(trace, rank)}.{os.getpid()}" for rank in range(size)]
    for rank, path in enumerate(paths):
        with contextlib.suppress(OSError):
            os.rename(log_file(trace, rank), path)
    if is_asked or any(map(os.path.exists, paths)):
        if not is_asked:
            sleep(OTHERS_S)
        _write(trace, paths)
    if is_asked:
        os.write(sys.stderr.fileno(), DONE)


if __name__ == "__main__":
    keep(sys.argv[1], int(sys.argv[2]))
