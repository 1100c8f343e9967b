"""The files of a run: the model, what each rank measured, and the settings and versions that produced it.

Each file is written atomically (`labkit.files.atomic_write`): it is complete or absent, whenever the run is
killed.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np
from mpi4py import MPI

import labkit
from labkit.files import atomic_write, locked, remove_unfinished
from labkit.nn import MODELS, Model, load_model
from labkit.train.callbacks import TRACED
from labkit.train.columns import COLUMNS, PARTS, TIMES
from labkit.train.steps import Epoch, Step
from mpiwatch.launch import ONE_THREAD, node_name
from mpiwatch.processes import cores
from mpiwatch.trace import chrome_content, chrome_span

# The columns of iterations.csv, as fields of a table.
ROW = np.dtype([(column.name, column.kind) for column in COLUMNS])


BLAS_THREADS = (*ONE_THREAD, "VECLIB_MAXIMUM_THREADS")


@contextmanager
def prepare(directory: Path) -> Iterator[None]:
    """Make a directory to write a run to, and keep other runs out of it inside the block.

    Remove the unfinished files of a killed run. Raise OSError if the directory cannot be made or written to,
    or if another run is using it. Call this on one rank, before a long run and not after it.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with locked(directory / ".lock"):
        remove_unfinished(directory)
        yield


