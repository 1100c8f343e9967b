"""The files of a run: the model, what each rank measured, and the settings and versions that produced it.

Each file is written atomically (`labkit.files.atomic_write`): it is complete or absent, whenever the run is
killed.
"""

from __future__ import annotations

import csv
import io
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

import labkit
from labkit.files import UNFINISHED, atomic_write
from labkit.nn import Model, save_model
from labkit.train.callbacks import Epoch


def prepare(directory: Path) -> None:
    """Make a directory to write a run to, and remove the unfinished files of a killed run.

    Raise OSError if the directory cannot be made or written to. Call this before a long run, not after it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for part in directory.glob(f".*{UNFINISHED}"):
        part.unlink()
    probe = directory / f".probe{UNFINISHED}"
    probe.touch()
    probe.unlink()


def record(comm: MPI.Intracomm, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, number of ranks, each rank's host, versions and time (UTC) of this run.

    Collective; every rank gets the same.
    """
    return comm.bcast(
        {
            "settings": dict(settings),
            "ranks": comm.size,
            "hosts": comm.allgather(MPI.Get_processor_name()),
            "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "versions": {
                "labkit": labkit.__version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
                "mpi4py": mpi4py.__version__,
                "mpi_library": _mpi_library(),
                "mpi_standard": ".".join(map(str, MPI.Get_version())),
            },
        }
    )


def save(directory: Path, model: Model, rows: Sequence[Epoch], run: Mapping[str, Any]) -> None:
    """Write a run to an existing directory; call this on one rank, with the rows of all ranks (`gather`).

    - model.npz: parameters and buffers, for `labkit.nn.load_model`.
    - weights.txt (I, O) and bias.txt (O,), as in report A, if the model's parameters are W and b: text that
      np.loadtxt reads back to the same float32.
    - sync_times.csv: rank, epoch, wait_s, transfer_s.
    - contributions.csv, if they were measured: rank, epoch, parameter, contribution, gradient_mean.
    - run.json: `run` and the losses. It is written last, so where it is, the other files are complete.
    """
    with atomic_write(directory / "model.npz") as out:
        save_model(model, out)
    parameters = model.named_parameters()
    if parameters.keys() == {"W", "b"}:
        for file, name in ("weights.txt", "W"), ("bias.txt", "b"):
            with atomic_write(directory / file) as out:
                np.savetxt(out, parameters[name], fmt="%.9g")  # nine digits tell any two float32 apart
    times = ((row.rank, row.epoch, row.wait_s, row.transfer_s) for row in rows)
    _write_csv(directory / "sync_times.csv", ("rank", "epoch", "wait_s", "transfer_s"), times)
    parts = [
        (row.rank, row.epoch, name, row.contribution[name], row.gradient_mean[name])
        for row in rows
        for name in row.contribution
    ]
    if parts:
        head = "rank", "epoch", "parameter", "contribution", "gradient_mean"
        _write_csv(directory / "contributions.csv", head, parts)
    with atomic_write(directory / "run.json") as out:
        losses = [{k: asdict(row)[k] for k in ("rank", "epoch", "local_loss", "global_loss")} for row in rows]
        out.write(json.dumps({**run, "losses": losses}, indent=2).encode() + b"\n")


def _mpi_library() -> str:
    """Return the MPI library's name and version, in one line."""
    return " ".join(MPI.Get_library_version().rstrip("\0").splitlines()[0].split())


def _write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    with atomic_write(path) as out:
        out.write(text.getvalue().encode())
