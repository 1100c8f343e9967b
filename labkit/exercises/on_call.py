"""Incidents: a training job on the ranks has a hidden fault. A student measures, and files a diagnosis.

The job and what is measured on the ranks are in `labkit/exercises/on_call_job.py`; this module loads no MPI.
A hand-in keeps what was measured and what the student said; its score is computed from that, never read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from IPython import get_ipython

from labkit.cluster import last_hang
from labkit.cluster.errors import CellHung
from labkit.exercises import record
from labkit.files import read_input
from labkit.text import COLUMNS, counted, wrapped
from mpiwatch.report import render

LEAST_RANKS = 3  # with two, both ends of a link are equally slow, and no rank of it can be named
JOB = "job"  # its name on the ranks
POINTS = {"cause": 4, "rank": 2, "numbers": 3, "measurements": 1}
SECOND_TRY = 0.5  # of the points
LIMIT = 2.0  # a time this many times as long as its fellow stands out; faults make it at least four
NOISE_LIMIT = 1.8  # between two measurements of the same: above it, the machine is too busy
LEAST_MS = {"parts": 1.0, "pings": 8.0}  # shorter times are taken for this: they differ by chance
MEAN_LIMIT = 1e-3
NEAR = 0.02  # relative distance of a number in a diagnosis from the measured one

CAUSES = {
    "slow rank": "one rank takes four times as long to compute",
    "slow link": "each message from or to one rank takes eight times as long",
    "plain mean": "each rank's gradient counts the same, although the local batches differ in size",
    "same shard": "every rank begins at the first sample of the global batch, so all read the same samples",
    "other start": "one rank starts from different parameters",
    "late average": "the gradients are averaged after the update",
    "branch": "one rank leaves the loop early, in an `if` that only it enters, and misses a collective",
    "none": "the job has no fault",
}
ON_A_RANK = frozenset({"slow rank", "slow link", "other start", "branch"})


class Probe(NamedTuple):
    """What can be measured: the student's function or a call of the lab, and the names of its numbers."""

    function: str  # "" if the lab has it
    what: str
    columns: tuple[str, ...]  # of a rank's numbers; of `pings`, one a rank
    is_timed: bool = False


PROBES = {
    "parts": Probe(
        "step_parts", "ms for each part of a step", ("load", "compute", "average", "update"), True
    ),
    "sums": Probe("checksums", "checksums of the parameters", ("start", "after two steps")),
    "mean": Probe("mean_error", "gradient used, against the weighted mean", ("relative error",)),
    "pings": Probe("ping_pong", "ms there and back", (), True),
    "samples": Probe("", "samples in eight steps that another rank reads, too", ("shared",)),
    "steps": Probe("", "eight steps of the job", ("missing",)),
}
_SHOWS: Mapping[str, Set[str]] = {
    "slow rank": {"parts"},
    "slow link": {"parts", "pings"},
    "plain mean": {"mean"},
    "same shard": {"samples"},
    "other start": {"sums"},
    "late average": {"sums", "mean"},
    "branch": {"steps"},
    "none": set(),
}
_PARTS = {"slow rank": "compute", "slow link": "average"}  # the part of a step that is long


def _sign(cause: str, probe: str) -> str:
    """Return what shows in a probe: nothing, the long part of a step, or the probe's name."""
    if probe not in _SHOWS[cause]:
        return ""
    return _PARTS.get(cause, probe) if probe == "parts" else probe


class Ticket(NamedTuple):
    """What somebody reports, and the causes that have made this symptom before."""

    text: str
    causes: tuple[str, ...]


TICKETS = (
    Ticket(
        "Since Tuesday a step takes several times as long. Nobody has changed the code.",
        ("slow rank", "slow link", "none"),
    ),
    Ticket(
        "Trained on the same samples, several ranks end with a different model than one process does.",
        ("plain mean", "same shard", "other start", "late average"),
    ),
    Ticket(
        "The loss ends above that of last week's job, on the same data.",
        ("plain mean", "same shard", "other start", "late average", "none"),
    ),
    Ticket("The log ends in step 6, and nobody has seen an error.", ("branch", "slow link", "none")),
    Ticket(
        "Nothing stands out, but reaching the same loss now costs twice as much.",
        ("slow rank", "slow link", "same shard", "none"),
    ),
)


