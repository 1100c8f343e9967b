"""The judge: run a student's function in a job, and say what is wrong with it, in one finding.

    python -m labkit.checks.judge FOLDER

is a process that neither the notebook nor the job can change. Its standard input is the request, JSON: the
module and the name of an exercise, the text of the student's cell, whether the job is to run in a sandbox,
the folder in which such jobs share copies of modules, the address of the process that forks the job's, and a
token that only the asking process knows. The program prints a line, the token with the verdict after it,
JSON, too. The job uses the folder; no process of it has the judge's standard output.
"""

from __future__ import annotations

import inspect
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import mpi4py
import numpy as np

from labkit.checks import answers, failures, sandbox, sums
from labkit.checks.compare import ROUNDINGS, difference, names_of_parts
from labkit.checks.exercise import Call, Case, Exercise, Fault, Outcome, Verdict, exercise_in
from labkit.checks.launching import Job, Run
from labkit.checks.limits import set_readable
from labkit.checks.transport import Foreign, Unreadable, pack, unpack
from labkit.text import ranks_phrase

MEMORY_BYTES = 1 << 30  # of address space, for the judge: it needs 300 MB for the largest right results
MOST_WORDS = 2000  # characters of a finding
NOT_OWN = "write it with NumPy and mpi4py alone, so that it is yours and runs without the lab"
RECOGNITION_S = 15.0  # for all known mistakes to run, on a busy machine; a second or two on an idle one
Results = list[list[Outcome]]  # of each case, of each rank
Wrong = dict[int, tuple[list[Any], list[str | None]]]  # expected results and differences, by case


class Compared(NamedTuple):
    """Whether a part of a result in a case is wrong, and whether it is with a known mistake, too."""

    case: int
    part: int
    is_wrong: bool
    is_mistaken: bool


def main(folder: Path) -> None:
    """Judge the request."""
    set_readable(False)
    os.umask(0o022)  # in a sandbox that root has made, the job reads the judge's files as another user
    signal.signal(signal.SIGTERM, lambda signum, frame: sys.exit(1))  # end the job first
    request: dict[str, Any] = json.load(sys.stdin)
    sandbox.in_use = request["sandboxed"]
    tempfile.tempdir = str(folder)
    with suppress(ValueError, OSError):  # a lower limit holds already, or the system has none
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        mpi4py.rc.initialize = False  # only the job's ranks are MPI processes
        exercise = exercise_in(request["module"], request["name"])
        cases = list(exercise.cases())
        with ExitStack() as jobs:
            modules_folder = Path(request["modules"]) if request["modules"] else None
            job = jobs.enter_context(
                Job(folder, exercise, cases, request["forks"], modules_folder=modules_folder)
            )

            def new_job() -> Job:
                job.close()
                trusted = Job(folder / "mistakes", exercise, cases, request["forks"], is_trusted=True)
                return jobs.enter_context(trusted)

            verdict = Judge(job, exercise, cases, new_job).verdict(request["text"])
    except Exception as error:
        verdict = failed(error)
    print(
        f"\n{request['token']}{json.dumps(asdict(verdict))}", flush=True
    )  # a submission may have begun a line
    os._exit(0)  # at once: a check waits for it


def failed(error: Exception) -> Verdict:
    """Return the verdict that the check itself has failed."""
    is_known = isinstance(error, failures.CheckFailed)
    text = str(error) if is_known else f"{type(error).__name__}: {error}"
    return Verdict(False, printable(text[:MOST_WORDS]), check_failed=True)


def printable(text: str) -> str:
    """Return a text with escapes in place of what is no character on a page.

    A student's message may hold codes that a terminal obeys, or what no file can hold.
    """
    return "".join(
        character if character.isprintable() or character == "\n" else ascii(character)[1:-1]
        for character in text
    )


