"""Checkpoints: a killed run goes on to the weights that it would have had without the break.

The file holds arrays by name in NumPy's .npz format, whose checksums tell whether it is damaged, and a
description in JSON. It is written atomically: whatever happens, there is a whole checkpoint, the new one or
the one before.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm import CollectiveError, all_or_none, sleeping_barrier
from labkit.files import atomic_write, check_input
from labkit.nn import Model
from labkit.nn.store import read_arrays
from labkit.text import ranks_phrase
from labkit.train.callbacks import Callback
from labkit.train.overlap import StepAveraging
from labkit.train.steps import Epoch
from labkit.train.stored import check_fields, check_type, shortened

FORMAT = "labkit checkpoint 7"
Handler = Callable[[int, "FrameType | None"], Any] | int | None


@dataclass(frozen=True)
class Checkpoints:
    """Write checkpoints to a file during a run, and resume a run from it: give it to `train`.

    Write one after every `every_steps` steps (0: never), on SIGUSR1, and on SIGTERM, which then ends the
    run with a CollectiveError on every rank. The ranks agree on signals once per step, with an allreduce of
    one integer. The previous content of `file` stays until the new one is whole. Only rank 0 writes and reads
    it. If writing fails, for example because the disk is full, rank 0 says so and the run goes on: it has
    lost nothing yet. A run whose weights are no longer finite keeps its last checkpoint.

    With `resume`, the run goes on from the checkpoint in `file`. On the same number of ranks it ends with
    the same weights, bit for bit, as a run without a break; for that, "weighted" shards need the same speeds,
    and the algorithm "auto" the same choice: the same machines and buckets. On another number of ranks it
    ends with the same weights up to rounding, if the sharding scheme is "strided", "shuffled" or "weighted"
    or each epoch is one step.
    With compression, other ranks compress otherwise: they take over what was not sent, in equal parts.
    Anything else is refused, and so are the checkpoints of other models, data or settings, and damaged
    ones. `settings` (anything that JSON can hold) are stored, too. Callbacks go on with their `state`, on the
    same number of ranks; `Contributions` has none, so it covers only the resumed part of an epoch.
    """

    file: Path
    every_steps: int = 0
    resume: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False)  # may differ between ranks


# What a resumed run may change, of the settings that are the same on all ranks.
MAY_CHANGE = "epochs", "lr", "check_weights", "checkpoints", "buckets", "shard_state"


class Saving:
    """The checkpoints of one run on one rank: enter it before the run, which goes on from `rows`.

    The last of `rows` is the record of the epoch in which the run goes on. A checkpoint holds arrays that a
    resumed run overwrites in place: the whole parameters and optimiser state, also of a sharded run, and what
    each rank has of its own, which has `held` samples. A checkpoint of a run with another `run_description`
    is refused, and one of other ranks unless the batches are for any ranks.

    A signal reaches the ranks at different moments, and perhaps only one of them. If each acted by itself,
    they would write the states of different steps. So a rank only takes note of it, and all ranks agree after
    each step. A second SIGTERM does what it did before, so it ends a rank that is stuck.
    """

    def __init__(  # noqa: PLR0917
        self,
        comm: MPI.Intracomm,
        checkpoints: Checkpoints,
        model: Model,
        averaging: StepAveraging,
        callbacks: Sequence[Callback],
        run_description: Mapping[str, Any],
        held: int,
        any_ranks: bool,
    ) -> None:
        self._averaging = averaging
        self._all_equal = not run_description["average_after_step"]
        self._comm = comm
        self._checkpoints = checkpoints
        self._buffers = run_description["buffers"]
        self._held = held
        self._any_ranks = any_ranks
        self._callbacks = {type(callback).__name__: callback for callback in callbacks}
        self._last = "there is none yet"
        self._received = np.zeros(2, np.int32)  # SIGUSR1, SIGTERM
        self._handlers: dict[int, Handler] = {}  # the handlers before the run
        self.rows = [Epoch(1, comm.rank)]
        self._about = {
            **{name: value for name, value in run_description.items() if name not in MAY_CHANGE},
            "parameters": {name: list(shape) for name, shape in model.shapes.items()},
            "dtype": str(model.params.dtype),
        }
        self._rank_state = {"buffers": model.buffers} if model.buffers.size else {}
        if averaging.residual is not None:
            self._rank_state["residual"] = averaging.residual
        if not self._all_equal:
            self._rank_state |= averaging.whole_state()

    def __enter__(self) -> Saving:
        """Resume the run if it is to be resumed, and take note of signals from now on. Collective.

        Only a process's main thread can listen to signals. Raise CollectiveError on every rank if the
        checkpoint does not fit.
        """
        if self._checkpoints.resume:
            self._resume()
        if threading.current_thread() is threading.main_thread():
            for number in signal.SIGUSR1, signal.SIGTERM:
                self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def after_step(self, rows: list[Epoch], done: int) -> None:
        """Write a checkpoint if it is time for one, or if a rank has received a signal. Collective.

        `rows` are this rank's epochs, with the one in which the run goes on, and `done` counts all steps.
        Raise CollectiveError on every rank if a rank has received SIGTERM.
        """
        comm, every = self._comm, self._checkpoints.every_steps
        mine = self._received.copy()
        # Lower case, because emulated links do not delay it. Bit 0 is SIGUSR1, and bit 1 SIGTERM.
        received = comm.allreduce(int(mine[0] + 2 * mine[1]), MPI.BOR)
        self._received[0] -= mine[0]  # keep a signal that has come since
        if not (received or (every and done % every == 0)):
            return
        fault = self._write(rows, done)
        if received & 2:
            ended = [rank for rank, has_sigterm in enumerate(comm.allgather(mine[1])) if has_sigterm]
            raise CollectiveError(
                f"{ranks_phrase(ended, comm.size)} received SIGTERM, so the run ends {_reached(rows)}; "
                f"{fault or f'resume it from {self._checkpoints.file}'}"
            )
        if fault and comm.rank == 0:
            print(f"{fault}; the run goes on", file=sys.stderr, flush=True)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received[int(number == signal.SIGTERM)] = 1
        if number == signal.SIGTERM:
            signal.signal(number, self._handlers[number])

    def _resume(self) -> None:
        """Give every rank its part of the checkpoint, and the `rows` with which the run goes on. Collective.

        Raise CollectiveError on every rank, before any array changes, if the checkpoint does not fit.
        """
        comm = self._comm
        expected = self._averaging.whole_state() if self._all_equal else {}

        def read() -> tuple[Any, dict[str, np.ndarray]]:
            if comm.rank:
                return None, {}
            about, arrays = read_checkpoint(self._checkpoints.file)
            self._check(about)
            self._check_arrays(about, arrays, expected)
            return self._parts(about, arrays), arrays

        parts, arrays = all_or_none(comm, read)
        if self._all_equal:
            self._averaging.restore(arrays)
        self.rows, own_state = comm.scatter(parts)
        for name, array in self._rank_state.items():
            array[...] = own_state[name]
        for name, callback in self._callbacks.items():
            before = f"record/{name}/"
            state = {key.removeprefix(before): own_state[key] for key in own_state if key.startswith(before)}
            if state:
                callback.resume(state)
        self._last = f"the last one is that {_reached(self.rows)}"

    def _write(self, rows: list[Epoch], done: int) -> str | None:
        """Write a checkpoint; return why that failed, on every rank. Collective."""
        comm, file, reached = self._comm, self._checkpoints.file, _reached(rows)
        records = {
            f"record/{name}/{key}": array
            for name, callback in self._callbacks.items()
            for key, array in callback.state().items()
        }
        replicated = self._averaging.whole_state() if self._all_equal else {}
        gathered = comm.gather((self._held, [asdict(row) for row in rows], {**records, **self._rank_state}))
        fault = None
        if gathered:
            samples, rows_of_ranks, states = zip(*gathered, strict=True)
            at = {"done": done, "epoch": rows[-1].epoch, "step": rows[-1].steps}
            arrays_of_ranks = {
                f"rank {rank}/{name}": state[name] for rank, state in enumerate(states) for name in state
            }
            about = {
                "run": self._about,
                "settings": self._checkpoints.settings,
                "samples": samples,
                "progress": [{**at, "rows": rows_of_rank} for rows_of_rank in rows_of_ranks],
            }
            try:
                weights = [
                    *replicated.values(),
                    *(state[name] for state in states for name in self._rank_state),
                ]
                if not all(np.isfinite(array).all() for array in weights):
                    raise OSError("the weights are no longer finite")
                write_checkpoint(file, about, {**replicated, **arrays_of_ranks})
            except OSError as error:
                why = error.strerror or error
                fault = f"no checkpoint was written {reached} to {file} ({why}; {self._last})"
        sleeping_barrier(comm)  # rank 0 needs its core
        fault = comm.bcast(fault)
        if not fault:
            self._last = f"the last one is that {reached}"
        return fault

    def _check(self, about: Mapping[str, Any]) -> None:
        """Raise ValueError if a checkpoint described by `about` does not fit the run."""
        stored_run = about["run"]
        for name, expected in self._about.items():
            if name not in stored_run or stored_run[name] != expected:
                raise ValueError(
                    f"cannot resume: expected a checkpoint of a run with {name} {_short(expected)}, as in "
                    f"this run, found one with {_short(stored_run.get(name))}"
                )
        ranks, why = len(about["progress"]), ""
        of_each_rank = self._rank_state.keys() - {"residual"}
        if self._buffers != "leave":
            of_each_rank -= {"buffers"}
        if not self._any_ranks:
            why = "with these shards, another number of ranks takes other samples into each step"
        elif of_each_rank:
            why = f"each rank has {' and '.join(sorted(of_each_rank))} of its own"
        if ranks != self._comm.size and why:
            raise ValueError(
                f"cannot resume: expected {ranks} ranks, as when the checkpoint was written, got "
                f"{self._comm.size}: {why}"
            )

    def _check_arrays(
        self,
        about: Mapping[str, Any],
        arrays: Mapping[str, np.ndarray],
        whole: Mapping[str, np.ndarray],
    ) -> None:
        """Raise ValueError unless the arrays are those of the run: `whole` once, and each rank's own.

        Arrays of callbacks are checked only if each rank goes on with those of before.
        """
        expected = dict(whole)
        for rank, progress in enumerate(about["progress"]):
            expected |= {f"rank {rank}/{name}": array for name, array in self._rank_state.items()}
            before = f"rank {rank}/record/"
            records = {name: array for name, array in arrays.items() if name.startswith(before)}
            for name, callback in self._callbacks.items():
                prefix = f"{before}{name}/"
                state = {key.removeprefix(prefix): records[key] for key in records if key.startswith(prefix)}
                if state and len(about["progress"]) == self._comm.size:
                    try:
                        callback.check(state, progress["done"])
                    except ValueError as error:
                        raise ValueError(f"{self._checkpoints.file} makes no sense: {error}") from None
            expected |= records
        file = self._checkpoints.file
        for name in sorted(expected.keys() | arrays.keys()):
            stored, like = arrays.get(name), expected.get(name)
            if stored is None or like is None or (stored.shape, stored.dtype) != (like.shape, like.dtype):
                raise ValueError(
                    f"{file} does not fit the run: {name} is {_form(stored)}, expected {_form(like)}"
                )

    def _parts(
        self, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> list[tuple[list[Epoch], dict[str, np.ndarray]]]:
        """Return for each rank its epochs, its own arrays and the records of its callbacks.

        If the number of ranks has changed, each takes over the epochs and the samples so far of old ranks.
        Then the epoch's global loss and accuracy are exact, while the local ones may mix those of several
        ranks. Times are those of the slowest rank.
        """
        before = [[Epoch(**row) for row in state["rows"]] for state in about["progress"]]
        states: list[dict[str, np.ndarray]] = [{} for _ in before]
        for name, array in arrays.items():
            if name.startswith("rank "):
                number, _, inner = name.removeprefix("rank ").partition("/")
                states[int(number)][inner] = array
        p = self._comm.size
        if len(before) == p:
            return list(zip(before, states, strict=True))
        shared = {name: states[0][name] for name in self._rank_state}
        if "buffers" in shared and self._buffers == "average":
            buffers = [state["buffers"] for state in states]
            shared["buffers"] = np.average(buffers, axis=0, weights=about["samples"])
        if "residual" in shared:  # the ranks take equal parts of what all of them together have not sent
            shared["residual"] = np.sum([state["residual"] for state in states], axis=0) / p
        last, parts = [rows.pop() for rows in before], []
        for rank in range(p):
            row = Epoch(last[0].epoch, rank, steps=last[0].steps)
            for name in "samples", "loss_sum", "correct":
                setattr(row, name, sum(getattr(other, name) for other in last[rank::p]))
            for name in "wait_s", "transfer_s", "time_s":
                setattr(row, name, max(getattr(other, name) for other in last))
            parts.append(([*chain(*before[rank::p]), row], shared))
        return parts


def _reached(rows: Sequence[Epoch]) -> str:
    """Return where a run goes on, as its messages say it."""
    row = rows[-1]
    return f"after step {row.steps} of epoch {row.epoch}" if row.steps else f"after epoch {row.epoch - 1}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


def _form(array: np.ndarray | None) -> str:
    return "missing" if array is None else f"an array of shape {array.shape} and dtype {array.dtype}"


def write_checkpoint(file: Path, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint. `about` is anything that JSON can hold. Raise OSError if that fails.

    An older checkpoint of that name stays intact until the new one is complete.
    """
    text = np.frombuffer(json.dumps({"format": FORMAT, **about}).encode(), np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as out:
        np.savez(out, **arrays, about=text)  # type: ignore[arg-type]


def read_checkpoint(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the description and the arrays of a checkpoint.

    Raise ValueError if the file is missing, damaged or not a checkpoint, or if it is whole but its
    description is none.
    """
    try:
        check_input(file)
        content = read_arrays(file)
    except FileNotFoundError:
        raise ValueError(f"expected the checkpoint {file}, found no such file") from None
    except OSError as error:
        raise ValueError(
            f"expected the checkpoint {file}, which cannot be read: {error.strerror or error}"
        ) from None
    except ValueError as error:
        raise ValueError(f"expected a whole checkpoint, {error}") from None
    if "about" not in content:
        raise ValueError(f"expected a checkpoint, found another kind of file: {file}")
    try:
        about = json.loads(content.pop("about").tobytes())
        check_type("the description", about, dict)
        version = about.pop("format", None)
        if version != FORMAT:
            raise ValueError(f"expected the format {FORMAT!r}, found {shortened(version)}")
        check_description(about)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} makes no sense: {error}") from None
    return about, content


def check_description(about: Mapping[str, Any]) -> None:
    """Raise ValueError unless a description has the parts of a checkpoint's, each of its type."""
    for name, kind in {"run": dict, "settings": dict, "samples": list, "progress": list}.items():
        check_type(name, about.get(name), kind)
    progress, samples = about["progress"], about["samples"]
    if not progress or len(progress) != len(samples):
        raise ValueError(
            f"expected progress and samples of each rank, found {len(progress)} and {len(samples)}"
        )
    for count in samples:
        _check_count("samples", count)
    if not sum(samples):
        raise ValueError("expected samples on some rank, found none")
    for rank, reached in enumerate(progress):
        check_type(f"the progress of rank {rank}", reached, dict)
        for name in "done", "epoch", "step":
            _check_count(name, reached.get(name))
        check_type("rows", reached.get("rows"), list)
        if not reached["rows"]:
            raise ValueError(f"expected the record of an epoch of each rank, found none of rank {rank}")
        for row in reached["rows"]:
            check_fields(Epoch, row)
            if {"epoch", "rank"} - row.keys() or row.keys() - {column.name for column in fields(Epoch)}:
                raise ValueError(f"expected the record of an epoch, found {shortened(row)}")
    # The ranks may have different numbers of rows: after a resume with more ranks, new ranks begin later.
    last = [reached["rows"][-1] for reached in progress]
    if len({(row["epoch"], row.get("steps", 0)) for row in last}) > 1:
        raise ValueError("expected all ranks at one step of one epoch, found several")


def _check_count(name: str, value: object) -> None:
    check_type(name, value, int)
    if not 0 <= value < 1 << 63:  # type: ignore[operator]
        raise ValueError(f"expected a count of {name}, found {shortened(value)}")
