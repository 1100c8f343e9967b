"""The first program of a job on ranks in a sandbox: import what ranks need, once, then fork the ranks.

    python -m labkit.checks.sandboxed_ranks RANKS MODULE ARGUMENT …

Each rank then runs the module as `python -m MODULE ARGUMENT …` does. Outside a sandbox, a process that all
checks share forks the ranks (`forked.py`). It sees files that a submission must not see, so a sandbox has a
process of its own for that. It knows nothing that a submission may not know: a submission that ends it, ends
only its own job.
"""

from __future__ import annotations

import importlib
import runpy
import sys

import mpi4py

from labkit.forked_ranks import fork_ranks

IMPORTED = (  # by ranks: modules that labkit/checks/job_modules.py copies for every job
    *("labkit.checks.job", "labkit.checks.recording"),
    *("mpiwatch.communicators", "mpiwatch.program", "mpiwatch.strict"),
)


def main(words: list[str]) -> None:
    """Fork the ranks, and run the module in each of them."""
    number, *words = words
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # a rank initialises MPI itself
    for module in IMPORTED:
        importlib.import_module(module)
    fork_ranks(int(number))
    sys.argv[:] = words
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    main(sys.argv[1:])
