"""Incidents: a training job on the ranks has a hidden fault. A student measures, and files a diagnosis.

Each experiment reads a set of findings. `CAUSES` says which findings a cause makes, so it is the table of
causes and experiments, and the judge and the reference diagnosis use nothing else. The job and what an
experiment runs on the ranks are in `labkit/exercises/on_call_job.py`; this module loads no MPI.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from IPython import get_ipython

from labkit.cluster import last_hang
from labkit.cluster.errors import CellHung
from labkit.exercises import record
from mpiwatch.report import COLUMNS, Report, counted, ranks_phrase, wrapped

BUDGET_S, RIVALS_S = 60.0, 2.0  # of machine time: the budget, and the price of asking for rivals
LIMIT, LINK_LIMIT = 2.0, 3.0  # times as long as the fastest rank, or as the link's latency and bandwidth give
LEAST_MS = 1.0  # to read a batch: shorter times do not matter, and differ by chance
BRANCH_STEP = 5  # the first step in which the job can hang or a rank can meet a damaged sample
JOB = "job"  # its name on the ranks
POINTS = {"cause": 20, "rank": 20, "evidence": 25, "calibration": 10, "cost": 25}


class Finding(NamedTuple):
    """What stands out in an experiment: a word, and the rank, None if no single rank stands out."""

    word: str
    rank: int | None = None

    def __str__(self) -> str:
        return self.word if self.rank is None else f"{self.word} {self.rank}"


@dataclass(frozen=True)
class Experiment:
    """What an experiment measures, its price (s of machine time), and its findings' words with their meaning.

    The prices are set, not measured, so that they are the same on every machine: the budget buys the ten
    experiments that prove "none", but not all eleven.
    """

    price_s: float
    what: str
    words: Mapping[str, str]


EXPERIMENTS = {
    "phases": Experiment(
        8,
        "time to read and to compute, on equal batches",
        {"load": "the rank takes long to read its batch", "compute": "the rank takes long to compute"},
    ),
    "links": Experiment(
        8,
        "ping-pong between each two ranks",
        {"link": "each message to or from the rank takes long"},
    ),
    "threads": Experiment(
        3,
        "processor time of all threads, and of the one that computes",
        {"threads": "other threads of the rank use a processor, too, while it computes"},
    ),
    "samples": Experiment(
        2,
        "the numbers of the samples that each rank reads, compared with the plan",
        {"samples": "the rank reads samples that the plan gives to another rank"},
    ),
    "weights": Experiment(
        3,
        "weights before the first step and after the second",
        {
            "start": "the rank does not start with the weights of the seed",
            "differ": "after two steps, the ranks' weights differ",
        },
    ),
    "gradients": Experiment(
        5,
        "each rank's own gradient in eight batches, not averaged",
        {"nan": "the rank's own gradient is not finite"},
    ),
    "mean": Experiment(
        6,
        "the gradient that the update uses, compared with the weighted mean of the ranks' own gradients",
        {"mean": "the update does not use the weighted mean"},
    ),
    "messages": Experiment(
        8,
        "the two numbers that arrive from each rank, compared with what it means to send",
        {"messages": "other numbers arrive than the rank means to send"},
    ),
    "buckets": Experiment(
        5,
        "the buckets, and which of them are complete after each of eight backward passes",
        {
            "incomplete": "the backward pass of the rank does not complete all buckets",
            "last": "more than half of the gradient is in the last bucket",
        },
    ),
    "buffers": Experiment(
        3,
        "the buffers before the first step and after the second",
        {"buffers": "the rank's buffers did not change, those of other ranks did"},
    ),
    "run": Experiment(
        12,
        "eight steps of the job",
        {"hang": "the job hangs; the rank is missing in the hang report"},
    ),
}


class Cause(NamedTuple):
    """A cause in words, the words of the findings that it makes, and those that it may make."""

    text: str
    makes: frozenset[str]
    may_make: frozenset[str] = frozenset()
    is_on_a_rank: bool = True


def _cause(text: str, makes: str, may_make: str = "", *, is_on_a_rank: bool = True) -> Cause:
    return Cause(text, frozenset(makes.split()), frozenset(may_make.split()), is_on_a_rank)


CAUSES = {
    "slow rank": _cause("a rank computes three times as long", "compute"),
    "slow link": _cause("a rank's link is eight times slower", "link"),
    "blas threads": _cause("a rank computes with more BLAS threads than the others", "threads", "compute"),
    "last bucket": _cause("the last bucket is too large", "last", is_on_a_rank=False),
    "late average": _cause("ranks average after the update", "mean differ", is_on_a_rank=False),
    "plain mean": _cause("the mean is unweighted, the shards are unequal", "mean", is_on_a_rank=False),
    "same shard": _cause("a rank reads the shard of another rank", "samples"),
    "other start": _cause("a rank starts with other weights", "start differ"),
    "stale buffers": _cause("a rank keeps its old buffers", "buffers"),
    "branch": _cause("a rank leaves the job in a branch, before a collective", "hang"),
    "skipped layer": _cause("a rank skips a layer now and then", "incomplete hang"),
    "nan": _cause("a rank's gradient is not finite, because a sample is damaged", "nan"),
    "tags": _cause("a rank mixes up the tags of two messages", "messages mean"),
    "slow disk": _cause("a rank reads its data from a slow disk", "load"),
    "none": _cause("the job has no fault", "", is_on_a_rank=False),
}


class Fault(NamedTuple):
    """A cause and its rank; None if it is on no rank in particular."""

    cause: str
    rank: int | None


@dataclass(frozen=True)
class Setting:
    """What a seed decides: the faults, each rank's local batch, and the width of the hidden layers."""

    seed: int
    faults: tuple[Fault, ...]
    batches: tuple[int, ...]
    hidden: int

    def has(self, cause: str, rank: int) -> bool:
        """Tell whether this fault is on this rank, or on all ranks."""
        return any(fault.cause == cause and fault.rank in (rank, None) for fault in self.faults)


