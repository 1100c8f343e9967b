"""More plausible wrong answers to the exercise of notebook 10 about whole counts."""

WRONG = [
    (
        "possible_totals",
        "a total must fit all of them",
        """
def possible_totals(percentages, decimals, largest):
    found = set()
    for q in percentages:
        for n in range(1, largest + 1):
            if abs(100 * round(n * q / 100) / n - q) < 0.5 * 10**-decimals + 1e-9:
                found.add(n)
    return np.array(sorted(found))
""",
    ),
    (
        "possible_totals",
        "the counts are rounded down",
        """
def possible_totals(percentages, decimals, largest):
    def fits(n, q):
        return abs(100 * int(n * q / 100 + 1e-9) / n - q) < 0.5 * 10**-decimals + 1e-9

    return np.array([n for n in range(1, largest + 1) if all(fits(n, q) for q in percentages)], int)
""",
    ),
    (
        "possible_totals",
        "allow half a unit of its last digit",
        """
def possible_totals(percentages, decimals, largest):
    def fits(n, q):
        return np.isclose(n * q / 100, round(n * q / 100), rtol=0, atol=1e-9)

    return np.array([n for n in range(1, largest + 1) if all(fits(n, q) for q in percentages)], int)
""",
    ),
    (
        "possible_totals",
        "a whole unit of the last digit",
        """
def possible_totals(percentages, decimals, largest):
    def fits(n, q):
        return abs(100 * round(n * q / 100) / n - q) <= 10.0**-decimals + 1e-9

    return np.array([n for n in range(1, largest + 1) if all(fits(n, q) for q in percentages)], int)
""",
    ),
    (
        "possible_totals",
        "compared as whole percents",
        """
def possible_totals(percentages, decimals, largest):
    def fits(n, q):
        return abs(100 * round(n * q / 100) / n - q) <= 0.5

    return np.array([n for n in range(1, largest + 1) if all(fits(n, q) for q in percentages)], int)
""",
    ),
    (
        "possible_totals",
        "the smallest total only",
        """
def possible_totals(percentages, decimals, largest):
    for n in range(1, largest + 1):
        if all(round(100 * round(n * q / 100) / n, decimals) == q for q in percentages):
            return np.array([n])
""",
    ),
    (
        "possible_totals",
        "indices, which start at 0",
        """
def possible_totals(percentages, decimals, largest):
    totals = np.arange(1, largest + 1)
    q = np.array(percentages)[:, None]
    shown = np.round(100 * np.round(totals * q / 100) / totals, decimals)
    return np.flatnonzero(np.isclose(shown, q).all(axis=0))
""",
    ),
    (
        "possible_totals",
        "the largest total is left out",
        """
def possible_totals(percentages, decimals, largest):
    def fits(n, q):
        return round(100 * round(n * q / 100) / n, decimals) == q

    return np.array([n for n in range(1, largest) if all(fits(n, q) for q in percentages)], int)
""",
    ),
]
