"""No room of labkit reaches up: each imports only itself and the rooms below it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import labkit

# From the bottom to the top.
ROOMS = [
    "nn",
    "data",
    "schedules",
    "hosts",
    "comm",
    "train",
    "watch",
    "cluster",
    "doctor",
    "bench",
    "plots",
    "cli",
]


def imported(file: Path) -> set[str]:
    """Return the first two names of every labkit module that the file imports, at the top or inside."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            modules.add(node.module)
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


def test_no_room_reaches_up() -> None:
    top = Path(labkit.__file__).parent
    for height, room in enumerate(ROOMS):
        files = list((top / room).glob("**/*.py"))
        assert files, room
        for file in files:
            for module in imported(file):
                if module.startswith("labkit.") and (below := module.split(".")[1]) in ROOMS:
                    assert ROOMS.index(below) <= height, f"{file} imports {module}"
                if room in ("nn", "data", "schedules", "watch/flight_recorder"):
                    assert not module.startswith("mpi4py"), f"{file} imports {module}"


def test_a_notebooks_kernel_is_no_mpi_process() -> None:
    """Under Open MPI one that is started by itself leaves its memory in /dev/shm."""
    program = "import sys; import labkit.cluster.connection, labkit.plots; print('mpi4py.MPI' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
