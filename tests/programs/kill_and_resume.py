"""Kill runs at random moments and resume them: python -m tests.programs.kill_and_resume TRIALS [SEED].

Each trial trains by another algorithm and with other settings. In the first job, one rank kills itself with
SIGKILL at a random moment. The second job resumes the run, trains once more without a break, and compares
the weights, the buffers and the losses bit for bit. On ranks, the program is started with the settings of one
job: mpiexec -n p python kill_and_resume.py FOLDER SETTINGS.
"""

# ruff: noqa: PLC0415 (imports inside functions: only ranks load MPI)

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MOMENTS = ("before_step", "after_backward", "after_average", "after_step", "writing")
EPOCHS, STEPS = 3, 8  # 1,438 digits in global batches of 180


def settings_of(trial: int, chance: random.Random, algorithms: list[str]) -> dict[str, Any]:
    """Return the settings of a trial; the trials go through all algorithms and optimisers."""
    moment = MOMENTS[trial % len(MOMENTS)]
    ranks = chance.choice([2, 3, 4, 5])
    return {
        "ranks": ranks,
        "algorithm": algorithms[trial % len(algorithms)],
        "momentum": (None, 0.0, 0.9, 0.9)[trial % 4],
        "decay": (0.0, 1e-3, 0.0, 1e-3)[trial % 4],
        "accumulate": chance.choice([1, 1, 2]),
        "buffers": chance.choice(["average", "broadcast", "leave"]),
        "shard": chance.choice(["strided", "shuffled", "shuffled", "by-label"]),
        "average_after_step": trial % 7 == 6,
        "buckets": trial % 7 != 6 and chance.random() < 0.5,
        "every": chance.choice([1, 2, 5]),
        "kill": [
            0 if moment == "writing" else chance.randrange(ranks),
            chance.randrange(6, EPOCHS * STEPS),
            moment,
        ],
    }


def on_ranks(folder: Path, settings: dict[str, Any]) -> None:
    """Begin or resume the run, and if it is not killed, compare it with one without a break."""
    import numpy as np
    from mpi4py import MPI

    import labkit.files
    from labkit.comm import ALGORITHMS, SharedSet
    from labkit.data import Augmentation
    from labkit.nn import SGD, lr_schedules
    from labkit.nn.image_layers import BatchNorm, Conv2D
    from labkit.nn.layers import Dense, Flatten
    from labkit.nn.model import Classifier
    from labkit.train import Batches, Buckets, Callback, Checkpoints, train

    comm = MPI.COMM_WORLD
    rank, step, moment = settings["kill"] or (-1, 0, "")

    def kill(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    class Killer(Callback):
        """Kill this rank at its moment."""

        def __init__(self) -> None:
            self.step = 0

        def at(self, here: str) -> None:
            if comm.rank == rank and self.step >= step:
                if here == moment:
                    kill()
                elif moment == "writing":
                    labkit.files.os.fsync = kill

        def before_step(self) -> None:
            self.at("before_step")

        def after_backward(self, *arguments: object) -> None:
            self.at("after_backward")

        def after_average(self, *arguments: object) -> None:
            self.at("after_average")

        def after_step(self, iteration: Any) -> None:
            self.step = iteration.number
            self.at("after_step")

    digits = SharedSet(comm, "digits", (1, 8, 8))
    batches = Batches.of(comm, digits, settings["shard"], 180, seed=2, augmentation=Augmentation(1))

    def run(checkpoints: Checkpoints | None) -> tuple[Any, list[Any]]:
        layers = [("conv", Conv2D(2, 3)), ("norm", BatchNorm()), ("flat", Flatten()), ("dense", Dense(10))]
        model = Classifier("small", layers, (1, 8, 8), 0, np.float32)
        optimizer = None
        if settings["momentum"] is not None:
            optimizer = SGD(model.params, settings["momentum"], settings["decay"])
        rows = train(
            comm,
            model,
            batches,
            epochs=EPOCHS,
            lr=lr_schedules.warm_up(3, lr_schedules.cosine(0.1, EPOCHS * STEPS)),
            optimizer=optimizer,
            algorithm=ALGORITHMS[settings["algorithm"]],
            buckets=Buckets(1000, 500) if settings.get("buckets") else None,
            accumulate=settings["accumulate"],
            buffers=settings["buffers"],
            average_after_step=settings["average_after_step"],
            checkpoints=checkpoints,
            callbacks=[Killer()] if checkpoints else [],
        )
        return model, rows

    file = folder / "checkpoint.npz"
    resume = comm.bcast(file.exists())
    model, rows = run(Checkpoints(file, every_steps=settings["every"], resume=resume))
    unbroken, expected = run(None)
    for name in "params", "buffers":
        np.testing.assert_array_equal(getattr(model, name), getattr(unbroken, name), name)
    losses = [
        [(row.local_loss, row.global_loss, row.local_accuracy) for row in each] for each in (rows, expected)
    ]
    assert losses[0] == losses[1], losses
    if comm.allreduce(1) == comm.size and comm.rank == 0:
        print("the same", "after resuming" if resume else "without resuming")


def main(trials: int, seed: int) -> None:
    """Run so many trials, and print a line for each."""
    from labkit.comm import ALGORITHMS
    from tests.conftest import run

    chance = random.Random(seed)
    for trial in range(trials):
        settings, began = settings_of(trial, chance, list(ALGORITHMS)), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="labkit-kill-") as folder:
            first = run(settings["ranks"], __file__, folder, json.dumps(settings))
            assert first.returncode, f"{settings}\n{first.stdout}"
            resumed = (Path(folder) / "checkpoint.npz").exists()
            second = run(settings["ranks"], __file__, folder, json.dumps({**settings, "kill": None}))
            assert second.returncode == 0 and "the same" in second.stdout, f"{settings}\n{second.stdout}"
        text = " ".join(f"{name}={value}" for name, value in settings.items())
        print(
            f"{trial + 1}: the same weights{'' if resumed else ' (killed before its first checkpoint)'}, ",
            end="",
        )
        print(f"{time.monotonic() - began:.0f} s: {text}", flush=True)


if __name__ == "__main__":
    if Path(sys.argv[1]).is_dir():
        on_ranks(Path(sys.argv[1]), json.loads(sys.argv[2]))
    else:
        main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)
