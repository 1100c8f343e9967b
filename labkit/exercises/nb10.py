"""The exercises of notebook 10: five reports."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from labkit.checks.exercise import Case, Exercise
from labkit.reports.generated import figures, remark
from labkit.text import counted

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


def formula_cases() -> Iterator[Case]:
    exact = np.array([[1.0], [-1.0], [2.0]]), np.array([[25.0], [25.0], [50.0]]), 0.02
    yield Case("3 ranks, 1 epoch, printed by: lengths, without rounding", (exact,))
    yield Case("3 ranks, 1 epoch, printed by: lengths, points = 0", ((*exact[:2], 0.0),))
    large = np.array([[99.0], [1.0]]), np.array([[99.0205], [1.0]]), 0.02
    yield Case("2 ranks, 1 epoch, a large value 0.0205 points off", (large,))
    formulas = "sum", "lengths", "signed", "lengths and sum", "none"
    more = (4, 10, "sum"), (6, 10, "none")
    for p, epochs, formula in (
        *((2 + k, 1 + k, given_formula) for k, given_formula in enumerate(formulas)),
        *more,
    ):
        gradients = np.random.default_rng([p, epochs]).uniform(0.5, 2, (p, epochs)) * (
            1 if epochs % 2 else -1
        )
        if formula != "lengths and sum":  # these agree if all gradients have the same sign
            gradients[0] *= -0.2
        lengths, total = np.abs(gradients), gradients.sum(axis=0)
        value = {"lengths": lengths / lengths.sum(axis=0), "signed": gradients / total}.get(
            formula, lengths / np.abs(total)
        )
        if formula == "none":
            value[0, -1] += 0.01 if epochs < 10 else 0.0006
        if epochs > 2:
            gradients[-1, 1] = np.nan  # after the report has printed its values
        label = f"{counted(p, 'rank')}, {counted(epochs, 'epoch')}, printed by: {formula}"
        yield Case(label, ((gradients, np.round(100 * value, 2), 0.02),))


FORMULAS_THAT_FIT = Exercise(
    reference=formulas_that_fit,
    cases=formula_cases,
    mistakes={
        "with a nan in an epoch, no formula fits here: leave such an epoch out, and no other one": {
            "[:, known]": ""
        },
        "a formula counts here if it gives one of the numbers; it must give all of them": {".all": ".any"},
        "the numbers must agree exactly here; the printed ones are rounded: allow `points`": {
            "<= points": "== 0"
        },
        "no formula fits here: compare percent with percent, and sum over the ranks, which are axis 0": {
            "100 * value": "value"
        },
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
    ordered = np.array([[3.0, 2.5, 2.2, 2.9], [2.5, 3.0, 2.9, 2.2]])
    yield Case("2 runs with the same losses on other ranks", ((ordered,),))
    close = np.array([[3.0, 2.0, 2.5, 2.5], [3.06, 2.06, 2.5, 2.5]])  # 0.06 apart; their spreads are 1
    yield Case("2 runs, 0.06 apart; their spreads are 1", ((close,),))
    for seed in 1, 2:  # differences near the limit
        rng = np.random.default_rng(seed)
        near = np.array([3.0, 2.0, 2.5, 2.8]) + rng.uniform(-0.08, 0.08, (6, 4)) * rng.integers(1, 3, (6, 1))
        yield Case(f"6 runs of 4 ranks, with differences near the limit, {seed}", ((near,),))
    wide = np.array([[2.91, 2.09, 2.5], [3.0, 2.0, 2.5]])  # 0.09 apart; their spreads are 0.82 and 1
    yield Case("2 runs, the second with the larger spread", ((wide,),))
    yield Case("2 runs, the first with the larger spread", ((wide[::-1].copy(),),))


SAME_RUNS = Exercise(
    reference=same_runs,
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


# Exercise 10.3
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
    cases=measured_times,
    tolerance=1e-3,  # the ends may be quantiles, or ratios in their order
    mistakes={
        "this is the interval of median(a) / median(b); the ratio is median(b) / median(a)": {
            "medians_b / medians_a": "medians_a / medians_b"
        },
        "the means are compared, and one late run moves a mean; compare the medians": {".median": ".mean"},
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


# Exercise 10.4
def verdicts(figures):
    """Return four verdicts on the conclusion of a generated report, in its order: a tuple of words.

    The sentences are about the network, learning, the best model and the fastest rank. figures: as
    `reports.unseen(seed).figures`. A word: "supported", "rejected" or "undecided".
    """
    f = figures
    total = f["total_s"].sum(axis=1)
    longest = f["compute_s"].max(axis=0).sum()
    transfer = total.max() - longest  # the rank that computes longest does not wait
    first, other = f["updates_per_epoch"]
    has_one_model = (f["checksum"] == f["checksum"][0]).all()
    return (
        "supported" if transfer > longest else "rejected",
        "supported" if first == other else "undecided",
        "rejected" if has_one_model else "undecided",
        "rejected" if total.min() > 0.98 * total.max() else "undecided",
    )


SEEDS = (*range(60), 97, 113)  # each kind of fault, rank 0 is left out, a sum on two ranks


def generated_reports() -> Sequence[Case]:
    reports = sorted(
        ((figures(seed), seed) for seed in SEEDS), key=lambda report: (report[0]["ranks"], report[1])
    )
    return [Case(f"report {seed} ({printed['ranks']} ranks)", ((printed,),)) for printed, seed in reports]


def reports_to_judge() -> Sequence[Case]:
    """Return the generated reports, and one in which the losses do not tell that the updates differ."""
    f = figures(UNEQUAL_UPDATES)
    changed = {**f, "other_global_loss": f["global_loss"]}
    label = f"report {UNEQUAL_UPDATES} with equal losses of the second run ({f['ranks']} ranks)"
    return [*generated_reports(), Case(label, ((changed,),))]


UNEQUAL_UPDATES = 44  # a report whose two runs make different numbers of updates
VERDICTS = Exercise(
    reference=verdicts,
    cases=reports_to_judge,
    mistakes={
        "the verdict on learning follows the losses; they test the sentence only if nothing else differs "
        "between the two runs, so look at the updates": {
            "first == other else": 'np.allclose(f["global_loss"], f["other_global_loss"], 1e-3) else'
        },
        "the network's part holds the wait for the slowest rank here, as `sync_s` does; the transfer is what "
        "is left of an epoch after the longest computation": {
            "total.max() - longest": 'f["sync_s"].mean(axis=0).sum()'
        },
        "the transfer is compared with a mean computation; the rank that computes longest decides": {
            'f["compute_s"].max(axis=0).sum()': 'f["compute_s"].mean(axis=0).sum()'
        },
        "two settings differ if the updates do, so the losses neither reject nor support a sentence about "
        "the algorithms": {'if first == other else "undecided"': 'if first == other else "rejected"'},
        "this takes every comparison of the algorithms for supported; look at the updates of both runs": {
            'if first == other else "undecided"': 'if first == other else "supported"'
        },
        "equal checksums on all ranks mean one model, so no rank has the best": {
            '"rejected" if has_one_model': '"undecided" if has_one_model'
        },
        "if the ranks' models differ, their accuracies still come from different samples: a rival "
        "explanation, so the sentence is undecided": {
            'has_one_model else "undecided"': 'has_one_model else "supported"'
        },
        "a rank cannot run ahead in a synchronous job: if one prints less time, its clock is a rival "
        "explanation": {'total.max() else "undecided"': 'total.max() else "supported"'},
        "a clock counts as wrong here that agrees with the others within 0.1 %: add up total_s": {
            "> 0.98 * total.max()": "== total.max()"
        },
    },
    hints=(
        "Network: all ranks leave the all-reduce together, and the rank that computes longest does not wait. "
        "So an epoch takes the longest computation plus the transfer.",
        "Learning: which settings of the two runs differ, besides the algorithm? Best model: compare the "
        "ranks' checksums in all epochs.",
        "Fastest: in a synchronous job the ranks' total_s, added up over the epochs, differ by less than "
        "2 %. A clock that stops early breaks this, so use the largest total.",
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


REFEREE = Exercise(
    reference=referee,
    cases=generated_reports,
    mistakes={
        "… all ranks need about the same time per sample": {"axis=1) / samples": "axis=1)"},
        "… the mean of the local losses, weighted with the samples": {
            'weights @ f["local_loss"]': 'f["local_loss"].mean(axis=0)'
        },
        "… the weighted mean of the gradients times -learning_rate": {
            '(weights @ f["bias_gradient"])': 'f["bias_gradient"].mean(axis=0)'
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
    look=lambda case, outcomes: filter(None, [remark(int(case.label.split()[1]), outcomes[0].result)]),
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
    "10-a-data": "undecided: gradients of equal lengths on all ranks could have rejected it. Rank 2's "
    "gradient of b is more than five times as long as any other, as in our run with unbalanced shards. "
    "But in some of our draws with balanced shards and weights of its own on each rank, a rank's "
    "contribution exceeds 100 %, too, and a common step changes all gradients of b equally in both cases. "
    "The report prints no checksum of the weights and mentions no broadcast; equal checksums would leave "
    "the data. (135.7 % together show nothing: gradients that point different ways shrink the sum.)",
    "10-a-error": "rejected: by the four changes and by the sum of the gradients. One common step changes "
    "all four gradients of b by nearly the same amount if the inputs are distributed equally; they change "
    "by -0.0288, -0.0286, -0.0288 and -0.0278. Nor does the step go wrong: the sum of the four shrinks "
    "from 2.01 to 1.90, so it leads downhill for all data together. The printed 0.118 is not the global "
    "loss: for a mean squared error, rank 2's gradient of 2.13, twice its mean error, alone makes that at "
    "least 0.28. It is rank 0's, which the step towards rank 2's data raises, as in our run.",
    "10-a-drops": "supported: a rank whose first time is not its longest could have rejected it. On "
    "every rank the first is the longest, by a factor of 3 (rank 1) or more. The sentence names no cause, "
    "and the numbers leave it open. Report A (§4) names the setting up of communication and the initial "
    "synchronisation; but if all ranks leave the call together, rank 2 arrived first and rank 3 last, "
    "0.399 s later, and the others waited, as in our run, where all is set up. Nor does setting up "
    "explain rank 1's 0.061 s in epoch 3. A barrier before the timed call would tell a wait from a slow "
    "call.",
    "10-c-only": "rejected: by 2b's losses at iteration 20. There 2a and 3 agree within 0.022 on every "
    "rank, while the ranks differ by 0.78: the same seed, order and updates. 2b lies 0.12 to 0.21 below "
    "2a on every rank. Its ranks come in the same order, so the samples are probably the same; initial "
    "weights, learning rate, or the average itself may differ. At iteration 40 no pair passes the test: "
    "small differences have grown, so the early iteration carries the evidence.",
    "10-c-order": "supported: two set-ups in the other order, on any rank, could have rejected it. The "
    "slowest ranks take 2.50, 1.75, 1.51 and 1.40 s; rank 0 gives the same order, and ranks 1 to 3 of a "
    "set-up differ by a thousandth or less. So the sentence is true of these four runs. Each ran once: "
    "whether the next runs come in the same order, and why, is another question.",
    "10-c-label": "rejected: by rank 0's time. It prints 0.95 s "
    "and the others 1.51 s. All ranks average in each iteration, so none can gain 0.56 s on the others in "
    "each of 39 iterations. Rank 0's clock must measure something else, for example without the averaging "
    "or without loading. The difference is nearly constant over 2a, 2b and 3, in seconds (0.57, 0.56, "
    "0.52) and as a ratio (0.67, 0.63, 0.63), so the numbers do not say what.",
    "10-d-similar": "undecided: the number of images that one model gets right and the other wrong could "
    "have rejected it; it is not printed. The two intervals overlap, but both models saw the same test "
    "images, so that shows nothing: with 24 such images z is 4.9, with 366 it is 1.3. Nor does the report "
    "say what 'similar' means. If it means a quarter of a percent, 24 of 10,000 images are similar; then "
    "say so before you count. And on two ranks there is one addition, and a + b has the same bits in "
    "either order. Two correct programs with equal weights and samples agree exactly; these print 0.074 "
    "and 0.080 at iteration 880. So the seed, the order or the arithmetic differed, and the comparison, "
    "of times, too, is not one of the methods alone.",
    "10-e-ring": "rejected: by the last losses of our two runs under equal settings. A correct ring "
    "leaves the mean that the all-reduce leaves, and our two runs end with the same loss, to rounding. "
    "The sentence is right about the two printed curves. So something else than the algorithm differs "
    "between the parts, or one of them does not average correctly.",
    "10-e-hyper": "undecided: two factors of 1 could have rejected it. They are about 8 and 2.8, so "
    "something differs, and the report contradicts itself: it also says that the other settings are the "
    "same. One change alone does not fit: k updates, or k times the rate (a sum over four ranks acts like "
    "four times the rate), give two factors near k in our runs. With other initial weights besides, they "
    "could differ. The report prints neither seeds nor updates per epoch, part a's five losses are hard "
    "to read, and 'potentially' claims little. The settings of both runs would decide; we would look "
    "first at part b's other way to load the data. Part a also says that it synchronises after the local "
    "update, part b before it.",
    "10-e-time": "undecided: one run each says nothing about how times vary. Look at the last lines of "
    "our cell: if single runs of one program often differ by several percent, one pair that differs by 8 "
    "% is no evidence. Interleaved runs decide if the interval of ring / mpi excludes 1 while that of mpi "
    "again / mpi contains it. If the A/A test excludes 1, too, the machine changed meanwhile: measure "
    "again. Our times are of our ring on our machine. (We time the programs in turn, so the runs are "
    "pairs; resampling pairs would also remove what both share.)",
    "10-misleading": "For example: 'Rank 4 spends a third of its time on synchronisation, rank 0 four "
    "fifths. Rank 4 has the better connection.' The numbers may be true and all others stated. Ask: how "
    "long does each rank compute? Rank 4 has the largest shard, so it waits least. A checklist names the "
    "numbers that a report must print, not the one that a conclusion leaves out; nor does it ask what "
    "else was tried.",
    "10-defence": "For example: it prints every rank's numbers, not only rank 0's, so that its readers "
    "can check it; it names its command and its cores. It reports that its loss rises although that "
    "speaks against it, and writes only that the imbalance may be the reason. Its numbers fit a "
    "correct average: all four gradients change by the same step, and their sum shrinks. It separates the "
    "first synchronisation from the later ones.",
}
