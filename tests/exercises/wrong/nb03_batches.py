"""More plausible wrong answers to the exercises of notebook 03."""

WRONG = [
    (
        "step_bounds",
        "only works if the number of ranks divides the global batch",
        """
def step_bounds(n, batch, step, rank, size):
    each = batch // size
    held = len(np.arange(rank, n, size))
    return min(step * each, held), min((step + 1) * each, held)
""",
    ),
    (
        "step_bounds",
        "stop goes beyond the end of this rank's shard",
        """
def step_bounds(n, batch, step, rank, size):
    def before(position):
        return len(range(rank, position, size))

    return before(step * batch), before((step + 1) * batch)
""",
    ),
    (
        "step_bounds",
        "these are positions in the epoch's order",
        """
def step_bounds(n, batch, step, rank, size):
    return step * batch, min((step + 1) * batch, n)
""",
    ),
    (
        "step_bounds",
        "the counts are rounded down",
        """
def step_bounds(n, batch, step, rank, size):
    start, stop = step * batch, min((step + 1) * batch, n)
    return max(0, (start - rank) // size), max(0, (stop - rank) // size)
""",
    ),
    (
        "step_bounds",
        "the last global batch is dropped",
        """
def step_bounds(n, batch, step, rank, size):
    start = len(range(rank, step * batch, size))
    if (step + 1) * batch > n:
        return start, start
    return start, len(range(rank, (step + 1) * batch, size))
""",
    ),
    (
        "stratified_shard",
        "this is label skew",
        """
def stratified_shard(labels, rank, size):
    order = np.argsort(labels, kind="stable")
    return np.sort(np.array_split(order, size)[rank])
""",
    ),
    (
        "stratified_shard",
        "the labels are not used",
        """
def stratified_shard(labels, rank, size):
    return np.arange(rank, len(labels), size)
""",
    ),
    (
        "stratified_shard",
        "each label is dealt from rank 0 anew",
        """
def stratified_shard(labels, rank, size):
    mine = []
    for label in np.unique(labels):
        mine.extend(np.flatnonzero(labels == label)[rank::size])
    return np.array(sorted(mine))
""",
    ),
    (
        "stratified_shard",
        "in the order of their labels",
        """
def stratified_shard(labels, rank, size):
    return np.argsort(labels, kind="stable")[rank::size]
""",
    ),
    (
        "stratified_shard",
        "these are the labels of the samples",
        """
def stratified_shard(labels, rank, size):
    return np.sort(labels)[rank::size]
""",
    ),
    (
        "accuracy_by_label",
        "this is the accuracy on this rank's own samples",
        """
def accuracy_by_label(comm, labels, predictions, classes):
    held = np.bincount(labels, minlength=classes)
    correct = np.bincount(labels[labels == predictions], minlength=classes)
    with np.errstate(invalid="ignore"):
        return correct / held
""",
    ),
    (
        "accuracy_by_label",
        "this is the mean of the ranks' accuracies",
        """
def accuracy_by_label(comm, labels, predictions, classes):
    held = np.bincount(labels, minlength=classes)
    correct = np.bincount(labels[labels == predictions], minlength=classes)
    with np.errstate(invalid="ignore"):
        own = np.where(held > 0, correct / held, 0.0)
        return comm.allreduce(own) / comm.allreduce((held > 0).astype(float))
""",
    ),
    (
        "accuracy_by_label",
        "nan spreads",
        """
def accuracy_by_label(comm, labels, predictions, classes):
    held = np.bincount(labels, minlength=classes)
    correct = np.bincount(labels[labels == predictions], minlength=classes)
    with np.errstate(invalid="ignore"):
        return comm.allreduce(correct / held) / comm.size
""",
    ),
    (
        "accuracy_by_label",
        "a label that no rank has gets 0",
        """
def accuracy_by_label(comm, labels, predictions, classes):
    held = comm.allreduce(np.bincount(labels, minlength=classes))
    correct = comm.allreduce(np.bincount(labels[labels == predictions], minlength=classes))
    return correct / np.maximum(held, 1)
""",
    ),
    (
        "accuracy_by_label",
        "(precision)",
        """
def accuracy_by_label(comm, labels, predictions, classes):
    guessed = comm.allreduce(np.bincount(predictions, minlength=classes))
    correct = comm.allreduce(np.bincount(labels[labels == predictions], minlength=classes))
    with np.errstate(invalid="ignore"):
        return correct / guessed
""",
    ),
    (
        "accuracy_by_label",
        "allgather",
        """
def accuracy_by_label(comm, labels, predictions, classes):
    labels = np.concatenate(comm.allgather(labels))
    predictions = np.concatenate(comm.allgather(predictions))
    with np.errstate(invalid="ignore"):
        return np.bincount(labels[labels == predictions], minlength=classes) / np.bincount(
            labels, minlength=classes
        )
""",
    ),
]
