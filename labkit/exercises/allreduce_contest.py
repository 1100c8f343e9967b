"""The all-reduce contest: a schedule is simulated on three networks, and gets a score.

The score on a network is the lower bound over the simulated time, so it is between 0 and 1; `lower_bound` and
`simulate` are those of `labkit.schedules`. An entry is a function of the number of
ranks that yields rounds, or that returns a Schedule; the array has as many chunks as its rounds use.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labkit.checks import failures, sandbox, transport
from labkit.checks.exercise import Case, Exercise
from labkit.checks.launching import Job, scratch_folder
from labkit.exercises.wraps import rounds_as_list
from labkit.schedules import (
    ALLREDUCE,
    CostModel,
    Network,
    Round,
    Schedule,
    ScheduleError,
    TimedTransfer,
    hierarchical,
    longest_wait,
    lower_bound,
    simulate,
    verify,
)
from labkit.schedules.schedule import CollectiveName

RANKS = 6
NBYTES = 120_000  # of the array; a link needs 40 ms for it
MODEL = CostModel(alpha=0.5e-3, beta=1 / 3e6)
SLOWER = 5  # the slow link, in latency and bandwidth
UPLINK = 3  # how many times less bandwidth an uplink has than a rank's link
COMPARED = "ring", "two-level", "tree", "recursive-doubling", "halving-doubling"  # notebook 05, section 5
MOST = 1000, 2000, 256  # rounds, transfers, chunks
LONGEST_S = 5.0  # simulated, on the slowest network
MOST_TEXT = 1 << 20  # bytes of an entry's file
PRELUDE = (
    "import numpy as np\n\nfrom labkit.schedules import collective, copy_round, merge_rounds, reduce_round"
)


class ContestResult(NamedTuple):
    """What an entry has reached: its score and its timeline, by network.

    An entry that cannot take part has none; `reason` says why.
    """

    entry: str
    reason: str = ""
    scores: Mapping[str, float] = {}
    timelines: Mapping[str, Sequence[TimedTransfer]] = {}

    @property
    def score(self) -> float:
        """Return the mean of the scores; 0 without any."""
        return statistics.fmean(self.scores.values()) if self.scores else 0.0


def networks(p: int = RANKS) -> dict[str, Network]:
    """Return the networks: equal links; a slow link of the last rank; two hosts, each with one uplink."""
    uniform = Network.uniform(p, MODEL)
    return {
        "uniform": uniform,
        "slow link": uniform.slow_link(p - 1, SLOWER),
        "two hosts": uniform.on_hosts(np.arange(p) * 2 // p, MODEL.alpha, UPLINK * MODEL.beta),
    }


def contest(entry: Callable[[int], Iterable[Round]], p: int = RANKS) -> ContestResult | None:
    """Simulate an entry beside the algorithms of notebook 05 on p ranks, and print their scores.

    Return the entry's result; None, after printing why, if its schedule is no all-reduce.
    """
    name = getattr(entry, "__name__", "entry")
    try:
        returned = entry(p)
        rounds = list(islice(returned, MOST[0] + 1)) if isinstance(returned, Iterable) else returned
        schedules = [(name, schedule_of(rounds, p, name)), *compared(p)]
    except ScheduleError as error:
        print(f"{name} cannot take part: {error}.")
        return None
    results = simulate_all(schedules, p)
    print(table(results))
    for network, timeline in results[0].timelines.items():
        wait = longest_wait(timeline)
        print(f"{name}, {network}: {wait or 'no rank waited for more than 1 ms'}.")
    return results[0]


def compared(p: int) -> list[tuple[str, Schedule]]:
    """Return the schedules that every entry is compared with; brackets tell them from entries."""
    two_level = hierarchical(p, tuple(2 * rank // p for rank in range(p)))
    schedules = {name: make(p) for name, make in ALLREDUCE.items()} | {"two-level": two_level}
    return [(f"[{name}]", schedules[name]) for name in COMPARED]


def schedule_of(rounds: Any, p: int, name: str) -> Schedule:
    """Return the all-reduce that these rounds are. Raise ScheduleError if they are none, or take too long."""
    schedule = verified(rounds, p, name)
    times = {key: simulate(schedule, NBYTES, network).seconds for key, network in networks(p).items()}
    network = max(times, key=lambda key: times[key])
    if times[network] > LONGEST_S:
        text = f"it takes {times[network]:.1f} s in the simulator ({network})"
        raise ScheduleError(f"{text}, at most {LONGEST_S:g} s are allowed")
    return schedule


def verified(
    rounds: Any, p: int, name: str, collective: CollectiveName = "allreduce", chunks: int = 0
) -> Schedule:
    """Return the schedule of these rounds, with as many chunks as they use, or `chunks`.

    Raise ScheduleError if they do not compute the collective, or are more than `MOST` allows.
    """
    if not isinstance(rounds, list):
        kind = rounds if isinstance(rounds, str) else type(rounds).__name__  # the job sends the type's name
        raise ScheduleError(f"its result is of type {kind}: `yield` each round")
    for number, round_ in enumerate(rounds, start=1):
        if not isinstance(round_, Round):
            kind = f"round {number} is of type {type(round_).__name__}"
            raise ScheduleError(f"{kind}: `yield` what `reduce_round` or `copy_round` returns")
    try:
        chunks = chunks or max((int(round_.stop.max()) for round_ in rounds if len(round_)), default=1)
        counts = {"rounds": len(rounds), "transfers": sum(map(len, rounds)), "chunks": chunks}
        for (noun, count), most in zip(counts.items(), MOST, strict=True):
            if count > most:
                raise ScheduleError(f"expected at most {most:,} {noun}, got {count:,} or more")
        schedule = Schedule(name, collective, p, chunks, lambda: iter(rounds))
        verify(schedule)
    except ScheduleError:
        raise
    except (ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise ScheduleError(f"its ranks and chunks cannot be used: {error}") from None
    return schedule


def simulate_all(schedules: Sequence[tuple[str, Schedule]], p: int) -> list[ContestResult]:
    """Simulate all schedules of p ranks on all networks; return their results."""
    results = []
    for name, schedule in schedules:
        scores, timelines = {}, {}
        for key, network in networks(p).items():
            simulation = simulate(schedule, NBYTES, network, timeline=True)
            scores[key] = lower_bound(network, NBYTES) / simulation.seconds
            timelines[key] = simulation.timeline
        results.append(ContestResult(name, "", scores, timelines))
    return results


def schedule_of_file(file: Path, p: int) -> Schedule:
    """Return the schedule that a file's last function makes, in a job of its own; the file is not imported.

    Raise ScheduleError if it makes none.
    """
    try:
        text = transport.read_bytes(file, MOST_TEXT).decode(errors="replace")
        names = re.findall(r"^def (\w+)\(", text, re.MULTILINE)
        if not names:
            raise ScheduleError("it defines no function")

        def entry(p: int) -> None:
            """Stand for the file's function in messages."""

        entry.__name__ = names[-1]
        cases = [Case(f"p = {p}", ((p,),))]
        exercise = Exercise(entry, lambda: cases, (), digest=rounds_as_list, prelude=PRELUDE, deadline_s=5.0)
        with scratch_folder() as folder, Job(folder, exercise, cases) as job:
            (job_run,) = job.run_texts([text], [0])
        fault = failures.finding(job_run, text, exercise, cases)
        if fault:
            raise ScheduleError(fault)
        (result,) = [record["result"] for record in job_run.records[0] if "result" in record]
        return schedule_of(transport.unpack(result), p, names[-1])
    except ScheduleError:
        raise
    except (transport.Unreadable, failures.CheckFailed, OSError, MemoryError, ValueError) as error:
        raise ScheduleError(f"not judged: {error or type(error).__name__}") from None


