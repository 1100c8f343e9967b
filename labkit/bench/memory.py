"""Print the peak memory of a training step in this process (see `labkit.bench.step.peak`).

python -m labkit.bench.memory labkit vgg11 64
"""

from __future__ import annotations

import resource
import sys

from labkit.units import MIB

STEPS = 3  # the first steps still allocate


def main(side: str, name: str, batch: int) -> None:
    """Take the steps in this process, and print its peak memory (MiB)."""
    if side == "pytorch":
        from labkit.bench.pytorch import pytorch_step  # noqa: PLC0415

        step = pytorch_step(name, batch, threads=1)
    else:
        from labkit.bench.step import labkit_step  # noqa: PLC0415

        step = labkit_step(name, batch)
    for _ in range(STEPS):
        step()
    unit = 1 if sys.platform == "darwin" else 1024  # bytes, of ru_maxrss
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / MIB)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