class Judge:
    """Judges the functions of cells, one after the other: a job runs them on the cases of an exercise."""

    def __init__(
        self, job: Job, exercise: Exercise, cases: Sequence[Case], new_job: Callable[[], Job] | None = None
    ) -> None:
        self.job = job
        self.exercise = exercise
        self.cases = cases
        self.new_job = new_job  # ends the job, and starts one that runs no student's code
        self.at: int | None = None  # the number of the case that the finding is about
        self.parts: dict[str, str] = {}  # what is wrong with each part of the exercise, once it was looked at

    def verdict(self, text: str) -> Verdict:
        """Run the function that a cell defines on all cases, and judge it. Never raise an exception."""
        self.at = None
        self.parts = {}
        text = answers.runnable(text)
        imported = answers.imports_of_lab(text, self.exercise.prelude)
        if imported:
            return Verdict(False, f"it has the line `{imported}`: {NOT_OWN}", len(self.cases))
        try:
            (run,) = self.job.run_texts([text], range(len(self.cases)))
            finding = failures.finding(run, text, self.exercise, self.cases)
            if finding is None:
                finding = self.finding(self.outcomes(run))
            if finding is None:
                finding = answers.against_task(text, self.exercise) or None
                if finding is not None:
                    self.parts = {}  # each part may be right, and the answer is not
        except Exception as error:
            return failed(error)
        parts = filter(None, [finding, failures.below(run, text)])
        text = printable(". Also, ".join(parts)[:MOST_WORDS])
        # What other cases print, warnings for example, is not about the finding.
        shown = [part for number, part in run.printed.items() if self.at is None or number in (-1, self.at)]
        return Verdict(finding is None, text, len(self.cases), printed="".join(shown), parts=self.parts)

    def outcomes(self, run: Run) -> Results:
        """Return what the ranks did in each case of a run that is complete. Raise CheckFailed otherwise."""
        outcome_of = _by_case_and_rank(run)
        try:
            return [
                [outcome_of[number, rank] for rank in range(case.ranks)]
                for number, case in enumerate(self.cases)
            ]
        except KeyError as missing:
            raise failures.CheckFailed(f"the job wrote no result for case and rank {missing}") from None

    def finding(self, outcomes: Results) -> str | None:
        """Return the finding on the outcomes of all cases; None if the function is correct."""
        exercise = self.exercise
        for by_rank in outcomes:
            for rank, outcome in enumerate(by_rank):
                calls = sorted({call.name for call in outcome.calls} & set(exercise.forbidden))
                if calls:
                    where = f"on rank {rank}, " if exercise.on_ranks else ""
                    what = f"{where}it calls `comm.{calls[0]}`, which this exercise leaves out"
                    return f"{what}: write it without this call"
        for case, by_rank in zip(self.cases, outcomes, strict=True):
            broken = failures.broken_rule([outcome.faults for outcome in by_rank])
            if broken:
                return f"with {case.label}{', ' if exercise.on_ranks else ': '}{broken}"
        wrong = self._wrong(outcomes)
        if wrong:
            self.at = min(wrong)
            return self._explain(outcomes, wrong)
        for case, by_rank in zip(self.cases, outcomes, strict=True):
            changed = self._changed(case, by_rank)
            if changed:
                return f"with {case.label}: {changed}"
        by_look = self._finding_by_look if exercise.look_at_parts is None else self._finding_on_parts
        return by_look(outcomes)

    def _finding_by_look(self, outcomes: Results) -> str | None:
        """Return the first finding that results do not show; None if there is none."""
        exercise = self.exercise
        for number, (case, by_rank) in enumerate(zip(self.cases, outcomes, strict=True)):
            seen = next(iter(exercise.look(case, by_rank)), None) if exercise.look is not None else None
            if seen:
                self.at = number
                known = ""
                if exercise.many_are_right:  # so the result may be that of a known mistake
                    known = self._recognised(outcomes, {number: ([None] * case.ranks, [seen])})
                return known or f"with {case.label}: {seen}"
        return None

    def _finding_on_parts(self, outcomes: Results) -> str | None:
        """Note the first finding on each part of the exercise; return the first of all, None without any."""
        first = None
        self.parts = dict.fromkeys(self.exercise.parts, "")
        for number, (case, by_rank) in enumerate(zip(self.cases, outcomes, strict=True)):
            look = self.exercise.look_at_parts
            for part, text in look(case, by_rank) if look is not None else ():
                if first is None:
                    self.at = number
                    first = f"with {case.label}: {text}"
                self.parts[part] = self.parts[part] or printable(text[:MOST_WORDS])
        return first

    def _wrong(self, outcomes: Results) -> Wrong:
        """Return the expected results and the ranks' differences of each case that has any."""
        wrong: Wrong = {}
        if self.exercise.many_are_right:
            return wrong
        for number, (case, by_rank) in enumerate(zip(self.cases, outcomes, strict=True)):
            expected = self.exercise.right_results(case)
            differences = [
                self._difference(case, self.exercise.result(outcome), right)
                for outcome, right in zip(by_rank, expected, strict=True)
            ]
            if any(differences):
                wrong[number] = expected, differences
        return wrong

    def _difference(self, case: Case, got: Any, expected: Any) -> str | None:
        tolerance, place, parameters = self._tolerance(case), self.exercise.result_in, self._parameters()
        if isinstance(place, int):
            name = parameters[place]
            return difference(got, expected, tolerance, name if hasattr(expected, "shape") else f"`{name}`")
        if isinstance(expected, tuple) and isinstance(got, (tuple, list)) and len(got) == len(expected):
            names = names_of_parts(self.exercise.reference.__doc__, len(expected))
            if place is not None:
                names = ["the result" if index is None else parameters[index] for index in place]
            for name, left, right in zip(names, got, expected, strict=False):
                different = difference(left, right, tolerance, name)
                if different:
                    return _in_another_order(names, got, expected, tolerance) or different
        return difference(got, expected, tolerance)

    def _parameters(self) -> list[str]:
        """Return the names of the function's arguments, without the communicator."""
        return list(inspect.signature(self.exercise.reference).parameters)[self.exercise.on_ranks :]

    def _tolerance(self, case: Case) -> float | None:
        """Return the tolerance: to rounding of the arguments if they are coarser than float64.

        A number that is computed from float32 is rounded to float32, whatever its own type.
        """
        if self.exercise.tolerance is not None:
            return self.exercise.tolerance
        dtypes = {
            argument.dtype for mine in case.arguments for argument in mine if isinstance(argument, np.ndarray)
        }
        coarse = [np.finfo(dtype).eps for dtype in dtypes if dtype.kind == "f" and dtype.itemsize < 8]
        return ROUNDINGS * float(max(coarse)) if coarse else None

    def _explain(self, outcomes: Results, wrong: Wrong) -> str:
        """Return the mistake that explains the wrong results, or what is wrong in the smallest case."""
        number = min(wrong)
        case, (_, differences) = self.cases[number], wrong[number]
        known = self._recognised(outcomes, wrong)
        if known:
            return known
        in_sum = self._sum(outcomes, wrong)
        if in_sum:
            return in_sum
        ranks = [rank for rank, text in enumerate(differences) if text]
        others = [rank for rank in range(case.ranks) if rank not in ranks]
        right = f" ({ranks_phrase(others)} {'are' if len(others) > 1 else 'is'} right)" if others else ""
        where = f", on {ranks_phrase(ranks[:1])}{right}" if self.exercise.on_ranks else ""
        text = f"with {case.label}{where}: {differences[ranks[0]]}"
        changed = self._changed(case, outcomes[number])
        return f"{text}. Also, {changed}" if changed else text

    def _sum(self, outcomes: Results, wrong: Wrong) -> str:
        """Return what is wrong in a result that is a sum over the ranks; empty if no case shows it."""
        for number in sorted(wrong):
            self.at = number
            case, (expected, differences) = self.cases[number], wrong[number]
            for rank in range(case.ranks if self.exercise.on_ranks else 0):
                got = self.exercise.result(outcomes[number][rank])
                seen = sums.what_is_in_it(case, got, expected[rank]) if differences[rank] else ""
                if seen:
                    return f"with {case.label}, on rank {rank}, the result is a wrong sum: {seen}"
        self.at = min(wrong)
        return ""

    def _recognised(self, outcomes: Results, wrong: Wrong) -> str:
        """Return a case and the mistake that explains it; nothing if none does, or if several could.

        A mistake explains a part of the result if it returns the same part in every case.
        """
        end_at = time.monotonic() + RECOGNITION_S
        first, *others = sorted(wrong)
        others += [number for number in range(len(self.cases)) if number not in wrong]
        seen: dict[str, list[Compared]] = {sentence: [] for sentence in self.exercise.recognised}
        for numbers in [first], others:  # few mistakes are left after the first case
            sentences, left_s = list(seen), end_at - time.monotonic()
            if not numbers or not sentences or left_s <= 0:
                continue
            outcomes_of_mistakes = self.mistaken(numbers, sentences, left_s)
            for sentence, by_case in zip(sentences, outcomes_of_mistakes, strict=True):
                compared = self._compared(outcomes, by_case, numbers, wrong)
                if compared is None:
                    del seen[sentence]
                else:
                    seen[sentence] += compared
        explained: dict[str, set[int]] = {}
        for sentence, compared in seen.items():
            parts = {comparison.part for comparison in compared if comparison.is_mistaken}
            if not any(
                comparison.is_wrong and not comparison.is_mistaken
                for comparison in compared
                if comparison.part in parts
            ):
                explained[sentence] = parts
        explained = {
            sentence: parts
            for sentence, parts in explained.items()
            if parts and not any(parts < others for others in explained.values())
        }
        sentence = next(iter(explained), "")
        if not sentence or sum(bool(parts & explained[sentence]) for parts in explained.values()) > 1:
            return ""
        cases = [comparison.case for comparison in seen[sentence] if comparison.is_mistaken]
        case = min((number for number in cases if number in wrong), default=None)
        if case is None:
            return ""
        self.at = case
        return f"with {self.cases[case].label}: {sentence}"

    def mistaken(
        self, numbers: Sequence[int], sentences: Sequence[str], limit_s: float
    ) -> list[dict[int, list[Outcome]]]:
        """Return what each of these mistakes does in these cases: by case, of each rank.

        Nothing for a mistake that does not return. Their texts are almost the reference's. Where submissions
        are graded, in a sandbox, they run in a new job, which the student's code does not see. Elsewhere the
        job that has run the student's code runs them: that is quicker.
        """
        outcomes: list[dict[int, list[Outcome]]] = [{} for _ in sentences]
        with suppress(OSError, Unreadable):  # after an error, the other mistakes are not recognised
            if self.job.is_sandboxed and self.new_job is not None:
                new_job, self.new_job = self.new_job, None
                self.job = new_job()
            if self.job.is_running:
                texts = [self.exercise.mistaken(sentence) for sentence in sentences]
                for place, run in enumerate(self.job.run_texts(texts, numbers, limit_s)):
                    outcome_of = _by_case_and_rank(run)
                    if len(outcome_of) == sum(self.cases[number].ranks for number in numbers):
                        for number, rank in sorted(outcome_of):
                            outcomes[place].setdefault(number, []).append(outcome_of[number, rank])
        return outcomes

    def _compared(
        self,
        outcomes: Results,
        mistaken: dict[int, list[Outcome]],
        numbers: Sequence[int],
        wrong: Wrong,
    ) -> list[Compared] | None:
        """Return in which parts of the results the student's function and a mistake are wrong.

        None if the mistake is wrong in another way than the student's function, or does not return.
        """
        comparisons = []
        for number in numbers:
            if number not in mistaken:
                return None
            tolerance = self._tolerance(self.cases[number])
            nothing = [None] * self.cases[number].ranks  # is right where many results are
            right = nothing if self.exercise.many_are_right else self._right_results(number, wrong)
            for outcome, other, expected in zip(outcomes[number], mistaken[number], right, strict=True):
                for part, (left, middle, goal) in enumerate(self._parts(outcome, other, expected)):
                    is_mistaken = difference(middle, goal, tolerance) is not None
                    if is_mistaken and difference(left, middle, tolerance):
                        return None
                    is_wrong = number in wrong and difference(left, goal, tolerance) is not None
                    comparisons.append(Compared(number, part, is_wrong, is_mistaken))
        return comparisons

    def _right_results(self, number: int, wrong: Wrong) -> list[Any]:
        return wrong[number][0] if number in wrong else self.exercise.right_results(self.cases[number])

    def _parts(self, outcome: Outcome, other: Outcome, expected: Any) -> list[tuple[Any, Any, Any]]:
        """Return the parts of the student's, a mistake's and the right result, if it is a tuple."""
        values = self.exercise.result(outcome), self.exercise.result(other), expected
        kinds = (tuple, list) if isinstance(expected, tuple) else ()
        is_tuple = all(isinstance(value, kinds) and len(value) == len(expected) for value in values)
        return list(zip(*values, strict=True)) if is_tuple else [values]

    def _changed(self, case: Case, by_rank: Sequence[Outcome]) -> str | None:
        """Return which argument is changed, or is in the result, although it must not be; else None."""
        names = self._parameters()
        place = self.exercise.result_in
        allowed = {*self.exercise.may_change, *(place if isinstance(place, tuple) else [place])}
        for rank, (outcome, before) in enumerate(zip(by_rank, case.arguments, strict=True)):
            for number, (left, right) in enumerate(zip(outcome.arguments, before, strict=True)):
                sent = unpack(pack(right))
                if number in allowed or isinstance(sent, Foreign):
                    continue
                if difference(left, sent, 0.0):
                    name = names[min(number, len(names) - 1)]
                    where = f"on rank {rank} " if self.exercise.on_ranks else ""
                    return f"{where}the function changes its argument `{name}`. Work on a copy"
        if any(outcome.shares_memory for outcome in by_rank):
            return "the result shares its memory with an argument. Return a new array"
        return None


def _in_another_order(names: list[str], got: Sequence[Any], expected: Any, tolerance: float | None) -> str:
    """Return that the parts of a result are right, but in another order; empty if they are not."""
    for order in permutations(range(len(names))):
        if not any(difference(got[place], expected[k], tolerance) for k, place in enumerate(order)):
            returned = [names[order.index(place)] for place in range(len(names))]
            return f"you return ({', '.join(returned)}); the task asks for ({', '.join(names)})"
    return ""


def _by_case_and_rank(run: Run) -> dict[tuple[int, int], Outcome]:
    outcomes: dict[tuple[int, int], Outcome] = {}
    for rank, records in enumerate(run.records):
        for record in records:
            if "result" in record:
                arguments = tuple(map(unpack, record["arguments"]))
                sent, messages = (tuple(record[name]) for name in ("sent", "messages"))
                calls = tuple(Call(*fields) for fields in record["calls"])
                faults = tuple(Fault(*fields) for fields in record["faults"])
                outcomes[record["case"], rank] = Outcome(
                    unpack(record["result"]),
                    arguments,
                    sent,
                    messages,
                    calls,
                    faults,
                    record["shares_memory"],
                )
    return outcomes


if __name__ == "__main__":
    main(Path(sys.argv[1]))
