"""Run every check on the ranks of mpiexec -n p python run_checks.py REPORT [NAME].

A check is a function check_…(comm) in checks/; a NAME says which one, if not all. Rank 0 appends the name of
each one to REPORT that all ranks passed. A rank that fails tells why and aborts the job: the others may be
waiting for it.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path

from mpi4py import MPI


def main() -> None:
    """Run the checks, file by file, in the order they stand in."""
    comm = MPI.COMM_WORLD
    with open(sys.argv[1], "a") as report:
        for file in sorted(Path(__file__).parent.glob("*/checks/*.py")):
            spec = importlib.util.spec_from_file_location(file.stem, file)
            assert spec and spec.loader
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            for name, check in list(vars(module).items()):
                if name.startswith("check_") and sys.argv[2:] in ([], [name]):
                    try:
                        check(comm.Dup())  # its own: no message of one check can reach another
                    except BaseException:
                        sys.stdout.write(
                            f"{name} failed on rank {comm.rank} of {comm.size}\n{traceback.format_exc()}"
                        )
                        sys.stdout.flush()
                        comm.Abort(1)
                    comm.Barrier()
                    if comm.rank == 0:
                        print(f"{file.stem}:{name}", file=report, flush=True)


main()
