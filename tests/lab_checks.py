"""Run checks of the lab on the ranks of one job, as mpiwatch's run_checks.py does."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = Path(__file__)

if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "mpiwatch/tests")]  # checks import from `tests`

    from run_checks import main

    main()
