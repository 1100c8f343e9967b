"""Run several programs, one after the other, as one strict job; stop at the first that does not end well.

python -m labkit.watch --strict several.py RESULTS PROGRAM…

Rank 0 appends a line of JSON to RESULTS when a program has ended: its path and what strict mode has found.
"""

from __future__ import annotations

import json
import runpy
import sys

from mpi4py import MPI

from labkit.watch.strict import ending, findings

watch = MPI.COMM_WORLD.watch
for path in sys.argv[2:]:
    watch.begin_cell()
    runpy.run_path(path, run_name="__main__")
    found, is_complete = ending.end_program()
    if not is_complete:
        break
    if MPI.COMM_WORLD.rank == 0:
        with open(sys.argv[1], "a") as file:
            print(json.dumps({"path": path, "findings": json.loads(findings.to_json(found))}), file=file)
