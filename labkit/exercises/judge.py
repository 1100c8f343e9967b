"""Judge what a student's function did: one finding, about the smallest case that fails."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from labkit.exercises.compare import ROUNDINGS, difference, names_of_parts
from labkit.exercises.ends import CheckFailed
from labkit.exercises.exercise import Case, Exercise, Outcome
from labkit.exercises.launching import Job, Trial
from labkit.exercises.transport import Foreign, Unreadable, pack, unpack
from mpiwatch.wording import ranks_phrase

RECOGNITION_S = 4.0  # for all known mistakes to run; they take a second on emulated links, else far less

Results = list[list[Outcome]]  # of each case, of each rank
Wrong = dict[int, tuple[list[Any], list[str | None]]]  # expected results and differences, by case


def outcomes(trial: Trial, cases: Sequence[Case]) -> Results:
    """Return what the ranks of a complete job did. Raise CheckFailed if a record is missing."""
    found = _by_case_and_rank(trial)
    try:
        return [[found[number, rank] for rank in range(case.ranks)] for number, case in enumerate(cases)]
    except KeyError as missing:
        raise CheckFailed(f"the job wrote no result for case and rank {missing}") from None


def _by_case_and_rank(trial: Trial) -> dict[tuple[int, int], Outcome]:
    found: dict[tuple[int, int], Outcome] = {}
    for rank, records in enumerate(trial.records):
        for record in records:
            if "result" in record:
                arguments = tuple(map(unpack, record["arguments"]))
                counts = (tuple(record[name]) for name in ("sent", "messages", "calls"))
                found[record["case"], rank] = Outcome(unpack(record["result"]), arguments, *counts)
    return found


class MistakesMade:
    """What an exercise's known mistakes return: the job that runs the student's code runs them when asked."""

    def __init__(self, job: Job, exercise: Exercise, cases: Sequence[Case]) -> None:
        self.job, self.exercise, self.cases = job, exercise, cases
        self._outcomes: dict[tuple[int, str], list[Outcome]] = {}

    def on(self, number: int, sentences: Sequence[str], limit_s: float) -> list[list[Outcome]]:
        """Return what these mistakes do on each rank in a case; nothing for one that does not return."""
        new = [each for each in sentences if (number, each) not in self._outcomes]
        self._outcomes |= {(number, each): [] for each in new}
        if new and self.job.is_running:
            with suppress(OSError, Unreadable):  # then none of them is recognised
                trials = self.job.run([self.exercise.mistaken(each) for each in new], [number], limit_s)
                for sentence, trial in zip(new, trials, strict=False):
                    found = _by_case_and_rank(trial)
                    ranks = [(number, rank) for rank in range(self.cases[number].ranks)]
                    if all(key in found for key in ranks):
                        self._outcomes[number, sentence] = [found[key] for key in ranks]
        return [self._outcomes[number, each] for each in sentences]


def judge(exercise: Exercise, cases: Sequence[Case], outcomes: Results, mistakes: MistakesMade) -> str | None:
    """Return the finding on the outcomes of all cases; None if the function is correct."""
    for by_rank in outcomes:
        for rank, outcome in enumerate(by_rank):
            if found := sorted(set(outcome.calls) & set(exercise.forbidden)):
                where = f"on rank {rank}, " if exercise.on_ranks else ""
                return (
                    f"{where}it calls `comm.{found[0]}`, which does the exercise by itself. "
                    "Write it without this call"
                )
    wrong: Wrong = {} if exercise.expected is None else _wrong(exercise, cases, outcomes)
    if wrong:
        return _explain(exercise, cases, outcomes, wrong, mistakes)
    for case, by_rank in zip(cases, outcomes, strict=True):
        if changed := _changed(exercise, case, by_rank):
            return f"{_with(case)}: {changed}"
    for number, (case, by_rank) in enumerate(zip(cases, outcomes, strict=True)):
        if found_by_look := exercise.look(case, by_rank):
            sentence = ""
            if exercise.expected is None:  # so the result may be that of a mistake
                unknown: Wrong = {number: ([None] * case.ranks, [found_by_look])}
                sentence = _recognised(exercise, cases, outcomes, unknown, mistakes)
            return f"{_with(case)}: {sentence or found_by_look}"
    return None


def result_of(exercise: Exercise, outcome: Outcome) -> Any:
    """Return what is judged: the function's result, or what it left in one of its arguments."""
    return outcome.result if exercise.result_in is None else outcome.arguments[exercise.result_in]


def _wrong(exercise: Exercise, cases: Sequence[Case], outcomes: Results) -> Wrong:
    """Return the expected results and the ranks' differences of each case that has any."""
    assert exercise.expected is not None
    wrong: Wrong = {}
    for number, (case, by_rank) in enumerate(zip(cases, outcomes, strict=True)):
        expected = list(exercise.expected(case))
        if len(expected) != case.ranks:
            raise ValueError(f"{exercise.name}: expected({case.label}) has {len(expected)} results")
        found = [
            _difference(exercise, case, result_of(exercise, outcome), right)
            for outcome, right in zip(by_rank, expected, strict=True)
        ]
        if any(found):
            wrong[number] = expected, found
    return wrong


def _difference(exercise: Exercise, case: Case, got: Any, expected: Any) -> str | None:
    tolerance = _tolerance(exercise, case)
    if exercise.result_in is not None:
        names = list(inspect.signature(exercise.reference).parameters)
        name = names[exercise.result_in + exercise.on_ranks]
        return difference(got, expected, tolerance, f"`{name}`" if _is_plain(expected) else name)
    if isinstance(expected, tuple) and isinstance(got, (tuple, list)) and len(got) == len(expected):
        names = names_of_parts(exercise.reference.__doc__, len(expected))
        parts = zip(names, got, expected, strict=True) if names else ()
        for name, left, right in parts:
            if found := difference(left, right, tolerance, name):
                return found
    return difference(got, expected, tolerance)


