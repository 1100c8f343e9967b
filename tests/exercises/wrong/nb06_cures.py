"""Plausible wrong answers to the exercises of notebook 06 about cures."""

WRONG = [
    (
        "time_to_loss",
        "return its time",
        """
def time_to_loss(times, losses, target):
    return int(np.argmax(losses <= target))
""",
    ),
    (
        "time_to_loss",
        "argmax of an array without True is 0",
        """
def time_to_loss(times, losses, target):
    return times[np.argmax(losses <= target)]
""",
    ),
    (
        "time_to_loss",
        "the last time is returned where the target is never reached",
        """
def time_to_loss(times, losses, target):
    for time, loss in zip(times, losses):
        if loss <= target:
            break
    return time
""",
    ),
    (
        "time_to_loss",
        "a loss that equals the target has reached it",
        """
def time_to_loss(times, losses, target):
    reached = np.flatnonzero(losses < target)
    return times[reached[0]] if len(reached) else np.inf
""",
    ),
    (
        "time_to_loss",
        "this is the time of the lowest loss",
        """
def time_to_loss(times, losses, target):
    return times[np.nanargmin(losses)]
""",
    ),
    (
        "sizes_by_speed",
        "the sizes are rounded down",
        """
def sizes_by_speed(n, speeds):
    return (n * speeds / speeds.sum()).astype(int)
""",
    ),
    (
        "sizes_by_speed",
        "each size is rounded for itself",
        """
def sizes_by_speed(n, speeds):
    return np.round(n * speeds / speeds.sum()).astype(int)
""",
    ),
    (
        "sizes_by_speed",
        "all samples that are left over go to the last rank",
        """
def sizes_by_speed(n, speeds):
    sizes = (n * speeds / speeds.sum()).astype(int)
    sizes[-1] = n - sizes[:-1].sum()
    return sizes
""",
    ),
    (
        "sizes_by_speed",
        "all samples that are left over go to the fastest rank",
        """
def sizes_by_speed(n, speeds):
    sizes = (n * speeds / speeds.sum()).astype(int)
    sizes[np.argmax(speeds)] += n - sizes.sum()
    return sizes
""",
    ),
    (
        "sizes_by_speed",
        "the slowest rank gets most",
        """
def sizes_by_speed(n, speeds):
    exact = n * (1 / speeds) / (1 / speeds).sum()
    sizes = exact.astype(int)
    sizes[np.argsort(sizes - exact, kind="stable")[: n - sizes.sum()]] += 1
    return sizes
""",
    ),
    (
        "sizes_by_speed",
        "sizes are whole numbers",
        """
def sizes_by_speed(n, speeds):
    return n * speeds / speeds.sum()
""",
    ),
    (
        "local_sgd_epoch",
        "the parameters are never averaged",
        """
def local_sgd_epoch(comm, gradient, params, batches, lr, every):
    for x, y in batches:
        params -= lr * gradient(params, x, y)
""",
    ),
    (
        "local_sgd_epoch",
        "the average at the end of the epoch is missing",
        """
def local_sgd_epoch(comm, gradient, params, batches, lr, every):
    for step, (x, y) in enumerate(batches, start=1):
        params -= lr * gradient(params, x, y)
        if step % every == 0:
            comm.Allreduce(MPI.IN_PLACE, params)
            params /= comm.size
""",
    ),
    (
        "local_sgd_epoch",
        "the parameters are averaged only at the end of the epoch",
        """
def local_sgd_epoch(comm, gradient, params, batches, lr, every):
    for x, y in batches:
        params -= lr * gradient(params, x, y)
    comm.Allreduce(MPI.IN_PLACE, params)
    params /= comm.size
""",
    ),
    (
        "local_sgd_epoch",
        "the parameters are averaged one step too early",
        """
def local_sgd_epoch(comm, gradient, params, batches, lr, every):
    for step, (x, y) in enumerate(batches):
        params -= lr * gradient(params, x, y)
        if step % every == 0 or step == len(batches) - 1:
            comm.Allreduce(MPI.IN_PLACE, params)
            params /= comm.size
""",
    ),
    (
        "local_sgd_epoch",
        "is not divided by the number of ranks",
        """
def local_sgd_epoch(comm, gradient, params, batches, lr, every):
    for step, (x, y) in enumerate(batches, start=1):
        params -= lr * gradient(params, x, y)
        if step % every == 0 or step == len(batches):
            comm.Allreduce(MPI.IN_PLACE, params)
""",
    ),
    (
        "local_sgd_epoch",
        "the gradients are averaged, not the parameters",
        """
def local_sgd_epoch(comm, gradient, params, batches, lr, every):
    for step, (x, y) in enumerate(batches, start=1):
        step_gradient = gradient(params, x, y)
        if step % every == 0 or step == len(batches):
            comm.Allreduce(MPI.IN_PLACE, step_gradient)
            step_gradient /= comm.size
        params -= lr * step_gradient
""",
    ),
    (
        "local_sgd_epoch",
        "params[",  # a copy is changed: params is as before
        """
def local_sgd_epoch(comm, gradient, params, batches, lr, every):
    for step, (x, y) in enumerate(batches, start=1):
        params = params - lr * gradient(params, x, y)
        if step % every == 0 or step == len(batches):
            comm.Allreduce(MPI.IN_PLACE, params)
            params /= comm.size
    return params
""",
    ),
]
