"""Run an mpi4py program with its ranks watched: mpiexec -n 4 python -m mpiwatch program.py."""

from __future__ import annotations

from typing import Any

from mpiwatch.program import main


def load_strict_mode() -> Any:
    """Return the module that begins and ends strict mode. It loads MPI."""
    from mpiwatch.strict import ending  # noqa: PLC0415

    return ending


if __name__ == "__main__":
    main(load_strict_mode)