def _tolerance(exercise: Exercise, case: Case) -> float | None:
    """Return the tolerance: to rounding of the arguments if they are coarser than float64.

    A number that is computed from float32 is rounded to float32, whatever its own type.
    """
    if exercise.tolerance is not None:
        return exercise.tolerance
    dtypes = {each.dtype for mine in case.arguments for each in mine if isinstance(each, np.ndarray)}
    coarse = [np.finfo(dtype).eps for dtype in dtypes if dtype.kind == "f" and dtype.itemsize < 8]
    return ROUNDINGS * float(max(coarse)) if coarse else None


def _is_plain(value: Any) -> bool:
    return not hasattr(value, "shape")


def _explain(
    exercise: Exercise,
    cases: Sequence[Case],
    outcomes: Results,
    wrong: Wrong,
    mistakes: MistakesMade,
) -> str:
    """Return the mistake that explains the wrong results, or what is wrong in the smallest case."""
    number = min(wrong)
    case, (_, found) = cases[number], wrong[number]
    sentence = _of_suspects(exercise, cases, outcomes, wrong) if exercise.suspects else ""
    sentence = sentence or _recognised(exercise, cases, outcomes, wrong, mistakes)
    if sentence:
        return f"{_with(case)}: {sentence}"
    ranks = [rank for rank, each in enumerate(found) if each]
    text = f"{_with(case)}{_on(ranks, case, exercise)}: {found[ranks[0]]}"
    changed = _changed(exercise, case, outcomes[number])
    return f"{text}. Also, {changed}" if changed else text


def _recognised(
    exercise: Exercise, cases: Sequence[Case], outcomes: Results, wrong: Wrong, mistakes: MistakesMade
) -> str:
    """Return the sentence of the mistake that explains the first cases that are wrong; empty if none does.

    Further cases are tried only until one mistake is left: that takes time on ranks.
    """
    left, is_explained = exercise.recognised, False
    end_at = time.monotonic() + RECOGNITION_S
    for number in sorted(wrong):
        left_s = end_at - time.monotonic()
        if not left or (is_explained and len(left) == 1) or left_s <= 0:
            break
        done = mistakes.on(number, left, left_s)
        made = [[result_of(exercise, each) for each in by_rank] for by_rank in done]
        explaining = [
            sentence
            for sentence, produced in zip(left, made, strict=True)
            if _explains(exercise, cases[number], outcomes[number], produced, wrong[number][0])
        ]
        left, is_explained = explaining or left, is_explained or bool(explaining)
    return left[0] if is_explained else ""


def _of_suspects(exercise: Exercise, cases: Sequence[Case], outcomes: Results, wrong: Wrong) -> str:
    """Return the suspect that explains most of the wrong cases; empty if none does."""
    explained = {
        sentence: sum(
            _explains(exercise, cases[number], outcomes[number], _produced(produce, cases[number]), expected)
            for number, (expected, _) in wrong.items()
        )
        for sentence, produce in exercise.suspects.items()
    }
    best = max(explained, key=lambda sentence: explained[sentence])
    return best if explained[best] else ""


def _produced(produce: Any, case: Case) -> list[Any]:
    try:
        return list(produce(case))
    except Exception:  # the mistake cannot be made in this case
        return []


def _explains(
    exercise: Exercise, case: Case, by_rank: list[Outcome], produced: list[Any], right: list[Any]
) -> bool:
    """Tell whether a mistake produces these results, wherever its results are not the right ones."""
    seen, tolerance = False, _tolerance(exercise, case)
    for outcome, mistaken, expected in zip(by_rank, produced, right, strict=False):
        got = result_of(exercise, outcome)
        for left, middle, goal in _parts(got, mistaken, expected):
            if difference(middle, goal, tolerance):
                seen = True
                if difference(left, middle, tolerance):
                    return False
    return seen


def _parts(got: Any, mistaken: Any, expected: Any) -> list[tuple[Any, Any, Any]]:
    """Return the parts of tuples of one length; otherwise the values as they are."""
    values = got, mistaken, expected
    if isinstance(expected, tuple) and all(
        isinstance(value, (tuple, list)) and len(value) == len(expected) for value in values
    ):
        return list(zip(*values, strict=True))
    return [values]


def _changed(exercise: Exercise, case: Case, by_rank: Sequence[Outcome]) -> str | None:
    """Return which argument the function has changed that it should leave alone."""
    names = list(inspect.signature(exercise.reference).parameters)[exercise.on_ranks :]
    allowed = {*exercise.may_change, exercise.result_in}
    for rank, (outcome, before) in enumerate(zip(by_rank, case.arguments, strict=True)):
        for number, (left, right) in enumerate(zip(outcome.arguments, before, strict=True)):
            sent = unpack(pack(right))
            if number in allowed or isinstance(sent, Foreign):
                continue
            if difference(left, sent, 0.0):
                name = names[min(number, len(names) - 1)]
                where = f"on rank {rank} " if exercise.on_ranks else ""
                return f"{where}the function changes its argument `{name}`. Work on a copy"
    return None


def _with(case: Case) -> str:
    return f"with {case.label}"


def _on(ranks: list[int], case: Case, exercise: Exercise) -> str:
    if not exercise.on_ranks:
        return ""
    others = [rank for rank in range(case.ranks) if rank not in ranks]
    right = f" ({ranks_phrase(others)} {'are' if len(others) > 1 else 'is'} right)" if others else ""
    return f", on {ranks_phrase(ranks[:1])}{right}"
