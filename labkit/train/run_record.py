"""What is kept of a run: the weights, what each rank measured, and the record of how it was made."""

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
from labkit.nn import Model
from labkit.train.files import atomic_write
from labkit.train.loop import Epoch


def record(comm: MPI.Intracomm, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return how this run is made: settings, number of ranks, host of each rank, versions, the time (UTC).

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
    """Write a run to an existing directory; call it on one rank, with the rows of all (`gather`).

    weights.txt (I, O) and bias.txt (O,): text that reads back (np.loadtxt) to the same float32.
    sync_times.csv: rank, epoch, wait_s, transfer_s. contributions.csv: rank, epoch, parameter, contribution
    and the mean gradient. run.json: `run` and the losses; written last, so where it is, all of them are.
    """
    parameters = model.named_parameters()
    for file, name in ("weights.txt", "W"), ("bias.txt", "b"):
        with atomic_write(directory / file) as out:
            np.savetxt(out, parameters[name], fmt="%.9g")  # nine digits tell any two float32 apart
    times = ((row.rank, row.epoch, row.wait_s, row.transfer_s) for row in rows)
    _write_csv(directory / "sync_times.csv", ("rank", "epoch", "wait_s", "transfer_s"), times)
    parts = (
        (row.rank, row.epoch, name, row.contribution[name], row.gradient_mean[name])
        for row in rows
        for name in parameters
    )
    head = "rank", "epoch", "parameter", "contribution", "gradient_mean"
    _write_csv(directory / "contributions.csv", head, parts)
    with atomic_write(directory / "run.json") as out:
        losses = [{k: asdict(row)[k] for k in ("rank", "epoch", "local_loss", "global_loss")} for row in rows]
        out.write(json.dumps({**run, "losses": losses}, indent=2).encode() + b"\n")


def _mpi_library() -> str:
    """Return the MPI library's name and version: the first line of a long text, and its spaces made one."""
    return " ".join(MPI.Get_library_version().rstrip("\0").splitlines()[0].split())


def _write_csv(path: Path, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(rows)
    with atomic_write(path) as out:
        out.write(text.getvalue().encode())
