"""The training job of an incident, on one rank, and what is measured on it.

The job is put together from ingredients: small functions of the job. A fault changes one of them, and so does
a repair. The ingredients hold the fault in their variables, so that no attribute of the job does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter, sleep
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm import EmulatedComm, parse_link
from labkit.exercises import on_call
from labkit.exercises.checking import whose

STEPS, LR = 8, 0.5
LINK = parse_link("100mbit+2ms")
SLOWER, LONGER = 8, 4  # a slow link, a slow rank
SAMPLE_S = 0.002  # that a rank sleeps for each sample of its forward and backward pass
BRANCH_STEP = 5
BUCKETS = 5  # in which the gradient is averaged
PIXELS, CLASSES = 64, 10

Ingredient = Callable[["TrainingJob"], Any]


class TrainingJob:
    """Data-parallel training of a softmax model on digits, on this rank.

    `params`, `grads`, `used`: flat arrays (650,), float64: the parameters, the gradient, and that of the last
    update. `batches`: the local batches of all ranks; `batch`: this rank's. `order`: all samples in the
    order in which global batches take them. `world`: all ranks; `comm`: the same ranks on emulated links.
    """

    steps = STEPS

    def __init__(
        self, comm: MPI.Intracomm, comm_on_links: Any, seed: int, ingredients: Mapping[str, Ingredient]
    ) -> None:
        self.world = comm
        self.comm = comm_on_links
        self.rank = comm.rank
        self.size = comm.size
        self.seed = seed
        digits = data.load("digits")
        self._images = np.hstack([digits.x_train.reshape(-1, PIXELS), np.ones((len(digits.y_train), 1))])
        self._labels = digits.y_train
        self.order = np.random.default_rng([seed, *b"order"]).permutation(len(self._labels))
        self._ingredients = dict(ingredients)
        self._repairs: dict[str, Ingredient] = {}
        self._is_repaired = False
        self.restart()

    def __repr__(self) -> str:
        return f"the job on rank {self.rank}: restart, load, compute, average, update; step, loop"

    def _call_ingredient(self, name: str) -> Any:
        """Call an ingredient, or the student's in its place."""
        chosen = self._repairs.get(name) if self._is_repaired else None
        return (chosen or self._ingredients[name])(self)

    def repair(self, **functions: Ingredient) -> None:
        """Put functions of the job in place of its ingredients, such as average=f."""
        unknown = sorted(set(functions) - REPAIRABLE)
        if unknown:
            raise TypeError(f"expected some of {', '.join(sorted(REPAIRABLE))}, got {', '.join(unknown)}")
        for name, function in functions.items():
            if not callable(function):
                raise TypeError(f"{name}: expected a function of the job, got {function!r}")
        self._repairs.update(functions)

    def clock(self) -> float:
        """Return the time in seconds. Not collective."""
        return perf_counter()

    def restart(self) -> None:
        """Begin again at the first step."""
        self.number = 0
        self.loss = float("nan")
        self.params = np.random.default_rng([self.seed, *b"start"]).normal(0, 0.1, (PIXELS + 1) * CLASSES)
        self.grads = np.zeros_like(self.params)
        self.used = np.zeros_like(self.params)
        total = sum(self._ingredients["batches"](self))
        self.batches = [int(batch) for batch in self._call_ingredient("batches")]
        if len(self.batches) != self.size or sum(self.batches) != total or min(self.batches) < 0:
            raise ValueError(f"expected {self.size} local batches with the sum {total}, got {self.batches}")
        self.batch = self.batches[self.rank]
        self._first, stop = self._call_ingredient("shard")
        if stop - self._first != self.batch:
            raise ValueError(f"expected {self.batch} samples in the shard, got {self._first} to {stop}")
        self._call_ingredient("start")

    def ids(self, number: int, samples: int) -> np.ndarray:
        """Return the numbers of the samples that this rank takes in a step. Shape: (samples,)."""
        places = number * sum(self.batches) + self._first + np.arange(samples)
        return self.order[places % len(self.order)]

    def load(self, samples: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the next local batch, or that many samples. Shapes: (N, 65), (N,). Not collective."""
        ids = self.ids(self.number, self.batch if samples is None else samples)
        return self._images[ids], self._labels[ids]

    def compute(self, x: np.ndarray, y: np.ndarray) -> None:
        """Leave this rank's own gradient in `grads`, and its loss in `loss`. Not collective."""
        self.loss, self.grads[:] = loss_and_gradient(self.params, x, y)
        sleep(len(y) * self._call_ingredient("pace"))

    def average(self) -> None:
        """Replace the gradient by the mean over the ranks."""
        self._call_ingredient("average")

    def update(self) -> None:
        """Step with the gradient."""
        self.used[:] = self.grads
        self.params -= LR * self.grads
        self.number += 1

    def step(self) -> None:
        """Train with the next local batch."""
        self._call_ingredient("step")

    def loop(self) -> None:
        """Make all steps, and add up the loss of all ranks after each."""
        self._call_ingredient("loop")


def loss_and_gradient(params: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean cross-entropy and its gradient. Shapes: params (650,), x (N, 65), y (N,)."""
    if not len(y):
        return 0.0, np.zeros_like(params)
    scores = x @ params.reshape(-1, CLASSES)
    scores -= scores.max(axis=1, keepdims=True)
    parts = np.exp(scores)
    parts /= parts.sum(axis=1, keepdims=True)
    loss = -np.log(parts[np.arange(len(y)), y]).mean()
    parts[np.arange(len(y)), y] -= 1
    return float(loss), (x.T @ parts).ravel() / len(y)


def ingredients(setting: on_call.Setting, rank: int) -> dict[str, Ingredient]:
    """Return the ingredients of a job on this rank. All jobs have the same functions."""

    def has(cause: str) -> bool:
        return setting.cause == cause and setting.rank in (None, rank)

    pace_s = SAMPLE_S * (LONGER if has("slow rank") else 1)
    is_plain, is_late, is_same = has("plain mean"), has("late average"), has("same shard")
    shift = 0.5 if has("other start") else 0.0
    last = BRANCH_STEP if has("branch") else STEPS

    def batches(job: TrainingJob) -> tuple[int, ...]:
        return setting.batches

    def pace(job: TrainingJob) -> float:
        return pace_s

    def shard(job: TrainingJob) -> tuple[int, int]:
        first = 0 if is_same else sum(job.batches[: job.rank])
        return first, first + job.batch

    def start(job: TrainingJob) -> None:
        job.params += shift * np.cos(np.arange(job.params.size))

    def average(job: TrainingJob) -> None:
        job.grads *= 1 / job.size if is_plain else job.batch / sum(job.batches)
        for part in np.array_split(job.grads, BUCKETS):
            job.comm.Allreduce(MPI.IN_PLACE, part)

    def step(job: TrainingJob) -> None:
        job.compute(*job.load())
        if not is_late:
            job.average()
        job.update()
        if is_late:
            job.average()

    def loop(job: TrainingJob) -> None:
        for number in range(STEPS):
            job.step()
            if number == last:
                return
            job.world.allreduce(job.loss * job.batch)

    return {
        "batches": batches,
        "pace": pace,
        "shard": shard,
        "start": start,
        "average": average,
        "step": step,
        "loop": loop,
    }


REPAIRABLE = frozenset({"batches", "shard", "start", "average", "step", "loop"})
_job: TrainingJob | None = None  # of the last start


def start(comm: MPI.Intracomm, setting: on_call.Setting) -> TrainingJob:
    """Make and return the job of this setting, in place of the one before it."""
    global _job  # noqa: PLW0603
    if _job is not None:
        _job.comm.Free()
        _job = None
    slow = setting.rank if setting.cause == "slow link" else None
    links = [LINK.slower(SLOWER) if rank == slow else LINK for rank in range(comm.size)]
    on_links = EmulatedComm(comm.Dup(), links)
    _job = TrainingJob(comm, on_links, setting.seed, ingredients(setting, comm.rank))
    return _job


def start_hidden(comm: MPI.Intracomm, seed: int) -> TrainingJob:
    """Start the job of an incident."""
    return start(comm, on_call._drawn(seed, comm.size))


def start_known(comm: MPI.Intracomm, cause: str, rank: int) -> TrainingJob:
    """Start a job with this fault."""
    return start(comm, on_call.setting_of(0, cause, rank, comm.size))


def started() -> TrainingJob:
    """Return the job of the last start. Raise RuntimeError if there is none."""
    if _job is None:
        raise RuntimeError("there is no job on these ranks: call incident() or practice() again")
    return _job


def samples(comm: MPI.Intracomm, job: TrainingJob) -> np.ndarray:
    """Return how many of each rank's samples in all steps another rank reads, too. Shape: (p, 1)."""
    job.restart()
    sample_ids = {int(place) for number in range(STEPS) for place in job.ids(number, job.batch)}
    every = comm.allgather(sample_ids)
    others = set().union(*(ids for rank, ids in enumerate(every) if rank != comm.rank))
    return np.array(comm.allgather([len(sample_ids & others)]))


def steps(comm: MPI.Intracomm, job: TrainingJob) -> np.ndarray:
    """Make all steps. Return a row with 0 for each rank. Shape: (p, 1).

    If a rank leaves the loop, it returns from the cell, and the others hang: a report of that names it.
    """
    job.restart()
    job.loop()
    return np.zeros((comm.size, 1), int)


OURS: Mapping[str, Callable[[MPI.Intracomm, TrainingJob], np.ndarray]] = {"samples": samples, "steps": steps}


def measure(probe: str, function: Callable[..., Any] | None) -> dict[str, Any]:
    """Measure with a probe; return its rows, again for times, and whose function it is.

    Raise RuntimeError if there is no such function, ValueError if it returns no row for each rank.
    """
    job, of_student = started(), on_call.PROBES[probe].function
    if not of_student:
        return {"rows": OURS[probe](job.world, job).tolist(), "again": None, "whose": "the lab's"}
    if function is None:
        raise RuntimeError(f"there is no {of_student} on these ranks: run its cell and its check first")
    arguments = (job.comm,) if probe == "pings" else (job.world, job)
    rows = []
    for _ in range(1 + on_call.PROBES[probe].is_timed):
        numbers = np.asarray(function(*arguments))
        width = len(on_call.PROBES[probe].columns) or job.size
        numbers = numbers.reshape(job.size, -1) if len(numbers) == job.size else numbers
        if numbers.shape != (job.size, width):
            raise ValueError(f"{of_student}: expected shape {(job.size, width)}, got {numbers.shape}")
        rows.append(numbers.tolist())
    return {
        "rows": rows[0],
        "again": rows[1] if len(rows) > 1 else None,
        "whose": f"{whose(function)} {of_student}",
    }


def one_process(job: TrainingJob) -> np.ndarray:
    """Return the parameters that one process with the same global batches ends with. Not collective."""
    params = np.random.default_rng([job.seed, *b"start"]).normal(0, 0.1, (PIXELS + 1) * CLASSES)
    total = sum(job.batches)
    for number in range(STEPS):
        ids = job.order[(number * total + np.arange(total)) % len(job.order)]
        params -= LR * loss_and_gradient(params, job._images[ids], job._labels[ids])[1]
    return params


def result(is_repaired: bool) -> dict[str, Any]:
    """Run the job, with its repairs or without, and return ms a step, the worst loss and distance of a rank.

    `distance`: of the parameters from those of one process, relative. `loss`: of all training samples.
    `repairs`: the ingredients that were replaced.
    """
    job = started()
    job._is_repaired = is_repaired
    try:
        job.restart()
        job.world.Barrier()
        began = job.clock()
        job.loop()
        ms = 1e3 * (job.clock() - began) / STEPS
        right = one_process(job)
        distance = float(np.linalg.norm(job.params - right) / np.linalg.norm(right))
        loss = loss_and_gradient(job.params, job._images, job._labels)[0]
    finally:
        job._is_repaired = False
    worst = job.world.allgather((ms, loss, distance))
    ms, loss, distance = (max(numbers) for numbers in zip(*worst, strict=True))
    return {"ms": ms, "loss": loss, "distance": distance, "repairs": sorted(job._repairs)}
