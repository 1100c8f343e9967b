"""Run an mpi4py program with its ranks watched: mpiwatch -n 4 program.py.

With another launcher, each rank runs this module: mpiexec -n 4 python -m mpiwatch program.py.
"""

from __future__ import annotations

from typing import Any

from mpiwatch import program


def load_strict_mode() -> Any:
    """Return the module that begins and ends strict mode. It loads MPI."""
    from mpiwatch.strict import ending  # noqa: PLC0415

    return ending


def main() -> None:
    """Run the command line of `mpiwatch` and `python -m mpiwatch`."""
    program.main(load_strict_mode)


if __name__ == "__main__":
    main()
