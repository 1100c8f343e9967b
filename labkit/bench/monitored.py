"""What the MPI library itself sends in a collective, where the library counts it: Open MPI's monitoring.

Open MPI counts below its own collectives if told so before it starts, and writes its counts down when it
ends. So the call runs on ranks of its own. For other MPI libraries it stays unknown.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from labkit import env
from labkit.comm import Traffic
from labkit.doctor.trials import Trial

ALLREDUCE = "comm.Allreduce(MPI.IN_PLACE, np.ones({n}, np.float32))"

_PROGRAM = """
import numpy as np
from mpi4py import MPI
comm = MPI.COMM_WORLD
{call}
print(MPI.get_vendor()[0])
"""


def monitored(call: str, p: int) -> Traffic:
    """Return what the library sends in a call, Python that has `comm`, `MPI` and `np`, on p ranks.

    For example `monitored(ALLREDUCE.format(n=64), p=8)`; takes about a second. RuntimeError if the MPI
    library in use is not Open MPI, or if the ranks fail.
    """
    with TemporaryDirectory(prefix="labkit-") as folder:
        settings = {
            "pml_monitoring_enable": "2",  # the library's own messages apart from the program's
            "pml_monitoring_enable_output": "3",  # into files
            "pml_monitoring_filename": str(Path(folder, "rank")),
        }
        environment = env.settings() | {f"OMPI_MCA_{name}": value for name, value in settings.items()}
        command = [env.mpiexec(), "-n", str(p), sys.executable, "-c", _PROGRAM.format(call=call)]
        outcome = Trial(command, {**os.environ, **environment}).finish()
        if outcome.code != 0:
            raise RuntimeError(f"the monitored ranks: {outcome.end()}")
        files = sorted(Path(folder).glob("rank.*.prof"))
        if len(files) != p:
            raise RuntimeError(
                f"expected the counts of {p} ranks from Open MPI's monitoring, got those of {len(files)}: "
                f"the MPI library in use is {outcome.said.split(chr(10))[0]}"
            )
        return _read("\n".join(file.read_text() for file in files), call, p)


def _read(text: str, call: str, p: int) -> Traffic:
    """Read what monitoring wrote: for each pair of ranks `I source dest BYTES bytes NUMBER msgs sent …`."""
    messages, sent = np.zeros((2, p, p), np.int64)
    for line in text.splitlines():
        kind, *words = line.split() or [""]
        if kind in ("I", "E"):  # in collectives, and outside
            source, dest, size, _, number = words[:5]
            messages[int(source), int(dest)] += int(number)
            sent[int(source), int(dest)] += int(size)
    return Traffic(call, 1, messages, sent)
