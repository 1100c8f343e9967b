"""Incidents: a training job on the ranks has a hidden fault. A student measures, and files a diagnosis.

Each experiment reads a set of findings. `CAUSES` says which findings a cause makes, so it is the table of
causes and experiments, and the judge and the reference diagnosis use nothing else. A hand-in keeps what was
measured and what the student said about it; its score is computed from that, never read. The job and what
an experiment runs on the ranks are in `labkit/exercises/on_call_job.py`; this module loads no MPI.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from IPython import get_ipython

from labkit.cluster import last_hang
from labkit.cluster.errors import CellHung
from labkit.exercises import record
from labkit.files import read_input
from labkit.text import COLUMNS, counted, ranks_phrase, wrapped
from mpiwatch.report import Report, groups, render

BUDGET_S = {1: 50.0, 2: 60.0}  # of machine time, by the number of faults
LIMIT, LINK_LIMIT = 2.0, 3.0  # times as long as the fastest rank, or as the link's latency and bandwidth give
THREADS_LIMIT, LARGE_PERCENT, MEAN_LIMIT = 1.3, 50, 1e-3
LEAST_MS = 1.0  # to read a batch: shorter times do not matter, and differ by chance
BRANCH_STEP = 5  # the first step in which the job can hang or a rank can meet a damaged sample
JOB = "job"  # its name on the ranks
POINTS = {"cause": 15, "rank": 15, "proof": 20, "reading": 20, "prediction": 10, "cost": 20}
WORST_RMS = 0.2  # distance of the probabilities from the right ones, for which there are no points

Rows = Sequence[Mapping[str, Any]]  # what an experiment has measured, one row a rank


class Finding(NamedTuple):
    """What stands out in an experiment: a word, and the rank, None if no single rank stands out."""

    word: str
    rank: int | None = None

    def __str__(self) -> str:
        return self.word if self.rank is None else f"{self.word} {self.rank}"


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


def _by_rank(word: str, stands_out: Callable[[Mapping[str, Any]], bool]) -> Callable[[Rows], set[Finding]]:
    """Return a reader that looks at each rank's row alone."""
    return lambda rows: {Finding(word, rank) for rank, row in enumerate(rows) if stands_out(row)}


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
    return {Finding("link", rank if p > 2 else None) for rank in slow}


def _read_weights(rows: Rows) -> set[Finding]:
    found = {Finding("start", rank) for rank, row in enumerate(rows) if row["start"] != row["of the seed"]}
    return found | ({Finding("differ")} if len({row["after 2 steps"] for row in rows}) > 1 else set())


def _read_buckets(rows: Rows) -> set[Finding]:
    found = {Finding("incomplete", rank) for rank, row in enumerate(rows) if row["incomplete"]}
    return found | ({Finding("last")} if all(row["last bucket %"] > LARGE_PERCENT for row in rows) else set())


def hang_rows(report: Report, p: int) -> list[dict[str, Any]]:
    """Return what a hang report says as rows of `run`, one a rank."""
    word, odd = "hang", report.missing()
    if report.mismatch is not None:
        largest, *others = (ranks for _, ranks in groups(report))
        word, odd = "mismatch", [rank for ranks in others for rank in ranks if len(largest) > 1]
    return [{"word": word, "odd": rank in odd} for rank in range(p)]


def _read_run(rows: Rows) -> set[Finding]:
    if "word" in rows[0]:  # from a hang report; a rank, if exactly one is odd
        odd = [rank for rank, row in enumerate(rows) if row["odd"]]
        return {Finding(rows[0]["word"], odd[0] if len(odd) == 1 else None)}
    if not all(math.isfinite(row["loss"]) for row in rows):
        return {Finding("loss")}
    return {Finding("state")} if any(row["states"] != "equal" for row in rows) else set()


class Experiment(NamedTuple):
    """What an experiment measures, its price (s of machine time), and its findings' words with their meaning.

    `read` returns the findings in what the ranks have measured, or raises TooBusy. A notebook's own cells pay
    the price if they use `parts` of the job. The prices are set, not measured, so that they are the same on
    every machine. An experiment that tests for several causes is cheap beside those that test for one: the
    budget buys a proof of every cause, "none" included, if each experiment is chosen by what is still
    possible, and often none if they are not.
    """

    price_s: float
    parts: tuple[str, ...]
    what: str
    words: Mapping[str, str]
    read: Callable[[Rows], set[Finding]]


