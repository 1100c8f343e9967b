"""The corpus: every reference, and every mistake with the finding that it must get.

    python -m tests.exercises.corpus [NAME …]

runs it, or the exercises of these names or notebooks ("nb03"), and prints each fault.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import NamedTuple

import mpi4py

from labkit.exercises import catalogue
from labkit.exercises.exercise import CAUGHT, Verdict
from labkit.exercises.judge import Judge
from labkit.exercises.launching import Job, scratch_folder

MOST_TEXTS = 3  # in one job on ranks: each case opens a communicator, of which about 60 can be watched


# Right answers that a check might refuse, because they differ from the reference.
ALSO_RIGHT = {
    "time_pairs": (
        """
def time_pairs(comm, nbytes):
    times, message = np.zeros((comm.size, comm.size)), bytearray(nbytes)
    for a in range(comm.size):
        for b in range(a):
            best = np.inf
            comm.Barrier()
            for _ in range(2):
                if comm.rank == a:
                    start = perf_counter()
                    comm.Isend(message, dest=b).Wait()
                    comm.Irecv(message, source=b).Wait()
                    best = min(best, perf_counter() - start)
                elif comm.rank == b:
                    comm.Recv(message, source=a)
                    comm.Ssend(message, tag=7, dest=a)
            times[a, b] = times[b, a] = comm.bcast(best, root=a)
    return times
""",
    ),
    "bucket_plan": (
        """
def bucket_plan(n, bucket_bytes, small_bytes):
    most = max(1, bucket_bytes // 4)
    small = min(most, max(1, small_bytes // 4))
    plan, stop = [], n
    while stop > 0:
        values = small if stop in (n, min(stop, small)) else min(most, stop - small)
        plan.append([max(0, stop - values), stop])
        stop = plan[-1][0]
    return plan
""",
    ),
    "average_overlapped": (
        """
def average_overlapped(comm, backward, grads, plan):
    left, requests = list(plan), []
    def finished(start):
        requests[:] = [request for request in requests if not request.test()[0]]
        while left and left[0][0] >= start:
            bucket = grads[slice(*left.pop(0))]
            bucket /= comm.size
            requests.append(comm.Iallreduce(MPI.IN_PLACE, bucket))
    backward(finished)
    while not all([request.Test() for request in requests]):
        pass
""",
    ),
    "sharded_step": (
        """
def sharded_step(comm, params, grads, velocity, lr, momentum):
    counts = [len(each) for each in np.array_split(params, comm.size)]
    starts = np.cumsum([0, *counts])
    own = slice(starts[comm.rank], starts[comm.rank + 1])
    total, received = grads[own].copy(), np.empty_like(velocity)
    for k in range(1, comm.size):
        to, source = (comm.rank + k) % comm.size, (comm.rank - k) % comm.size
        comm.Sendrecv([grads[starts[to] :], counts[to]], to, recvbuf=received, source=source)
        total += received
    velocity[:] = momentum * velocity + total / comm.size
    params[own] -= lr * velocity
    comm.Allgatherv(MPI.IN_PLACE, [params, counts])
""",
    ),
    "reduce_scatter_overlapped": (
        """
def reduce_scatter_overlapped(comm, backward, counts):
    chunks, requests = {}, {}
    def ready(k, gradient):
        for j in [j for j, (request, _) in requests.items() if request.Test()]:
            del requests[j]
        gradient = gradient / comm.size
        chunks[k] = np.empty(counts[k][comm.rank], gradient.dtype)
        requests[k] = comm.Ireduce_scatter(gradient, chunks[k], counts[k]), gradient
        ready.last = k
    backward(ready)
    for request, _ in requests.values():
        request.Wait()
    return chunks
""",
    ),
}


class Answer(NamedTuple):
    """A submission. `words` must stand in its finding; None if it is right, and must pass."""

    words: str | None
    text: str


def answers(name: str) -> list[Answer]:
    """Return the reference of an exercise, its mistakes, a forbidden call, and other right answers."""
    exercise = catalogue.find(name)
    wrong = [Answer(each.lstrip(f"{CAUGHT} "), exercise.mistaken(each)) for each in exercise.mistakes]
    if exercise.forbidden:
        method = "allgather" if "allgather" in exercise.forbidden else "allreduce"
        wrapped = f"def {name}(comm, *arguments):\n    comm.{method}(0)\n    return own(comm, *arguments)"
        text = f"{exercise.text}\n\nown = {name}\n\n\n{wrapped}\n"
        wrong.append(Answer(f"it calls `comm.{method}`, which does the exercise by itself", text))
    return [Answer(None, exercise.text), *wrong, *(Answer(None, text) for text in ALSO_RIGHT.get(name, ()))]


def submit(name: str, *texts: str, deadline_s: float | None = None) -> list[Verdict]:
    """Return the verdicts on the texts of cells. This process must not be an MPI process."""
    mpi4py.rc.initialize = False
    exercise = catalogue.find(name)
    exercise = replace(exercise, deadline_s=deadline_s or exercise.deadline_s)
    cases, made = list(exercise.cases()), list[Verdict]()
    while left := texts[len(made) :][: MOST_TEXTS if exercise.on_ranks else None]:
        with scratch_folder() as folder, Job(folder, exercise, cases) as job:
            judge = Judge(job, exercise, cases)
            for text in left:
                made.append(judge.verdict(text))
                if not job.is_running:
                    break
    return made


def faults(name: str, tried: list[Answer]) -> list[str]:
    """Return which answers to an exercise do not get what they must get, and what they get."""
    found = submit(name, *(answer.text for answer in tried))
    said = [(answer, fault(answer, verdict)) for answer, verdict in zip(tried, found, strict=True)]
    return [f"{(answer.words or 'right answer')[:50]}: {text}" for answer, text in said if text]


def fault(answer: Answer, found: Verdict) -> str:
    """Return why an answer does not get what it must get; an empty text if it does."""
    if found.check_failed:
        return f"the check failed: {found.finding}"
    if answer.words is None:
        return "" if found.passed else f"a right answer is refused: {found.finding}"
    if found.passed:
        return f"passes, but must get: {answer.words}"
    return "" if answer.words in found.finding else f"gets: {found.finding}\n    must get: {answer.words}"


def main(wanted: list[str]) -> int:
    count, tried_any = 0, False
    for name, exercise in catalogue.exercises().items():
        if wanted and not {name, f"nb{exercise.notebook}"} & set(wanted):
            continue
        began, tried, tried_any = time.monotonic(), answers(name), True
        found = faults(name, tried)
        count += len(found)
        print(f"{time.monotonic() - began:4.1f} s  {name}: {len(tried)} answers, {len(found)} faults")
        for text in found:
            print(f"  {text}", flush=True)
    if not tried_any:
        print(f"there is no exercise or file of exercises named {' or '.join(wanted)}")
        return 1
    print(f"{count} faults")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