class Setting(NamedTuple):
    """What a job has: its fault with its rank (None if it is on no single one), each rank's local batch."""

    seed: int
    cause: str
    rank: int | None
    batches: tuple[int, ...]


def setting_of(seed: int, cause: str, rank: int, p: int) -> Setting:
    """Return the job with a known fault. Batches follow from the seed. Raise ValueError if p < 3."""
    if p < LEAST_RANKS:
        raise ValueError(f"expected {LEAST_RANKS} ranks or more, got {p}: connect(n=4)")
    if cause not in CAUSES or not 0 <= rank < p:
        raise ValueError(
            f"expected one of {', '.join(CAUSES)} and a rank of 0 … {p - 1}, got {cause!r}, {rank}"
        )
    rng = np.random.default_rng([seed, p, *b"batches"])
    batches = np.rint(rng.permutation(np.linspace(0.6, 1.4, p)) * max(4, min(32, 128 // p))).astype(int)
    return Setting(seed, cause, rank if cause in ON_A_RANK else None, tuple(batches.tolist()))


def ticket(seed: int) -> Ticket:
    """Return the ticket of an incident: five seeds in a row have five different ones."""
    return TICKETS[seed % len(TICKETS)]


def _drawn(seed: int, p: int) -> Setting:
    """Return the job of an incident: drawn again each time, so that nothing that a cell sees holds it."""
    rng = np.random.default_rng([seed, *b"on call"])
    cause = str(rng.choice(ticket(seed).causes))
    return setting_of(seed, cause, int(rng.random() * p), p)


class TooBusy(Exception):
    """Other programs change the times so much that a measurement can neither accuse a rank nor clear it."""


def settled(probe: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the shorter of two measurements of the same times (ms). Raise TooBusy if they differ too much.

    Of the parts of a step, `compute` decides: in `average`, a rank also waits for the others.
    """
    columns = slice(1, 2) if probe == "parts" else slice(None)
    pair = [np.maximum(times[:, columns], LEAST_MS[probe]) for times in (first, second)]
    noise = float(np.max(np.maximum(*pair) / np.minimum(*pair)))
    if noise > NOISE_LIMIT:
        raise TooBusy(
            f"too busy: two measurements of the same differ by a factor of {noise:.1f}, so they decide "
            "nothing and are not kept. End other programs, and measure again."
        )
    return np.minimum(first, second)


Rows = Sequence[Sequence[Any]]  # what a probe has measured, one row a rank


def table_of(probe: str, rows: Rows) -> str:
    """Return what a probe has measured as a table, with a column for each rank."""
    names = PROBES[probe].columns or [f"to {rank}" for rank in range(len(rows))]
    lines = [["rank", *map(str, range(len(rows)))]]
    for column, name in enumerate(names):
        lines.append([name, *(_shown(row[column]) for row in rows)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines
    )


def _shown(number: Any) -> str:
    return f"{number:.3g}" if isinstance(number, float) else str(number)


def shows(probe: str, rows: Rows, healthy: Rows) -> bool:
    """Tell whether a probe's rows stand out: by what holds in any job, or against those of a healthy one."""
    numbers: np.ndarray = np.array(rows)
    if probe == "parts":
        usual = max(float(np.min(np.array(healthy)[:, 2])), LEAST_MS["parts"])
        # A rank waits in `average` for slow ones, so the shortest wait is what the messages take.
        return _compute_ratio(rows) > LIMIT or bool(numbers[:, 2].min() / usual > LIMIT)
    if probe == "sums":
        return len(set(numbers[:, 0].tolist())) > 1 or len(set(numbers[:, 1].tolist())) > 1
    if probe == "mean":
        return bool(numbers.max() > MEAN_LIMIT)
    if probe == "pings":
        times = np.maximum(numbers, LEAST_MS["pings"])
        np.fill_diagonal(times, np.inf)
        fastest = times.min(axis=1)  # of each rank: a rank's link is slow to all others
        return bool(fastest.max() / fastest.min() > LIMIT)
    return bool(numbers.any())


# The score.


class ProbeResult(NamedTuple):
    """A probe that has measured, and its rows."""

    probe: str
    rows: Rows


class Diagnosis(NamedTuple):
    """What a student files: cause and rank, and the number of a probe that excludes the nearest rival."""

    cause: str
    rank: int | None
    rival: str
    probe: str
    number: Any
    because: str = ""


class DiagnosisScore(NamedTuple):
    """Points for each part of a diagnosis, and what is said of those that are missing."""

    points: Mapping[str, float]
    lines: tuple[str, ...]

    @property
    def total(self) -> float:
        return sum(self.points.values())


def nearest_rivals(cause: str, possible: Iterable[str]) -> set[str]:
    """Return the causes of these that show in nearly the same probes; "none" only if there is no other."""
    others = set(possible) - {cause}
    others = others - {"none"} or others
    distances = {
        other: sum(_sign(cause, probe) != _sign(other, probe) for probe in PROBES) for other in others
    }
    return {other for other, distance in distances.items() if distance == min(distances.values())}


def useless(measured: Sequence[str], truth: str, possible: Iterable[str]) -> int:
    """Return how many probes show nothing that separates the causes which are possible before them.

    To measure the same again is free: a notebook's cells are run again.
    """
    still_possible, count = set(possible), 0
    for probe in dict.fromkeys(measured):
        if len({_sign(cause, probe) for cause in still_possible}) == 1:
            count += 1
        still_possible = {cause for cause in still_possible if _sign(cause, probe) == _sign(truth, probe)}
    return count


def judged(
    truth: Setting, possible: Sequence[str], measured: Sequence[ProbeResult], filed: Diagnosis
) -> DiagnosisScore:
    """Return the score of a diagnosis.

    Rank, numbers and measurements count only with the right cause. Of the numbers' points, one is for a probe
    that was measured and separates cause and rival, one more if the rival is a nearest one, and one more if
    the probe has measured the number.
    """
    points = dict.fromkeys(POINTS, 0)
    if filed.cause != truth.cause:
        return DiagnosisScore(points, ("The cause is another one.",))
    lines = list[str]()
    points["cause"] = POINTS["cause"]
    points["rank"] = POINTS["rank"] * (filed.rank == truth.rank)
    if not points["rank"]:
        lines.append("The cause is right, the rank is not.")
    of_probe = [measurement for measurement in measured if measurement.probe == filed.probe]
    is_rival = filed.rival in nearest_rivals(truth.cause, possible)
    separates = _sign(truth.cause, filed.probe) != _sign(filed.rival, filed.probe)
    is_measured = any(_holds(measurement.rows, filed.number) for measurement in of_probe)
    if not is_rival:
        lines.append(
            f"{filed.rival} is not the nearest rival: another cause shows in nearly the same probes."
        )
    if not (separates and of_probe):
        lines.append(
            f"{filed.probe} was not measured, or does not separate {filed.cause} from {filed.rival}."
        )
    elif not is_measured:
        lines.append(f"{filed.probe} has not measured {filed.number}.")
    evidence = bool(of_probe) and separates
    points["numbers"] = int(is_rival and evidence) + int(evidence) + int(evidence and is_measured)
    spare = useless([measurement.probe for measurement in measured], truth.cause, possible)
    points["measurements"] = POINTS["measurements"] * (bool(measured) and spare <= 1)
    if spare > 1:
        lines.append(f"{spare} measurements could not separate the causes that were left.")
    return DiagnosisScore(points, tuple(lines))


def _holds(rows: Rows, number: Any) -> bool:
    """Tell whether a number is among those that were measured, to the digits that are printed."""
    if not isinstance(number, (int, float)):
        return False
    values = [value for row in rows for value in row]
    return any(abs(value - number) <= NEAR * abs(value) for value in values)


# The student's side.


class Incident:
    """A training job on the ranks: measure, and for a hidden fault diagnose and compare a repaired job."""

    def __init__(
        self, seed: int | None, known: tuple[str, int], p: int, on_ranks: Callable[[str, str], Any]
    ) -> None:
        self.seed = seed
        self.p = p
        self.known, self._rank = known
        self.measured: list[ProbeResult] = []
        self.tries: list[Diagnosis] = []
        self._on_ranks = on_ranks
        self._start()
        if seed is not None:
            entry = record.load().get(self._entry, {})
            if entry.get("ranks") == p:
                self.measured = [ProbeResult(*fields) for fields in entry["measured"]]
                self.tries = [Diagnosis(*fields) for fields in entry["tries"]]
                print("This incident continues: what was measured and filed counts.")

    def _start(self) -> None:
        call = f"start_known(comm, {self.known!r}, {self._rank})"
        if self.seed is not None:
            call = f"start_hidden(comm, {self.seed})"
        self._on_ranks(JOB, call)

    @property
    def _entry(self) -> str:
        return f"11-on-call-{self.seed}"

    def __repr__(self) -> str:
        if self.seed is None:
            return f"A job on {self.p} ranks with a known fault: {self.known}."
        symptom = ticket(self.seed)
        return wrapped(
            f"Ticket {self.seed}: {symptom.text} Seen before with this symptom: {', '.join(symptom.causes)}. "
            f"The job runs on {self.p} ranks. {counted(len(self.measured), 'measurement')}, "
            f"{len(self.tries)} of 2 tries.",
            COLUMNS,
        )

    def _keep(self) -> None:
        if self.seed is not None:
            last = self.tries[-1] if self.tries else None
            text = f"{last.cause}, rank {last.rank}: {last.because}" if last else "no diagnosis yet"
            record.keep_answer(
                self._entry,
                text,
                ranks=self.p,
                measured=[list(measurement) for measurement in self.measured],
                tries=[list(diagnosis) for diagnosis in self.tries],
            )

    @property
    def _is_closed(self) -> bool:
        """Tell whether the incident has its last diagnosis: the second, or a right one."""
        if self.seed is None or not self.tries:
            return False
        truth, filed = _drawn(self.seed, self.p), self.tries[-1]
        return len(self.tries) == 2 or (filed.cause, filed.rank) == (truth.cause, truth.rank)

    def measure(self, probe: str) -> None:
        """Measure with one of `PROBES`, keep what it returns, and print it, with a column for each rank."""
        if probe not in PROBES:
            print(wrapped(f"Expected a probe, one of {', '.join(PROBES)}, got {probe!r}.", COLUMNS))
            return
        function = PROBES[probe].function
        try:
            answer = self._on_ranks("_on_call_rows", f"measure({probe!r}, globals().get({function!r}))")
            rows, whose = answer[0]["rows"], answer[0]["whose"]
            if answer[0]["again"] is not None:
                rows = settled(probe, np.array(rows), np.array(answer[0]["again"])).tolist()
            heading = f"{probe}, {whose}: {PROBES[probe].what}"
        except CellHung:
            report = last_hang()
            if report is None or probe != "steps":
                raise
            print(render(report))
            rows = [[int(rank in report.missing())] for rank in range(self.p)]
            heading = "steps: the job hangs; 1 stands for a rank that is missing"
            self._start()  # again: communicators end with a cell that hangs
        except TooBusy as busy:
            print(wrapped(str(busy), COLUMNS))
            return
        print(f"{heading}\n{table_of(probe, rows)}")
        if not self._is_closed:
            self.measured.append(ProbeResult(probe, rows))
            self._keep()
        if self.seed is None:
            _practised[self.known, probe] = rows

    def diagnose(
        self,
        cause: str,
        rank: int | None = None,
        *,
        rival: str = "",
        probe: str = "",
        number: Any = None,
        because: str = "",
    ) -> None:
        """File a diagnosis, and print its points. A second one counts half.

        - `cause`, `rank`: of `CAUSES`; the rank is None if no single rank has the fault.
        - `rival`, `probe`, `number`: the nearest rival, and a number that a probe has measured and that
          excludes it.
        - `because`: why it does, in your words. It is kept for you and your instructor, and not scored.
        """
        refusal = ""
        if isinstance(number, np.generic):
            number = number.item()
        filed = Diagnosis(cause, rank, rival, probe, number, " ".join(because.split()))
        if self.seed is None:
            refusal = "this job's fault is known: incident(seed) has a hidden one"
        elif self._is_closed:
            refusal = "this incident has its diagnosis; repair the job now"
        elif cause not in CAUSES or rival not in CAUSES or cause == rival:
            refusal = f"expected a cause and another one as its rival, of {', '.join(CAUSES)}"
        elif rank is not None and rank not in range(self.p):
            refusal = f"a rank is None or one of 0 … {self.p - 1}"
        elif probe not in PROBES:
            refusal = f"expected the probe that excludes {rival}, one of {', '.join(PROBES)}"
        elif not because.strip():
            refusal = "say in `because` why this number excludes the rival"
        elif filed in self.tries:
            refusal = "this is the diagnosis that you have filed; a second one must differ"
        if refusal or self.seed is None:
            print(wrapped(f"Not filed: {refusal}.", COLUMNS))
            return
        self.tries.append(filed)
        self._keep()
        truth = _drawn(self.seed, self.p)
        score = judged(truth, ticket(self.seed).causes, self.measured, self.tries[-1])
        factor = SECOND_TRY if len(self.tries) == 2 else 1
        parts = ", ".join(f"{part} {score.points[part]}/{most}" for part, most in POINTS.items())
        half = ", half of which count in a second try" if factor < 1 else ""
        print(
            wrapped(
                " ".join([*score.lines, f"{parts}{half}: {factor * score.total:g} of 10 points."]), COLUMNS
            )
        )
        if self._is_closed:
            where = "" if truth.rank is None else f" on rank {truth.rank}"
            to_do = (
                "There is nothing to repair" if truth.cause == "none" else "Now repair the job, and compare"
            )
            print(f"It was: {truth.cause}{where}. {to_do}.")
        else:
            print(wrapped("Measure more, if you like. A second diagnosis counts half.", COLUMNS))

    def compare(self) -> None:
        """Run the job as it was and with your repairs, and print step time, loss and distance of both."""
        if not self._is_closed and self.seed is not None:
            print("Diagnose first.")
            return
        cause = self.known if self.seed is None else _drawn(self.seed, self.p).cause
        lines = []
        for name, is_repaired in (("before", False), ("after", True)):
            if cause == "branch" and not is_repaired:
                lines.append([name, "hangs in step 6", "–", "–"])
                continue
            result = self._on_ranks("_on_call_result", f"result({is_repaired})")[0]
            repairs = f" ({', '.join(result['repairs']) or 'no repair'})"
            title = f"{name}{repairs}" if is_repaired else name
            lines.append(
                [title, f"{result['ms']:.0f}", f"{result['loss']:.3f}", f"{100 * result['distance']:.1f} %"]
            )
        heads = ["", "ms a step", "loss", "distance from one process"]
        widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
        for line in (heads, *lines):
            print("  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)))


_practised: dict[tuple[str, str], Rows] = {}  # what was measured on known faults, by cause and probe


def _started(seed: int | None, known: tuple[str, int] = ("", 0)) -> Incident:
    shell = get_ipython()
    magics = shell.magics_manager.registry.get("RankMagics") if shell is not None else None
    if magics is None:
        raise RuntimeError("a job needs ranks: run `rc = connect(n=4)` in a notebook first")
    client = magics.ranks.client
    p = len(client.ids)
    if p < LEAST_RANKS:
        raise ValueError(f"expected {LEAST_RANKS} ranks or more, got {p}: restart the kernel, connect(n=4)")

    def on_ranks(name: str, call: str) -> Any:
        """Give what a call returns on the ranks a name there; return the values of all ranks."""
        cell = f"from labkit.exercises import on_call_job as _on_call\n{name} = _on_call.{call}"
        shell.run_cell_magic("px", "", cell)
        return client[:].pull(name, block=True) if name != JOB else None

    return Incident(seed, known, p, on_ranks)


def incident(seed: int) -> Incident:
    """Start the job of this seed on all ranks, named `job` there, and return the incident.

    Raise RuntimeError without ranks, ValueError with fewer than three or for a negative seed.
    """
    if seed < 0:
        raise ValueError(f"expected a seed of 0 or more, got {seed}")
    return _started(seed)


def practice(cause: str, rank: int = 1) -> Incident:
    """Start a job with a known fault, named `job` on the ranks.

    `rank` has the fault if it is on a single rank: rank 1 unless you name another.
    """
    if cause not in CAUSES:
        raise ValueError(f"expected one of {', '.join(CAUSES)}, got {cause!r}")
    return _started(None, (cause, rank))


def check_table(table: Mapping[str, Iterable[str]]) -> None:
    """Compare a table, the probes in which each cause shows, with what was measured on known faults."""
    unknown = {*table} - {*CAUSES} | {probe for probes in table.values() for probe in probes} - {*PROBES}
    if unknown:
        print(wrapped(f"Not known: {', '.join(sorted(unknown))}. Use names of CAUSES and PROBES.", COLUMNS))
        return
    right, unmeasured, wrong = 0, list[str](), list[str]()
    for cause in CAUSES:
        missing = [probe for probe in PROBES if (cause, probe) not in _practised]
        if missing or ("none", "parts") not in _practised:
            probes_to_do = "" if len(missing) == len(PROBES) else f" ({', '.join(missing) or 'and none'})"
            unmeasured.append(f"{cause}{probes_to_do}")
            continue
        measured = {
            probe
            for probe in PROBES
            if shows(probe, _practised[cause, probe], _practised.get(("none", probe), ()))
        }
        if measured == set(table.get(cause, ())):
            right += 1
        else:
            wrong.append(cause)
    print(f"{right} of {len(CAUSES)} rows agree with what was measured here.")
    if wrong:
        print(wrapped(f"Look again at the numbers of: {', '.join(wrong)}.", COLUMNS))
    if unmeasured:
        print(wrapped(f"Still to be measured: {'; '.join(unmeasured)}.", COLUMNS))


# A class.


def hand_in(entry: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the score of an incident in a student's record, computed from its measurements."""
    if not entry.get("tries"):
        return {"points": dict.fromkeys(POINTS, 0), "note": f"no diagnosis of seed {seed}"}
    p = min(int(entry["ranks"]), 1024)
    measured = [ProbeResult(*fields) for fields in entry["measured"]]
    truth, possible = _drawn(seed, p), ticket(seed).causes
    tries = [Diagnosis(*fields) for fields in entry["tries"][:2]]
    first, last = (judged(truth, possible, measured, filed) for filed in (tries[0], tries[-1]))
    points = dict(first.points)
    if len(tries) == 2 and SECOND_TRY * last.total > first.total:
        points = {part: SECOND_TRY * score for part, score in last.points.items()}
    notes = [
        f"{measurement.probe} is not what the job of seed {seed} measures"
        for measurement in measured
        if len(measurement.rows) != p or _contradicts(measurement, truth.cause)
    ]
    words = " / ".join(str(filed.because) for filed in tries)
    return {"seed": seed, "ranks": p, "points": points, "because": words, "note": "; ".join(notes)}


def _contradicts(measurement: ProbeResult, cause: str) -> bool:
    """Tell whether a job with this cause cannot measure that. Whether `parts` fits needs a healthy job."""
    if measurement.probe == "parts":
        return bool((_compute_ratio(measurement.rows) > LIMIT) != (cause == "slow rank"))
    return shows(measurement.probe, measurement.rows, ()) != (measurement.probe in _SHOWS[cause])


def _compute_ratio(rows: Rows) -> float:
    """Return how many times as long the slowest rank computes as the fastest."""
    compute = np.maximum(np.array(rows)[:, 1], LEAST_MS["parts"])
    return float(compute.max() / compute.min())


def class_rows(files: Iterable[Path], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the table of a class: each student's mean over the seeds, the best first.

    Each file is a copy of a student's progress.json, named NAME.json. A seed without a diagnosis counts 0.
    Equal scores share a place.
    """
    rows = list[dict[str, Any]]()
    for file in sorted(files):
        incidents = list[dict[str, Any]]()
        try:
            entries = json.loads(read_input(file))["exercises"]
            incidents += [hand_in(entries.get(f"11-on-call-{seed}", {}), seed) for seed in seeds]
            note = "; ".join(scored["note"] for scored in incidents if scored["note"])
        except Exception as error:  # a file from a student may hold anything
            note = f"cannot be read: {type(error).__name__}"
            incidents = []
        parts = {part: sum(scored["points"][part] for scored in incidents) / len(seeds) for part in POINTS}
        row = {"student": file.stem, "score": 10 * sum(parts.values()), **parts, "note": note}
        rows.append({**row, "incidents": incidents})
    rows.sort(key=lambda row: -row["score"])
    return [{"place": 1 + sum(other["score"] > row["score"] for other in rows), **row} for row in rows]


def class_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as text in aligned columns."""
    names = ("place", "student", "score", *POINTS, "note")
    lines = [list(names), *([_shown(row[name]) for name in names] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True)) for line in lines
    )