EXPERIMENTS = {
    "phases": Experiment(
        8,
        ("load", "compute"),
        "time to read and to compute, on equal batches",
        {
            "load": f"the rank reads for more than {LEAST_MS:g} ms, and {LIMIT:g} times as long as another",
            "compute": f"the rank's compute / fixed is more than {LIMIT:g} times that of another",
        },
        _read_phases,
    ),
    "links": Experiment(
        7,
        ("comm", "world"),
        "ping-pong between each two ranks, as a multiple of what the link should need",
        {"link": f"all times of the rank, to every other one, are more than {LINK_LIMIT:g}"},
        _read_links,
    ),
    "threads": Experiment(
        4,
        (),
        "processor time of all threads, and of the one that computes",
        {"threads": f"the rank's all / one is more than {THREADS_LIMIT:g}"},
        _by_rank("threads", lambda row: row["all / one"] > THREADS_LIMIT),
    ),
    "samples": Experiment(
        4,
        ("ids", "planned", "labels", "file"),
        "the numbers of the samples that each rank reads, compared with the plan",
        {"samples": "the rank reads samples that the plan gives to another rank"},
        _by_rank("samples", lambda row: row["of others"] > 0),
    ),
    "weights": Experiment(
        4,
        ("model", "update"),
        "checksums of the weights before the first step and after the second",
        {
            "start": "the rank does not start with the weights of the seed",
            "differ": "after two steps, the ranks' weights differ",
        },
        _read_weights,
    ),
    "gradients": Experiment(
        7,
        (),
        "norms of each rank's own gradient in eight batches, not averaged",
        {"nan": "a gradient of the rank is not finite"},
        _by_rank("nan", lambda row: row["not finite"] > 0),
    ),
    "mean": Experiment(
        6,
        ("average", "used"),
        "the gradient that the update uses, compared with the weighted mean of the ranks' own gradients",
        {"mean": f"the relative difference is more than {MEAN_LIMIT:g}"},
        lambda rows: {Finding("mean") for row in rows if row["relative difference"] > MEAN_LIMIT},
    ),
    "messages": Experiment(
        6,
        ("exchange",),
        "the two numbers that arrive from each rank, compared with what it means to send",
        {"messages": "other numbers arrive than the rank means to send, or in another order"},
        _by_rank("messages", lambda row: row["meant to send"] != row["arrived"]),
    ),
    "buckets": Experiment(
        6,
        ("buckets", "complete", "complete_from"),
        "the buckets, and how many are incomplete after eight backward passes",
        {
            "incomplete": "the backward pass of the rank does not complete all buckets",
            "last": f"more than {LARGE_PERCENT} % of the gradient is in the last bucket",
        },
        _read_buckets,
    ),
    "buffers": Experiment(
        5,
        (),
        "checksums of the buffers before the first step and after the second",
        {"buffers": "the rank's buffers did not change"},
        _by_rank("buffers", lambda row: row["before"] == row["after 2 steps"]),
    ),
    "run": Experiment(
        10,
        ("step", "run", "loss"),
        "eight steps of the job, the loss, and whether weights and buffers are then equal on all ranks",
        {
            "hang": "the job hangs; the rank is missing in the hang report",
            "mismatch": "the ranks call collectives that do not match; the rank is alone with its call",
            "loss": "the loss is not finite",
            "state": "weights or buffers differ between ranks (not if the loss is not finite)",
        },
        _read_run,
    ),
}
JOINT = frozenset({"differ", "mean", "last", "loss", "state"})  # words that name no rank
PARTS = {part: name for name, experiment in EXPERIMENTS.items() for part in experiment.parts}


class Cause(NamedTuple):
    """A cause in words, how often it comes in 30 incidents, the words it makes, and those it may make."""

    text: str
    weight: int
    makes: Set[str]
    may_make: Set[str] = frozenset()
    is_on_a_rank: bool = True


