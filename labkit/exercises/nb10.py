"""The exercises of notebook 10: five reports."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import copy
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from math import ceil, floor
from typing import Any

import numpy as np

from labkit import schedules
from labkit.exercises.exercise import Case, Exercise
from labkit.reports.generated import figures, remark
from labkit.schedules import CostModel

# Exercise 10.1


def signed_contributions(gradients):
    """Return each rank's contribution to the sum S of the gradients, with its sign: g_r · S / S · S.

    Shapes: gradients (p, n), one row for each rank; result (p,).
    """
    total = gradients.sum(axis=0)
    return gradients @ total / (total @ total)


def gradient_cases() -> Sequence[Case]:
    def drawn(p: int, n: int) -> Case:
        rng = np.random.default_rng([p, n])
        label = f"{p} rank{'s' * (p > 1)}, {n} entr{'ies' if n > 1 else 'y'} each"
        return Case(label, ((rng.normal(0.4, 1, (p, n)),),))

    against = np.array([[3.0, 4.0], [-1.0, 0.0]])  # the second gradient points against the sum
    one_against = Case("2 ranks, 2 entries each, one gradient against the other", ((against,),))
    return [one_against, drawn(3, 2), drawn(4, 10), drawn(1, 3), drawn(5, 1), drawn(7, 4)]


SIGNED_CONTRIBUTIONS = Exercise(
    reference=signed_contributions,
    title="Contributions that add up to 100 %",
    difficulty=2,
    minutes=10,
    cases=gradient_cases,
    expected=lambda case: [
        np.einsum("rn,n->r", g, g.sum(axis=0)) / np.sum(g.sum(axis=0) ** 2) for (g,) in case.arguments
    ],
    mistakes={
        "these are lengths, ‖g_r‖ / ‖S‖, as in report A: the sign is lost": {
            "gradients @ total / (total @ total)": "np.linalg.norm(gradients, axis=1) / np.linalg.norm(total)"
        },
        "g_r · S is divided by the length of S only once; divide by S · S": {
            "(total @ total)": "np.linalg.norm(total)"
        },
        "this is the cosine of the angle between g_r and S; the length of g_r is lost": {
            "(total @ total)": "np.linalg.norm(gradients, axis=1) / np.linalg.norm(total)"
        },
        "S is the mean of the gradients here, so the contributions add up to p; S is their sum": {
            "gradients.sum": "gradients.mean"
        },
        "each entry is divided by the entry of S: that is one number for each entry; the result has one for "
        "each rank": {"gradients @ total / (total @ total)": "gradients / total"},
        "the mean of the entries' fractions g_r / S is not g_r · S / S · S: an entry where S is small counts "
        "as much as one where S is large": {
            "gradients @ total / (total @ total)": "(gradients / total).mean(axis=1)"
        },
        "the sign is that of the entries' sum, the size ‖g_r‖ / ‖S‖; use the scalar product g_r · S": """
def signed_contributions(gradients):
    lengths = np.linalg.norm(gradients, axis=1)
    return np.sign(gradients.sum(axis=1)) * lengths / np.linalg.norm(gradients.sum(axis=0))
