"""The batch script of the engines' job."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from labkit.cluster.slurm.settings import Settings


def batch_script(settings: Settings, n: int, program: Sequence[str], mpiexec: str, log: str) -> str:
    """Return a batch script that starts n ranks of a program as one MPI world.

    `mpiexec`: path of this environment's mpiexec. `log`: path of the job's output file.
    """
    options = [
        "--job-name=allreduce-lab",
        f"--ntasks={n}",
        f"--output={log}",
        "--export=ALL",
        "--no-requeue",  # the notebook starts new engines itself
        *(f"--{name}={value}" for name in ("partition", "account", "time", "nodes")
          if (value := getattr(settings, name))),
        *shlex.split(settings.options),
    ]  # fmt: skip
    lines = [
        "#!/bin/sh",
        *(f"#SBATCH {shlex.quote(option)}" for option in options),
        f"exec {shlex.join([*launcher(settings, mpiexec), '-n', str(n), *program])}",
    ]
    return "\n".join(lines) + "\n"


def launcher(settings: Settings, mpiexec: str) -> list[str]:
    """Return the first words of the command that starts ranks inside the job."""
    first, *options = shlex.split(settings.launcher)
    if first == "mpiexec":
        return [mpiexec, *options]
    if first == "srun":
        # Without this option, the other ranks wait forever for a rank that has died.
        return [first, "--kill-on-bad-exit=1", *options]
    return [first, *options]
