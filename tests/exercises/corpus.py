"""The corpus: every reference, and every mistake with the finding that it must get.

    python -m tests.exercises.corpus [NAME …]

runs it, or the exercises of these names or notebooks ("nb03"), and prints each fault.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import mpi4py

from labkit.checks import judging
from labkit.checks.exercise import CAUGHT, Code, Verdict
from labkit.checks.judge import Judge
from labkit.checks.launching import Job, scratch_folder
from labkit.exercises import catalogue

MOST_TEXTS = 12  # in one job on ranks; an answer that raises an error leaves its communicators


# Right answers that a check might refuse: what differs from the reference's text.
ALSO_RIGHT: dict[str, Code] = {
    "accumulate": """
def accumulate(comm, micro_batches, total):
    whole = np.zeros(total.size + 1)  # the last value: the number of samples
    for gradient, count in micro_batches:
        whole += count * np.append(gradient, 1.0)
    comm.Allreduce(MPI.IN_PLACE, whole)
    total[...] = whole[:-1] / whole[-1]
""",
    "time_pairs": {
        "comm.Barrier()": "pair = comm.Split(0 if comm.rank in (a, b) else MPI.UNDEFINED, comm.rank)",
        "comm.Send(buffer, b)": "pair.Isend(buffer, dest=1).Wait()",
        "comm.Recv(buffer, b)": "pair.Irecv(buffer, source=1).Wait()",
        "comm.Recv(buffer, a)\n": "pair.Recv(buffer, source=0)\n",
        "comm.Send(buffer, a)": "pair.Ssend(buffer, tag=7, dest=0)",
    },
    "bucket_plan": {"plan.append((start, stop))": "plan.append([start, stop])"},
    "average_overlapped": {
        "request.Test()": "request.test()",
        "for request in requests:\n        request.Wait()": (
            "while not all([request.Test() for request in requests]): 0"
        ),
    },
    "sharded_step": {
        "comm.Reduce_scatter(grads, mean, counts)": """starts, rank = np.cumsum([0, *counts]), comm.rank
    mean[:], received = grads[starts[rank] : starts[rank + 1]], np.empty_like(velocity)
    for k in range(1, comm.size):
        to, source = (rank + k) % comm.size, (rank - k) % comm.size
        comm.Sendrecv([grads[starts[to] :], counts[to]], to, recvbuf=received, source=source)
        mean += received"""
    },
    "reduce_scatter_overlapped": {
        "gradient /= comm.size": "gradient = gradient / comm.size; ready.last = k",
        "for request, _ in under_way:\n        request.Wait()": (
            "[request.wait() for request, _ in under_way]"
        ),
    },
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
        wrong.append(Answer(f"it calls `comm.{method}`, which this exercise leaves out", text))
    right = [replace(exercise, mistakes={"": ALSO_RIGHT[name]}).mistaken("")] if name in ALSO_RIGHT else []
    return [*(Answer(None, text) for text in (exercise.text, *right)), *wrong]


class FreeingJob(Job):
    """A job that frees the communicators of each answer: strict mode looks at all that there are."""

    def _request(self, text: str | None, cases: Sequence[int] = (), free: bool = False) -> None:
        super()._request(text, cases, free=True)


def submit(name: str, *texts: str, deadline_s: float | None = None) -> list[Verdict]:
    """Return the verdicts on the texts of cells. This process must not be an MPI process.

    The jobs are forked, as those of a check are, from a process that has imported what they need.
    """
    mpi4py.rc.initialize = False
    exercise = catalogue.find(name)
    exercise = replace(exercise, deadline_s=deadline_s or exercise.deadline_s)
    cases, made = list(exercise.cases()), list[Verdict]()
    while left := texts[len(made) :][: MOST_TEXTS if exercise.on_ranks else None]:
        forks, parent = judging._address_and_folder()
        with scratch_folder(parent) as folder, FreeingJob(folder, exercise, cases, forks) as job:
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