def use_sandbox(say: Callable[[str], None]) -> None:
    """Let entries run in a sandbox, or say why that cannot be."""
    why = sandbox.refusal()
    if why:
        say(f"Entries run with all of your rights: this system allows no sandbox ({why}).")
    sandbox.in_use = not why


def judge_folder(folder: Path, p: int, report: Callable[[str], None]) -> list[ContestResult]:
    """Judge all entries (*.py) in a folder and simulate them; return the results, the best first."""
    schedules, results = [], []
    for file in sorted(folder.glob("*.py")):
        report(f"judging {file.name}")
        try:
            schedules.append((file.stem, schedule_of_file(file, p)))
        except ScheduleError as error:
            results.append(ContestResult(file.stem, str(error)))
    schedules += compared(p)
    return sorted(simulate_all(schedules, p), key=lambda result: -result.score) + results


def rows(results: Sequence[ContestResult]) -> list[dict[str, Any]]:
    """Return a row for each result: place, scores to two decimals, and why there is none.

    Entries with the same mean score share a place; the schedules for comparison have none.
    """
    means = {result.entry: round(result.score, 2) for result in results}
    placed = [result.entry for result in results if result.scores and result.entry[0] != "["]
    result_rows = []
    for result in results:
        mean = means[result.entry]
        place = 1 + sum(means[other] > mean for other in placed) if result.entry in placed else None
        scores = {name: round(result.scores.get(name, 0.0), 2) for name in networks()}
        row = {"place": place, "entry": result.entry, "score": mean}
        result_rows.append({**row, **scores, "reason": result.reason})
    return result_rows


def table(results: Sequence[ContestResult]) -> str:
    """Return the rows as text in aligned columns."""
    width = max(len(result.entry) for result in results)
    names = ["score", *networks()]
    lines = [f"place  {'entry':{width}}  " + "  ".join(f"{name:>9}" for name in names)]
    for row in rows(results):
        scores = "  ".join(f"{row[name]:9.2f}" for name in names)
        lines.append(f"{row['place'] or '–':>5}  {row['entry']:{width}}  {row['reason'] or scores}")
    return "\n".join([*lines, "score: the mean of the three; each is the lower bound / the simulated time"])
