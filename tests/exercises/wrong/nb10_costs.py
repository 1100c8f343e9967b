"""More plausible wrong answers to the exercise of notebook 10 about the cost of averaging."""

WRONG = [
    (
        "averaging_seconds",
        "it goes around twice",
        """
def averaging_seconds(nbytes, p, calls, model):
    alpha, beta, gamma = model
    all_reduce = (p - 1) * (calls * alpha + nbytes / p * (beta + gamma))
    return all_reduce, (p - 1) * (calls * alpha + nbytes * (beta + gamma))
""",
    ),
    (
        "averaging_seconds",
        "the latency counts once",
        """
def averaging_seconds(nbytes, p, calls, model):
    alpha, beta, gamma = model
    all_reduce = (p - 1) * (2 * alpha + nbytes / p * (2 * beta + gamma))
    return all_reduce, (p - 1) * (alpha + nbytes * (beta + gamma))
""",
    ),
    (
        "averaging_seconds",
        "every call sends the whole gradient",
        """
def averaging_seconds(nbytes, p, calls, model):
    alpha, beta, gamma = model
    all_reduce = calls * (p - 1) * (2 * alpha + nbytes / p * (2 * beta + gamma))
    return all_reduce, calls * (p - 1) * (alpha + nbytes * (beta + gamma))
""",
    ),
    (
        "averaging_seconds",
        "nbytes / p, at a time",
        """
def averaging_seconds(nbytes, p, calls, model):
    alpha, beta, gamma = model
    rounds = p - 1
    all_reduce = 2 * rounds * (calls * alpha + nbytes * beta) + rounds * nbytes * gamma
    return all_reduce, rounds * (calls * alpha + nbytes * (beta + gamma))
""",
    ),
    (
        "averaging_seconds",
        "it only collects the gradients",
        """
def averaging_seconds(nbytes, p, calls, model):
    alpha, beta, gamma = model
    all_reduce = (p - 1) * (2 * calls * alpha + nbytes / p * (2 * beta + gamma))
    return all_reduce, (p - 1) * (calls * alpha + nbytes * beta)
""",
    ),
    (
        "averaging_seconds",
        "it has to add whole gradients",
        """
def averaging_seconds(nbytes, p, calls, model):
    alpha, beta, gamma = model
    added = (p - 1) * nbytes / p * gamma
    all_reduce = 2 * (p - 1) * (calls * alpha + nbytes / p * beta) + added
    return all_reduce, (p - 1) * (calls * alpha + nbytes * beta) + added
""",
    ),
    (
        "averaging_seconds",
        "a rank's own need not be received",
        """
def averaging_seconds(nbytes, p, calls, model):
    alpha, beta, gamma = model
    all_reduce = (p - 1) * (2 * calls * alpha + nbytes / p * (2 * beta + gamma))
    return all_reduce, p * (calls * alpha + nbytes * beta) + (p - 1) * nbytes * gamma
""",
    ),
    (
        "averaging_seconds",
        "the second only copies",
        """
def averaging_seconds(nbytes, p, calls, model):
    alpha, beta, gamma = model
    all_reduce = 2 * (p - 1) * (calls * alpha + nbytes / p * (beta + gamma))
    return all_reduce, (p - 1) * (calls * alpha + nbytes * (beta + gamma))
""",
    ),
]
