"""Print the median times of connect(), of an empty cell and of an exchange: the cost of what a cell does.

Run `.venv/bin/python tools/time_cells.py [rounds]` in the folders of two versions, and compare.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.cluster_fixtures import Kernel, World

CELLS = {
    "empty cell": "%%px\npass",
    "exchange": (
        "%%px\nfor _ in range(1000):\n    comm.sendrecv(0, (rank + 1) % size, source=(rank - 1) % size)"
    ),
}


def seconds(kernel: Kernel, cell: str) -> float:
    """Return how long a cell takes."""
    began = perf_counter()
    kernel.run(cell)
    return perf_counter() - began


def main() -> None:
    """Start as many clusters as asked for, one after the other, and run each cell 40 times in each."""
    times: dict[str, list[float]] = {"connect()": [], **{name: [] for name in CELLS}}
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder) / "ipython")
            kernel = Kernel(world)
            kernel.run("from labkit.cluster import connect")
            times["connect()"].append(seconds(kernel, "rc = connect(4)"))
            for name, cell in CELLS.items():
                times[name] += [seconds(kernel, cell) for _ in range(40)]
            kernel.end()
            world.kill()
    for name, measured in times.items():
        print(f"{name:12} {1000 * median(measured):9.2f} ms (median of {len(measured)})")


if __name__ == "__main__":
    main()
