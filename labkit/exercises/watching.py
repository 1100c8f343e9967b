"""Run a function on the smallest case in which its check has failed, so that `%%replay` can show it."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from labkit.checks.exercise import Case, Exercise, Outcome
from labkit.exercises import catalogue
from labkit.exercises.reference import reference_function
from labkit.exercises.right_values import inputs_line, value_sentence
from labkit.replay.parts import EXPECTED, POWERS, PREPARED
from labkit.text import counted
from mpiwatch import sessions

MOST_DIGITS = 7  # that float32 holds exactly
POWERS_NOTE = ", where rank r contributes values of 10^r"

failed_cases: dict[str, int] = {}  # of the last check in this process: the number of the case, by exercise
findings: dict[str, str] = {}  # what the check has found in it, by exercise
_notes: dict[str, Any] = {}  # of the last case in this process: see `take_notes`
_communicators: list[Any] = []  # of cases that need fewer ranks than there are


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
    findings[exercise.name] = finding
    return f" To watch this case: a cell with %%replay and, below it, run_case({exercise.name})."


def number_of_case(cases: list[Case], finding: str) -> int | None:
    """Return the number of the case that a finding begins with; None if it names none."""
    named = [number for number, case in enumerate(cases) if finding.startswith(f"with {case.label}")]
    return max(named, key=lambda number: len(cases[number].label), default=None)


def run_case(function: Callable[..., Any], *, powers: bool = True) -> Any:
    """Call a function on the smallest case in which its last check has failed; return what it returns.

    All ranks call this; ranks that the case does not need return None. Without a failed check, the case is
    the first one that needs most of the ranks.

    While calls are recorded, the reference runs first, apart, so that the replay can compare the messages
    and the results.
    With `powers`, arrays of numbers that a rank contributes hold 10 to the power of the rank, if the function
    takes one such array: then each digit of a sum says how often a rank's contribution is in it.
    """
    from mpi4py import MPI  # noqa: PLC0415  (the notebook's kernel imports labkit.exercises, and no MPI)

    _notes.clear()
    exercise = catalogue.find(function.__name__)
    if not exercise.on_ranks:
        raise ValueError(f"expected a function of an exercise on ranks, got {exercise.name}")
    world = MPI.COMM_WORLD
    case = _case_to_run(exercise, world)
    contributed = contributed_array(exercise, case) if powers else None
    if world.rank == 0:
        print(f"{exercise.name} with {case.label}{'' if contributed is None else POWERS_NOTE}:")
    comm: Any = world
    with sessions.recording_part(PREPARED):
        _free_old_communicators()
        colour = 0 if world.rank < case.ranks else MPI.UNDEFINED
        if case.ranks < world.size:
            comm = world.Split(colour, world.rank)
        # For the reference: a report about the function then counts its own collectives alone.
        apart: Any = world.Split(colour, world.rank) if sessions.is_recording() else None
    inputs = inputs_line(exercise, _with_powers(case, contributed))
    if sessions.is_recording():
        _notes["ranks"], _notes["inputs"] = case.ranks, f"Case: {case.label}. {inputs}"
    elif world.rank == 0:
        print(inputs)
    if world.rank >= case.ranks:
        return None
    if comm is not world:
        _communicators.append(comm)
    before = list(copy.deepcopy(_with_powers(case, contributed)[world.rank]))

    def call(called: Callable[..., Any], on: Any) -> Outcome:
        arguments = copy.deepcopy(before)
        wrapped = on if exercise.wrap is None else exercise.wrap(on, case)
        return Outcome(called(wrapped, *arguments), tuple(arguments))

    if not sessions.is_recording():
        return call(function, comm).result
    if contributed is not None:
        with sessions.recording_part(POWERS):
            pass
    _communicators.append(apart)
    with sessions.recording_part(PREPARED if exercise.many_are_right else EXPECTED):
        right = call(reference_function(exercise), apart)
    with sessions.recording_part(PREPARED):
        MPI.Intracomm(apart).Barrier()  # so that the ranks begin together
    _notes["finding"] = findings.get(exercise.name, "")
    try:
        got = call(function, comm)
    finally:
        _notes["ended_s"] = time.monotonic()
    _notes["values"] = value_sentence(exercise, world.rank, got, right, before)
    return got.result


def _with_powers(case: Case, contributed: int | None) -> list[tuple[Any, ...]]:
    """Return each rank's arguments; the contributed array of rank r, if there is one, holds values 10^r."""
    by_rank = []
    for rank, arguments in enumerate(case.arguments):
        of_rank = list(arguments)
        if contributed is not None:
            of_rank[contributed] = np.full_like(of_rank[contributed], 10**rank)
        by_rank.append(tuple(of_rank))
    return by_rank


def take_notes() -> dict[str, Any]:
    """Return what is known of the last case on this rank, and forget it; empty if there was none.

    "ranks": how many it needs. "ended_s": when the function ended, by the clock of this rank. "values": how
    the result differs from the right one, in a sentence; empty if it does not. "finding": what the check has
    found. "inputs": what the function gets, in a line.
    """
    taken = dict(_notes)
    _notes.clear()
    return taken


def _case_to_run(exercise: Exercise, world: Any) -> Case:
    """Return the case in which the last check has failed. Raise ValueError if there are too few ranks."""
    from mpi4py import MPI  # noqa: PLC0415  (see above)

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
    return case


def _free_old_communicators() -> None:
    """Free those of earlier cases. All ranks begin a case together, but they may not end it together.

    If a function has left messages, its communicator stays: MPI might give them to the next one.
    """
    from mpi4py import MPI  # noqa: PLC0415  (see above)

    while _communicators:
        comm = _communicators.pop()
        with contextlib.suppress(Exception):  # its cell has failed, and has ended it
            plain = MPI.Intracomm(comm)
            if not plain.allreduce(plain.Iprobe(), MPI.LOR):
                comm.Free()


def contributed_array(exercise: Exercise, case: Case) -> int | None:
    """Return which argument is the array that a rank contributes to the result; None if that is not clear."""
    arguments = case.arguments[0]
    if any(map(callable, arguments)) or case.ranks > MOST_DIGITS:
        return None
    results = exercise.result_in if isinstance(exercise.result_in, tuple) else (exercise.result_in,)
    numbers = [
        number
        for number, argument in enumerate(arguments)
        if isinstance(argument, np.ndarray)
        and argument.dtype.kind == "f"
        and argument.itemsize >= 4
        and argument.ndim < 2  # rows of equal values would hide which of them a function has changed
    ]
    if len(numbers) > 1:  # the others are for the result
        numbers = [number for number in numbers if number not in results]
    return numbers[0] if len(numbers) == 1 else None