def drawn(seed: int, p: int, faults: int = 1) -> Setting:
    """Return the incident of this seed on p ranks. Two faults never hide each other, and are on two ranks.

    Raise ValueError if the seed is negative, there is one rank, or there are not one or two faults.
    """
    if seed < 0 or p < 2 or faults not in (1, 2):
        raise ValueError(
            f"expected a seed of 0 or more, 2 or more ranks, and 1 or 2 faults, got {seed}, {p}, {faults}"
        )
    rng = np.random.default_rng([seed, faults, *b"incident"])  # the same causes for any number of ranks
    if faults == 1:
        causes: Sequence[str] = [str(rng.choice(list(CAUSES)))]
    else:
        pairs = list(filter(can_be_told, combinations(CAUSES, 2)))
        causes = pairs[rng.integers(len(pairs))]
    rng = np.random.default_rng([seed, p, faults, *b"ranks of incident"])
    ranks = rng.permutation(p)
    placed = [
        # With two ranks there is one link, which is slow for both.
        Fault(
            cause, None if not CAUSES[cause].is_on_a_rank or (cause == "slow link" and p == 2) else int(rank)
        )
        for cause, rank in zip(causes, ranks, strict=False)
    ]
    batches = np.rint(rng.permutation(np.linspace(0.6, 1.4, p)) * min(32, 160 // p)).astype(int)
    hidden = int(rng.choice([48, 64, 80]))
    return Setting(seed, tuple(placed), tuple(np.maximum(batches, 2).tolist()), hidden)


def _hides(one: str, other: str) -> bool:
    """Tell whether a fault makes all findings of the other one, too."""
    return CAUSES[other].makes <= CAUSES[one].makes | CAUSES[one].may_make


def can_be_told(pair: tuple[str, str]) -> bool:
    """Tell whether neither fault hides the other, and no third cause makes some findings of each of both."""
    one, other = (CAUSES[cause].makes for cause in pair)
    mixed = [
        name
        for name, cause in CAUSES.items()
        if cause.makes <= one | other and not cause.makes <= one and not cause.makes <= other
    ]
    return not (_hides(*pair) or _hides(*pair[::-1]) or mixed)


def makes(cause: str, experiment: str) -> tuple[set[str], set[str]]:
    """Return the words that a cause makes in an experiment, and those that it makes or may make."""
    words, sure = set(EXPERIMENTS[experiment].words), CAUSES[cause].makes
    return words & sure, words & (sure | CAUSES[cause].may_make)


def made_by(causes: Iterable[str], experiment: str) -> tuple[set[str], set[str]]:
    """Return what `makes` does, of all these causes together."""
    pairs = [makes(cause, experiment) for cause in causes]
    sure, possible = (set().union(*each) for each in zip(*pairs, strict=True))
    return sure, possible


def fits(causes: Collection[str], experiment: str, words: Collection[str]) -> bool:
    """Tell whether an experiment can read these words if all these causes, and no others, are at work."""
    sure, possible = made_by(causes, experiment)
    return sure <= set(words) <= possible


def table() -> str:
    """Return the table of causes and experiments: prices, and the first letters of the words a cause makes.

    Words that it may make stand in brackets.
    """
    lines = [
        f"{'':13}" + "".join(f" {name}" for name in EXPERIMENTS),
        f"{'price (s)':13}" + "".join(f" {each.price_s:{len(name)}g}" for name, each in EXPERIMENTS.items()),
    ]
    for cause in CAUSES:
        line = f"{cause:13}"
        for name in EXPERIMENTS:
            sure, possible = makes(cause, name)
            letters = "".join(sorted(word[0] for word in sure)).upper()
            letters += "".join(f"({word[0]})".upper() for word in sorted(possible - sure))
            line += f" {letters or '·':>{len(name)}}"
        lines.append(line)
    return "\n".join(lines)


# How to read an experiment: from what each rank has measured, to its findings.
Rows = Sequence[Mapping[str, Any]]
TOO_BUSY = "too busy"


class TooBusy(Exception):
    """Other programs change the times so much that an experiment can neither accuse a rank nor clear it."""


def stand_out(ratios: Mapping[int, float], noise: float, limit: float) -> list[int]:
    """Return the ranks whose time is more than `limit` times what it should be.

    `noise`: how many times as long a repetition can take by chance. Raise TooBusy if it could change this.
    """
    unsure = [rank for rank, ratio in ratios.items() if limit / noise < ratio <= limit * noise]
    if unsure:
        raise TooBusy(
            f"too busy: repetitions differ by a factor of {noise:.1f}, so the times of "
            f"{ranks_phrase(unsure)} decide nothing; end other programs and repeat the experiment"
        )
    return [rank for rank, ratio in ratios.items() if ratio > limit]


def read(experiment: str, rows: Rows) -> set[Finding]:
    """Return the findings in what the ranks have measured, one row a rank. Raise TooBusy."""
    reader = _READERS.get(experiment)
    if reader is not None:
        return reader(rows)
    (word, *_) = EXPERIMENTS[experiment].words  # the others have one word, and a column that says it
    return {Finding(word, rank) for rank, row in enumerate(rows) if row[word]}


def _read_phases(rows: Rows) -> set[Finding]:
    found = set()
    for word, column, least in (("load", "load ms", LEAST_MS), ("compute", "compute / fixed", 0.0)):
        times = [max(float(row[column]), least) for row in rows]
        ratios = {rank: time / min(times) for rank, time in enumerate(times)}
        noise = max(float(row[f"{word} noise"]) for row in rows)
        found |= {Finding(word, rank) for rank in stand_out(ratios, noise, LIMIT)}
    return found


def _read_links(rows: Rows) -> set[Finding]:
    p = len(rows)
    ratios = {
        rank: min(rows[rank][f"to {other}"] for other in range(p) if other != rank) for rank in range(p)
    }
    slow = stand_out(ratios, max(float(row["noise"]) for row in rows), LINK_LIMIT)
    return {Finding("link", rank) for rank in slow} if p > 2 else {Finding("link") for _ in slow}


def _read_threads(rows: Rows) -> set[Finding]:
    return {Finding("threads", rank) for rank, row in enumerate(rows) if row["all / one"] > 1.3}


def _read_weights(rows: Rows) -> set[Finding]:
    found = {Finding("start", rank) for rank, row in enumerate(rows) if row["start"] != row["of the seed"]}
    return found | ({Finding("differ")} if len({row["after 2 steps"] for row in rows}) > 1 else set())


def _read_mean(rows: Rows) -> set[Finding]:
    return {Finding("mean")} if any(row["relative difference"] > 1e-3 for row in rows) else set()


def _read_buckets(rows: Rows) -> set[Finding]:
    found = {Finding("incomplete", rank) for rank, row in enumerate(rows) if row["incomplete"]}
    return found | ({Finding("last")} if all(row["last bucket %"] > 50 for row in rows) else set())


def read_hang(report: Report) -> set[Finding]:
    """Return the finding in a hang report: the missing rank, if exactly one is missing."""
    missing = report.missing() if report.mismatch is None else []
    return {Finding("hang", missing[0] if len(missing) == 1 else None)}


_READERS: dict[str, Callable[[Rows], set[Finding]]] = {
    "phases": _read_phases,
    "links": _read_links,
    "threads": _read_threads,
    "weights": _read_weights,
    "mean": _read_mean,
    "buckets": _read_buckets,
    "run": lambda rows: set(),  # it has ended
}


def explanations(faults: int, evidence: Sequence[Evidence] = ()) -> list[tuple[str, ...]]:
    """Return the causes, or pairs of causes, that could have made the findings of all the evidence."""
    possible: list[tuple[str, ...]] = list(combinations(CAUSES, faults))
    return [
        causes
        for causes in possible
        if (faults == 1 or can_be_told((causes[0], causes[1])))
        and all(fits(causes, each.experiment, each.words) for each in evidence)
    ]


def probability_of(predicted: str, experiment: str, left: Sequence[Collection[str]]) -> float | None:
    """Return how probable a word, or "nothing", is if all explanations that are left are equally probable.

    A word that a cause may make is as probable as not. Return None if all of them make the same words.
    """
    outcomes = [made_by(causes, experiment) for causes in left]
    if all(outcome == outcomes[0] for outcome in outcomes):
        return None
    if predicted == "nothing":
        each = [0.0 if sure else 0.5 ** len(possible) for sure, possible in outcomes]
    else:
        each = [((predicted in sure) + (predicted in possible)) / 2 for sure, possible in outcomes]
    return float(np.mean(each))


def diagnosed(experiment: Callable[[str], set[Finding]], faults: int = 1) -> tuple[Fault, ...] | None:
    """Return the faults that measuring alone finds within the budget, or None if several are possible.

    The next experiment is the one that excludes most explanations for its price, whatever it reads. An
    exception that `experiment` raises, such as TooBusy, passes through.
    """
    left = explanations(faults)
    found: set[Finding] = set()
    to_run, left_s = set(EXPERIMENTS), BUDGET_S

    def excluded(name: str) -> float:
        """Return how many explanations an experiment excludes at least, for each second of its price."""
        outcomes = Counter(tuple(map(frozenset, made_by(causes, name))) for causes in left)
        count = len(left) - max(outcomes.values())
        if len(left) == 1:  # one explanation is left, but a rank of it may be unknown
            count = sum(bool(makes(cause, name)[0]) for cause in left[0] if _lacks_a_rank(cause, found))
        return count / EXPERIMENTS[name].price_s

    while left and (able := [name for name in to_run if EXPERIMENTS[name].price_s <= left_s]):
        name = max(sorted(able), key=excluded)
        if not excluded(name):
            break
        read_now = experiment(name)
        to_run.remove(name)
        left_s -= EXPERIMENTS[name].price_s
        found |= read_now
        left = [causes for causes in left if fits(causes, name, {finding.word for finding in read_now})]
    if len(left) != 1:
        return None
    return tuple(Fault(cause, rank_of(cause, found)) for cause in left[0])


def _lacks_a_rank(cause: str, found: Iterable[Finding]) -> bool:
    return CAUSES[cause].is_on_a_rank and rank_of(cause, found) is None


def rank_of(cause: str, found: Iterable[Finding]) -> int | None:
    """Return the rank that findings name for a cause; None if they name none."""
    if not CAUSES[cause].is_on_a_rank:
        return None
    ranks = {each.rank for each in found if each.word in CAUSES[cause].makes and each.rank is not None}
    return ranks.pop() if len(ranks) == 1 else None


# The student's side.


@dataclass(frozen=True)
class Evidence:
    """An experiment that was run: its findings, and what was predicted.

    `counted`: the probability of the prediction by a count of the causes that were still possible; None if
    the evidence before had decided the result, so that the prediction does not count.
    """

    number: int
    experiment: str
    findings: frozenset[Finding]
    predicted: str
    probability: float
    came_true: bool
    counted: float | None = 1.0

    @property
    def words(self) -> set[str]:
        return {each.word for each in self.findings}


@dataclass(frozen=True)
class Score:
    """Points for each part of a diagnosis, and the rivals that the cited evidence does not exclude."""

    points: Mapping[str, int]
    rivals: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.points.values())


def rivals(cause: str, cited: Sequence[Evidence]) -> list[str]:
    """Return the other causes that could have produced the same findings in all cited experiments.

    Words that the accused cause does not make do not count: a second fault may have made them.
    """
    own = CAUSES[cause].makes
    return [
        other
        for other in CAUSES
        if other != cause
        and all(
            makes(other, each.experiment)[0] <= each.words
            and each.words & own <= makes(other, each.experiment)[1]
            for each in cited
        )
    ]


def needed(cause: str, cited: Sequence[Evidence]) -> Sequence[Evidence]:
    """Return the evidence without what can be left out: the rest excludes as many rivals."""
    left = list(cited)
    for each in cited:
        rest = [other for other in left if other is not each]
        if rivals(cause, rest) == rivals(cause, cited):
            left = rest
    return left


def contradicted(cause: str, cited: Sequence[Evidence]) -> list[int]:
    """Return the numbers of the cited experiments in which the cause would have shown, and did not."""
    return [each.number for each in cited if not makes(cause, each.experiment)[0] <= each.words]


@cache
def cheapest_s(causes: tuple[str, ...]) -> float:
    """Return the price of the cheapest experiments that prove these causes, one or two."""
    made = {
        name: Evidence(0, name, frozenset(map(Finding, made_by(causes, name)[0])), "", 1.0, True)
        for name in EXPERIMENTS
    }
    sets = chain.from_iterable(combinations(EXPERIMENTS, count) for count in range(len(EXPERIMENTS) + 1))
    return min(
        sum(EXPERIMENTS[name].price_s for name in names)
        for names in sets
        if not any(rivals(cause, [made[name] for name in names]) for cause in causes)
    )


def judged(
    faults: Sequence[Fault],
    given: Sequence[tuple[Fault, Sequence[Evidence]]],
    evidence: Sequence[Evidence],
    used_s: float,
) -> Score:
    """Return the score of a diagnosis: `faults` is the truth, `given` each accusation with its evidence.

    With two faults, each counts half. Evidence counts by the fraction of rival causes that it excludes, times
    the fraction of it that is needed; none if it contradicts the cause, and half if the rank is nowhere in
    it. Calibration is 1 - 25 times the mean squared distance of the probabilities from the counted ones, at
    least 0; a higher one that came true has no distance, since the student may have measured by hand. Cost is
    1 for the price of the cheapest proof, and 0 for the whole budget.
    """
    points, left = dict.fromkeys(POINTS, 0.0), []
    for fault in faults:
        accused = next((each for each in given if each[0].cause == fault.cause), None)
        points["cause"] += accused is not None
        points["rank"] += accused is not None and accused[0].rank == fault.rank
        if accused is not None:
            cause, cited = accused[0].cause, accused[1]
            survivors = rivals(cause, cited)
            left += survivors
            proof = (1 - len(survivors) / (len(CAUSES) - 1)) * len(needed(cause, cited)) / max(len(cited), 1)
            named = rank_of(cause, [found for each in cited for found in each.findings]) == fault.rank
            points["evidence"] += 0 if contradicted(cause, cited) else proof * (1 if named else 0.5)
    wrong = len([each for each in given if each[0].cause not in [fault.cause for fault in faults]])
    for part in ("cause", "rank", "evidence"):
        points[part] = max(0.0, points[part] - wrong) / len(faults)
    distances = [
        min(0.0, each.probability - each.counted) if each.came_true else each.probability - each.counted
        for each in evidence
        if each.counted is not None
    ]
    points["calibration"] = max(0.0, 1 - 25 * float(np.mean(np.square(distances)))) if distances else 0.0
    least_s = cheapest_s(tuple(fault.cause for fault in faults))
    saved = (BUDGET_S - used_s) / (BUDGET_S - least_s)
    points["cost"] = points["evidence"] * min(1.0, max(0.0, saved))  # a guess is cheap
    return Score({part: round(POINTS[part] * points[part]) for part in POINTS}, tuple(dict.fromkeys(left)))


class Incident:
    """A training job on the ranks, with a hidden fault: run experiments, then `diagnose`."""

    def __init__(self, seed: int, faults: int, p: int, on_ranks: Callable[[str, str], Any]) -> None:
        self.seed, self.p = seed, p
        self.batches = drawn(seed, p, faults).batches
        self.evidence: list[Evidence] = []
        self.score: Score | None = None
        self.used_s = 0.0  # of machine time: prices, and the seconds of the student's own cells times ranks
        self._faults, self._on_ranks, self._given = faults, on_ranks, list[tuple[Fault, list[Evidence]]]()
        self._reasons = dict[str, str]()  # by cause
        self._name = f"11-incident-{seed}-{faults}"
        self._go_on(record.load().get(self._name, {}))
        self._on_ranks(JOB, f"start(comm, {seed}, {faults})")

    def _go_on(self, kept: Mapping[str, Any]) -> None:
        """Continue with what the record has of an incident without a diagnosis: it costs what it has cost."""
        if "scores" in kept or kept.get("ranks") != self.p:
            return
        self.used_s = float(kept["used_s"])
        for each in kept["evidence"]:
            findings = frozenset(Finding(*found) for found in each["findings"])
            self.evidence.append(Evidence(**{**each, "findings": findings}))
        print(f"This incident goes on where you left it: {self.used_s:.1f} of {BUDGET_S:.0f} s are used.")

    def _keep(self) -> None:
        """Keep what an incident has cost until its first diagnosis."""
        evidence = [{**vars(each), "findings": sorted(each.findings, key=str)} for each in self.evidence]
        text = f"no diagnosis yet, {self.used_s:.1f} s used"
        if "scores" not in record.load().get(self._name, {}):
            record.keep_answer(self._name, text, ranks=self.p, used_s=self.used_s, evidence=evidence)

    def __repr__(self) -> str:
        batches = ", ".join(map(str, self.batches))
        return (
            f"Incident {self.seed}: a job on {self.p} ranks, local batches of {batches} samples; "
            f"{counted(self._faults, 'fault')} or none. "
            f"{self.used_s:.1f} of {BUDGET_S:.0f} s of machine time used, "
            f"{counted(len(self.evidence), 'experiment')}."
        )

    def experiment(
        self, name: str, predict: str = "", probability: float | None = None, using: str = ""
    ) -> None:
        """Run an experiment of `EXPERIMENTS`, keep it in `evidence`, and print what it reports.

        - `predict`: what it will report, "nothing" or a word of the experiment.
        - `probability`: how sure you are of this, from 0 to 1.
        - `using`: the name of a function on the ranks that measures in place of ours. It takes the job and
          returns the same columns.

        Only say why if the prediction is missing, the budget too small, or the machine too busy to tell.
        """
        words = list(EXPERIMENTS[name].words) if name in EXPERIMENTS else []
        refusal = ""
        if not words:
            refusal = f"expected an experiment, one of {', '.join(EXPERIMENTS)}, got {name!r}."
        elif predict not in [*words, "nothing"]:
            refusal = f"Predict first: {name} can report {', '.join(words)}, or nothing."
        elif probability is None or not 0 <= probability <= 1:
            refusal = "Say how probable your prediction is, from 0 to 1."
        elif self.used_s + EXPERIMENTS[name].price_s > BUDGET_S:
            refusal = (
                f"{name} costs {EXPERIMENTS[name].price_s:g} s of machine time, and {self.used_s:.1f} of "
                f"{BUDGET_S:.0f} s are used: choose another experiment, or file your diagnosis."
            )
        if refusal or probability is None:
            print(wrapped(refusal, COLUMNS))
            return
        rows, report = list[Mapping[str, Any]](), None
        try:
            results = self._on_ranks("_on_call_result", f"measure({name!r}, {using or None})")
            rows, own_s = [row for row, _ in results], max(seconds for _, seconds in results)
        except CellHung:
            report, own_s = last_hang(), 0.0
            if report is None or name != "run":
                raise
        self.used_s += self.p * own_s
        try:
            findings = frozenset(read_hang(report) if report else read(name, rows))
        except TooBusy as busy:
            print(f"{wrapped(str(busy), COLUMNS)} (It cost nothing.)")
            return
        self.used_s += EXPERIMENTS[name].price_s
        came_true = predict in {each.word for each in findings} if predict != "nothing" else not findings
        is_new = name not in [each.experiment for each in self.evidence]
        left = explanations(self._faults, self.evidence)
        by_count = probability_of(predict, name, left) if is_new and left else None
        number = len(self.evidence) + 1
        made = Evidence(number, name, findings, predict, float(probability), came_true, by_count)
        self.evidence.append(made)
        self._keep()
        if rows:
            print(table_of(rows))
        meanings = [f"{each}: {EXPERIMENTS[name].words[each.word]}" for each in sorted(findings, key=str)]
        print(
            wrapped(
                f"Evidence {made.number}, {name}: {'; '.join(meanings) or 'nothing stands out'}.", COLUMNS
            )
        )
        print(
            f"You predicted {predict!r} with probability {probability:.2g}: "
            f"{'right' if came_true else 'wrong'}. {self.used_s:.1f} of {BUDGET_S:.0f} s used."
        )
        if by_count is None:
            print("(Earlier evidence had decided this result, so the prediction does not count.)")

    def rivals(self, cause: str, evidence: Sequence[int]) -> None:
        """Print the causes other than this one that could have produced the same findings, for RIVALS_S."""
        if self.used_s + RIVALS_S > BUDGET_S:
            print(f"rivals costs {RIVALS_S:g} s, and {self.used_s:.1f} of {BUDGET_S:.0f} s are used.")
            return
        self.used_s += RIVALS_S
        self._keep()
        self._print_rivals(cause, evidence)

    def _print_rivals(self, cause: str, evidence: Sequence[int]) -> None:
        cited = [each for each in self.evidence if each.number in evidence]
        for number in contradicted(cause, cited):
            print(f"Evidence {number} contradicts {cause!r}: it would have shown there.")
        left = ", ".join(rivals(cause, cited)) or "none"
        print(wrapped(f"Rivals of {cause!r} that this evidence does not exclude: {left}.", COLUMNS))

    def diagnose(
        self, rank: int | None = None, cause: str = "", evidence: Sequence[int] = (), because: str = ""
    ) -> None:
        """File a diagnosis; print the score and the rival causes that the evidence does not exclude.

        `evidence`: the numbers of the experiments that prove it; `because`: which rivals each of them
        excludes, in words. With two faults, call it once for each. The score is then in `score`. The first
        one of a seed is kept for the table of a class, with your words.
        """
        cited = [each for each in self.evidence if each.number in evidence]
        unknown = sorted(set(evidence) - {each.number for each in cited})
        is_rank = rank is None or (isinstance(rank, int) and 0 <= rank < self.p)
        if self.score is not None or cause not in CAUSES or unknown or not is_rank or not because.strip():
            text = "say in `because` which rival causes each experiment excludes"
            text = text if cause in CAUSES else f"cause is one of {', '.join(CAUSES)}"
            text = f"there is no evidence {unknown[0]}" if unknown else text
            text = text if is_rank else f"rank is None or one of 0 … {self.p - 1}"
            text = text if self.score is None else "this incident has its diagnosis; start another one"
            print(wrapped(f"Not filed: {text}.", COLUMNS))
            return
        self._given = [each for each in self._given if each[0].cause != cause]
        self._given.append((Fault(cause, rank), cited))
        self._reasons[cause] = because.strip()
        self._print_rivals(cause, evidence)
        if len(self._given) < self._faults:
            print("Filed. This incident has two faults: file the other one, too.")
            return
        truth = drawn(self.seed, self.p, self._faults).faults
        self.score = score = judged(truth, self._given, self.evidence, self.used_s)
        told = " and ".join(
            f"{f.cause}" + (f" on rank {f.rank}" if f.rank is not None else "") for f in truth
        )
        parts = ", ".join(f"{part} {score.points[part]}/{most}" for part, most in POINTS.items())
        print(wrapped(f"It was: {told}. {score.total} of {sum(POINTS.values())} points: {parts}.", COLUMNS))
        given = "; ".join(
            f"{fault.cause} {fault.rank}: {self._reasons[fault.cause]}" for fault, _ in self._given
        )
        if "scores" not in record.load().get(self._name, {}):
            record.keep_answer(self._name, f"{given} ({score.total} points)", scores=dict(score.points))


def table_of(rows: Rows) -> str:
    """Return what the ranks have measured as a table, one line a rank."""
    columns = list(rows[0])
    cells = [
        [f"{row[name]:.3g}" if isinstance(row[name], float) else str(row[name]) for name in columns]
        for row in rows
    ]
    widths = [max(len(name), *(len(line[k]) for line in cells)) for k, name in enumerate(columns)]
    head = "rank  " + "  ".join(f"{name:>{width}}" for name, width in zip(columns, widths, strict=True))
    lines = [
        f"{rank:4}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        for rank, line in enumerate(cells)
    ]
    return "\n".join([head, *lines])


def incident(seed: int, faults: int = 1) -> Incident:
    """Start the job of this seed on all ranks, named `job` there, and return the incident.

    The same seed gives the same incident on as many ranks. Raise RuntimeError without ranks.
    """
    shell = get_ipython()
    magics = shell.magics_manager.registry.get("RankMagics") if shell is not None else None
    if magics is None:
        raise RuntimeError("incident() needs ranks: run `rc = connect(n=4)` in a notebook first")
    client = magics.ranks.client

    def on_ranks(name: str, call: str) -> Any:
        """Give what a call returns on the ranks a name there; return the values of all ranks."""
        cell = f"from labkit.exercises import on_call_job as _on_call\n{name} = _on_call.{call}"
        shell.run_cell_magic("px", "", cell)
        return client[:].pull(name, block=True) if name != JOB else None

    return Incident(seed, faults, len(client.ids), on_ranks)


def class_rows(folder: Path, seed: int) -> list[dict[str, Any]]:
    """Return the table of a class: each student's first diagnosis of the seed, the best first.

    The folder holds a copy of each student's progress.json, named NAME.json. Equal scores share a place.
    """
    found: list[dict[str, Any]] = []
    for file in sorted(folder.glob("*.json")):
        try:
            entries = json.loads(file.read_bytes())["exercises"]
            entry = entries.get(f"11-incident-{seed}-1", {})
            kept = [entry] if "scores" in entry else []
            rows = [{part: int(each["scores"][part]) for part in POINTS} for each in kept]
            words = str(entry.get("answer", ""))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            found.append(
                {"student": file.stem, "score": 0, "reason": f"cannot be read: {type(error).__name__}"}
            )
            continue
        if not rows:
            found.append({"student": file.stem, "score": 0, "reason": f"no diagnosis of seed {seed}"})
        found += [
            {"student": file.stem, "score": sum(row.values()), **row, "words": words, "reason": ""}
            for row in rows
        ]
    found.sort(key=lambda row: -int(row["score"]))
    filed = [int(row["score"]) for row in found if not row["reason"]]
    return [
        {"place": None if row["reason"] else 1 + sum(other > row["score"] for other in filed), **row}
        for row in found
    ]


def class_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as text in aligned columns."""
    width = max([len("student"), *(len(row["student"]) for row in rows)])
    lines = [f"place  {'student':{width}}  score  " + "  ".join(f"{part:>11}" for part in POINTS)]
    for row in rows:
        parts = row["reason"] or "  ".join(f"{row[part]:11}" for part in POINTS)
        lines.append(f"{row['place'] or '–':>5}  {row['student']:{width}}  {row['score']:5}  {parts}")
    return "\n".join(lines)
