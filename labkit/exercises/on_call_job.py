"""The training job of an incident, on one rank, and what the experiments run on it.

A fault is a change of one ingredient. A step is `load`, `compute`, `average`, `update`; a notebook's cells
may call these, too, on a `JobByHand`. Unless it says otherwise, a function is collective.
"""

from __future__ import annotations

import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import combinations
from time import perf_counter, process_time, sleep, thread_time
from typing import Any

import numpy as np
from mpi4py import MPI

from labkit import data
from labkit.comm import EmulatedComm, parse_link
from labkit.exercises.on_call import BRANCH_STEP, LEAST_MS, PARTS, Setting, drawn
from labkit.nn.image_layers import BatchNorm, Conv2D
from labkit.nn.layers import Dense, Flatten, ReLU
from labkit.nn.model import Classifier
from labkit.train.bottleneck import Bottleneck, Straggler
from labkit.train.overlap import Buckets

STEPS, LR = 8, 0.1
IMAGE, PIXELS = (1, 8, 8), 64
LINK = parse_link("100mbit+300us")
SLOWER, LONGER = 8, 3  # a slow link, a slow rank
SAMPLES, CORRECT = 1, 2  # tags
PIECE, PIECE_S = 4096, 0.004  # a slow disk: bytes that it reads at once, and how long it needs for them
MORE_THREADS = 2
DAMAGED = 1e38  # the pixels of a damaged sample: finite, but its gradient is not
BALL = 8192  # bytes of a ping-pong message
REPETITIONS, MOST = 24, 4  # of what is timed; times so many while the noise is larger than NOISE
LINK_ROUNDS = 8
NOISE = 1.4
PAUSE_S = 0.005  # between repetitions: else another program that runs meanwhile slows all of them alike
THREADS_S = 0.03  # of processor time, in which the other threads of a Python process use little
EQUAL_BATCH = 16  # samples, where times of ranks are compared


def model_of(setting: Setting, seed: int) -> Classifier:
    """Return the job's model: a convolution with batch normalisation, and three dense layers."""
    layers = [
        ("conv1", Conv2D(4, 3, pad=1, gain=2)),
        ("norm1", BatchNorm()),
        ("relu1", ReLU()),
        ("flatten", Flatten()),
        ("dense1", Dense(setting.hidden, gain=2)),
        ("relu2", ReLU()),
        ("dense2", Dense(setting.hidden, gain=2)),
        ("relu3", ReLU()),
        ("dense3", Dense(10)),
    ]
    return Classifier("incident", layers, IMAGE, seed, np.float32)