CAUSES = {
    "slow rank": Cause("a rank computes three times as long", 3, {"compute"}),
    "slow link": Cause("a rank's link is eight times slower", 2, {"link"}),
    "blas threads": Cause(
        "a rank computes with more BLAS threads than the others", 3, {"threads"}, {"compute"}
    ),
    "last bucket": Cause("the last bucket is too large", 1, {"last"}, is_on_a_rank=False),
    "late average": Cause(
        "ranks average after the update", 1, {"mean", "differ", "state"}, is_on_a_rank=False
    ),
    "plain mean": Cause("the mean is unweighted, the shards are unequal", 3, {"mean"}, is_on_a_rank=False),
    "same shard": Cause("a rank reads the shard of another rank", 3, {"samples"}),
    "other start": Cause("a rank starts with other weights", 2, {"start", "differ", "state"}),
    "stale buffers": Cause("a rank keeps its old buffers", 1, {"buffers", "state"}),
    "branch": Cause("a rank leaves the job in a branch, before a collective", 2, {"hang"}),
    "skipped layer": Cause("a rank skips a layer in later steps", 1, {"incomplete", "mismatch"}),
    "nan": Cause("a rank's gradient is not finite, because a sample is damaged", 2, {"nan", "loss"}),
    "tags": Cause("a rank mixes up the tags of two messages", 1, {"messages", "mean"}),
    "slow disk": Cause("a rank reads its data from a slow disk", 2, {"load"}),
    "none": Cause("the job has no fault", 3, set(), is_on_a_rank=False),
}


class Fault(NamedTuple):
    """A cause and its rank; None if it is on no rank in particular."""

    cause: str
    rank: int | None

    def __str__(self) -> str:
        return self.cause if self.rank is None else f"{self.cause} on rank {self.rank}"


class Setting(NamedTuple):
    """What a seed decides: the faults, each rank's local batch, and the width of the hidden layers."""

    seed: int
    faults: tuple[Fault, ...]
    batches: tuple[int, ...]
    hidden: int