""",
    },
    hints=(
        "S has one entry for each parameter: add the rows.",
        "`gradients @ total` holds the scalar product of each row with S.",
        "S · S is `total @ total`. The results of all ranks add up to 1: check that.",
    ),
)


# Exercise 10.2


def possible_totals(percentages, decimals, largest):
    """Return all totals n = 1 … largest of which every percentage is a whole count. Shape: (found,).

    percentages (m,): each printed as 100 k / n with `decimals` digits after the point, for a whole k.
    The result is ascending.
    """
    totals = np.arange(1, largest + 1)[:, None]
    counts = np.round(totals * np.asarray(percentages) / 100)  # the nearest whole counts
    apart = np.abs(100 * counts / totals - percentages)
    fits = (apart < 0.5 * 10.0**-decimals + 1e-9).all(axis=1)
    return totals[fits, 0]


def totals_by_fractions(case: Case) -> Sequence[Any]:
    percentages, decimals, largest = case.arguments[0]
    half = Fraction(1, 2 * 10**decimals)
    exact = [Fraction(f"{q:.{decimals}f}") for q in percentages]
    found = [
        n
        for n in range(1, largest + 1)
        if all(ceil(n * (q - half) / 100) <= floor(n * (q + half) / 100) for q in exact)
    ]
    return [np.array(found, np.int64)]


def counted(n: int, counts: Sequence[int], decimals: int, largest: int) -> Case:
    """Return the case of these counts of n samples."""
    percentages = [round(100 * k / n, decimals) for k in counts]
    some = f"{len(counts)} percentage{'s' * (len(counts) > 1)}"
    digits = f"{decimals} digit{'s' * (decimals != 1)} after the point"
    return Case(f"{some} of {n} samples, {digits}", ((percentages, decimals, largest),))


def percentage_cases() -> Sequence[Case]:
    return [
        counted(2, [1], 0, 6),
        counted(3, [1, 2], 1, 12),
        counted(7, [1, 4], 2, 100),
        counted(11, [2, 7, 10], 1, 60),
        counted(96, [5, 31, 64], 0, 150),
        counted(640, [71, 83, 69, 90, 101], 2, 900),
    ]


POSSIBLE_TOTALS = Exercise(
    reference=possible_totals,
    title="Which totals fit the percentages?",
    difficulty=2,
    minutes=10,
    cases=percentage_cases,
    expected=totals_by_fractions,
    mistakes={
        "these totals fit at least one percentage; a total must fit all of them": {".all(": ".any("},
        "the counts are rounded down; the nearest whole count can lie above": {
            "np.round(totals * np.asarray(percentages) / 100)": (
                "np.floor(totals * np.asarray(percentages) / 100 + 1e-9)"
            )
        },
        "100 k / n must equal the printed percentage exactly here; that is rounded, so allow half a unit of "
        "its last digit": {"0.5 * 10.0**-decimals + 1e-9": "1e-9"},
        "a whole unit of the last digit is allowed; rounding changes a number by at most half a unit": {
            "0.5 * 10.0**-decimals": "10.0**-decimals"
        },
        "the percentages are compared as whole percents; they have `decimals` digits after the point": {
            "0.5 * 10.0**-decimals": "0.5"
        },
        "this is the smallest total only; return all that fit": {"[fits, 0]": "[fits, 0][:1]"},
        "these are indices, which start at 0; the first total is 1": {
            "return totals[fits, 0]": "return np.flatnonzero(fits)"
        },
        "the largest total is left out; the totals end with `largest`": {"largest + 1": "largest"},
    },
    hints=(
        "For one total n and one percentage q, the only whole count worth trying is round(n q / 100).",
        "The count k fits if 100 k / n is at most half a unit of the last printed digit away from q.",
        "Keep n if that holds for every percentage. Allow 1e-9 for rounding in your own computation.",
    ),
)


# Exercise 10.3


def averaging_seconds(nbytes, p, calls, model):
    """Return (all_reduce, all_gather): the seconds for averaging a gradient around a ring, by cost model.

    nbytes: the bytes of the gradient, cut into `calls` equal arrays; each array is averaged in a call of its
    own. model: (alpha, beta, gamma), in s/message, s/byte sent and s/byte added. After the all-gather,
    every rank adds up the p gradients by itself.
    """
    alpha, beta, gamma = model
    chunk = nbytes / p
    all_reduce = 2 * (p - 1) * (calls * alpha + chunk * beta) + (p - 1) * chunk * gamma
    all_gather = (p - 1) * (calls * alpha + nbytes * beta + nbytes * gamma)
    return all_reduce, all_gather


def modelled_seconds(case: Case) -> Sequence[Any]:
    nbytes, p, calls, (alpha, beta, gamma) = case.arguments[0]
    array = nbytes // calls
    reduced = schedules.cost(schedules.ring_allreduce(p), array, CostModel(alpha, beta, gamma))
    gathered = schedules.cost(schedules.ring_allgather(p), p * array, CostModel(alpha, beta))
    return [(calls * reduced, calls * (gathered + (p - 1) * array * gamma))]


def model_cases() -> Sequence[Case]:
    rows = (
        (2, 1, 1e-3, 0.0, 0.0),
        (2, 5, 1e-3, 0.0, 0.0),
        (4, 1, 0.0, 1e-8, 0.0),
        (4, 3, 0.0, 0.0, 1e-9),
        (2, 8, 2e-4, 8e-9, 3e-10),
        (7, 8, 5e-5, 1e-9, 1e-10),
        (1, 2, 1e-4, 1e-8, 1e-9),
    )
    return [
        Case(
            f"{p} rank{'s' * (p > 1)}, {calls} call{'s' * (calls > 1)}, "
            f"α = {alpha:g}, β = {beta:g}, γ = {gamma:g}",
            ((4 * 840 * 100, p, calls, (alpha, beta, gamma)),),
        )
        for p, calls, alpha, beta, gamma in rows
    ]


AVERAGING_SECONDS = Exercise(
    reference=averaging_seconds,
    title="The cost of two averaging algorithms",
    difficulty=3,
    minutes=15,
    cases=model_cases,
    expected=modelled_seconds,
    mistakes={
        "the all-reduce goes around the ring once here; it goes around twice, to add and to copy": {
            "2 * (p - 1)": "(p - 1)"
        },
        "the latency counts once here; every call sends its own messages": {"calls * alpha": "alpha"},
        "every call sends the whole gradient here; each sends its own part of it": {
            "    chunk = nbytes / p": "    nbytes *= calls\n    chunk = nbytes / p"
        },
        "the messages of the all-reduce hold the whole gradient here; a rank sends one chunk of it, "
        "nbytes / p, at a time": {"chunk = nbytes / p": "chunk = nbytes"},
        "nothing is added after the all-gather here; it only collects the gradients": {
            " + nbytes * gamma": ""
        },
        "after the all-gather a rank adds one chunk here; it has to add whole gradients": {
            "nbytes * gamma": "chunk * gamma"
        },
        "the all-gather sends p gradients here; a rank's own need not be received": {
            "(p - 1) * (calls * alpha + nbytes * beta + nbytes * gamma)": (
                "p * (calls * alpha + nbytes * beta) + (p - 1) * nbytes * gamma"
            )
        },
        "the all-reduce adds on both ways around the ring here; the second only copies": {
            "+ (p - 1) * chunk": "+ 2 * (p - 1) * chunk"
        },
        "the times are swapped; return the all-reduce first": {
            "return all_reduce, all_gather": "return all_gather, all_reduce"
        },
    },
    hints=(
        "All-reduce: p - 1 messages to add the chunks up, p - 1 to copy them. A chunk has nbytes / p bytes.",
        "All-gather: p - 1 messages, each a whole gradient. Then p - 1 gradients are added to the first.",
        "With c calls each message is cut into c messages: c times the latency, the same bytes.",
    ),
    prelude="",
)


# Exercise 10.4


def confidence_interval(a, b, level, rng):
    """Return (low, high): the bootstrap confidence interval of median(b) / median(a).

    Shapes: a (n,), b (m,), the times of two programs, in s. level: 0.95 for a 95 % interval. Draw 2,000
    samples of a with `rng.choice(a, (2000, n))`, then as many of b with `rng.choice(b, (2000, m))`.
    """
    medians_a = np.median(rng.choice(a, (2000, len(a))), axis=1)
    medians_b = np.median(rng.choice(b, (2000, len(b))), axis=1)
    return tuple(np.quantile(medians_b / medians_a, [(1 - level) / 2, (1 + level) / 2]))


def measured_times() -> Sequence[Case]:
    cases = []
    for n, m, faster, level in (
        (5, 5, 0.9, 0.95),
        (20, 20, 1.0, 0.95),
        (9, 14, 0.8, 0.9),
        (1, 1, 0.92, 0.95),
        (30, 12, 1.1, 0.5),
    ):
        rng = np.random.default_rng([n, m])
        a, b = 1 + rng.exponential(0.2, n), faster * (1 + rng.exponential(0.3, m))
        label = f"{n} and {m} times, a {100 * level:g} % interval"
        cases.append(Case(label, ((a, b, level, np.random.default_rng(17)),)))
    return cases


def interval_by_indices(case: Case) -> Sequence[Any]:
    a, b, level, _ = case.arguments[0]
    rng = np.random.default_rng(17)  # the argument is used up by the call
    medians_a, medians_b = (np.median(x[rng.integers(len(x), size=(2000, len(x)))], 1) for x in (a, b))
    tail = (1 - level) / 2
    return [tuple(float(np.quantile(medians_b / medians_a, part)) for part in (tail, 1 - tail))]


CONFIDENCE_INTERVAL = Exercise(
    reference=confidence_interval,
    title="How sure is a difference?",
    difficulty=3,
    minutes=15,
    cases=measured_times,
    expected=interval_by_indices,
    mistakes={
        "this is the interval of median(a) / median(b); the ratio is median(b) / median(a)": {
            "medians_b / medians_a": "medians_a / medians_b"
        },
        "the means are compared, and one late run moves a mean; compare the medians": {
            "np.median": "np.mean"
        },
        "this is the interval of the difference of the medians in seconds; return that of their ratio": {
            "medians_b / medians_a": "medians_b - medians_a"
        },
        "each end leaves out 1 - level, so both together leave out twice as much; each tail has half of it": {
            "[(1 - level) / 2, (1 + level) / 2]": "[1 - level, level]"
        },
        "these are the lowest and the highest of all ratios; leave out (1 - level) / 2 at each end": {
            "[(1 - level) / 2, (1 + level) / 2]": "[0, 1]"
        },
        "this is the mean of the ratios ± 1.96 standard deviations, which takes them to be normal and "
        "ignores level; take the quantiles of the ratios": """