class Job:
    """Data-parallel training on this rank: the flat gradient is averaged bucket by bucket."""

    def __init__(self, comm: MPI.Intracomm, setting: Setting) -> None:
        self.rank, self.size, self._setting = comm.rank, comm.size, setting
        slow = [LINK.slower(SLOWER) if self._has("slow link", rank) else LINK for rank in range(comm.size)]
        self.world, self.comm = comm, EmulatedComm(comm.Dup(), slow)
        self.batch = setting.batches[comm.rank]  # samples of this rank's local batch
        self.planned, self.ids = self._shard(self.rank), self._shard(self.rank)
        if self._has("same shard"):
            self.ids = np.resize(self._shard((self.rank - 1) % self.size), self.ids.size)
        digits = data.load("digits")
        images = digits.x_train[self.ids].astype(np.float32)
        if self._has("nan"):
            images[BRANCH_STEP * self.batch] = DAMAGED
        self.labels = digits.y_train[self.ids]
        self.file = tempfile.TemporaryFile()  # noqa: SIM115  (the job's, as long as it exists)
        self.file.write(images.tobytes())
        factor = LONGER if self._has("slow rank") else 1.0
        self._straggler = Straggler([Bottleneck(self.rank, "slow-processor", factor)], self.rank)
        self.restart()

    def _has(self, cause: str, rank: int | None = None) -> bool:
        """Tell whether a fault is on this rank, or on another. Not collective."""
        on = self.rank if rank is None else rank
        return bool({(cause, on), (cause, None)} & {*self._setting.faults})

    def _shard(self, rank: int) -> np.ndarray:
        """Return the samples that the plan gives to a rank. Shape: (STEPS · local batch,)."""
        sizes = STEPS * np.array(self._setting.batches)
        n = int(sizes.sum())
        order = np.random.default_rng([self._setting.seed, *b"shards"]).permutation(max(n, 1400))[:n] % 1400
        return order[sizes[:rank].sum() : sizes[: rank + 1].sum()]

    def restart(self) -> None:
        """Begin again at the first step. Not collective."""
        other = self._has("other start")
        self.model = model_of(self._setting, self._setting.seed + other)
        self._first_buffers = self.model.buffers.copy()
        self.number, self.loss = 0, float("nan")
        n = self.model.grads.size
        self.buckets = Buckets(bytes=32 << 10, first_bytes=8 << 10).plan(n)
        if self._has("last bucket"):
            self.buckets = [bucket for bucket in self.buckets if bucket[0] > 0.7 * n]
            self.buckets.append((0, self.buckets[-1][0]))
        self.used = np.zeros_like(self.model.grads)  # the gradient of the last update

    def load(self, samples: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Read this rank's next local batch, or so many samples. Not collective."""
        first = self.number % STEPS * self.batch
        wanted = min(samples or self.batch, self.ids.size - first)
        left, pieces = wanted * PIXELS * 4, []
        self.file.seek(first * PIXELS * 4)
        while left:
            pieces.append(self.file.read(min(PIECE, left)))
            left -= len(pieces[-1])
            if self._has("slow disk"):
                sleep(PIECE_S)
        images = np.frombuffer(b"".join(pieces), np.float32).reshape(-1, *IMAGE)
        return images, self.labels[first : first + wanted]

    def compute(self, x: np.ndarray, y: np.ndarray) -> float:
        """Leave this rank's own gradient in `model.grads`, return its loss. Not collective."""
        self.complete_from = self.model.grads.size

        def finished(start: int) -> None:
            self.complete_from = start

        layers = self.model.layers
        if self._has("skipped layer") and self.number >= BRANCH_STEP:
            self.model.layers = [layer for layer in layers if layer.name not in ("dense2", "relu3")]
        try:
            with np.errstate(all="ignore"), more_threads(MORE_THREADS * self._has("blas threads")):
                self.loss = self._straggler.compute(lambda: self.model.loss_and_gradient(x, y, finished))
        finally:
            self.model.layers = layers
        return self.loss

    def complete(self) -> list[tuple[int, int]]:
        """Return the buckets that the last backward pass has completed. Not collective."""
        return [(start, stop) for start, stop in self.buckets if start >= self.complete_from]

    def exchange(self, samples: int, correct: int) -> np.ndarray:
        """Tell all other ranks two numbers. Return what they told. Shape: (p, 2)."""
        tags = (CORRECT, SAMPLES) if self._has("tags") else (SAMPLES, CORRECT)
        told = np.zeros((self.size, 2))
        told[self.rank] = samples, correct
        own, others = told[self.rank].copy(), [rank for rank in range(self.size) if rank != self.rank]
        requests = [
            self.comm.Isend(own[k : k + 1], rank, tag) for rank in others for k, tag in enumerate(tags)
        ]
        for rank in others:
            for k, tag in enumerate((SAMPLES, CORRECT)):
                self.comm.Recv(told[rank, k : k + 1], rank, tag)
        for request in requests:
            request.Wait()
        return told

    def average(self) -> None:
        """Replace the gradient by the mean over the ranks, weighted by their local batches."""
        told = self.exchange(self.batch, self.model.correct)
        weight = told[self.rank, 0] / max(told[:, 0].sum(), 1)
        self.model.grads *= np.float32(1 / self.size if self._has("plain mean") else weight)
        for start, stop in self.complete():
            self.comm.Allreduce(MPI.IN_PLACE, self.model.grads[start:stop])

    def update(self) -> None:
        """Step with the gradient, and average the buffers."""
        self.used[...] = self.model.grads
        self.model.params -= np.float32(LR) * self.model.grads
        self.comm.Allreduce(MPI.IN_PLACE, self.model.buffers)
        self.model.buffers /= np.float32(self.size)
        if self._has("stale buffers"):
            self.model.buffers[...] = self._first_buffers
        self.number += 1

    def step(self) -> None:
        """Train with the next local batch."""
        self.compute(*self.load())
        if self._has("late average"):
            self.update()
            self.average()
        else:
            self.average()
            self.update()

    def run(self) -> None:
        """Make all steps, and compute the loss of all ranks after each."""
        for number in range(STEPS):
            self.step()
            if self._has("branch") and number >= BRANCH_STEP:
                return
            loss = np.array([self.loss * self.batch, self.batch])
            self.world.Allreduce(MPI.IN_PLACE, loss)


class JobByHand:
    """The job as a notebook's own cells use it: it notes the `PARTS` that they touch, since they cost."""

    def __init__(self, job: Job) -> None:
        vars(self)["_job"] = job

    def __repr__(self) -> str:
        return f"the job on rank {self._job.rank}: load, compute, average, update; step, run, restart"

    def __getattr__(self, name: str) -> Any:
        _touched.update({name} & set(PARTS))
        return getattr(self._job, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _touched.update({name} & set(PARTS))
        setattr(self._job, name, value)


@contextmanager
def more_threads(count: int) -> Iterator[None]:
    """Let other threads multiply matrices meanwhile, as BLAS threads that wait for work keep a core busy."""
    ended = threading.Event()

    def multiply() -> None:
        block = np.full((192, 192), 0.5, np.float32)
        out = np.empty_like(block)
        while not ended.is_set():
            np.matmul(block, block, out=out)

    with ThreadPoolExecutor(max(count, 1)) as pool:
        try:
            for _ in range(count):
                pool.submit(multiply)
            yield
        finally:
            ended.set()


def noise_of(times: Sequence[float] | np.ndarray, typical: Callable[..., Any] = min) -> float:
    """Return how many times as large one half of repeated measurements is as the other, ≥ 1.

    The halves are every second one and the rest, or the earlier and the later ones, which differ more.
    """
    middle = len(times) // 2
    parts = (times[::2], times[1::2]), (times[:middle], times[middle:])
    pairs = [(typical(one), typical(other)) for one, other in parts]
    return float(max(max(pair) / min(pair) for pair in pairs))


def phases(job: Job) -> dict[str, Any]:
    """Time reading and computing, on equal batches, again while repetitions differ.

    Reading: the shortest, since other programs only make times longer; less than LEAST_MS does not matter.
    Computing: its processor time as a multiple of that of a fixed computation right after it, since a core
    may be slower for a while; the median.
    """
    reading, computing, fixed = list[float](), list[float](), list[float]()
    noises, block = [2 * NOISE] * 2, np.full((96, 96), 1 / 96, np.float32)
    while max(noises) > NOISE and len(reading) < MOST * REPETITIONS:
        for _ in range(REPETITIONS):
            began = perf_counter()
            x, y = job.load(EQUAL_BATCH)
            reading.append(perf_counter() - began)
            began = thread_time()
            job.compute(x, y)
            computing.append(thread_time() - began)
            began, product = thread_time(), block
            for _ in range(10):
                product = product @ product
            fixed.append(thread_time() - began)
            sleep(PAUSE_S)
        ratios = np.array(computing) / fixed
        noises = [noise_of(np.maximum(reading, LEAST_MS / 1e3)), noise_of(ratios, np.median)]
    return {
        "load ms": 1e3 * min(reading),
        "load noise": noises[0],
        "compute ms": 1e3 * min(computing),
        "compute / fixed": float(np.median(ratios)),
        "compute noise": noises[1],
        "fixed ms": 1e3 * min(fixed),
    }


def links(job: Job) -> dict[str, Any]:
    """Time a message there and back between each two ranks, as a multiple of what the link needs for it."""
    comm, ball, due = job.comm, np.zeros(BALL, np.uint8), 2 * (LINK.latency_s + BALL * LINK.s_per_byte)
    times: dict[int, list[float]] = {rank: [] for rank in range(job.size) if rank != job.rank}
    for _ in range(LINK_ROUNDS):
        for low, high in combinations(range(job.size), 2):
            comm.Barrier()
            other = low + high - job.rank
            for _ in range(4 * (job.rank in (low, high))):
                began = perf_counter()
                for is_first in (True, False):
                    if (job.rank == low) == is_first:
                        comm.Send(ball, other)
                    else:
                        comm.Recv(ball, other)
                times[other].append(perf_counter() - began)
        noise = comm.allreduce(max(map(noise_of, times.values())), MPI.MAX)
        if noise < NOISE:
            break
    return {f"to {rank}": min(times.get(rank, [due])) / due for rank in range(job.size)} | {"noise": noise}


def threads(job: Job) -> dict[str, Any]:
    """Compare the processor time of all of this process's threads with that of the one that computes."""
    x, y = job.load()
    all_began, one_began = process_time(), thread_time()
    while thread_time() - one_began < THREADS_S:
        job.compute(x, y)
    all_s, one_s = process_time() - all_began, thread_time() - one_began
    return {"all threads ms": 1e3 * all_s, "one thread ms": 1e3 * one_s, "all / one": all_s / one_s}


def samples(job: Job) -> dict[str, Any]:
    foreign = len(set(job.ids.tolist()) - set(job.planned.tolist()))
    return {"planned": len(job.planned), "read": len(job.ids), "of others": foreign}


def checksum(array: np.ndarray) -> str:
    return f"{zlib.crc32(array.tobytes()):08x}"


def around_two_steps(job: Job, name: str) -> tuple[str, str]:
    """Return the checksums of an array of the model before the first step and after the second."""
    job.restart()
    before = checksum(getattr(job.model, name))
    for _ in range(2):
        job.step()
    return before, checksum(getattr(job.model, name))


def weights(job: Job) -> dict[str, Any]:
    start, after = around_two_steps(job, "params")
    of_seed = checksum(model_of(job._setting, job._setting.seed).params)
    return {"of the seed": of_seed, "start": start, "after 2 steps": after}


def buffers(job: Job) -> dict[str, Any]:
    before, after = around_two_steps(job, "buffers")
    return {"before": before, "after 2 steps": after}


def backward_passes(job: Job) -> Iterator[None]:
    """Compute the gradients of all batches, one after the other, without a step."""
    job.restart()
    for job.number in range(STEPS):
        job.compute(*job.load())
        yield
    job.restart()


def gradients(job: Job) -> dict[str, Any]:
    norms = [float(np.linalg.norm(job.model.grads)) for _ in backward_passes(job)]
    finite = int(np.isfinite(norms).sum())
    return {"first norm": norms[0], "last norm": norms[-1], "not finite": STEPS - finite}


def buckets(job: Job) -> dict[str, Any]:
    incomplete = sum(len(job.buckets) - len(job.complete()) for _ in backward_passes(job))
    start, stop = job.buckets[-1]
    percent = 100 * (stop - start) / job.model.grads.size
    return {"buckets": len(job.buckets), "last bucket %": percent, "incomplete": incomplete}


def mean(job: Job) -> dict[str, Any]:
    """Compare the gradient of the update with the weighted mean, which pickled objects carry."""
    job.restart()
    differences = []
    for _ in range(2):
        job.compute(*job.load())
        own = job.model.grads.astype(np.float64)
        total = MPI.Intracomm.allreduce(job.comm, job.batch)
        right = MPI.Intracomm.allreduce(job.comm, own * job.batch / total)
        job.step()
        differences.append(np.linalg.norm(job.used - right) / np.linalg.norm(right))
    return {"relative difference": float(max(differences))}


def messages(job: Job) -> dict[str, Any]:
    sent = job.batch, job.batch + 1000 + job.rank
    told = MPI.Intracomm.allgather(job.comm, job.exchange(*sent))
    reader = told[(job.rank + 1) % job.size][job.rank]
    text = [f"{first:g}, {second:g}" for first, second in (sent, reader)]
    return {"meant to send": text[0], "arrived": text[1]}


def run(job: Job) -> dict[str, Any]:
    job.restart()
    began = perf_counter()
    job.run()
    row = {"steps": job.number, "loss": float(job.loss), "ms a step": 1e3 * (perf_counter() - began) / STEPS}
    if job.number < STEPS:  # this rank has left, and the others hang
        return row
    states = MPI.Intracomm.allgather(job.world, (checksum(job.model.params), checksum(job.model.buffers)))
    return row | {"states": "equal" if len(set(states)) == 1 else "different"}


MEASURES: Mapping[str, Callable[[Job], dict[str, Any]]] = {
    experiment.__name__: experiment
    for experiment in (
        phases,
        links,
        threads,
        samples,
        weights,
        gradients,
        mean,
        messages,
        buckets,
        buffers,
        run,
    )
}
_job: Job | None = None  # of the last `start`
_touched = set[str]()  # of `PARTS`, by cells since the last `used`


def start(comm: MPI.Intracomm, seed: int, faults: int) -> JobByHand:
    """Make the job of an incident, and return it for a notebook's own cells."""
    used()
    return JobByHand(start_setting(comm, drawn(seed, comm.size, faults)))


def start_setting(comm: MPI.Intracomm, setting: Setting) -> Job:
    """Make and return the job of this setting, in place of the one before it."""
    global _job  # noqa: PLW0603
    if _job is not None:
        _job.file.close()
        _job.comm.Free()
    _job = Job(comm, setting)
    return _job


def used() -> set[str]:
    """Return the parts of the job that cells have used since the last call. Not collective."""
    touched = set(_touched)
    _touched.clear()
    return touched


def measure(name: str) -> list[tuple[str, Any]]:
    """Run an experiment, and return this rank's row: as pairs, since a dict would reach a notebook sorted."""
    if _job is None:
        raise RuntimeError("there is no job on these ranks: call incident() again")
    return list(MEASURES[name](_job).items())
