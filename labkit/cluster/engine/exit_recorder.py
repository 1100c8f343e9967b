"""Start an engine and stay behind as its parent: the witness of how it ends.

    mpiexec -n 4 python -m labkit.cluster.engine.exit_recorder --mpi …

When one rank dies, MPI ends all of them within milliseconds, and mpiexec does not tell which was first (MPICH
names the first process of the world, whichever died). The parent of a rank knows: it alone gets the exit
status, and mpiexec learns of the death from the parent's own end, thus after the line below is written.
"""

from __future__ import annotations

import os
import signal
import sys

from labkit.hosts.namespaces import TOKEN
from labkit.leftovers import files_of_this_cluster
from labkit.processes import die_with_parent


def main() -> None:
    witness = os.getpid()
    child = os.fork()
    if child == 0:
        die_with_parent(signal.SIGKILL, witness)
        from labkit.cluster.engine import main as engine  # noqa: PLC0415  (the witness itself stays small)

        engine.main()
        sys.exit()

    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, lambda received, frame: os.kill(child, received))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    # One write of one line: lines of several ranks do not mix.
    record = os.open(files_of_this_cluster()["exits"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(record, f"{child} {code}\n".encode())
    os.close(record)
    if TOKEN in os.environ:
        # Of an exit code on one of several hosts MPICH tells the others nothing; of a signal it does.
        os.kill(witness, signal.SIGKILL)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
