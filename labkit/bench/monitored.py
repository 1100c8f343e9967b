"""Count the bytes that the MPI library itself sends in a collective, by Open MPI's monitoring component.

Open MPI counts below its own collectives if it is configured to before it starts, and writes the counts when
it ends, so the call runs on ranks of its own. Other MPI libraries do not report these counts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from labkit import env
from labkit.children import run_child
from labkit.comm import Traffic

ALLREDUCE = "comm.Allreduce(MPI.IN_PLACE, np.ones({n}, np.float32))"

DEADLINE_S = 120.0  # the ranks take a second
_PROGRAM = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
{call}
print(MPI.get_vendor()[0])
"""


def monitored(call: str, p: int) -> Traffic:
    """Return the traffic of a call: Python code that may use `comm`, `MPI` and `np`, run on p ranks.

    For example `monitored(ALLREDUCE.format(n=64), p=8)`; takes about a second. Raise RuntimeError if the MPI
    library is not Open MPI; raise its subclass ChildError if the ranks fail or do not end.
    """
    with TemporaryDirectory(prefix="labkit-") as folder:
        settings = {
            "pml_monitoring_enable": "2",  # count the library's own messages separately
            "pml_monitoring_enable_output": "3",  # into files
            "pml_monitoring_filename": str(Path(folder, "rank")),
        }
        environment = env.settings() | {f"OMPI_MCA_{name}": value for name, value in settings.items()}
        command = [env.mpiexec(), "-n", str(p), sys.executable, "-c", _PROGRAM.format(call=call)]
        done = run_child(command, deadline_s=DEADLINE_S, environment={**os.environ, **environment})
        files = sorted(Path(folder).glob("rank.*.prof"))
        if len(files) != p:
            raise RuntimeError(
                f"expected the counts of {p} ranks from Open MPI's monitoring, got those of {len(files)}: "
                f"the MPI library in use is {done.stdout.splitlines()[0]}"
            )
        return _read("\n".join(file.read_text() for file in files), call, p)


def _read(text: str, call: str, p: int) -> Traffic:
    """Parse the counts: for each pair of ranks, a line `I source dest BYTES bytes NUMBER msgs sent …`."""
    messages, sent = np.zeros((2, p, p), np.int64)
    for line in text.splitlines():
        where, *words = line.split() or [""]
        if where in ("I", "E"):  # I: in collectives, E: outside them
            source, dest, size, _, number = words[:5]
            messages[int(source), int(dest)] += int(number)
            sent[int(source), int(dest)] += int(size)
    return Traffic(call, 1, messages, sent)