def drawn(seed: int, p: int, faults: int = 1) -> Setting:
    """Return the incident of this seed on p ranks. Two faults never hide each other, and are on two ranks.

    Raise ValueError if the seed is negative, there is one rank, or there are not one or two faults.
    """
    if seed < 0 or p < 2 or faults not in (1, 2):
        raise ValueError(
            f"expected a seed of 0 or more, 2 or more ranks, and 1 or 2 faults, got {seed}, {p}, {faults}"
        )
    rng = np.random.default_rng([seed, p, faults, *b"incident"])
    possible = explanations(faults)
    masses = np.array(list(possible.values()))
    causes = list(possible)[rng.choice(len(possible), p=masses / masses.sum())]
    placed = [
        # With two ranks there is one link, which is slow for both.
        Fault(cause, int(rank) if CAUSES[cause].is_on_a_rank and (cause, p) != ("slow link", 2) else None)
        for cause, rank in zip(causes, rng.permutation(p), strict=False)
    ]
    batches = np.rint(rng.permutation(np.linspace(0.6, 1.4, p)) * min(32, 160 // p)).astype(int)
    hidden = int(rng.choice([48, 64, 80]))
    return Setting(seed, tuple(placed), tuple(np.maximum(batches, 2).tolist()), hidden)


def made_by(causes: Iterable[str], experiment: str) -> tuple[set[str], set[str]]:
    """Return the words that an experiment must show for these causes together, and all that it may show."""
    words, found = EXPERIMENTS[experiment].words.keys(), [CAUSES[cause] for cause in causes]
    sure = words & set().union(*(cause.makes for cause in found))
    return sure, sure | (words & set().union(*(cause.may_make for cause in found)))


def table() -> str:
    """Return the table of causes and experiments: prices, and the first letters of the words a cause makes.

    Words that it may make stand in brackets. The first column: how often a cause comes in 30 incidents.
    """
    lines = [
        f"{'':13} of 30" + "".join(f" {name}" for name in EXPERIMENTS),
        f"{'price (s)':19}"
        + "".join(f" {experiment.price_s:{len(name)}g}" for name, experiment in EXPERIMENTS.items()),
    ]
    for cause, (_, weight, *_) in CAUSES.items():
        line = f"{cause:13} {weight:5}"
        for name in EXPERIMENTS:
            sure, possible = made_by([cause], name)
            letters = "".join(sorted(word[0] for word in sure)).upper()
            letters += "".join(f"({word[0]})".upper() for word in sorted(possible - sure))
            line += f" {letters or '·':>{len(name)}}"
        lines.append(line)
    return "\n".join(lines)


# What is still possible, and which experiment to buy next.
Words = Mapping[str, Set[str]]  # that were read, by experiment: the last reading of each counts


def words_of(findings: Iterable[Finding]) -> set[str]:
    return {finding.word for finding in findings}


@cache
def _priors(faults: int) -> Mapping[tuple[str, ...], int]:
    """Return all causes, or pairs of causes that can be told, and how often they come."""
    return {
        causes: math.prod(CAUSES[cause].weight for cause in causes)
        for causes in combinations(CAUSES, faults)
        if faults == 1 or _can_be_told(*(CAUSES[cause] for cause in causes))
    }


def _can_be_told(one: Cause, other: Cause) -> bool:
    """Tell whether neither fault hides the other, and no third cause explains findings of both together.

    `run` reports one word, so two faults that show different words in it are never combined.
    """
    both = one.makes | other.makes
    is_hidden = other.makes <= one.makes | one.may_make or one.makes <= other.makes | other.may_make
    makers = [known_cause.makes for known_cause in CAUSES.values() if known_cause.makes <= both]
    is_mixed = any(not made <= one.makes and not made <= other.makes for made in makers)
    return not is_hidden and not is_mixed and len(both & set(EXPERIMENTS["run"].words)) < 2


def explanations(faults: int, read: Words | None = None) -> dict[tuple[str, ...], float]:
    """Return the causes, or pairs of causes, that are still possible, and how probable each is.

    The probabilities follow by Bayes' rule, but for a common factor: a weight times one half for each word
    that a cause may make, whether it was read or not.
    """
    left = {causes: float(weight) for causes, weight in _priors(faults).items()}
    for name, words in (read or {}).items():
        left = {
            causes: mass / 2 ** len(possible - sure)
            for causes, mass in left.items()
            for sure, possible in [made_by(causes, name)]
            if sure <= words <= possible
        }
    return left


def probability_of_a_word(experiment: str, left: Mapping[tuple[str, ...], float]) -> float:
    """Return how probable it is that an experiment reports something, given what is still possible."""
    made = [(mass, *made_by(causes, experiment)) for causes, mass in left.items()]
    silent = sum(mass / 2 ** len(possible) for mass, sure, possible in made if not sure)
    return 1 - silent / sum(left.values())


def diagnosed(experiment: Callable[[str], set[Finding]], faults: int = 1) -> tuple[Fault, ...] | None:
    """Return the faults that measuring alone finds within the budget, or None if several are possible.

    The next experiment is the one that excludes most for its price, whatever it reads. An exception that
    `experiment` raises, such as TooBusy, passes through.
    """
    found, read = set[Finding](), dict[str, set[str]]()
    left, left_s = explanations(faults), BUDGET_S[faults]

    def excluded(name: str) -> float:
        """Return how much of the probability an experiment excludes at least, for a second of its price."""
        outcomes: dict[Any, float] = defaultdict(float)
        for causes, mass in left.items():
            outcomes[tuple(map(frozenset, made_by(causes, name)))] += mass
        mass = sum(left.values()) - max(outcomes.values())
        if len(left) == 1:  # one explanation is left, but a rank of it may be unknown
            (causes,) = left
            unknown = [
                cause for cause in causes if CAUSES[cause].is_on_a_rank and rank_of(cause, found) is None
            ]
            mass = sum(bool(made_by([cause], name)[0] - JOINT) for cause in unknown)
        return mass / EXPERIMENTS[name].price_s

    while left:
        able = [name for name in sorted(EXPERIMENTS) if EXPERIMENTS[name].price_s <= left_s]
        name = max(
            (experiment_name for experiment_name in able if experiment_name not in read),
            key=excluded,
            default="",
        )
        if not name or not excluded(name):
            break
        findings = experiment(name)
        found |= findings
        left_s -= EXPERIMENTS[name].price_s
        read[name] = words_of(findings)
        left = explanations(faults, read)
    if len(left) != 1:
        return None
    (causes,) = left
    return tuple(Fault(cause, rank_of(cause, found)) for cause in causes)


def rank_of(cause: str, found: Iterable[Finding]) -> int | None:
    """Return the rank that findings name for a cause; None if they name none."""
    if not CAUSES[cause].is_on_a_rank:
        return None
    ranks = {
        finding.rank for finding in found if finding.word in CAUSES[cause].makes and finding.rank is not None
    }
    return ranks.pop() if len(ranks) == 1 else None


def ideal(causes: Sequence[str], bought: list[str]) -> Callable[[str], set[Finding]]:
    """Return a function that measures what the table says of cause k on rank k; `bought` records names."""

    def measured(name: str) -> set[Finding]:
        bought.append(name)
        made = [(rank, word) for rank, cause in enumerate(causes) for word in made_by([cause], name)[0]]
        return {Finding(word, None if word in JOINT else rank) for rank, word in made}

    return measured


def price_s(names: Iterable[str]) -> float:
    """Return the price of these experiments."""
    return sum(EXPERIMENTS[name].price_s for name in names)


@cache
def best_order_s(causes: tuple[str, ...]) -> float:
    """Return what the reference diagnosis spends on these causes."""
    bought = list[str]()
    diagnosed(ideal(causes, bought), len(causes))
    return price_s(bought)


@cache
def mean_best_order_s(faults: int) -> float:
    """Return what the reference diagnosis spends on average."""
    masses = _priors(faults)
    return float(np.average([best_order_s(causes) for causes in masses], weights=list(masses.values())))


# The student's side.


def read_words(text: str, experiment: str, p: int) -> frozenset[Finding] | None:
    """Return the findings that a text such as "start 1, differ" or "nothing" names; None if it names none."""
    found = set()
    for entry in text.split(",") if text.strip() != "nothing" else []:
        word, _, rank = entry.strip().partition(" ")
        known = word in EXPERIMENTS[experiment].words
        if not known or (rank and (word in JOINT or rank not in map(str, range(p)))):
            return None
        found.add(Finding(word, int(rank) if rank else None))
    return frozenset(found)


@dataclass
class Evidence:
    """An experiment that was run: what the ranks measured, and what the student said before and after it.

    `probability`: that it would report a word. `reading`: the words, with ranks. `left`: the causes that
    the student takes for possible then.
    """

    experiment: str
    rows: Rows
    probability: float
    reading: str = ""
    left: Sequence[str] = ()

    @property
    def findings(self) -> set[Finding]:
        return EXPERIMENTS[self.experiment].read(self.rows)

    @property
    def said(self) -> frozenset[Finding]:
        return read_words(self.reading, self.experiment, len(self.rows)) or frozenset()


class Score(NamedTuple):
    """Points for each part of a diagnosis, and a line on each experiment."""

    points: Mapping[str, int]
    lines: tuple[str, ...]

    @property
    def total(self) -> int:
        return sum(self.points.values())


def judged(
    truth: Sequence[Fault], given: Mapping[str, int | None], evidence: Sequence[Evidence], used_s: float
) -> Score:
    """Return the score of a diagnosis: the accused causes and their ranks.

    - A wrong cause takes off as much as a right one gives.
    - Proof: the probability of the right causes by what was measured, halved for each rank it leaves open.
    - Reading, prediction: compared with what follows from the table and the student's own readings.
    - Cost: in full for what the best order spends on these causes or on average, whichever is more, so that
      luck gains nothing; nothing for the whole budget. A guess is cheap, so this is times the proof.
    """
    faults, causes, lines = len(truth), tuple(fault.cause for fault in truth), list[str]()
    wrong = len(set(given) - set(causes))
    ranks = len([cause for cause, rank in truth if cause in given and given[cause] == rank])
    found = [finding for piece in evidence for finding in piece.findings]
    left = explanations(faults, {piece.experiment: words_of(piece.findings) for piece in evidence})
    unnamed = len([cause for cause, rank in truth if rank_of(cause, found) != rank])
    parts = {
        "cause": max(0, len(set(given) & set(causes)) - wrong) / faults,
        "rank": max(0, ranks - wrong) / faults,
    }
    parts["proof"] = parts["cause"] * left.get(causes, 0.0) / max(sum(left.values()), 1e-9) / 2**unnamed
    right, distances, said, after = 0, list[float](), dict[str, set[str]](), explanations(faults)
    for k, piece in enumerate(evidence):
        told = "a repetition"
        if after and piece.experiment not in said:  # a repetition is no prediction
            due = probability_of_a_word(piece.experiment, after)
            distances.append(piece.probability - due)
            told = f"probability {due:.2f}, predicted {piece.probability:.2f}"
        said[piece.experiment] = words_of(piece.said)
        after = explanations(faults, said)
        possible = set().union(*after)
        right += (piece.said == piece.findings) + (set(piece.left) == possible)
        wrongly = ", ".join(sorted(set(piece.left) ^ possible))
        told += f"; left is wrong about {wrongly}" if wrongly else ""
        lines.append(f"{k + 1} {piece.experiment}: {_text(piece.findings)}, read {piece.reading}; {told}")
    parts["reading"] = right / max(2 * len(evidence), 1)
    square = float(np.mean(np.square(distances))) if distances else WORST_RMS**2
    parts["prediction"] = max(0.0, 1 - square / WORST_RMS**2)
    enough_s = max(best_order_s(causes), mean_best_order_s(faults))
    saved = (BUDGET_S[faults] - used_s) / max(BUDGET_S[faults] - enough_s, 1)
    parts["cost"] = parts["proof"] * min(1.0, max(0.0, saved))
    return Score({part: round(most * parts[part]) for part, most in POINTS.items()}, tuple(lines))


def _text(findings: Iterable[Finding | Fault]) -> str:
    return ", ".join(sorted(map(str, findings))) or "nothing"


class Incident:
    """A training job on the ranks, with a hidden fault: run experiments, `read` them, then `diagnose`."""

    def __init__(self, seed: int, faults: int, p: int, on_ranks: Callable[[str, str], Any]) -> None:
        self.seed, self.p = seed, p
        self.batches = drawn(seed, p, faults).batches
        self.evidence: list[Evidence] = []
        self.score: Score | None = None
        self.used_s = 0.0  # of machine time: prices of experiments, and of what the student's own cells used
        self._faults, self._on_ranks = faults, on_ranks
        self._entry = f"11-incident-{seed}-{faults}"
        kept = self._kept()
        if "faults" in kept:
            print("You have filed the diagnosis of this seed: from here on you practise.")
        elif kept:  # the seed has cost that on any number of ranks
            self.used_s = float(kept["used_s"])
            if kept["ranks"] == self.p:
                self.evidence = [Evidence(**fields) for fields in kept["evidence"]]
            print(f"This incident continues: {self._bill}.")
        self._on_ranks(JOB, f"start(comm, {seed}, {faults})")

    def _kept(self) -> Mapping[str, Any]:
        """Return what the record has of this seed: the first diagnosis, or what was spent so far."""
        return record.load().get(self._entry, {})

    def _keep(self, text: str = "", **diagnosis: Any) -> None:
        if "faults" not in self._kept():
            text = text or f"no diagnosis yet, {self._bill}"
            evidence = [asdict(piece) for piece in self.evidence]
            more = {"ranks": self.p, "used_s": self.used_s, "evidence": evidence, **diagnosis}
            record.keep_answer(self._entry, text, **more)

    @property
    def _bill(self) -> str:
        return f"{self.used_s:g} of {BUDGET_S[self._faults]:g} s are used"

    def __repr__(self) -> str:
        batches = ", ".join(map(str, self.batches))
        faults = "one fault or none" if self._faults == 1 else "two faults"
        return (
            f"Incident {self.seed}: a job on {self.p} ranks, local batches of {batches} samples; {faults}. "
            f"{counted(len(self.evidence), 'experiment')}; {self._bill}."
        )

    def charge(self) -> None:
        """Charge what this seed has cost elsewhere, and what the notebook's own cells use of the job."""
        if self.score is not None:
            return
        stored = self._kept()
        if "faults" not in stored:
            self.used_s = max(self.used_s, stored.get("used_s", 0.0))
        parts = set().union(*self._on_ranks("_on_call_used", "used()"))
        if parts:
            paid = sorted({PARTS[part] for part in parts})
            self.used_s += price_s(paid)
            print(f"Your own cells have used parts of the job: they cost {' + '.join(paid)}.")
            self._keep()

    def experiment(self, name: str, probability: float | None = None) -> None:
        """Run an experiment of `EXPERIMENTS`, keep it in `evidence`, and print what the ranks measured.

        `probability`: of its reporting a word, from 0 to 1. Only say why if this is missing, the experiment
        before has no reading, the budget is too small, or the machine too busy to tell.
        """
        self.charge()
        refusal = ""
        if name not in EXPERIMENTS:
            refusal = f"expected an experiment, one of {', '.join(EXPERIMENTS)}, got {name!r}."
        elif probability is None or not 0 <= probability <= 1:
            refusal = f"Predict first: how probable is it that {name} reports a word, from 0 to 1?"
        elif self.evidence and not self.evidence[-1].reading:
            refusal = f"Read {self.evidence[-1].experiment} first: case.read(words, left=…)."
        elif self.used_s + price_s([name]) > BUDGET_S[self._faults]:
            cost = f"{name} costs {price_s([name]):g} s of machine time"
            refusal = f"{cost}, but {self._bill}: choose another or file."
        if refusal or probability is None:
            print(wrapped(refusal, COLUMNS))
            return
        report = None
        try:
            rows = [dict(row) for row in self._on_ranks("_on_call_rows", f"measure({name!r})")]
        except CellHung:
            report = last_hang()
            if report is None or name != "run":
                raise
            rows = hang_rows(report, self.p)
        try:
            EXPERIMENTS[name].read(rows)
        except TooBusy as busy:
            print(f"{wrapped(str(busy), COLUMNS)} (It cost nothing.)")
            return
        self.used_s += price_s([name])
        self.evidence.append(Evidence(name, rows, float(probability)))
        self._keep()
        print(render(report) if report else table_of([{"rank": k, **row} for k, row in enumerate(rows)]))
        print(f"Evidence {len(self.evidence)}, {name}; {self._bill}.")

    def read(self, words: str, left: Collection[str] = ()) -> None:
        """Say what the last experiment shows, and which causes are possible after it.

        `words`: "nothing", or words of the experiment with their ranks, such as "start 1, differ".
        """
        unknown = sorted(set(left) - set(CAUSES))
        last = self.evidence[-1] if self.evidence else None
        text = ""
        if last is None or last.reading:
            text = "there is no experiment without a reading"
        elif read_words(words, last.experiment, self.p) is None:
            can = ", ".join(EXPERIMENTS[last.experiment].words)
            text = f"{last.experiment} can show {can} (with a rank where it has one), or nothing"
        elif unknown or not left:
            text = f"left has the causes that are still possible, of {', '.join(CAUSES)}"
        if text or last is None:
            print(wrapped(f"Not kept: {text}.", COLUMNS))
            return
        last.reading, last.left = words, sorted(left)
        self._keep()

    def diagnose(self, faults: Mapping[str, int | None], because: str = "") -> None:
        """File the diagnosis, once; print the score, which is then in `score`.

        - `faults`: the causes and their ranks, such as `{"nan": 2}`; the rank is None if the cause has none.
        - `because`: in your words, which measured numbers exclude which causes.
        """
        text = ""
        if self.score is not None:
            text = "this incident has its diagnosis; start another one"
        elif len(faults) != self._faults or not set(faults) <= set(CAUSES):
            text = f"expected {counted(self._faults, 'cause')} of {', '.join(CAUSES)}"
        elif not set(faults.values()) <= {None, *range(self.p)}:
            text = f"a rank is None or one of 0 … {self.p - 1}"
        elif self.evidence and not self.evidence[-1].reading:
            text = f"read {self.evidence[-1].experiment} first"
        elif not because.strip():
            text = "say in `because` which numbers exclude which causes"
        if text:
            print(wrapped(f"Not filed: {text}.", COLUMNS))
            return
        self.charge()
        truth = drawn(self.seed, self.p, self._faults).faults
        self.score = score = judged(truth, faults, self.evidence, self.used_s)
        parts = ", ".join(f"{part} {score.points[part]}/{most}" for part, most in POINTS.items())
        told = f"{score.total} of {sum(POINTS.values())} points: {parts}; {self._bill}"
        for line in (*score.lines, f"It was {_text(truth)}. {told}."):
            print(wrapped(line, COLUMNS))
        text = f"{_text(Fault(*item) for item in faults.items())}: {because.strip()} ({score.total} points)"
        self._keep(text, faults=dict(faults), because=because.strip())


def table_of(rows: Rows) -> str:
    """Return rows as text in aligned columns, with a line of their names."""
    names = list(rows[0]) if rows else []
    lines = [[f"{row[k]:.3g}" if isinstance(row[k], float) else str(row[k]) for k in names] for row in rows]
    widths = [max(map(len, column)) for column in zip(names, *lines, strict=True)]
    texts = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        for line in [names, *lines]
    ]
    return "\n".join(texts)


_open: list[Incident] = []  # the last one, whose job is on the ranks


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

    for last in _open:
        last.charge()
    _open[:] = [Incident(seed, faults, len(client.ids), on_ranks)]
    return _open[0]


def hand_in(entry: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Return the score of an incident in a student's record, computed from its evidence, and what is odd."""
    if "faults" not in entry:
        return {"points": dict.fromkeys(POINTS, 0), "note": f"no diagnosis of seed {seed}"}
    evidence, p = [Evidence(**fields) for fields in entry["evidence"]], min(int(entry["ranks"]), 1024)
    (fault,) = truth = drawn(seed, p).faults
    used_s = max(price_s(piece.experiment for piece in evidence), float(entry["used_s"]))
    score = judged(truth, entry["faults"], evidence, used_s)
    notes = [
        f"evidence {number} is not what the job of seed {seed} measures"
        for number, piece in enumerate(evidence, 1)
        if len(piece.rows) != p
        or (fault.cause,) not in explanations(1, {piece.experiment: words_of(piece.findings)})
        or not {finding.rank for finding in piece.findings} <= {fault.rank, None}
    ]
    more = {"lines": list(score.lines), "because": str(entry["because"]), "note": "; ".join(notes)}
    return {"seed": seed, "ranks": p, "points": dict(score.points), **more}


def class_rows(files: Iterable[Path], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Return the table of a class: each student's mean over the first diagnoses of the seeds, the best first.

    Each file is a copy of a student's progress.json, named NAME.json. A seed without a diagnosis counts 0.
    Equal scores share a place.
    """
    found = list[dict[str, Any]]()
    for file in sorted(files):
        incidents = list[dict[str, Any]]()
        try:
            entries = json.loads(read_input(file))["exercises"]
            incidents += [hand_in(entries.get(f"11-incident-{seed}-1", {}), seed) for seed in seeds]
            note = "; ".join(row["note"] for row in incidents if row["note"])
        except Exception as error:  # a file from a student may hold anything
            note = f"cannot be read: {type(error).__name__}"
        parts = {part: sum(row["points"][part] for row in incidents) / len(seeds) for part in POINTS}
        row = {"student": file.stem, "score": sum(parts.values()), **parts, "note": note}
        found.append({**row, "incidents": incidents})
    found.sort(key=lambda row: -row["score"])
    return [{"place": 1 + sum(other["score"] > row["score"] for other in found), **row} for row in found]


def class_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as text in aligned columns."""
    names = ("place", "student", "score", *POINTS, "note")
    return table_of([{name: row[name] for name in names} for row in rows])
