"""Run a function on the smallest case in which its check has failed, so that `%%replay` can show it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from labkit.checks.exercise import Case, Exercise
from labkit.exercises import catalogue
from labkit.text import counted

failed_cases: dict[str, int] = {}  # of the last check in this process: the number of the case, by exercise


def note_failure(exercise: Exercise, finding: str) -> str:
    """Note the case that a check's finding is about; return a sentence that says how to watch it.

    Return nothing if the finding is about no single case, or if the function runs on one rank.
    """
    failed_cases.pop(exercise.name, None)
    if not exercise.on_ranks:
        return ""
    number = number_of_case(list(exercise.cases()), finding)
    if number is None:
        return ""
    failed_cases[exercise.name] = number
    return f" To watch this case: a cell with %%replay and, below it, run_case({exercise.name})."


def number_of_case(cases: list[Case], finding: str) -> int | None:
    """Return the number of the case that a finding begins with; None if it names none."""
    named = [number for number, case in enumerate(cases) if finding.startswith(f"with {case.label}")]
    return max(named, key=lambda number: len(cases[number].label), default=None)


def run_case(function: Callable[..., Any]) -> Any:
    """Call a function on the smallest case in which its last check has failed; return what it returns.

    All ranks call this; ranks that the case does not need return None. Without a failed check, the case is
    the first one that needs most of the ranks.
    """
    from mpi4py import MPI  # noqa: PLC0415  (the notebook's kernel imports labkit.exercises, and no MPI)

    exercise = catalogue.find(function.__name__)
    if not exercise.on_ranks:
        raise ValueError(f"expected a function of an exercise on ranks, got {exercise.name}")
    world = MPI.COMM_WORLD
    cases = list(exercise.cases())
    plain = MPI.Intracomm(world)  # what is sent on it is not part of the replay
    number = plain.bcast(failed_cases.get(exercise.name, -1))
    if number < 0:
        fitting = [case.ranks for case in cases if case.ranks <= world.size]
        number = [case.ranks for case in cases].index(max(fitting))
    case = cases[number]
    if case.ranks > world.size:
        text = f"the case has {counted(case.ranks, 'rank')}, and there are {world.size}"
        raise ValueError(f"{text}: connect(n={case.ranks}) starts as many")
    if world.rank == 0:
        print(f"{exercise.name} with {case.label}:")
    comm: Any = world
    if case.ranks < world.size:
        comm = world.Split(0 if world.rank < case.ranks else MPI.UNDEFINED, world.rank)
        if world.rank >= case.ranks:
            return None
    if exercise.wrap is not None:
        comm = exercise.wrap(comm, case)
    return function(comm, *copy.deepcopy(case.arguments[world.rank]))
