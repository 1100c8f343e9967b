"""More plausible wrong answers to the exercise of notebook 10 about confidence intervals."""

WRONG = [
    (
        "confidence_interval",
        "this is the interval of median(a) / median(b)",
        """
def confidence_interval(a, b, level, rng):
    a_medians = np.median(rng.choice(a, (2000, len(a))), axis=1)
    b_medians = np.median(rng.choice(b, (2000, len(b))), axis=1)
    tail = 100 * (1 - level) / 2
    return tuple(np.percentile(a_medians / b_medians, [tail, 100 - tail]))
""",
    ),
    (
        "confidence_interval",
        "compare the medians",
        """
def confidence_interval(a, b, level, rng):
    first, second = (rng.choice(x, (2000, len(x))).mean(axis=1) for x in (a, b))
    return tuple(np.quantile(second / first, [(1 - level) / 2, (1 + level) / 2]))
""",
    ),
    (
        "confidence_interval",
        "the difference of the medians in seconds",
        """
def confidence_interval(a, b, level, rng):
    first, second = (np.median(rng.choice(x, (2000, len(x))), axis=1) for x in (a, b))
    return tuple(np.quantile(second - first, [(1 - level) / 2, (1 + level) / 2]))
""",
    ),
    (
        "confidence_interval",
        "each tail has half",
        """
def confidence_interval(a, b, level, rng):
    first, second = (np.median(rng.choice(x, (2000, len(x))), axis=1) for x in (a, b))
    return tuple(np.quantile(second / first, [1 - level, level]))
""",
    ),
    (
        "confidence_interval",
        "the lowest and the highest of all ratios",
        """
def confidence_interval(a, b, level, rng):
    first, second = (np.median(rng.choice(x, (2000, len(x))), axis=1) for x in (a, b))
    return min(second / first), max(second / first)
""",
    ),
    (
        "confidence_interval",
        "takes them to be normal",
        """
def confidence_interval(a, b, level, rng):
    first, second = (np.median(rng.choice(x, (2000, len(x))), axis=1) for x in (a, b))
    ratio = second / first
    return ratio.mean() - 1.96 * ratio.std(), ratio.mean() + 1.96 * ratio.std()
""",
    ),
    (
        "confidence_interval",
        "quantiles of the times themselves",
        """
def confidence_interval(a, b, level, rng):
    return tuple(np.quantile(b, [(1 - level) / 2, (1 + level) / 2]) / np.median(a))
""",
    ),
    (
        "confidence_interval",
        "in pairs, with the same indices",
        """
def confidence_interval(a, b, level, rng):
    n = min(len(a), len(b))
    rows = rng.integers(n, size=(2000, n))
    ratios = np.median(b[rows], axis=1) / np.median(a[rows], axis=1)
    return tuple(np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2]))
""",
    ),
    (
        "confidence_interval",
        "b is drawn before a",
        """
def confidence_interval(a, b, level, rng):
    second, first = (np.median(rng.choice(x, (2000, len(x))), axis=1) for x in (b, a))
    return tuple(np.quantile(second / first, [(1 - level) / 2, (1 + level) / 2]))
""",
    ),
]
