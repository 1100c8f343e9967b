"""Checkpoints of a run: what they hold, when they are written, and how a run goes on from one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit.comm import CollectiveError, sleeping_barrier
from labkit.train.callbacks import Callback
from labkit.train.checkpoints import file as checkpoint_file
from labkit.train.checkpoints.progress import Progress, dealt
from labkit.train.checkpoints.signals import Signals
from labkit.train.replicas import mean_buffers
from mpiwatch.wording import ranks_phrase


@dataclass
class RunState:
    """What a checkpoint has to hold of a run on one rank, as arrays that a resumed run overwrites in place.

    `about` describes the run: a checkpoint of a run with another description is refused. `replicated` arrays
    are equal on all ranks, `own` ones are not. `callback` goes on with its state, unless the number of ranks
    changes. `for_any_ranks` says that another number of ranks would train
    on the same samples in the same steps, `samples` how many this rank has, and `buffers` how the ranks' own
    buffers become those of other ranks, as in `synchronise_buffers`.
    """

    about: Mapping[str, Any]
    replicated: Mapping[str, np.ndarray]
    own: Mapping[str, np.ndarray]
    samples: int
    buffers: str
    for_any_ranks: bool
    callback: Callback


class Checkpoints:
    """Write checkpoints to a file during a run, and resume a run from it: give it to `train`.

    One is written after every `every_steps` steps and `every_epochs` epochs (0: never), on SIGUSR1, and on
    SIGTERM, which then ends the run with a CollectiveError on every rank. The ranks agree on signals once per
    step, by an Allreduce of eight bytes. `file` ends in .npz; its previous content stays until the new one is
    whole. Only rank 0 writes and reads it. If writing fails, for example because the disk is full, rank 0
    says so and the run goes on: it has lost nothing yet. A run whose weights are no longer finite keeps its
    last checkpoint.

    With `resume`, the run goes on from the checkpoint in `file`. On the same number of ranks it ends with
    the same weights, bit for bit, as a run without a break; "weighted" shards need the same speeds for
    that, and the algorithm "auto" the same choice. On another number of ranks it ends with the same weights
    up to rounding, if the sharding scheme is "strided", "shuffled" or "weighted" or each epoch is one step.
    Anything else is refused, and so are the checkpoints of other models, data or settings, and damaged
    ones. `settings` (anything that JSON can hold) are stored for `stored_settings`. Callbacks go on with
    their `state`, on the same number of ranks; `Contributions` has none, so it covers only the resumed part
    of an epoch.
    """

    def __init__(
        self,
        file: Path,
        *,
        every_steps: int = 0,
        every_epochs: int = 0,
        resume: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.file, self.every_steps, self.every_epochs = file, every_steps, every_epochs
        self.resume, self.settings = resume, dict(settings or {})

    def __repr__(self) -> str:
        """Return what has to be the same on every rank."""
        return f"Checkpoints({self.file}, {self.every_steps}, {self.every_epochs}, resume={self.resume})"

    @contextmanager
    def of(self, comm: MPI.Intracomm, state: RunState) -> Iterator[Saving]:
        """Return what writes the checkpoints of a run; listen to signals inside the block. Collective.

        Raise CollectiveError on every rank if the directory cannot be made or the checkpoint does not fit.
        """
        fault = None
        if min(self.every_steps, self.every_epochs) < 0 or self.file.suffix != ".npz":
            fault = (
                "expected checkpoints after every 0 or more steps and epochs in a file *.npz, got "
                f"{self.every_steps}, {self.every_epochs} and {self.file}"
            )
        elif comm.rank == 0:
            try:
                self.file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                fault = f"cannot make the directory of the checkpoint {self.file}: {error.strerror}"
        if fault := comm.bcast(fault):
            raise CollectiveError(fault)
        saving = Saving(comm, self, state)
        if self.resume:
            saving.resume()
        with saving.signals.listening():
            yield saving


class Saving:
    """The checkpoints of one run; `progress` says where the run begins."""

    def __init__(self, comm: MPI.Intracomm, checkpoints: Checkpoints, state: RunState) -> None:
        self._comm, self._state = comm, state
        self._file, self._settings = checkpoints.file, checkpoints.settings
        self._every_steps, self._every_epochs = checkpoints.every_steps, checkpoints.every_epochs
        self._last = "there is none yet"
        self.progress, self.signals = Progress(), Signals()

    def after_step(self, progress: Progress) -> None:
        """Write a checkpoint if it is time for one, or if a rank has received a signal. Collective.

        Raise CollectiveError on every rank if a rank has received SIGTERM.
        """
        wanted, ended = self.signals.agree(self._comm)
        due = self._every_steps > 0 and progress.done % self._every_steps == 0
        if self._every_epochs and progress.step == 0:
            due = due or (progress.epoch - 1) % self._every_epochs == 0
        if not (due or wanted or ended):
            return
        fault = self._write(progress)
        if ended:
            raise CollectiveError(
                f"{ranks_phrase(ended, self._comm.size)} received SIGTERM, so the run ends "
                f"{_place(progress)}; {fault or f'resume it from {self._file}'}"
            )
        if fault and self._comm.rank == 0:
            print(f"{fault}; the run goes on", file=sys.stderr, flush=True)

    def resume(self) -> None:
        """Give every rank its part of the checkpoint; set `progress` to where the run goes on. Collective.

        Raise CollectiveError on every rank, before any array changes, if the checkpoint does not fit.
        """
        comm, state = self._comm, self._state
        parts: list[tuple[Progress, dict[str, np.ndarray]]] | None = None
        arrays: dict[str, np.ndarray] = {}
        fault, samples = None, comm.gather(state.samples)
        if samples:
            try:
                about, arrays = checkpoint_file.read(self._file)
                _check(about, state, comm.size)
                parts = _parts(about, arrays, state, samples)
            except ValueError as error:
                fault = f"cannot resume: {error}"
        if fault := comm.bcast(fault):
            raise CollectiveError(fault)
        for name, array in state.replicated.items():
            if comm.rank == 0:
                array[...] = arrays[name]
            comm.Bcast(array)
        self.progress, own = comm.scatter(parts)
        for name, array in state.own.items():
            array[...] = own.pop(name)
        state.callback.resume({name.removeprefix("record/"): array for name, array in own.items()})
        self._last = f"the last one is that {_place(self.progress)}"

    def _write(self, progress: Progress) -> str | None:
        """Write a checkpoint; return why that failed, on every rank. Collective."""
        comm, state = self._comm, self._state
        records = {f"record/{name}": array for name, array in state.callback.state().items()}
        gathered = comm.gather((state.samples, progress.as_dict(), {**records, **state.own}))
        fault = None
        if gathered:
            samples, progresses, owns = zip(*gathered, strict=True)
            own = {_name(rank, name): each[name] for rank, each in enumerate(owns) for name in each}
            about = {
                "run": state.about,
                "settings": self._settings,
                "samples": samples,
                "progress": progresses,
            }
            try:
                weights = [*state.replicated.values(), *(each[name] for each in owns for name in state.own)]
                if not all(np.isfinite(array).all() for array in weights):
                    raise OSError("the weights are no longer finite")
                checkpoint_file.write(self._file, about, {**state.replicated, **own})
            except OSError as error:
                fault = (
                    f"no checkpoint was written {_place(progress)} to {self._file} "
                    f"({error.strerror or error}; {self._last})"
                )
        sleeping_barrier(comm)  # rank 0 needs its core
        fault = comm.bcast(fault)
        if not fault:
            self._last = f"the last one is that {_place(progress)}"
        return fault


def stored_settings(file: Path) -> dict[str, Any]:
    """Return the `settings` of the run that wrote this checkpoint, its number of `ranks`, and its `steps`.

    Raise ValueError if the file is no checkpoint or damaged.
    """
    about, _ = checkpoint_file.read(file)
    return {**about["settings"], "ranks": len(about["progress"]), "steps": about["progress"][0]["done"]}


def _check(about: Mapping[str, Any], state: RunState, size: int) -> None:
    """Raise ValueError if a checkpoint described by `about` does not fit the run."""
    found = about["run"]
    for name, expected in state.about.items():
        if name not in found or found[name] != expected:
            raise ValueError(
                f"expected a checkpoint of a run with {name} {_short(expected)}, as in this run, found one "
                f"with {_short(found.get(name))}"
            )
    ranks, why = len(about["progress"]), ""
    if not state.for_any_ranks:
        why = "with these shards, another number of ranks takes other samples into each step"
    elif state.own.keys() - {"buffers"} or (state.own and state.buffers == "leave"):
        why = f"each rank has {' and '.join(sorted(state.own))} of its own"
    if ranks != size and why:
        raise ValueError(f"expected {ranks} ranks, as when the checkpoint was written, got {size}: {why}")


def _parts(
    about: Mapping[str, Any], arrays: Mapping[str, np.ndarray], state: RunState, samples: Sequence[int]
) -> list[tuple[Progress, dict[str, np.ndarray]]]:
    """Return the progress of each rank, its own arrays and the records of its callbacks.

    The ranks now hold so many samples each.
    """
    ranks = [Progress.of(each) for each in about["progress"]]
    if len(ranks) == len(samples):
        prefixes = [_name(rank, "") for rank in range(len(ranks))]
        every = [
            {name.removeprefix(own): arrays[name] for name in arrays if name.startswith(own)}
            for own in prefixes
        ]
        return list(zip(ranks, every, strict=True))
    own = [{name: arrays[_name(rank, name)] for name in state.own} for rank in range(len(ranks))]
    if state.own and state.buffers == "average":
        own = [{"buffers": mean_buffers(about["samples"], [each["buffers"] for each in own])}]
    return [(each, own[0]) for each in dealt(ranks, samples)]


def _name(rank: int, name: str) -> str:
    return f"rank {rank}/{name}"


def _place(progress: Progress) -> str:
    """Return how far a run is, as a phrase."""
    if progress.step:
        return f"after step {progress.step} of epoch {progress.epoch}"
    return f"after epoch {progress.epoch - 1}"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
