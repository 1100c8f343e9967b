"""Wrong answers to the exercises of notebook 05, and the finding that each must get."""

WRONG = [
    # (function, words of the finding, the cell as a student may write it)
    (
        "ring_rounds",
        "a second time",
        """
def ring_rounds(p):
    rank = np.arange(p)
    for k in range(1, p + 1):
        yield reduce_round(rank, (rank + 1) % p, (rank - k) % p)
    for k in range(1, p):
        yield copy_round(rank, (rank + 1) % p, (rank - k + 1) % p)
""",
    ),
    (
        "ring_rounds",
        "overwrites chunk",
        """
def ring_rounds(p):
    rank = np.arange(p)
    for k in range(1, p):
        yield reduce_round(rank, (rank + 1) % p, (rank - k) % p)
    for k in range(1, p):
        yield copy_round(rank, (rank + 1) % p, (rank - k) % p)
""",
    ),
    (
        "ring_rounds",
        "after the last round",
        """
def ring_rounds(p):
    rank = np.arange(p)
    for k in range(1, p):
        yield reduce_round(rank, (rank + 1) % p, (rank - k) % p)
    for k in range(1, p - 1):
        yield copy_round(rank, (rank + 1) % p, (rank - k + 1) % p)
""",
    ),
    (
        "ring_rounds",
        "the busiest rank sends and receives",
        """
def ring_rounds(p):
    for rank in range(1, p):
        yield reduce_round(rank, 0, np.arange(p))
    for rank in range(1, p):
        yield copy_round(0, rank, np.arange(p))
""",
    ),
    (
        "ring_rounds",
        "let all ranks send in the same round",
        """
def ring_rounds(p):
    for k in range(1, p):
        for rank in range(p):
            yield reduce_round(rank, (rank + 1) % p, (rank - k) % p)
    for k in range(1, p):
        for rank in range(p):
            yield copy_round(rank, (rank + 1) % p, (rank - k + 1) % p)
""",
    ),
    (
        "ring_rounds",
        "its left-hand neighbour: send to the right",
        """
def ring_rounds(p):
    rank = np.arange(p)
    for k in range(1, p):
        yield reduce_round(rank, (rank - 1) % p, (rank + k) % p)
    for k in range(1, p):
        yield copy_round(rank, (rank - 1) % p, (rank + k - 1) % p)
""",
    ),
    (
        "ring_rounds",
        "chunk 0 is complete at rank 2, expected complete at rank 0",
        """
def ring_rounds(p):
    rank = np.arange(p)
    for k in range(p - 1):
        yield reduce_round(rank, (rank + 1) % p, (rank - k) % p)
    for k in range(p - 1):
        yield copy_round(rank, (rank + 1) % p, (rank - k + 1) % p)
""",
    ),
    (
        "ring_rounds",
        "of type tuple",
        """
def ring_rounds(p):
    for k in range(1, p):
        for rank in range(p):
            yield rank, (rank + 1) % p, (rank - k) % p
""",
    ),
    (
        "predict_seconds",
        "counts one half only",
        """
def predict_seconds(p, nbytes, alpha, beta):
    lg = p.bit_length() - 1
    return (
        2 * (p - 1) * (alpha + beta * nbytes),
        (p - 1) * (alpha + beta * nbytes / p),
        lg * (alpha + beta * nbytes),
        2 * lg * alpha + 2 * beta * nbytes * (p - 1) / p,
    )
""",
    ),
    (
        "predict_seconds",
        "messages are too large",
        """
def predict_seconds(p, nbytes, alpha, beta):
    lg = p.bit_length() - 1
    return (
        2 * (p - 1) * (alpha + beta * nbytes),
        2 * (p - 1) * (alpha + beta * nbytes),
        lg * (alpha + beta * nbytes),
        2 * lg * alpha + 2 * beta * nbytes * (p - 1) / p,
    )
""",
    ),
    (
        "predict_seconds",
        "one direction only",
        """
def predict_seconds(p, nbytes, alpha, beta):
    lg = p.bit_length() - 1
    return (
        (p - 1) * (alpha + beta * nbytes),
        2 * (p - 1) * (alpha + beta * nbytes / p),
        lg * (alpha + beta * nbytes),
        2 * lg * alpha + 2 * beta * nbytes * (p - 1) / p,
    )
""",
    ),
    (
        "predict_seconds",
        "there is no second half",
        """
def predict_seconds(p, nbytes, alpha, beta):
    lg = p.bit_length() - 1
    return (
        2 * (p - 1) * (alpha + beta * nbytes),
        2 * (p - 1) * (alpha + beta * nbytes / p),
        2 * lg * (alpha + beta * nbytes),
        2 * lg * alpha + 2 * beta * nbytes * (p - 1) / p,
    )
""",
    ),
    (
        "predict_seconds",
        "counted with whole arrays",
        """
def predict_seconds(p, nbytes, alpha, beta):
    lg = p.bit_length() - 1
    return (
        2 * (p - 1) * (alpha + beta * nbytes),
        2 * (p - 1) * (alpha + beta * nbytes / p),
        lg * (alpha + beta * nbytes),
        2 * lg * (alpha + beta * nbytes),
    )
""",
    ),
    (
        "slow_rank_rounds",
        "not both ways at the same time",
        """
def slow_rank_rounds(p):
    slow, fast = p - 1, np.arange(p - 1)
    yield reduce_round(slow, 0, 0, slow)
    for k in range(1, slow):
        yield reduce_round(fast, (fast + 1) % slow, (fast - k) % slow)
    for k in range(1, slow):
        yield copy_round(fast, (fast + 1) % slow, (fast - k + 1) % slow)
    yield copy_round(0, slow, 0, slow)
""",
    ),
    (
        "slow_rank_rounds",
        "arrays pass the slow link",
        """
def slow_rank_rounds(p):
    slow = p - 1
    for rank in range(slow):
        yield reduce_round(rank, slow, 0, slow)
    for rank in range(slow):
        yield copy_round(slow, rank, 0, slow)
""",
    ),
    (
        "slow_rank_rounds",
        "after the last round",
        """
def slow_rank_rounds(p):
    slow, fast = p - 1, np.arange(p - 1)
    for k in range(1, slow):
        yield reduce_round(fast, (fast + 1) % slow, (fast - k) % slow)
    for i in range(slow):
        yield reduce_round(slow, i, i)
        yield copy_round(i, slow, i)
""",
    ),
    (
        "slow_rank_rounds",
        "the last copy",
        """
def slow_rank_rounds(p):
    slow, fast = p - 1, np.arange(p - 1)
    for k in range(1, slow):
        yield reduce_round(fast, (fast + 1) % slow, (fast - k) % slow)
    for i in range(slow):
        yield copy_round(i, slow, i)
    for i in range(slow):
        yield reduce_round(slow, i, i)
    for k in range(1, slow):
        yield copy_round(fast, (fast + 1) % slow, (fast - k + 1) % slow)
""",
    ),
]
