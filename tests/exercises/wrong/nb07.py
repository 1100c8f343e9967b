"""Wrong answers to the exercises of notebook 07, and the finding that each must get."""

from labkit.exercises.catalogue.nb07 import buckets, exposed, overlap, sharded
from labkit.exercises.reference import reference_text

(EXPOSED,), (OVERLAPPED,), (SHARDED,) = (
    map(reference_text, module.EXERCISES) for module in (exposed, overlap, sharded)
)
COMPLETED = reference_text(buckets.EXERCISES[0])
PLAN = """
def bucket_plan(n, bucket_bytes, small_bytes):
    most = max(1, bucket_bytes // 4)
    small = min(most, max(1, small_bytes // 4))
    plan, stop = [], n
    while stop > 0:
        if stop == n or stop <= small:
            values = small
        else:
            values = min(most, stop - small)
        start = max(0, stop - values)
        plan.append((start, stop))
        stop = start
    return plan
"""


def changed(text: str, *changes: tuple[str, str]) -> str:
    """Return the text with each part replaced; raise ValueError if a part is not in it."""
    for old, new in changes:
        if old not in text:
            raise ValueError(f"expected {old!r} in the answer")
        text = text.replace(old, new)
    return text


WRONG = [
    (
        "completed",
        "order of the forward pass",
        """
def completed(sizes, seconds):
    stop, t, pairs = 0, 0.0, []
    for size, layer_s in zip(sizes, seconds):
        t += layer_s
        if size > 0:
            pairs.append((stop, t))
        stop += size
    return pairs
""",
    ),
    (
        "completed",
        "where the layer ends",
        changed(
            COMPLETED,
            ("        start -= size\n", ""),
            ("append((start, t))", "append((start, t))\n        start -= size"),
        ),
    ),
    ("completed", "time of one layer", changed(COMPLETED, ("t += layer_s", "t = layer_s"))),
    (
        "completed",
        "leaves out the time of the layers without parameters",
        changed(COMPLETED, ("t += layer_s", "t += layer_s if size else 0")),
    ),
    ("completed", "no pair for it", changed(COMPLETED, ("if size > 0", "if True"))),
    (
        "completed",
        "when the layer begins",
        changed(
            COMPLETED, ("t += layer_s", "before, t = t, t + layer_s"), ("(start, t))", "(start, before))")
        ),
    ),
    (
        "bucket_plan",
        "begins at the start",
        PLAN.replace("return plan", "return [(n - b, n - a) for a, b in plan]"),
    ),
    ("bucket_plan", "wrong order", PLAN.replace("return plan", "return plan[::-1]")),
    (
        "bucket_plan",
        "all buckets have the same size",
        changed(PLAN, ("values = small", "values = most"), ("stop - small)", "stop)")),
    ),
    (
        "bucket_plan",
        "last bucket is not small",
        changed(PLAN, ("if stop == n or stop <= small:", "if stop == n:"), ("stop - small)", "stop)")),
    ),
    ("bucket_plan", "first bucket is not small", changed(PLAN, ("if stop == n or stop", "if stop"))),
    ("bucket_plan", "4 times too large", changed(PLAN, ("bytes // 4", "bytes"))),
    ("bucket_plan", "values of 8 bytes", changed(PLAN, ("bytes // 4", "bytes // 8"))),
    (
        "bucket_plan",
        "no bucket may have more",
        changed(PLAN, ("min(most, max(1, small_bytes // 4))", "max(1, small_bytes // 4)")),
    ),
    (
        "bucket_plan",
        "values 0 to 0 are in no bucket",
        changed(
            PLAN,
            ("plan.append((start, stop))", "plan.append((start, stop - 1))"),
            ("stop = start", "stop = start"),
        ),
    ),
    ("bucket_plan", "are in no bucket", changed(PLAN, ("while stop > 0", "while stop > small"))),
    ("bucket_plan", "expected a list of pairs", changed(PLAN, ("(start, stop)", "slice(start, stop)"))),
    ("exposed_seconds", "this is the hidden time", changed(EXPOSED, ("total - hidden", "hidden"))),
    ("exposed_seconds", "time of all transfers", changed(EXPOSED, ("total - hidden", "total"))),
    (
        "exposed_seconds",
        "negative overlap",
        changed(
            EXPOSED, ("max(0.0, min(end, to_s) - max(begin, from_s))", "min(end, to_s) - max(begin, from_s)")
        ),
    ),
    (
        "exposed_seconds",
        "the link is idle",
        """
def exposed_seconds(computing, transfers):
    ready = max(end for begin, end in computing)
    return max([0.0] + [end - ready for begin, end in transfers])
""",
    ),
    (
        "exposed_seconds",
        "does not compute between two spans",
        changed(
            EXPOSED,
            (
                "total =",
                "computing = [(min(a for a, _ in computing), max(b for _, b in computing))]\n    total =",
            ),
        ),
    ),
    (
        "exposed_seconds",
        "exposed in part",
        """
def exposed_seconds(computing, transfers):
    ready = max(end for begin, end in computing)
    return sum(end - begin for begin, end in transfers if begin >= ready)
""",
    ),
    (
        "average_overlapped",
        "started after the backward pass",
        """
def average_overlapped(comm, backward, grads, plan):
    backward(lambda start: None)
    requests = []
    for first, stop in plan:
        grads[first:stop] /= comm.size
        requests.append(comm.Iallreduce(MPI.IN_PLACE, grads[first:stop]))
        requests[-1].Test()
    MPI.Request.Waitall(requests)
""",
    ),
    (
        "average_overlapped",
        "before it was complete",
        changed(OVERLAPPED, ("waiting[0][0] >= start", "waiting[0][1] >= start")),
    ),
    (
        "average_overlapped",
        "can complete several buckets",
        changed(OVERLAPPED, ("while waiting and", "if waiting and")),
    ),
    ("average_overlapped", "never averaged", changed(OVERLAPPED, ("list(plan)", "list(plan[:-1])"))),
    ("average_overlapped", "compare `start`", changed(OVERLAPPED, (" and waiting[0][0] >= start", ""))),
    (
        "average_overlapped",
        "stands still",
        changed(OVERLAPPED, ("request.Test()", "request.Wait()")),
    ),
    (
        "average_overlapped",
        "under way",
        changed(OVERLAPPED, ("    for request in requests:\n        request.Wait()\n", "")),
    ),
    (
        "average_overlapped",
        "no request is tested",
        changed(OVERLAPPED, ("            request.Test()", "            pass")),
    ),
    ("average_overlapped", "holds the sum", changed(OVERLAPPED, ("bucket /= comm.size", "pass"))),
    (
        "average_overlapped",
        "twice",
        OVERLAPPED + "    grads /= comm.size\n",
    ),
    (
        "average_overlapped",
        "an array that is not `grads`",
        changed(OVERLAPPED, ("grads[first:stop]", "grads[first:stop].copy()")),
    ),
    (
        "average_overlapped",
        "no more buckets",
        changed(
            OVERLAPPED,
            (
                "    backward(finished)",
                "    backward(finished)\n    requests.append(comm.Iallreduce(MPI.IN_PLACE, grads))",
            ),
        ),
    ),
    (
        "average_overlapped",
        "`backward` was never called",
        """
def average_overlapped(comm, backward, grads, plan):
    for first, stop in plan:
        comm.Iallreduce(MPI.IN_PLACE, grads[first:stop]).Wait()
""",
    ),
    (
        "average_overlapped",
        "Allreduce",
        """
def average_overlapped(comm, backward, grads, plan):
    backward(lambda start: None)
    grads /= comm.size
    comm.Allreduce(MPI.IN_PLACE, grads)
""",
    ),
    ("sharded_step", "divide the sum", changed(SHARDED, ("mean /= comm.size", "pass"))),
    (
        "sharded_step",
        "gather the other ranks' chunks",
        changed(SHARDED, ("comm.Allgatherv(MPI.IN_PLACE, [params, counts])", "pass")),
    ),
    (
        "sharded_step",
        "the momentum is missing",
        changed(SHARDED, ("velocity *= momentum", "velocity[:] = 0")),
    ),
    (
        "sharded_step",
        "scaled by 1 - momentum",
        changed(SHARDED, ("velocity += mean", "velocity += (1 - momentum) * mean")),
    ),
    ("sharded_step", "not multiplied by momentum", changed(SHARDED, ("velocity *= momentum", "pass"))),
    (
        "sharded_step",
        "`velocity` is unchanged",
        changed(
            SHARDED,
            ("velocity *= momentum", "velocity = momentum * velocity"),
            ("velocity += mean", "velocity = velocity + mean"),
        ),
    ),
    (
        "sharded_step",
        "Allreduce",
        """
def sharded_step(comm, params, grads, velocity, lr, momentum):
    counts = [len(chunk) for chunk in np.array_split(params, comm.size)]
    start = sum(counts[: comm.rank])
    mine = slice(start, start + len(velocity))
    comm.Allreduce(MPI.IN_PLACE, grads)
    velocity *= momentum
    velocity += grads[mine] / comm.size
    params[mine] -= lr * velocity
    comm.Allgatherv(MPI.IN_PLACE, [params, counts])
""",
    ),
    (
        "sharded_step",
        "the first n % p of them are longer",
        changed(
            SHARDED, ("start = sum(counts[: comm.rank])", "start = comm.rank * (len(params) // comm.size)")
        ),
    ),
]
