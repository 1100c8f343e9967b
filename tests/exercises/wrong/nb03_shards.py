"""Plausible wrong answers to the exercises of notebook 03, and words of the finding that each must get."""

WRONG = [
    (
        "shard_bounds",
        "the last n % size samples are on no rank",
        """
def shard_bounds(n, size):
    each = n // size
    return np.array([rank * each for rank in range(size + 1)])
""",
    ),
    (
        "shard_bounds",
        "the last rank gets all samples that are left over",
        """
def shard_bounds(n, size):
    bounds = np.arange(size + 1) * (n // size)
    bounds[-1] = n
    return bounds
""",
    ),
    (
        "shard_bounds",
        "rounded up for every rank",
        """
def shard_bounds(n, size):
    each = int(np.ceil(n / size))
    return np.array([min(rank * each, n) for rank in range(size + 1)])
""",
    ),
    (
        "shard_bounds",
        "the first n % size ranks hold the larger",
        """
def shard_bounds(n, size):
    return np.array([n * rank // size for rank in range(size + 1)])
""",
    ),
    (
        "shard_bounds",
        "these are the sizes of the shards",
        """
def shard_bounds(n, size):
    sizes = np.full(size, n // size)
    sizes[: n % size] += 1
    return sizes
""",
    ),
    (
        "shard_bounds",
        "the bounds lack the 0 at the front",
        """
def shard_bounds(n, size):
    sizes = np.full(size, n // size)
    sizes[: n % size] += 1
    return np.cumsum(sizes)
""",
    ),
    (
        "shuffled_shard",
        "the order does not depend on the epoch",
        """
def shuffled_shard(n, rank, size, seed, epoch):
    order = np.random.default_rng([seed]).permutation(n)
    return order[rank::size]
""",
    ),
    (
        "shuffled_shard",
        "seed + epoch is one number",
        """
def shuffled_shard(n, rank, size, seed, epoch):
    order = np.random.default_rng(seed + epoch).permutation(n)
    return order[rank::size]
""",
    ),
    (
        "shuffled_shard",
        "the rank is part of the seed",
        """
def shuffled_shard(n, rank, size, seed, epoch):
    order = np.random.default_rng([seed + rank, epoch]).permutation(n)
    return order[rank::size]
""",
    ),
    (
        "shuffled_shard",
        "the rank is in the list of seeds",
        """
def shuffled_shard(n, rank, size, seed, epoch):
    order = np.random.default_rng([seed, epoch, rank]).permutation(n)
    return order[rank::size]
""",
    ),
    (
        "shuffled_shard",
        "the order is cut into blocks",
        """
def shuffled_shard(n, rank, size, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(n)
    return np.array_split(order, size)[rank]
""",
    ),
    (
        "shuffled_shard",
        "samples from the front are repeated",
        """
def shuffled_shard(n, rank, size, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(n)
    while len(order) % size:
        order = np.append(order, order[len(order) % n])
    return order[rank::size]
""",
    ),
    (
        "shuffled_shard",
        "each rank shuffles a fixed shard",
        """
def shuffled_shard(n, rank, size, seed, epoch):
    mine = np.arange(rank, n, size)
    return np.random.default_rng([seed, epoch]).permutation(mine)
""",
    ),
    (
        "block_shuffled_shard",
        "these indices go beyond n - 1",
        """
def block_shuffled_shard(n, block, rank, size, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(-(-n // block))
    samples = [np.arange(b * block, (b + 1) * block) for b in order[rank::size]]
    return np.concatenate([np.arange(0), *samples])
""",
    ),
    (
        "block_shuffled_shard",
        "the number of blocks is rounded down",
        """
def block_shuffled_shard(n, block, rank, size, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(n // block)
    samples = [np.arange(b * block, (b + 1) * block) for b in order[rank::size]]
    return np.concatenate([np.arange(0), *samples])
""",
    ),
    (
        "block_shuffled_shard",
        "single samples are shuffled, not blocks",
        """
def block_shuffled_shard(n, block, rank, size, seed, epoch):
    return np.random.default_rng([seed, epoch]).permutation(n)[rank::size]
""",
    ),
    (
        "block_shuffled_shard",
        "the blocks are dealt in the order of the file",
        """
def block_shuffled_shard(n, block, rank, size, seed, epoch):
    samples = [np.arange(b, min(b + block, n)) for b in range(rank * block, n, size * block)]
    return np.concatenate([np.arange(0), *samples])
""",
    ),
    (
        "block_shuffled_shard",
        "these are the numbers of the blocks",
        """
def block_shuffled_shard(n, block, rank, size, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(-(-n // block))
    return order[rank::size]
""",
    ),
    (
        "block_shuffled_shard",
        "need at least one array to concatenate",
        """
def block_shuffled_shard(n, block, rank, size, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(-(-n // block))
    return np.concatenate([np.arange(b * block, min((b + 1) * block, n)) for b in order[rank::size]])
""",
    ),
]
