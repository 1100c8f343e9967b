"""The exercises of notebook 10: five reports."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from labkit.exercises.exercise import Case, Exercise
from labkit.reports.generated import figures, remark
from mpiwatch.report import counted

# Exercise 10.1


def formulas_that_fit(gradients, printed, points):
    """Return the names of the formulas that give all printed contributions, in the order above: a list.

    Shapes: gradients, printed (ranks, epochs), the latter in %. A formula fits if each of its values is at
    most `points` away from the printed one. An epoch in which a rank's gradient is nan does not count.
    """
    lengths, total = np.abs(gradients), gradients.sum(axis=0)
    values = {
        "lengths": lengths / lengths.sum(axis=0),
        "sum": lengths / np.abs(total),
        "signed": gradients / total,
    }
    known = np.isfinite(total)
    apart = {name: np.abs(100 * value - printed)[:, known] for name, value in values.items()}
    return [name for name, points_apart in apart.items() if np.all(points_apart <= points)]


def _printed(p: int, epochs: int, formula: str) -> Case:
    """Return gradients and contributions, printed by a formula and rounded to two digits."""
    rng = np.random.default_rng([p, epochs])
    gradients = rng.uniform(0.5, 2, (p, epochs)) * (1 if epochs % 2 else -1)
    if formula != "lengths and sum":  # these agree if all gradients have the same sign
        gradients[0] *= -0.2
    if epochs > 2:
        gradients[-1, 1] = np.nan
    signs, total = np.abs(gradients), gradients.sum(axis=0)
    value = signs / signs.sum(axis=0) if formula == "lengths" else signs / np.abs(total)
    value = gradients / total if formula == "signed" else value
    if formula == "none":
        value[0, -1] += 0.01
    label = f"{counted(p, 'rank')}, {counted(epochs, 'epoch')}, printed by: {formula}"
    return Case(label, ((gradients, np.round(100 * value, 2), 0.02),))


def formula_cases() -> Sequence[Case]:
    kinds = "sum", "lengths", "signed", "lengths and sum", "none"
    exact = np.array([[1.0], [-1.0], [2.0]]), np.array([[25.0], [25.0], [50.0]]), 0.02
    return (
        [Case("3 ranks, 1 epoch, printed by: lengths, without rounding", (exact,))]
        + [_printed(2 + k, 1 + k, kind) for k, kind in enumerate(kinds)]
        + [_printed(4, 10, "sum")]
    )


FORMULAS_THAT_FIT = Exercise(
    reference=formulas_that_fit,
    title="How is a contribution computed?",
    difficulty=2,
    minutes=10,
    cases=formula_cases,
    mistakes={
        "an epoch with a nan makes every formula fail, because no comparison with nan is true: leave such "
        "epochs out": {"[:, known]": ""},
        "a formula counts here if it gives one of the numbers; it must give all of them": {
            "np.all(": "np.any("
        },
        "the numbers must agree exactly here; the printed ones are rounded: allow `points`": {
            "<= points": "== 0"
        },
        "the formulas give fractions, the report prints percent: multiply by 100": {"100 * value": "value"},
        "`sum` divides by the length of the sum, |Σ g|, and not by the sum of the lengths": {
            "np.abs(total)": "lengths.sum(axis=0)"
        },
        "`sum` keeps the sign of Σ g here; divide by its absolute value": {"np.abs(total)": "total"},
        "`signed` has lost the signs of the gradients": {"gradients / total": "np.abs(gradients / total)"},
        "this is the first formula that fits; return all": {
            "if np.all(points_apart <= points)]": "if np.all(points_apart <= points)][:1]"
        },
        "the sums run over the epochs, axis 1; add up over the ranks, axis 0": {
            "lengths, total = np.abs(gradients), gradients.sum(axis=0)": (
                "lengths, total = np.abs(gradients), gradients.sum(axis=1, keepdims=True)"
            ),
            "known = np.isfinite(total)": "known = np.isfinite(gradients.sum(axis=0))",
        },
    },
    hints=(
        "Compute the three tables of contributions, each of shape (ranks, epochs). Sums over the ranks are "
        "sums over axis 0.",
        "An epoch counts if no gradient in it is nan: np.isfinite(gradients.sum(axis=0)).",
        "A formula fits if np.abs(100 * value - printed) is at most `points` in all epochs that count.",
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


def rounded(n: int, counts: Sequence[int], decimals: int, largest: int) -> Case:
    """Return the case of these counts of n samples."""
    percentages = [round(100 * k / n, decimals) for k in counts]
    some, digits = counted(len(counts), "percentage"), counted(decimals, "digit")
    return Case(f"{some} of {n} samples, {digits} after the point", ((percentages, decimals, largest),))


def percentage_cases() -> Sequence[Case]:
    return [
        rounded(2, [1], 0, 6),
        rounded(3, [1, 2], 1, 12),
        rounded(7, [1, 4], 2, 100),
        rounded(11, [2, 7, 10], 1, 60),
        rounded(96, [5, 31, 64], 0, 150),
        rounded(640, [71, 83, 69, 90, 101], 2, 900),
    ]


POSSIBLE_TOTALS = Exercise(
    reference=possible_totals,
    title="Which totals fit the percentages?",
    difficulty=2,
    minutes=10,
    cases=percentage_cases,
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
        "For a total n and a percentage q, the only whole count to try is round(n q / 100).",
        "The count k fits if 100 k / n is at most half a unit of the last printed digit away from q.",
        "Keep n if that holds for every percentage. Allow 1e-9 for rounding in your own computation.",
    ),
)


# Exercise 10.3


def same_runs(losses):
    """Return the pairs (i, j), i < j, of runs with nearly the same loss on every rank, ascending: a list.

    Shapes: losses (runs, ranks), printed by each rank after the same number of iterations.
    """
    spread, pairs = np.ptp(losses, axis=1), []
    for i in range(len(losses)):
        for j in range(i + 1, len(losses)):
            apart = np.abs(losses[i] - losses[j]).max()
            if apart < 0.1 * min(spread[i], spread[j]):
                pairs.append((i, j))
    return pairs


def loss_cases() -> Iterator[Case]:
    apart = np.array([[3.0, 2.0, 2.5], [3.3, 2.4, 2.9]])
    yield Case("2 runs, up to 0.4 apart; their spreads are 1 and 0.9", ((apart,),))
    for runs, ranks, same in ((2, 4, 0), (2, 3, 1), (3, 4, 1), (4, 2, 2), (5, 4, 3)):
        rng = np.random.default_rng([runs, ranks])
        losses = rng.normal(3, 0.4, (runs, ranks))
        losses[runs - same :] = losses[0] + rng.normal(0, 0.004, (same, ranks))
        yield Case(f"{runs} runs of {ranks} ranks, {same} like the first", ((losses,),))
    shifted = np.array([[3.0, 2.5, 2.2, 2.9], [3.15, 2.35, 2.3, 2.8], [3.01, 2.51, 2.21, 2.6]])
    yield Case("3 runs, of which two differ on one rank only", ((shifted,),))
    wide = np.array([[2.91, 2.09, 2.5], [3.0, 2.0, 2.5]])  # 0.09 apart; their spreads are 0.82 and 1
    yield Case("2 runs, the second with the larger spread", ((wide,),))
    yield Case("2 runs, the first with the larger spread", ((wide[::-1].copy(),),))


SAME_RUNS = Exercise(
    reference=same_runs,
    title="Which runs are the same?",
    difficulty=2,
    minutes=5,
    cases=loss_cases,
    mistakes={
        "the spread of one of the two runs is used; take the smaller spread of both": {
            "min(spread[i], spread[j])": "spread[i]"
        },
        "the larger spread of both runs is used; take the smaller one": {"min(spread": "max(spread"},
        "differences of opposite signs cancel, or a negative one counts as small: take absolute values": {
            "np.abs(losses[i] - losses[j]).max()": "(losses[i] - losses[j]).max()"
        },
        "the smallest difference of the ranks counts here; take the largest": {".max()": ".min()"},
        "the mean over the ranks is compared; every rank has to agree, so take the largest difference": {
            "np.abs(losses[i] - losses[j]).max()": "abs(losses[i].mean() - losses[j].mean())"
        },
        "each pair is returned twice; return (i, j) with i < j": {
            "range(i + 1, len(losses))": "[k for k in range(len(losses)) if k != i]"
        },
        "every run is paired with itself; return pairs with i < j": {"range(i + 1,": "range(i,"},
        "only neighbouring runs are compared; compare each run with each": {
            "range(i + 1, len(losses))": "range(i + 1, min(i + 2, len(losses)))"
        },
        "the whole spread is allowed; a tenth of it is": {"0.1 * ": ""},
    },
    hints=(
        "The spread of a run is np.ptp(losses[i]): its largest minus its smallest loss.",
        "Two loops give the pairs: i over all runs, j over those after i.",
        "np.abs(losses[i] - losses[j]).max() must be below 0.1 * min(spread[i], spread[j]).",
    ),
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


def measured_times() -> Iterator[Case]:
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
        yield Case(label, ((a, b, level, np.random.default_rng(17)),))


ENDS = "[(1 - level) / 2, (1 + level) / 2]"
CONFIDENCE_INTERVAL = Exercise(
    reference=confidence_interval,
    title="How sure is a difference?",
    difficulty=3,
    minutes=10,
    cases=measured_times,
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
        "each end leaves out 1 - level; each tail has half of it": {ENDS: "[1 - level, level]"},
        "these are the lowest and the highest ratio; leave out (1 - level) / 2 at each end": {ENDS: "[0, 1]"},
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
        "np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2]) returns the two ends.",
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


def generated_reports() -> Sequence[Case]:
    reports = sorted(((figures(seed), seed) for seed in SEEDS), key=lambda each: (each[0]["ranks"], each[1]))
    return [Case(f"report {seed} ({found['ranks']} ranks)", ((found,),)) for found, seed in reports]


REFEREE = Exercise(
    reference=referee,
    title="Find the fault in any report",
    difficulty=5,
    minutes=35,
    cases=generated_reports,
    many_are_right=True,
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
        "Shards are unequal. Divide the computation time by the samples before you compare ranks, and "
        "weight each mean over ranks with samples / samples.sum().",
        "In a synchronous job, all ranks take the same time per epoch. The bias changes by -learning_rate "
        "times the weighted mean gradient.",
    ),
)


QUESTIONS = {
    "10-a-data": "undecided: gradients of equal sizes on all ranks could have rejected it. Rank 2's is six "
    "times as long as any other, as in our unbalanced run. But ranks that start from different weights "
    "contribute unequally, too (in our run less so; weights further apart would give larger differences), "
    "and one common step then also changes all gradients equally. The report prints no checksum and "
    "mentions no broadcast; equal checksums would decide. (135.7 % together show nothing: gradients that "
    "point different ways shrink the sum.)",
    "10-a-balance": "rejected: another model from other shards could have supported it. Each step uses all "
    "samples, and the mean over all of them does not depend on who holds which: in our run the weights are "
    "the same. With mini-batches it could matter. Nor would balancing mend ranks that start from different "
    "weights.",
    "10-a-error": "rejected: four different changes, or a sum of gradients that grows, could have supported "
    "it. One common step changes all four gradients of b by nearly the same amount if the inputs are "
    "distributed equally; they change by -0.0288, -0.0286, -0.0288 and -0.0278. Nor does a common step go "
    "wrong: the sum of the four gradients shrinks from 2.0121 to 1.8981 (b) and from 0.9124 to 0.8551 (mean "
    "of W), so it leads downhill for all data together. The printed 0.118 is not the global loss: for a "
    "mean squared error, rank 2's gradient of 2.13, twice its mean error, alone makes that at least 0.28. "
    "It is rank 0's, which the step towards rank 2's data raises, as in our run.",
    "10-a-sync": "undecided: times that are equal on all ranks would have supported it. If all ranks leave "
    "the call together, rank 2 arrived first and rank 3 last, 0.399 s later; the others waited for it. So "
    "most of rank 0's 0.286 s is waiting, which the report's 'initial synchronisation between the "
    "processes' may mean. But rank 3's own 0.084 s may be setting up, or a lost core: rank 1 needs 0.061 s "
    "in epoch 3, when all is set up. Timing a first and a second call after a barrier would decide.",
    "10-c-only": "rejected: losses of 2b that agree with 2a as well as those of 3 do would have supported "
    "it. At iteration 20, 2a and 3 agree within 0.022 on every rank, while ranks differ by 0.78: the same "
    "seed, order and updates. 2b lies 0.12 to 0.21 below 2a on every rank. The pattern over the ranks is the "
    "same (correlation 0.996), so the samples very probably are; initial weights, learning rate, or a sum in "
    "place of a mean may differ. At iteration 40 no pair passes the test: small differences have grown, so "
    "the early iteration carries the evidence.",
    "10-c-rank0": "rejected: a rank that does not wait for the others could have supported it, but a "
    "synchronous job has none. Rank 0's clock must measure something else, for example without the averaging "
    "or without loading. The difference to the others is nearly constant in seconds (0.57, 0.56, 0.52) and "
    "as a ratio (0.67, 0.63, 0.63), so the numbers do not say which.",
    "10-c-four": "undecided: computing times of 2.13 s / 4 = 0.53 s would have supported it, but the "
    "report does not say of which rank's time its shares are. Taken of the slowest rank's time, 2a "
    "computes for 0.80 s, 2b for 0.68 s and 3 for 0.63 s, so four nodes compute 2.7 to 3.4 times as fast. "
    "Taken of rank 0's time, 2a computes for 0.54 s, four times as fast, and 2b and 3 faster still. The "
    "profiler's seconds would decide.",
    "10-c-overlap": "undecided: shares that change from 2b to 3 could have decided. Both have 45 % and 17 "
    "%. If the 17 % count communication whether hidden or not, overlap can have hidden 0.10 of 0.26 s; if "
    "they count only what is not hidden, something else saved the time. 38 % of the time have no name, and "
    "the two runs differ in more (same_runs). The report says that it sees overlap in 3 and none in 2b; "
    "whether this saves the time, only a trace with times would show.",
    "10-c-average": "rejected: every printed loss lies between 2.27 and 3.78, and the averages below 1. "
    "Losses that fall below 1 between two printed ones are not impossible, but none of 26 printed ones shows "
    "them. Dividing the sum of 40 losses by 196 gives means of 4.36 to 4.87; that would need larger losses "
    "at the start. So this explanation is possible and not proven; the list of the 40 losses would decide.",
    "10-c-accuracy": "undecided: the intervals of the two do not overlap, so the test images do not explain "
    "the difference. But each set-up ran once, and our eight seeds differ by more than the set-ups do. (Ours "
    "are further from chance, where seeds differ more, and our network and data are others.) Besides, the "
    "batch-norm buffers of 2b differ from rank to rank. Several seeds for each set-up would decide.",
    "10-d-faster": "undecided: both methods send equally many bytes on two nodes, so bandwidth alone does "
    "not explain 30.9 s more, some 17 ms in each iteration of two epochs. One call for each array would need "
    "a latency of milliseconds; extra copies and a local mean would explain it only on very slow nodes. The "
    "report prints neither the number of calls nor the parts of the time, and the times include training. On "
    "many nodes the reason that it gives would hold.",
    "10-d-nodes": "undecided: the names of two hosts could have supported it. Containers of one program "
    "under one prompt are usual if both run on one machine, but a tool can also start containers on several "
    "and show their output in one place. In the first case the 'network' is shared memory, and both nodes "
    "share the cores. The report does not say on which hosts the containers ran.",
    "10-d-similar": "supported: as far as the sentence goes, the intervals overlap. But on two ranks there "
    "is one addition, and a + b has the same bits in either order. So two correct programs with equal "
    "weights and samples should agree exactly; their losses do not (0.074 and 0.080 at iteration 880). So "
    "the seed, the order or the arithmetic differed, and the comparison is not one of the methods alone. "
    "Both divisions of the data fit the number of iterations.",
    "10-e-settings": "The report says that the other settings are the same, and also that better "
    "hyperparameters may be the reason. If all other settings are the same, no hyperparameter differs. Part "
    "b is also said to load its data in another way. The numbers favour a difference: two algorithms that "
    "compute the same mean cannot give two such curves.",
    "10-e-ring": "rejected: as a sentence about the algorithm. As a description of the two printed curves "
    "it is right. Equal settings and two curves, in one program, could have supported it. A correct ring "
    "leaves the mean that the all-reduce leaves; in notebook 05 the curves agree. What gives two curves "
    "here is the number of updates or the learning rate (a sum in place of a mean acts like four times the "
    "rate).",
    "10-e-updates": "undecided: a curve that only more updates can give could have supported it. Three "
    "updates, or 2.5 times the rate, come near part b (0.16 and 0.14 apart) and do not fit; four times the "
    "rate, as a sum would give, is 0.37 apart. And if part a synchronises after each process has updated its "
    "parameters, its ranks may be four models. We tried the settings on other images: they show what is "
    "possible, not what happened. The report's number of updates per epoch would decide; we would look first "
    "at part b's other way to load the data.",
    "10-e-time": "undecided: one run each says nothing about how times vary. Look at the last lines of our "
    "cell: if single runs of one program often differ by several percent, one pair that differs by 8 % is "
    "no evidence. Interleaved runs would decide if the interval of ring / mpi lay wholly outside that of "
    "mpi again / mpi; if the two overlap, one program may differ from itself by as much. Ours speak of our "
    "ring on our machine.",
    "10-rank-0-only": "Most of them. A fault on another rank leaves no trace in rank 0's accuracy, shard "
    "or checksum. A straggler makes rank 0 wait, but its numbers do not show whether for a rank or for the "
    "network. 'sum' and 'unweighted' need the gradients and the losses of all ranks. Only 'settings' "
    "always shows, in the losses and the updates of both runs; a wrong count shows if it is rank 0's.",
    "10-checklist": "The command, with every setting in it, costs one line and decides most questions of the "
    "kind 'did something else differ?'. Questions about time need others: computation, wait and "
    "communication, and repetitions with their spread.",
    "10-misleading": "For example, with numbers that we made up: '4 ranks, all settings as listed, 15 "
    "interleaved runs: at 1 MiB our ring takes 0.94 of the library's time (95 %: 0.92 to 0.96).' But 1 MiB "
    "is the best of twenty sizes that were tried, and averaging is 3 % of a step. Ask: what else did you "
    "try, and how much of the step is this?",
    "10-defence": "For example: it prints every rank's numbers, not only rank 0's, so that its readers can "
    "check it; it names its command and its cores. It reports that its loss rises although that speaks "
    "against it, and writes only that the imbalance may be the reason. Its numbers show that the averaging "
    "works: all four gradients change by the same step, and their sum shrinks. It separates the first "
    "synchronisation from the later ones.",
}
