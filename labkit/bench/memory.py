"""The most memory that a training step ever holds, in a process of its own.

python -m labkit.bench.memory labkit vgg11 64
"""

from __future__ import annotations

import resource
import subprocess
import sys

STEPS = 3  # the first ones still allocate


def peak(side: str, name: str, batch: int) -> float:
    """Return the peak (MiB) of a fresh process that takes some steps; side is "labkit" or "pytorch".

    Call it before this process has grown: a child counts what its parent held when it was started.
    """
    command = [sys.executable, "-m", "labkit.bench.memory", side, name, str(batch)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main(side: str, name: str, batch: int) -> None:
    """Take the steps in this process, and print its peak (MiB)."""
    if side == "pytorch":
        from labkit.bench.peers import pytorch_step  # noqa: PLC0415

        step = pytorch_step(name, batch, threads=1)
    else:
        from labkit.bench.step import our_step  # noqa: PLC0415

        step = our_step(name, batch)
    for _ in range(STEPS):
        step()
    bytes_in = 1 if sys.platform == "darwin" else 1024  # the unit of ru_maxrss
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * bytes_in / 2**20)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