def confidence_interval(a, b, level, rng):
    first, second = (np.median(rng.choice(x, (2000, len(x))), axis=1) for x in (a, b))
    ratio = second / first
    return ratio.mean() - 1.96 * ratio.std(), ratio.mean() + 1.96 * ratio.std()
""",
        "these are quantiles of the times themselves: they say where single runs lie; resample, and take the "
        "quantiles of the ratio of the medians": {"medians_b / medians_a": "b / np.median(a)"},
        "a and b are drawn in pairs, with the same indices; the runs are independent, so draw for each": """
def confidence_interval(a, b, level, rng):
    n = min(len(a), len(b))
    rows = rng.integers(n, size=(2000, n))
    ratios = np.median(b[rows], axis=1) / np.median(a[rows], axis=1)
    return tuple(np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2]))
""",
        "b is drawn before a: with the same generator the other order gives other samples": """
def confidence_interval(a, b, level, rng):
    second, first = (np.median(rng.choice(x, (2000, len(x))), axis=1) for x in (b, a))
    return tuple(np.quantile(second / first, [(1 - level) / 2, (1 + level) / 2]))
""",
    },
    hints=(
        "`rng.choice(a, (2000, len(a)))` is an array of 2,000 rows; each row is a sample of a with "
        "replacement.",
        "Take the median of each row, np.median(…, axis=1), for a and for b, and divide row by row.",
        "np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2]) are the two ends.",
    ),
)


# Exercise 10.5


def referee(figures):
    """Return (kind, rank): the fault in a generated report; rank is None if it is not on one rank.

    figures: as `reports.unseen(seed).figures`. kind: one of `reports.KINDS`.
    """
    f, samples = figures, figures["samples"]
    weights = samples / samples.sum()
    checksum = f["checksum"][:, -1]
    equal = (checksum[:, None] == checksum).sum(axis=1)  # how many ranks print this rank's checksum
    moved = np.r_[0, f["start"][1:] != f["stop"][:-1]]
    counts = f["accuracy_percent"] / 100 * samples[:, None]
    broken = np.abs(counts - np.rint(counts)).max(axis=1) > 1e-6
    total = f["total_s"].sum(axis=1)  # equal on all ranks of a synchronous job
    per_sample = f["compute_s"].sum(axis=1) / samples
    step = -f["learning_rate"] * (weights @ f["bias_gradient"])
    first, other = f["updates_per_epoch"]

    kind, rank = "none", None
    if equal.min() < len(samples):
        kind, rank = "left out", int(equal.argmin())
    elif moved.any():
        kind, rank = "shards", int(moved.argmax())
    elif broken.any():
        kind, rank = "count", int(broken.argmax())
    elif total.min() < 0.98 * total.max():
        kind, rank = "clock", int(total.argmin())
    elif per_sample.max() > 1.3 * per_sample.min():
        kind, rank = "straggler", int(per_sample.argmax())
    elif not np.allclose(f["bias_change"], step, rtol=1e-3, atol=1e-6):
        kind = "sum"
    elif not np.allclose(f["global_loss"], weights @ f["local_loss"], rtol=1e-6):
        kind = "unweighted"
    elif first != other:
        kind = "settings"
    return kind, rank


SEEDS = range(40)  # each kind of fault is among them


@cache
def figures_of(seed: int) -> dict[str, Any]:
    return figures(seed)


def generated_reports() -> Sequence[Case]:
    seeds = sorted(SEEDS, key=lambda seed: (figures_of(seed)["ranks"], seed))
    return [
        Case(f"report {seed} ({figures_of(seed)['ranks']} ranks)", ((copy.deepcopy(figures_of(seed)),),))
        for seed in seeds
    ]


REFEREE = Exercise(
    reference=referee,
    title="Find the fault in any report",
    difficulty=5,
    minutes=40,
    cases=generated_reports,
    expected=None,
    mistakes={
        "… all ranks need about the same time per sample": {"axis=1) / samples": "axis=1)"},
        "… the weighted mean of the gradients times -learning_rate": {
            '(weights @ f["bias_gradient"])': 'f["bias_gradient"].mean(axis=0)'
        },
        "… the mean of the local losses, weighted with the samples": {
            'weights @ f["local_loss"]': 'f["local_loss"].mean(axis=0)'
        },
        "… each accuracy is a whole count of that rank's samples": {
            "np.abs(counts - np.rint(counts)).max(axis=1) > 1e-6": "(counts % 1 != 0).any(axis=1)"
        },
        "… all ranks take the same time per epoch": {"0.98 * total.max()": "total.max()"},
        "… the same number of updates per epoch": {
            'f["updates_per_epoch"]': 'f["global_loss"].tolist(), f["other_global_loss"].tolist()'
        },
        "… this fault is on one rank": {
            "moved.any()": 'samples.sum() != f["training_samples"]',
            'kind, rank = "shards", int(moved.argmax())': 'kind = "shards"',
        },
        "… this fault is on another rank": {"total.argmin()": "total.argmax()"},
        "… the times of one rank do not fit those of the others": {"0.98": "0.1"},
        "… this fault is not on one rank: return None": {
            'kind = "unweighted"': 'kind, rank = "unweighted", int(samples.argmin())'
        },
        "… is not one of the kinds": {'"none"': '"no fault"'},
        "… expected two values: kind, rank": 'def referee(figures):\n    return "none"',
    },
    look=lambda case, outcomes: remark(int(case.label.split()[1]), outcomes[0].result),
    hints=(
        "Write one check for each kind: what must hold in every correct job, and which figures show it? "
        "Each report breaks only one of these rules.",
        "Checksums, shards and counts are exact. Times are not: compare sums over all epochs, and allow a "
        "few per cent.",
        "Shards are unequal. Divide computation by the samples before you compare ranks, and weight each "
        "mean over ranks with samples / samples.sum().",
        "In a synchronous job, all ranks take the same time per epoch. The bias changes by -learning_rate "
        "times the weighted mean gradient.",
    ),
)
