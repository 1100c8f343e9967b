"""Start an engine as a child process, and record how it ends.

    mpiexec -n 4 python -m labkit.cluster.engine.exit_recorder --mpi …

When one rank dies, MPI ends all of them within milliseconds, and mpiexec does not tell which died first
(MPICH names the first process of the world in any case). Only the parent of a rank gets its exit status.
mpiexec learns of the death when this parent ends in turn, that is after the record is written.
"""

from __future__ import annotations

import os
import signal
import sys

from labkit.hosts.namespaces import TOKEN
from labkit.leftovers import files_of_this_cluster
from mpiwatch.processes import die_with_parent, die_with_proxy

FORWARDED = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2


def main() -> None:
    """Run an engine; append a line with its pid and exit code to the cluster's file of exits."""
    recorder = os.getpid()
    die_with_proxy()
    child = os.fork()
    if child == 0:
        die_with_parent(signal.SIGKILL, recorder)
        from labkit.cluster.engine import main as engine  # noqa: PLC0415  (the recorder itself stays small)

        engine.main()
        sys.exit()

    for signum in FORWARDED:
        signal.signal(signum, lambda received, frame: os.kill(child, received))
    _, status = os.waitpid(child, 0)
    for signum in FORWARDED:  # the child's pid may be another process's by now
        signal.signal(signum, signal.SIG_IGN)
    code = os.waitstatus_to_exitcode(status)
    # One write per line, so that the lines of several ranks do not mix.
    file = os.open(files_of_this_cluster()["exits"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{child} {code}\n".encode())
    os.close(file)
    if TOKEN in os.environ or "SLURM_JOB_ID" in os.environ:
        # Between several hosts MPICH reports a rank that a signal killed, but not one with an exit code.
        os.kill(recorder, signal.SIGKILL)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