def record(comm: MPI.Intracomm, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, number of ranks, each rank's host and cores, versions and time (UTC) of this run.

    `blas_threads` has each rank's environment variables that limit the threads of NumPy's BLAS; if there is
    none, BLAS chooses. Collective; every rank gets the same.
    """
    threads = {name: os.environ[name] for name in BLAS_THREADS if name in os.environ}
    hosts, cores_of_ranks, threads_of_ranks = zip(
        *comm.allgather((node_name(MPI.Get_processor_name()), cores(), threads)), strict=True
    )
    return comm.bcast(
        {
            "settings": dict(settings),
            "ranks": comm.size,
            "hosts": list(hosts),
            "cores": list(cores_of_ranks),
            "blas_threads": list(threads_of_ranks),
            "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "versions": {
                "labkit": labkit.__version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
                "mpi4py": mpi4py.__version__,
                "mpi_library": " ".join(MPI.Get_library_version().rstrip("\0").splitlines()[0].split()),
                "mpi_standard": ".".join(map(str, MPI.Get_version())),
                "system": platform.platform(),
            },
            "times": TIMES,
        }
    )


def save_measurements(
    directory: Path, model: Model, rows: Sequence[Epoch], steps: Sequence[Step], run: Mapping[str, Any]
) -> None:
    """Write what all ranks measured to an existing directory: run.json, iterations.csv and trace.json.

    Call this, and what else saves, on one rank. See `save_record`, `iterations` and `save_trace`.
    """
    save_record(directory, model, rows, run)
    table, names = iterations(steps, run["ranks"]).ravel(), ROW.names or ()
    formats = ["%d" if ROW[name].kind == "i" else "%.9g" for name in names]
    with atomic_write(directory / "iterations.csv") as out:
        np.savetxt(out, table, formats, ",", header=",".join(names), comments="")
    save_trace(directory / "trace.json", steps, run)


def save_record(directory: Path, model: Model, rows: Sequence[Epoch], run: Mapping[str, Any]) -> None:
    """Write run.json: `run`, how to make the model, and what each rank measured in each epoch.

    Numbers that JSON does not have (NaN, infinity) are null.
    """
    about_model = {"name": model.name, "shape": list(model.input_shape), "outputs": model.outputs}
    content = json.dumps({**run, "model": about_model, "epochs": [asdict(row) for row in rows]})
    strict = json.loads(content, parse_constant=lambda word: None)
    with atomic_write(directory / "run.json") as out:
        out.write(json.dumps(strict, indent=2, allow_nan=False).encode() + b"\n")


def iterations(steps: Sequence[Step], ranks: int) -> np.ndarray:
    """Return the loss and the times (s) of the steps of all ranks, from `Timeline.gather`.

    The time of an iteration runs from its begin to the begin of the next one, so that the times add up to
    that of the run; the last one ends with itself. In it, a rank computes (forward and backward pass, and the
    update), waits for the last rank, and communicates where that is not hidden behind computation (exposed
    communication). The rest is what callbacks do, and the end of an epoch.

    Shape: (p, iterations), with the fields of ROW.
    """
    rows = [tuple(column.of(step) for column in COLUMNS) for step in steps]
    table = np.array(rows, ROW).reshape(-1, ranks).T
    begins = np.array([step.begin for step in steps]).reshape(-1, ranks).T
    table["time_s"][:, :-1] = np.diff(begins)
    return table


def save_trace(path: Path, steps: Sequence[Step], about: Mapping[str, Any]) -> None:
    """Write the steps of all ranks (`Timeline.gather`) as a trace that Perfetto opens (ui.perfetto.dev).

    The file has the Trace Event Format: the first TRACED steps, with a row for each rank and one for its
    buckets, and `about` as metadata. Times are in µs. Call this on one rank.
    """
    rows = {2 * step.rank + 1: f"rank {step.rank}" for step in steps}  # some viewers hide thread 0
    rows |= {2 * step.rank + 2: f"rank {step.rank}, buckets" for step in steps if step.transfers}
    events: list[dict[str, Any]] = []
    last: dict[int, float] = {}
    for step in (step for step in steps if step.number <= TRACED):
        row, details = 2 * step.rank + 1, {"epoch": step.epoch, "step": step.number}
        for name, begin, end in [("idle", last.get(step.rank, 0.0), step.begin), *step.spans()]:
            events.append(chrome_span(row, name, name, begin, end, details))
        for transfer in step.transfers:
            name = f"bucket {transfer.bucket + 1}"
            events.append(chrome_span(row + 1, name, "bucket", transfer.begin, transfer.end, details))
        last[step.rank] = step.done
    with atomic_write(path) as out:
        out.write(chrome_content("labkit train", rows, events, about).encode())


def load_iterations(path: Path) -> np.ndarray:
    """Return the table of iterations.csv, whose columns may have any order; others are left out.

    Raise OSError if there is no such file, ValueError if it is damaged or a column is missing.
    """
    names = ROW.names or ()
    content = np.atleast_1d(np.genfromtxt(path, delimiter=",", names=True, encoding="utf-8"))
    missing = [name for name in names if name not in (content.dtype.names or ())]
    if missing:
        expected, lost = ", ".join(names), ", ".join(missing)
        raise ValueError(f"{path}: expected the columns {expected}, and {lost} is missing")
    table = np.empty(content.size, ROW)
    for name in names:
        table[name] = content[name]
    return table.reshape(table["rank"].max() + 1, -1)


def without_first(table: np.ndarray) -> np.ndarray:
    """Return the iterations after the first, in which memory is allocated and connections are made."""
    return table[:, 1:] if table.shape[1] > 1 else table


def fractions(table: np.ndarray) -> dict[str, np.ndarray]:
    """Return each rank's fraction of time for each of PARTS and the rest, without the first iteration.

    Shapes: table (p, iterations); results (p,), which add up to 1.
    """
    later = without_first(table)
    whole = later["time_s"].sum(axis=1)
    by_part = {part: later[column].sum(axis=1) / whole for part, column in PARTS.items()}
    return {**by_part, "rest": 1 - sum(by_part.values())}


def load_run(directory: str | Path) -> Model:
    """Return the trained model of the run in this directory.

    Raise ValueError if the directory holds no complete run, or one of another version of the models.
    """
    directory = Path(directory)
    try:
        about_model = json.loads((directory / "run.json").read_text())["model"]
        size = tuple(about_model["shape"]) if len(about_model["shape"]) > 1 else about_model["shape"][0]
        model = MODELS[about_model["name"]](size, about_model["outputs"])
        load_model(model, directory / "model.npz")
    except FileNotFoundError as error:
        raise ValueError(f"{directory} holds no complete run: there is no {error.filename}") from None
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{directory / 'run.json'} describes no model: {error}") from None
    return model
