"""Answers that were once judged wrongly: accepted or refused by mistake, or told the wrong fault.

    python -m tests.exercises.named [NAME …]

hands them in, or those of these exercises or notebooks ("nb03"), and prints which get the verdict that they
must get. It needs nothing but `submit` of tests/exercises/corpus.py, so it judges an earlier commit, too:

    cd EARLIER && PYTHONPATH=. .venv/bin/python -P CLONE/tests/exercises/named.py
"""

from __future__ import annotations

import inspect
import re
import sys
import time
from typing import NamedTuple

from labkit.checks.exercise import Verdict
from labkit.exercises import catalogue
from labkit.nn.ops.im2col import columns_of
from tests.exercises.corpus import submit

# What no finding may hold, whatever the answer: a claim about a call that only helps, our own files in place
# of the student's line, and a difference that its own digits do not show.
NEVER = "does the exercise by itself", "counting.py", "emulation.py", "NOT CHECKED", "says nothing about"
SAME_NUMBERS = re.compile(r"(?<!\S)(\S*\d), expected \1(?![\d.]*\d)")


class Named(NamedTuple):
    """An answer as a student would write it, and what the check must say of it.

    The finding holds at least one of the words in `says`, if there are any, and none of those in `never`.
    """

    exercise: str
    passes: bool
    about: str  # what once went wrong, in a sentence
    text: str
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return "3.2 shuffled_shard: fewer samples …"."""
        return f"{self.exercise}: {self.about}"


NAMED: list[Named] = []


def wrong(
    exercise: str, about: str, text: str, says: tuple[str, ...] = (), never: tuple[str, ...] = ()
) -> None:
    """Add a wrong answer."""
    NAMED.append(Named(exercise, False, about, text.strip() + "\n", says, never))


def right(exercise: str, about: str, text: str) -> None:
    """Add a right answer."""
    NAMED.append(Named(exercise, True, about, text.strip() + "\n"))


# Blocking on both sides: every rank sends before it receives.

wrong(
    "average_by_allgather",
    "blocking sends on all ranks passed, since no array of the check was larger than the eager limit",
    """
def average_by_allgather(comm, gradient, weight):
    gradient *= weight
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    rows[comm.rank] = gradient
    for k in range(comm.size - 1):
        comm.Send(rows[(comm.rank - k) % comm.size], dest=right)
        comm.Recv(rows[(comm.rank - k - 1) % comm.size], source=left)
    gradient[:] = rows.sum(axis=0)
""",
    says=("waits in Send", "in `Send`", "Send"),
)
wrong(
    "ring_reduce_scatter",
    "blocking sends on all ranks passed, and the next cells of the notebook deadlocked",
    """
def ring_reduce_scatter(comm, array):
    n, p, r = len(array), comm.size, comm.rank
    received = np.empty_like(array)
    for k in range(1, p):
        sends, adds = chunk(n, p, (r - k) % p), chunk(n, p, (r - k - 1) % p)
        comm.Send(array[sends], dest=(r + 1) % p)
        comm.Recv(received[adds], source=(r - 1) % p)
        array[adds] += received[adds]
    return array[chunk(n, p, r)]
""",
    says=("Send",),
)
wrong(
    "weights_equal",
    "blocking sends on all ranks passed, since a hash is small enough to be buffered",
    """
def weights_equal(comm, weights):
    mine = np.frombuffer(hashlib.sha256(weights.tobytes()).digest(), np.uint8)
    other = np.empty_like(mine)
    same = True
    for k in range(1, comm.size):
        comm.Send(mine, dest=(comm.rank + k) % comm.size)
        comm.Recv(other, source=(comm.rank - k) % comm.size)
        same = same and bool((mine == other).all())
    return same
""",
    says=("Send",),
)
wrong(
    "average_buffers",
    "blocking sends on all ranks passed, since the buffers of the check had at most 50 values",
    """
def average_buffers(comm, buffers, samples):
    rows = np.empty((comm.size, buffers.size), buffers.dtype)
    rows[comm.rank] = buffers * samples
    for k in range(1, comm.size):
        source = (comm.rank - k) % comm.size
        comm.Send(rows[comm.rank], dest=(comm.rank + k) % comm.size)
        comm.Recv(rows[source], source=source)
    buffers[:] = rows.sum(axis=0) / comm.allreduce(samples)
""",
    says=("Send",),
)

# Requests that are never completed.

COMPLETED = ("never completed", "not complete", "without a Wait", "was not waited", "never waited", "Wait")

wrong(
    "shift_right",
    "Isend without Wait passed",
    """
def shift_right(comm, x):
    y = np.empty_like(x)
    comm.Isend(x, dest=(comm.rank + 1) % comm.size)
    comm.Recv(y, source=(comm.rank - 1) % comm.size)
    return y
""",
    says=COMPLETED,
)
wrong(
    "broadcast",
    "Isend without Wait passed",
    """
def broadcast(comm, x, root):
    if comm.rank == root:
        for r in range(comm.size):
            if r != root:
                comm.Isend(x, dest=r)
    else:
        comm.Recv(x, source=root)
""",
    says=COMPLETED,
)
wrong(
    "average_by_allgather",
    "Isend without Wait passed, and overwrote the array that was still being sent",
    """
def average_by_allgather(comm, gradient, weight):
    gradient *= weight
    rows = np.empty((comm.size, gradient.size), gradient.dtype)
    rows[comm.rank] = gradient
    for other in range(comm.size):
        if other != comm.rank:
            comm.Isend(gradient, dest=other)
    for other in range(comm.size):
        if other != comm.rank:
            comm.Recv(rows[other], source=other)
    gradient[:] = rows.sum(axis=0)
""",
    says=COMPLETED,
)
wrong(
    "ring_reduce_scatter",
    "Isend without Wait passed",
    """
def ring_reduce_scatter(comm, array):
    n, p, r = len(array), comm.size, comm.rank
    received = np.empty_like(array)
    for k in range(1, p):
        sends, adds = chunk(n, p, (r - k) % p), chunk(n, p, (r - k - 1) % p)
        comm.Isend(array[sends], dest=(r + 1) % p)
        comm.Recv(received[adds], source=(r - 1) % p)
        array[adds] += received[adds]
    return array[chunk(n, p, r)]
""",
    says=COMPLETED,
)
wrong(
    "ring_allgather",
    "a receive into the array that is still being sent passed, and was wrong in 20 of 20 large trials",
    """
def ring_allgather(comm, own, array):
    n, p, r = len(array), comm.size, comm.rank
    array[chunk(n, p, r)] = own
    buf = np.empty(n // p + 1, array.dtype)
    buf[: len(own)] = own
    size = len(own)
    for k in range(1, p):
        gets = chunk(n, p, (r - k) % p)
        new_size = gets.stop - gets.start
        q = comm.Isend(buf[:size], dest=(r + 1) % p)
        w = comm.Irecv(buf[:new_size], source=(r - 1) % p)
        q.Wait()
        w.Wait()
        array[gets] = buf[:new_size]
        size = new_size
""",
    says=("being sent", "still", "overlap", "the same memory", "changed"),
)
wrong(
    "weights_equal",
    "requests that are never completed passed",
    """
def weights_equal(comm, weights):
    mine = np.frombuffer(hashlib.sha256(weights.tobytes()).digest(), np.uint8)
    other = np.empty_like(mine)
    same = True
    for k in range(1, comm.size):
        comm.Isend(mine, dest=(comm.rank + k) % comm.size)
        comm.Recv(other, source=(comm.rank - k) % comm.size)
        same = same and bool((mine == other).all())
    return same
""",
    says=COMPLETED,
)
wrong(
    "average_buffers",
    "requests that are never completed passed",
    """
def average_buffers(comm, buffers, samples):
    rows = np.empty((comm.size, buffers.size), buffers.dtype)
    term = buffers * samples
    rows[comm.rank] = term
    for other in range(comm.size):
        if other != comm.rank:
            comm.Isend(term, dest=other)
    for other in range(comm.size):
        if other != comm.rank:
            comm.Recv(rows[other], source=other)
    buffers[:] = rows.sum(axis=0) / comm.allreduce(samples)
""",
    says=COMPLETED,
)
HEAT = """
def spread(comm, wire, limit):
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    part = np.array_split(wire, comm.size)[comm.rank]
    steps = 0
    while True:
        from_left, from_right = np.empty(1), np.empty(1)
        comm.Sendrecv(part[-1:], dest=right, recvbuf=from_left, source=left)
        comm.Sendrecv(part[:1], dest=left, recvbuf=from_right, source=right)
        padded = np.concatenate([from_left, part, from_right])
        change = (padded[:-2] - 2 * part + padded[2:]) / 4
        part = part + change
        steps += 1
        if comm.allreduce(abs(change).max(), MPI.MAX) < limit:
            break
    return steps, np.concatenate(comm.allgather(part))
"""
wrong(
    "spread",
    "requests that are never completed passed",
    HEAT.replace(
        "comm.Sendrecv(part[-1:], dest=right, recvbuf=from_left, source=left)",
        "comm.Isend(part[-1:], dest=right, tag=1)",
    ).replace(
        "        comm.Sendrecv(part[:1], dest=left, recvbuf=from_right, source=right)\n",
        "        comm.Isend(part[:1], dest=left, tag=2)\n"
        "        comm.Recv(from_left, source=left, tag=1)\n"
        "        comm.Recv(from_right, source=right, tag=2)\n",
    ),
    says=COMPLETED,
)
wrong(
    "reduce_scatter_overlapped",
    "only the newest array was kept alive, and the gradients on ranks were off by up to 200",
    """
def reduce_scatter_overlapped(comm, backward, counts):
    chunks, requests = {}, []
    last = None

    def ready(k, gradient):
        nonlocal last
        gradient /= comm.size
        chunks[k] = np.empty(counts[k][comm.rank], gradient.dtype)
        requests.append(comm.Ireduce_scatter(gradient, chunks[k], counts[k]))
        last = gradient
        for request in requests:
            request.Test()

    backward(ready)
    for request in requests:
        request.Wait()
    return chunks
""",
    says=("freed",),
)
wrong(
    "reduce_scatter_overlapped",
    "arrays were freed before the Wait of their requests",
    """
def reduce_scatter_overlapped(comm, backward, counts):
    chunks, requests, gradients = {}, [], []

    def ready(k, gradient):
        gradient /= comm.size
        chunks[k] = np.empty(counts[k][comm.rank], gradient.dtype)
        gradients.append(gradient)
        requests.append(comm.Ireduce_scatter(gradient, chunks[k], counts[k]))
        for i in reversed(range(len(requests))):
            if requests[i].Test():
                del requests[i], gradients[i]

    backward(ready)
    gradients.clear()  # free the memory
    for request in requests:
        request.Wait()
    return chunks
""",
    says=("freed",),
)
wrong(
    "gather_ahead",
    "three layers were alive while the next gather began, where the task allows two at any time",
    """
def gather_ahead(comm, chunks, counts, order, use):
    def start(k):
        whole = np.empty(sum(counts[k]), chunks[k].dtype)
        return whole, comm.Iallgatherv(chunks[k], [whole, counts[k]])

    current, following = start(order[0]), None
    for place, k in enumerate(order):
        if place + 1 < len(order):
            following = start(order[place + 1])
        params, request = current
        request.Wait()
        use(k, params)
        current = following
""",
    says=("layers are in memory",),
)

# Sizes that hide a fault.

wrong(
    "shuffled_shard",
    "the padding is too short if there are fewer samples than half of the ranks, which no case had",
    """
def shuffled_shard(n, rank, size, seed, epoch, pad=False):
    order = np.random.default_rng([seed, epoch]).permutation(n)
    if pad:
        order = np.r_[order, order[: -n % size]]
    return order[rank::size]
""",
)
wrong(
    "fusion_cycle",
    "a first buffer without tensors before one that is too large passed",
    """
def fusion_cycle(ready, nbytes, threshold):
    common = [name for name in ready[0] if all(name in names for names in ready)]
    buffers, filled = [[]], 0
    for name in common:
        if filled + nbytes[name] > threshold:
            buffers.append([])
            filled = 0
        buffers[-1].append(name)
        filled += nbytes[name]
    return buffers if common else []
""",
)
wrong(
    "fusion_cycle",
    "one buffer without tensors where nothing is ready",
    """
def fusion_cycle(ready, nbytes, threshold):
    common = [name for name in ready[0] if all(name in names for names in ready)]
    buffers, filled = [[]], 0
    for name in common:
        if buffers[-1] and filled + nbytes[name] > threshold:
            buffers.append([])
            filled = 0
        buffers[-1].append(name)
        filled += nbytes[name]
    return buffers
""",
)
wrong(
    "time_pairs",
    "eight times the bytes passed: np.zeros makes float64 values",
    """
def time_pairs(comm, nbytes):
    p = comm.size
    times = np.zeros((p, p))
    message = np.zeros(nbytes)
    for a in range(p):
        for b in range(a + 1, p):
            comm.Barrier()
            if comm.rank == a:
                start = perf_counter()
                comm.Send(message, dest=b)
                comm.Recv(message, source=b)
                times[a, b] = times[b, a] = perf_counter() - start
            elif comm.rank == b:
                comm.Recv(message, source=a)
                comm.Send(message, dest=a)
    return comm.allreduce(times)
""",
    says=("bytes",),
)
DIAGNOSE = """
def diagnose(compute_s, transfer_s, expected_s):
    compute = np.median(compute_s, axis=0)
    transfer = np.median(np.median(transfer_s, axis=0))
    straggler = compute.max() - np.median(compute)
    link = transfer - expected_s
    if max(straggler, link) <= 0.2 * (LIMIT):
        return "none", None
    if straggler > link:
        return "straggler", int(compute.argmax())
    return "slow link", None
"""
wrong(
    "diagnose",
    "a threshold with the measured transfer in place of the expected one passed",
    DIAGNOSE.replace("LIMIT", "np.median(compute) + transfer"),
)
wrong(
    "diagnose",
    "a threshold with the fastest rank's time passed",
    DIAGNOSE.replace("LIMIT", "compute.min() + expected_s"),
)
wrong(
    "diagnose",
    "a threshold with the mean of the ranks passed",
    DIAGNOSE.replace("LIMIT", "compute.mean() + expected_s"),
)
wrong(
    "reduce_scatter_overlapped",
    "chunks of np.array_split in place of `counts` passed",
    """
def reduce_scatter_overlapped(comm, backward, counts):
    chunks, pending = {}, []

    def ready(k, gradient):
        gradient /= comm.size
        sizes = [len(part) for part in np.array_split(gradient, comm.size)]
        chunks[k] = np.empty(sizes[comm.rank], gradient.dtype)
        pending.append((comm.Ireduce_scatter(gradient, chunks[k], sizes), gradient))
        pending[:] = [pair for pair in pending if not pair[0].Test()]

    backward(ready)
    for request, _ in pending:
        request.Wait()
    return chunks
""",
)
wrong(
    "gather_ahead",
    "chunks of np.array_split in place of `counts` passed",
    """
def gather_ahead(comm, chunks, counts, order, use):
    def start(k):
        whole = np.empty(sum(counts[k]), chunks[k].dtype)
        sizes = [len(part) for part in np.array_split(whole, comm.size)]
        return whole, comm.Iallgatherv(chunks[k], [whole, sizes])

    ahead = start(order[0])
    for i, k in enumerate(order):
        params, request = ahead
        if i + 1 < len(order):
            ahead = start(order[i + 1])
        request.Wait()
        use(k, params)
""",
)
wrong(
    "local_sgd_epoch",
    "means weighted by the samples passed, where the task asks for equal weights",
    """
def local_sgd_epoch(comm, gradient, params, batches, lr, every):
    mine = sum(len(x) for x, y in batches)
    share = mine / comm.allreduce(mine)
    for i, (x, y) in enumerate(batches):
        params -= lr * gradient(params, x, y)
        if (i + 1) % every == 0 or i == len(batches) - 1:
            params *= share
            comm.Allreduce(MPI.IN_PLACE, params)
""",
    says=("equal",),
)
wrong(
    "sharded_step",
    "a step that gathers the velocity passed",
    """
def sharded_step(comm, params, grads, velocity, lr, momentum):
    counts = [len(part) for part in np.array_split(params, comm.size)]
    mean = np.empty_like(velocity)
    comm.Reduce_scatter(grads, mean, counts)
    mean /= comm.size
    velocity *= momentum
    velocity += mean
    whole = np.empty_like(params)
    comm.Allgatherv(velocity, [whole, counts])
    params -= lr * whole
""",
    says=("velocity", "chunk"),
)
wrong(
    "exposed_seconds",
    "np.float16(0) passed, since the tolerance was taken from the type that the student returned",
    """
def exposed_seconds(computing, transfers):
    return np.float16(0)
""",
)
wrong(
    "exposed_seconds",
    "a float16 of the right number passed within a tolerance of its own",
    """
def exposed_seconds(computing, transfers):
    total = sum(b - a for a, b in transfers)
    for a, b in transfers:
        for c, d in computing:
            total -= max(0, min(b, d) - max(a, c))
    return np.float16(total * 1.0004)
""",
)

# What a task forbids.

wrong(
    "linear_backward",
    "a triple loop passed, where the task says: without a loop",
    """
def linear_backward(dy, x, w):
    dx, dw, db = np.zeros_like(x), np.zeros_like(w), np.zeros(w.shape[1], w.dtype)
    for n in range(x.shape[0]):
        for o in range(w.shape[1]):
            db[o] += dy[n, o]
            for i in range(x.shape[1]):
                dx[n, i] += dy[n, o] * w[i, o]
                dw[i, o] += x[n, i] * dy[n, o]
    return dx, dw, db
""",
    says=("loop",),
)
wrong(
    "linear_backward",
    "the lab's own function passed",
    """
from labkit.nn import ops


def linear_backward(dy, x, w):
    return ops.linear_backward(dy, x, w)
""",
    says=("labkit",),
)
wrong(
    "average_overlapped",
    "Waitall passed, which the task rules out",
    """
def average_overlapped(comm, backward, grads, plan):
    waiting, requests = list(plan), []

    def finished(start):
        while waiting and waiting[0][0] >= start:
            a, b = waiting.pop(0)
            grads[a:b] /= comm.size
            requests.append(comm.Iallreduce(MPI.IN_PLACE, grads[a:b]))
        for request in requests:
            request.Test()

    backward(finished)
    MPI.Request.Waitall(requests)
""",
    says=("Waitall",),
)
wrong(
    "conv_forward",
    "the loops of the cell above passed, where the task asks for one matrix product",
    '''
def conv_loops(x, w, b, stride, pad):
    """Return the convolution, one position after the other."""
    n, c, h, width = x.shape
    k, _, _, o = w.shape
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    height, width = (h + 2 * pad - k) // stride + 1, (width + 2 * pad - k) // stride + 1
    y = np.empty((n, o, height, width), x.dtype)
    for i in range(height):
        for j in range(width):
            window = x[:, :, i * stride : i * stride + k, j * stride : j * stride + k]
            y[:, :, i, j] = np.einsum("nckl,klco->no", window, w) + b
    return y


def conv_forward(x, w, b, stride, pad):
    return conv_loops(x, w, b, stride, pad)
''',
    says=("im2col",),
)

# Notebook 02's bonus: another order in memory.

COLUMNS_OF = f"\n\n{inspect.getsource(columns_of)}"
right(
    "conv_forward",
    "it does not use im2col, where it uses columns_of, as the bonus asks",
    """
def conv_forward(x, w, b, stride, pad):
    k, outputs = len(w), len(b)
    height, width = ((side + 2 * pad - k) // stride + 1 for side in x.shape[2:])
    y = w.reshape(-1, outputs).T @ columns_of(x, k, stride, pad) + b[:, None]
    return y.reshape(outputs, height, width, len(x)).transpose(3, 0, 1, 2)
"""
    + COLUMNS_OF,
)
right(
    "conv_backward",
    "a result whose samples are last in memory",
    """
def conv_backward(dy, x, w, stride, pad):
    n, c, h, v = x.shape
    k, outputs, height, width = len(w), *dy.shape[1:]
    flat = dy.transpose(1, 2, 3, 0).reshape(outputs, -1)
    dw = (columns_of(x, k, stride, pad) @ flat.T).reshape(w.shape)
    dcolumns = (w.reshape(-1, outputs) @ flat).reshape(k, k, c, height, width, n)
    dx = np.zeros((c, h + 2 * pad, v + 2 * pad, n), x.dtype)
    for i in range(k):
        for j in range(k):
            dx[:, i : i + stride * height : stride, j : j + stride * width : stride] += dcolumns[i, j]
    return dx[:, pad : pad + h, pad : pad + v].transpose(3, 0, 1, 2), dw, flat.sum(axis=1)
"""
    + COLUMNS_OF,
)

# Found by reading the code of the checks.

LINEAR = """
def linear_backward(dy, x, w):
    return dy @ w.T, x.T @ dy, dy.sum(axis=0)
"""
LINEAR_WITH_LOOP = """
def linear_backward(dy, x, w):
    dw = sum(np.outer(x[k], dy[k]) for k in range(len(x)))
    return dy @ w.T, dw.astype(x.dtype), dy.sum(axis=0)
"""
right(
    "linear_backward",
    "a loop in a test below, in a variable named like a parameter, counted as the function's",
    f"{LINEAR}\nx = np.array([[i + j for j in (1, 2)] for i in (1, 2)])\nfor n in (1, 2):\n    dw = n * x",
)
right(
    "linear_backward",
    "a comment with a character at which Python breaks no line was cut in two",
    LINEAR.replace("    return", "    # as in the\u2028slides:\x0b three products\n    return"),
)
right(
    "conv_forward",
    "a lambda whose helper stands below, as `check` puts those of other cells, did not use im2col",
    """
conv_forward = lambda x, w, b, stride, pad: product(x, w, b, stride, pad)


def product(x, w, b, stride, pad):
    k, outputs = len(w), len(b)
    height, width = ((side + 2 * pad - k) // stride + 1 for side in x.shape[2:])
    y = im2col(x, k, stride, pad) @ w.reshape(-1, outputs) + b
    return y.reshape(len(x), height, width, outputs).transpose(0, 3, 1, 2)
""",
)
right(
    "linear_backward",
    "a text that Python's own `ast.unparse` cannot write again ended the check",
    LINEAR.replace("    return", "    title = f\"{len(x)!r:>8}{' \u00a0 '}\"\n    return"),
)
wrong(
    "linear_backward",
    "the last line hid the function with its loop",
    f"{LINEAR_WITH_LOOP}\nlinear_backward = linear_backward",
    says=("loops at line",),
)
wrong(
    "conv_forward",
    "a variable of the cell with the name of one in the function passed for a use of im2col",
    """
def conv_forward(x, w, b, stride, pad):
    k, outputs = len(w), w.shape[3]
    cols = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    height, width = ((side - k) // stride + 1 for side in cols.shape[2:])
    y = np.empty((len(x), outputs, height, width), x.dtype)
    for i in range(height):
        for j in range(width):
            window = cols[:, :, i * stride : i * stride + k, j * stride : j * stride + k]
            y[:, :, i, j] = np.einsum("nckl,klco->no", window, w) + b
    return y


cols = im2col(np.ones((1, 1, 5, 5)), 3, 1, 0)
""",
    says=("does not use `im2col`",),
)
right(
    "fit_line",
    "pickle did not find a class of the cell; one rank that needs no communication ended the check",
    """
from dataclasses import dataclass


@dataclass
class Sums:
    slope: float
    intercept: float
    samples: int


def fit_line(comm, inputs, targets, steps, lr):
    line = np.zeros(2)
    for _ in range(steps):
        own = Sums(*gradient_sum(line, inputs, targets).tolist(), len(inputs))
        of_all = [own] if comm.size == 1 else comm.allgather(own)
        total = np.sum([(each.slope, each.intercept) for each in of_all], axis=0)
        line -= lr * total / sum(each.samples for each in of_all)
    return line
""",
)
right(
    "diagnose",
    "an entry of an array of texts was refused: it is 'straggler', expected 'straggler'",
    """
def diagnose(compute_s, transfer_s, expected_s):
    kinds = np.array(["none", "straggler", "slow link"])
    compute = np.median(compute_s, axis=0)
    lost = compute.max() - np.median(compute), np.median(transfer_s) - expected_s
    if max(lost) <= 0.2 * (np.median(compute) + expected_s):
        return kinds[0], None
    if lost[0] > lost[1]:
        return kinds[1], int(compute.argmax())
    return kinds[2], None
""",
)
wrong(
    "linear_backward",
    "texts in place of numbers ended the check",
    """
def linear_backward(dy, x, w):
    dx = dy @ w.T
    return np.array([[f"{value:.6f}" for value in row] for row in dx]), x.T @ dy, dy.sum(axis=0)
""",
    says=("dtype",),
)

# Notebooks 05, 09 and 10.

wrong(
    "two_level_sum",
    "communicators that are never freed passed: the 1,016th call dies",
    """
def two_level_sum(comm, array, host):
    inside = comm.Split(host, comm.rank)
    own = ring_reduce_scatter(inside, array)
    between = comm.Split(inside.rank, comm.rank)
    total = np.empty_like(own)
    between.Allreduce(own, total)
    ring_allgather(inside, total, array)
""",
    says=("Free", "freed"),
)
SCRIPT = '''
def job_script():
    return """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --time=00:30:00
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append

export OMP_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1

if [ -e "$1/checkpoint.npz" ]; then
    mpiexec -n "$SLURM_NTASKS" labkit train --resume "$1" &
else
    mpiexec -n "$SLURM_NTASKS" labkit train --model lenet5 --data digits --epochs 4 --out "$1" &
fi
pid=$!
trap 'kill -USR1 $pid' USR1
wait $pid
code=$?
while kill -0 $pid 2>/dev/null; do
    wait $pid
    code=$?
done
wait $pid
code=$?
END
exit $code
"""
'''
wrong(
    "job_script",
    "a job that submits itself forever got all points",
    SCRIPT.replace("END\n", 'sbatch "$0" "$1"\n'),
    says=("sbatch",),
)
wrong(
    "job_script",
    "a job that submits itself whenever it does not end with 0 got all points",
    SCRIPT.replace("END\n", 'if [ $code -ne 0 ]; then\n    sbatch "$0" "$1"\nfi\n'),
    says=("sbatch",),
)
wrong(
    "wait_for_graph",
    "`if peer` passed, although rank 0 counts as false",
    """
def wait_for_graph(ranks):
    graph = {}
    for me in ranks:
        others = [r["rank"] for r in ranks if r["rank"] != me["rank"]]
        if me["activity"] == "WAITING_FOR_MESSAGE":
            peer = me["message"]["peer"]
            graph[me["rank"]] = [peer] if peer else others
        elif me["activity"] == "WAITING_IN_COLLECTIVE":
            number = me["calls"][-1]["number"]
            joined = [
                r["rank"]
                for r in ranks
                if r["activity"] == "WAITING_IN_COLLECTIVE" and r["calls"][-1]["number"] == number
            ]
            graph[me["rank"]] = sorted(set(others) - set(joined))
        else:
            graph[me["rank"]] = []
    return graph
""",
)
wrong(
    "predicted_step",
    "chunks of whole bytes passed, which the task rules out",
    """
def predicted_step(ranks, compute_s, nbytes, model, scaling):
    chunk = nbytes // ranks
    comm_s = 2 * (ranks - 1) * (model.alpha + model.beta * chunk) + (ranks - 1) * model.gamma * chunk
    return comm_s + (compute_s / ranks if scaling == "strong" else compute_s)
""",
)
VERDICTS = """
def verdicts(figures):
    f = figures
    total = f["total_s"].sum(axis=1)
    compute = f["compute_s"].max(axis=0).sum()
    network = "supported" if total.max() - compute > compute else "rejected"
    learning = LEARNING
    best = "rejected" if len(set(f["checksum"][:, -1])) == 1 else "undecided"
    fastest = "rejected" if total.min() > 0.98 * total.max() else "undecided"
    return network, learning, best, fastest
"""
wrong(
    "verdicts",
    "learning was judged by the losses, the confusion that the exercise is to cure",
    VERDICTS.replace(
        "LEARNING",
        '"supported" if np.allclose(f["global_loss"], f["other_global_loss"], rtol=1e-3) else "undecided"',
    ),
)
wrong(
    "verdicts",
    "learning was judged by the last losses alone",
    VERDICTS.replace(
        "LEARNING",
        '"supported" if abs(f["global_loss"][-1] / f["other_global_loss"][-1] - 1) < 0.05 else "undecided"',
    ),
)

# Right, and once refused.

right(
    "accuracy_by_label",
    "counts by `allgather` were refused, although any method of `comm` is allowed",
    """
def accuracy_by_label(comm, labels, predictions, classes):
    hits = np.array([((labels == c) & (predictions == c)).sum() for c in range(classes)])
    held = np.array([(labels == c).sum() for c in range(classes)])
    all_hits = sum(comm.allgather(hits))
    all_held = sum(comm.allgather(held))
    return np.array([h / n if n else np.nan for h, n in zip(all_hits, all_held)])
""",
)
right(
    "accuracy_by_label",
    "counts by `gather` and `bcast` were refused",
    """
def accuracy_by_label(comm, labels, predictions, classes):
    counts = np.zeros((2, classes))
    for label, prediction in zip(labels, predictions):
        counts[1, label] += 1
        if label == prediction:
            counts[0, label] += 1
    parts = comm.gather(counts, root=0)
    result = None
    if comm.rank == 0:
        hits, held = np.sum(parts, axis=0)
        with np.errstate(invalid="ignore"):
            result = hits / held
    return comm.bcast(result, root=0)
""",
)
right(
    "average_overlapped",
    "another order of the buckets, the same on all ranks, was refused",
    """
def average_overlapped(comm, backward, grads, plan):
    left, requests = list(plan), []

    def finished(start):
        complete = [pair for pair in left if pair[0] >= start]
        for pair in reversed(complete):
            left.remove(pair)
            bucket = grads[pair[0] : pair[1]]
            bucket /= comm.size
            requests.append(comm.Iallreduce(MPI.IN_PLACE, bucket))
        for request in requests:
            request.Test()

    backward(finished)
    for request in requests:
        request.Wait()
""",
)
right(
    "ring_reduce_scatter",
    "persistent requests were not counted: rank 0 sends 0 bytes",
    """
def ring_reduce_scatter(comm, array):
    n, p, r = len(array), comm.size, comm.rank
    received = np.empty_like(array)
    for k in range(1, p):
        sends, adds = chunk(n, p, (r - k) % p), chunk(n, p, (r - k - 1) % p)
        out = comm.Send_init(array[sends], dest=(r + 1) % p)
        into = comm.Recv_init(received[adds], source=(r - 1) % p)
        into.Start()
        out.Start()
        into.Wait()
        out.Wait()
        out.Free()
        into.Free()
        array[adds] += received[adds]
    return array[chunk(n, p, r)]
""",
)
right(
    "ring_reduce_scatter",
    "the bytes of a pickle made lower-case sendrecv a ring that moves whole arrays",
    """
def ring_reduce_scatter(comm, array):
    n, p, r = len(array), comm.size, comm.rank
    for k in range(1, p):
        sends, adds = chunk(n, p, (r - k) % p), chunk(n, p, (r - k - 1) % p)
        array[adds] += comm.sendrecv(array[sends], dest=(r + 1) % p, source=(r - 1) % p)
    return array[chunk(n, p, r)]
""",
)
right(
    "ring_allgather",
    "persistent requests were not counted",
    """
def ring_allgather(comm, own, array):
    n, p, r = len(array), comm.size, comm.rank
    array[chunk(n, p, r)] = own
    for k in range(1, p):
        out = comm.Send_init(array[chunk(n, p, (r - k + 1) % p)], dest=(r + 1) % p)
        into = comm.Recv_init(array[chunk(n, p, (r - k) % p)], source=(r - 1) % p)
        MPI.Prequest.Startall([into, out])
        into.Wait()
        out.Wait()
        into.Free()
        out.Free()
""",
)
right(
    "ring_allgather",
    "the bytes of a pickle made lower-case sendrecv a ring that moves whole arrays",
    """
def ring_allgather(comm, own, array):
    n, p, r = len(array), comm.size, comm.rank
    array[chunk(n, p, r)] = own
    passed = own
    for k in range(1, p):
        passed = comm.sendrecv(passed, dest=(r + 1) % p, source=(r - 1) % p)
        array[chunk(n, p, (r - k) % p)] = passed
""",
)
right(
    "fit_two_segments",
    "pairs that are arrays were refused",
    """
def fit_two_segments(nbytes, seconds):
    def fit(n, t):
        a = np.column_stack([1 / t, n / t])
        pair = np.linalg.lstsq(a, np.ones(len(t)), rcond=None)[0]
        return pair, ((a @ pair - 1) ** 2).sum()

    best = None
    for first in range(3, len(nbytes) - 2):
        small, e1 = fit(nbytes[:first], seconds[:first])
        large, e2 = fit(nbytes[first:], seconds[first:])
        if best is None or e1 + e2 < best[0]:
            best = e1 + e2, first, small, large
    return best[1], best[2], best[3]
""",
)
right(
    "fit_line",
    "`return a, b` was refused, which the docstring suggests",
    """
def fit_line(comm, inputs, targets, steps, lr):
    a = b = 0.0
    n = comm.allreduce(len(inputs))
    for _ in range(steps):
        total = comm.allreduce(gradient_sum((a, b), inputs, targets))
        a -= lr * total[0] / n
        b -= lr * total[1] / n
    return a, b
""",
)
right(
    "confidence_interval",
    "sorted ratios without 50 at each end, as the text says, were refused for 2e-6",
    """
def confidence_interval(a, b, level, rng):
    first = np.median(rng.choice(a, (2000, len(a))), axis=1)
    second = np.median(rng.choice(b, (2000, len(b))), axis=1)
    ratios = sorted(second / first)
    out = round(2000 * (1 - level) / 2)
    kept = ratios[out : 2000 - out]
    return kept[0], kept[-1]
""",
)
right(
    "my_items",
    "an import, the function and its check in one cell: the check called itself, in up to 112 processes",
    """
from labkit.exercises import check


def my_items(n, rank, size):
    return [k for k in range(n) if k % size == rank]


my_items = check(my_items)
""",
)

# The wrong fault named.

wrong(
    "average_by_reduce",
    "MPI.IN_PLACE on every rank got, after 66 s: look for a loop that does not end",
    """
def average_by_reduce(comm, gradient, weight):
    gradient *= weight
    comm.Reduce(MPI.IN_PLACE, gradient, root=0)
    comm.Bcast(gradient, root=0)
""",
    says=("IN_PLACE",),
    never=("loop that does not end",),
)
wrong(
    "average_by_reduce",
    "MAX got: only rank 0 holds the mean",
    """
def average_by_reduce(comm, gradient, weight):
    gradient *= weight
    total = np.empty_like(gradient)
    comm.Reduce(gradient, total, op=MPI.MAX, root=0)
    comm.Bcast(total, root=0)
    gradient[:] = total
""",
    never=("only rank 0 holds",),
)
wrong(
    "average_by_reduce",
    "Scan got: it does the exercise by itself",
    """
def average_by_reduce(comm, gradient, weight):
    gradient *= weight
    sums = np.empty_like(gradient)
    comm.Scan(gradient, sums)
    comm.Bcast(sums, root=comm.size - 1)
    gradient[:] = sums
""",
    says=("Scan",),
)
wrong(
    "average_by_gather",
    "gather got: it does the exercise by itself",
    """
def average_by_gather(comm, gradients, drop):
    parts = comm.gather(gradients, root=0)
    rows = None
    if comm.rank == 0:
        rows = np.sort(np.concatenate(parts), axis=0)
        rows[:] = rows[drop : len(rows) - drop].mean(axis=0)
    comm.Scatter(rows, gradients, root=0)
""",
    says=("gather",),
)
wrong(
    "ring_allgather",
    "Recv got: it does the exercise by itself",
    """
def ring_allgather(comm, own, array):
    n, p, r = len(array), comm.size, comm.rank
    array[chunk(n, p, r)] = own
    for k in range(1, p):
        sending = comm.Isend(array[chunk(n, p, (r - k + 1) % p)], dest=(r + 1) % p)
        comm.Recv(array[chunk(n, p, (r - k) % p)], source=(r - 1) % p)
        sending.Wait()
""",
    says=("Recv",),
)
wrong(
    "ring_allgather",
    "Sendrecv got: it does the exercise by itself",
    """
def ring_allgather(comm, own, array):
    n, p, r = len(array), comm.size, comm.rank
    array[chunk(n, p, r)] = own
    for k in range(1, p):
        sends, gets = chunk(n, p, (r - k + 1) % p), chunk(n, p, (r - k) % p)
        comm.Sendrecv(array[sends], dest=(r + 1) % p, recvbuf=array[gets], source=(r - 1) % p)
""",
    says=("Sendrecv",),
)
FIRST_CHUNK = ("start with chunk r - 1", "send chunk r - 1 in the first round")
wrong(
    "ring_reduce_scatter",
    "another cut of the chunks got: start with chunk r - 1",
    """
def ring_reduce_scatter(comm, array):
    p, r = comm.size, comm.rank
    parts = [part.copy() for part in np.array_split(array, p)]
    for k in range(1, p):
        received = np.empty_like(parts[(r - k - 1) % p])
        comm.Sendrecv(parts[(r - k) % p], dest=(r + 1) % p, recvbuf=received, source=(r - 1) % p)
        parts[(r - k - 1) % p] += received
    return parts[r]
""",
    never=FIRST_CHUNK,
)
wrong(
    "ring_reduce_scatter",
    "a missing Wait got: start with chunk r - 1",
    """
def ring_reduce_scatter(comm, array):
    n, p, r = len(array), comm.size, comm.rank
    received = np.zeros_like(array)
    requests = []
    for k in range(1, p):
        sends, adds = chunk(n, p, (r - k) % p), chunk(n, p, (r - k - 1) % p)
        requests.append(comm.Irecv(received[adds], source=(r - 1) % p))
        requests.append(comm.Isend(array[sends], dest=(r + 1) % p))
        array[adds] += received[adds]
    for request in requests:
        request.Wait()
    return array[chunk(n, p, r)]
""",
    says=("Wait", "complete", "not arrived", "has not arrived"),
    never=FIRST_CHUNK,
)
wrong(
    "ring_reduce_scatter",
    "a chunk that is too long for its array: the line of MPI's error stack that says so was cut off",
    """
def ring_reduce_scatter(comm, array):
    n, p, r = len(array), comm.size, comm.rank
    received = np.empty(n // p, array.dtype)
    for k in range(1, p):
        sends, adds = chunk(n, p, (r - k) % p), chunk(n, p, (r - k - 1) % p)
        comm.Sendrecv(array[sends], dest=(r + 1) % p, recvbuf=received, source=(r - 1) % p)
        array[adds] += received
    return array[chunk(n, p, r)]
""",
    says=("truncated", "longer than the receive buffer"),
)
wrong(
    "conv_backward",
    "dx without the rotation got: computed with the kernel rotated",
    """
def conv_backward(dy, x, w, stride, pad):
    n, c, h, v = x.shape
    k, o = len(w), w.shape[3]
    rows = im2col(x, k, stride, pad)
    flat = dy.transpose(0, 2, 3, 1).reshape(-1, o)
    dw = (rows.T @ flat).reshape(w.shape)
    db = flat.sum(axis=0)
    # dx is a convolution of dy, with zeros between its entries for a stride
    wide = np.zeros((n, o, h + 2 * pad + k - 1, v + 2 * pad + k - 1), x.dtype)
    rows_of, columns_of = stride * dy.shape[2], stride * dy.shape[3]
    wide[:, :, k - 1 : k - 1 + rows_of : stride, k - 1 : k - 1 + columns_of : stride] = dy
    dx = np.zeros((n, c, h + 2 * pad, v + 2 * pad), x.dtype)
    for i in range(k):
        for j in range(k):
            window = wide[:, :, i : i + h + 2 * pad, j : j + v + 2 * pad]
            dx += np.einsum("nohv,co->nchv", window, w[i, j])
    return dx[:, :, pad : pad + h, pad : pad + v], dw, db
""",
    says=("dx",),
    never=("dx is computed with the kernel rotated by 180°",),
)
wrong(
    "average_gradients",
    "`return` in place of writing into the argument got: `grads = …` only gives the name",
    """
def average_gradients(comm, grads, samples):
    total = comm.allreduce(samples)
    return comm.allreduce(grads * samples) / total
""",
    says=("return", "unchanged"),
    never=("`grads = …` only gives",),
)
wrong(
    "broadcast",
    "`return y` in place of writing into x got: `x = …` only gives the name",
    """
def broadcast(comm, x, root):
    if comm.rank == root:
        for r in range(comm.size):
            if r != root:
                comm.Send(x, dest=r)
        return x
    y = np.empty_like(x)
    comm.Recv(y, source=root)
    return y
""",
    says=("unchanged",),
    never=("`x = …` only gives",),
)
OWN_ORDER = ("each rank draws an order of its own",)
wrong(
    "block_shuffled_shard",
    "one shared order, cut in one part for each rank, got: each rank draws an order of its own",
    """
def block_shuffled_shard(n, block, rank, size, seed, epoch):
    blocks = np.random.default_rng([seed, epoch]).permutation((n + block - 1) // block)
    mine = np.array_split(blocks, size)[rank]
    return np.array([s for b in mine for s in range(b * block, min(n, b * block + block))], dtype=int)
""",
    never=OWN_ORDER,
)
wrong(
    "stratified_shard",
    "an unstable sort got: the samples are not shuffled",
    """
def stratified_shard(labels, rank, size, seed, epoch):
    order = np.random.default_rng([seed, epoch]).permutation(len(labels))
    by_label = order[np.argsort(labels[order])]
    mine = set(by_label[rank::size])
    return np.array([s for s in order if s in mine], dtype=int)
""",
    never=("not shuffled",),
)
wrong(
    "local_sgd_epoch",
    "a rebound name got: the parameters are never averaged",
    """
def local_sgd_epoch(comm, gradient, params, batches, lr, every):
    for i, (x, y) in enumerate(batches):
        params -= lr * gradient(params, x, y)
        if (i + 1) % every == 0 or i == len(batches) - 1:
            params = comm.allreduce(params) / comm.size
""",
    never=("never averaged",),
)
wrong(
    "average_overlapped",
    "a loop of Test got, after 45 s: a loop that does not end",
    """
def average_overlapped(comm, backward, grads, plan):
    waiting, requests = list(plan), []

    def finished(start):
        while waiting and waiting[0][0] >= start:
            a, b = waiting.pop(0)
            grads[a:b] /= comm.size
            requests.append(comm.Iallreduce(MPI.IN_PLACE, grads[a:b]))
        for request in requests:
            while not request.Test():
                pass

    backward(finished)
""",
    says=("Test", "stands still", "waits"),
    never=("loop that does not end",),
)
wrong(
    "fit_line",
    "the mean of the ranks' means, the central misconception, was not named",
    """
def fit_line(comm, inputs, targets, steps, lr):
    line = np.zeros(2)
    for _ in range(steps):
        mean = gradient_sum(line, inputs, targets) / max(1, len(inputs))
        comm.Allreduce(MPI.IN_PLACE, mean)
        line -= lr * mean / comm.size
    return line
""",
    says=("mean of the ranks' means", "mean of means"),
)
wrong(
    "fit_line",
    "a line that is trained locally was not named",
    """
def fit_line(comm, inputs, targets, steps, lr):
    line = np.zeros(2)
    for _ in range(steps):
        if len(inputs) > 0:
            line = line - lr * gradient_sum(line, inputs, targets) / len(inputs)
    return line
""",
    says=("own samples",),
)
wrong(
    "fit_line",
    "lines that are trained locally and averaged at the end were not named",
    """
def fit_line(comm, inputs, targets, steps, lr):
    line = np.zeros(2)
    n = len(inputs)
    for _ in range(steps):
        if n > 0:
            line -= lr * gradient_sum(line, inputs, targets) / n
    comm.Allreduce(MPI.IN_PLACE, line)
    return line / comm.size
""",
    says=("own", "each step", "in every step", "at the end"),
)
wrong(
    "train_epoch",
    "a function without a case for an empty part got: nan",
    """
def train_epoch(comm, params, batches, gradient, average, update):
    total, seen = 0.0, 0
    for x, labels in batches:
        loss, grads = gradient(params, x, labels)
        average(comm, grads, len(labels))
        update(params, grads)
        total += loss * len(labels)
        seen += len(labels)
    return comm.allreduce(total) / comm.allreduce(seen)
""",
    says=("empty", "0 samples", "no samples"),
)
wrong(
    "average_by_tree",
    "a tree that loses rank 2 got: 6.95833, expected 20.0833",
    """
def average_by_tree(comm, gradient, weight):
    gradient *= weight
    received = np.empty_like(gradient)
    levels = int(np.log2(comm.size))
    for level in range(levels):
        d = 2**level
        if comm.rank % (2 * d) == 0:
            comm.Recv(received, source=comm.rank + d)
            gradient += received
        elif comm.rank % (2 * d) == d:
            comm.Send(gradient, dest=comm.rank - d)
    for level in reversed(range(levels)):
        d = 2**level
        if comm.rank % (2 * d) == 0:
            comm.Send(gradient, dest=comm.rank + d)
        elif comm.rank % (2 * d) == d:
            comm.Recv(gradient, source=comm.rank - d)
""".replace("% (2 * d) == 0:", "% (2 * d) == 0 and comm.rank + d < comm.size:"),
    says=("rank 2",),
)
wrong(
    "weights_equal",
    "`allgather(weights)` got: Python's hash() differs",
    """
def weights_equal(comm, weights):
    everything = comm.allgather(weights)
    return all(np.array_equal(w, weights) for w in everything)
""",
    says=("send a hash", "NaN", "nan", "bit"),
    never=("Python's hash()",),
)
wrong(
    "weights_equal",
    "`allgather(weights)` and a set of their ids got: Python's hash() differs",
    """
def weights_equal(comm, weights):
    everything = comm.allgather(weights)
    return len(set(map(id, everything))) == 1
""",
    never=("Python's hash()",),
)
wrong(
    "spread",
    "a ragged `gather` got: NOT CHECKED, says nothing about your code",
    HEAT.replace("np.concatenate(comm.allgather(part))", "comm.allgather(part)"),
)
STEP = """
def predicted_step(ranks, compute_s, nbytes, model, scaling):
    n = nbytes / ranks
    comm_s = ROUNDS * (model.alpha + model.beta * n) + ADDED * model.gamma * n
    return comm_s + COMPUTE
"""
STRONG = '(compute_s / ranks if scaling == "strong" else compute_s)'
wrong(
    "predicted_step",
    "round numbers in the cases made one round too many look like another mistake",
    STEP.replace("ROUNDS", "(2 * ranks - 1)").replace("ADDED", "(ranks - 1)").replace("COMPUTE", STRONG),
    never=("gamma is", "gamma counts", "the computation is", "in weak scaling"),
)
wrong(
    "predicted_step",
    "round numbers in the cases made a product in weak scaling look like another mistake",
    STEP.replace("ROUNDS", "2 * (ranks - 1)")
    .replace("ADDED", "(ranks - 1)")
    .replace("COMPUTE", '(compute_s / ranks if scaling == "strong" else compute_s * ranks)'),
    never=("rounds in each half", "gamma is", "latency", "strong scaling", "exchanged"),
)
wrong(
    "time_pairs",
    "an error below an emulated link got MPI's first line only: Invalid rank, error stack",
    """
def time_pairs(comm, nbytes):
    p = comm.size
    times = np.zeros((p, p))
    message = np.zeros(nbytes, np.uint8)
    for a in range(p):
        for b in range(a + 1, p + 1):
            comm.Barrier()
            if comm.rank == a:
                start = perf_counter()
                comm.Send(message, dest=b)
                comm.Recv(message, source=b)
                times[a, b] = times[b, a] = perf_counter() - start
            elif comm.rank == b:
                comm.Recv(message, source=a)
                comm.Send(message, dest=a)
    return comm.allreduce(times)
""",
    says=("has value 2",),
    never=("error stack",),
)
wrong(
    "shift_right",
    "an error of MPI got its first line only: Invalid rank, error stack",
    """
def shift_right(comm, x):
    y = np.empty_like(x)
    comm.Sendrecv(x, dest=comm.rank + 1, recvbuf=y, source=(comm.rank - 1) % comm.size)
    return y
""",
    says=("line 3",),
    never=("error stack",),
)
wrong(
    "global_statistics",
    "digits that are lost in float32 got: a number, expected the same number",
    """
def global_statistics(comm, x):
    c = x.shape[1]
    sums = np.zeros(2 * c + 1, np.float32)
    sums[:c] = x.sum(axis=(0, 2, 3))
    sums[c : 2 * c] = (x**2).sum(axis=(0, 2, 3))
    sums[-1] = x.size / c
    comm.Allreduce(MPI.IN_PLACE, sums)
    mean = sums[:c] / sums[-1]
    return mean.astype(float), (sums[c : 2 * c] / sums[-1] - mean**2).astype(float)
""",
    says=("digits",),
)

wrong(
    "batch_norm_backward",
    "a missing ε got: a number, expected the same number",
    """
def batch_norm_backward(dy, x, gamma):
    m = x.size // x.shape[1]
    mean = x.mean(axis=(0, 2, 3), keepdims=True)
    sigma = x.std(axis=(0, 2, 3), keepdims=True)
    x_hat = (x - mean) / sigma
    dgamma = (dy * x_hat).sum(axis=(0, 2, 3))
    dbeta = dy.sum(axis=(0, 2, 3))
    inner = dy - (dbeta / m)[:, None, None] - x_hat * (dgamma / m)[:, None, None]
    return gamma[:, None, None] / sigma * inner, dgamma, dbeta
""",
    says=("digits", "ε"),
)


def fault(named: Named, verdict: Verdict) -> str:
    """Return why a verdict is not the one that an answer must get; empty if it is."""
    if verdict.check_failed:
        return f"the check failed: {verdict.finding}"
    if named.passes:
        return "" if verdict.passed else f"a right answer is refused: {verdict.finding}"
    if verdict.passed:
        return "a wrong answer is accepted"
    return fault_of_finding(named, verdict.finding)


def fault_of_finding(named: Named, finding: str) -> str:
    """Return what is wrong in the finding on a wrong answer; empty if nothing is."""
    if named.says and not any(words in finding for words in named.says):
        return f"says none of {named.says}: {finding}"
    if said := [words for words in (*NEVER, *named.never) if words in finding]:
        return f"says {said[0]!r}: {finding}"
    if SAME_NUMBERS.search(finding):
        return f"a difference that its digits do not show: {finding}"
    return ""


def records(name: str) -> list[Named]:
    """Return the records of an exercise."""
    return [named for named in NAMED if named.exercise == name]


def verdicts_of(name: str) -> list[Verdict]:
    """Hand in all records of an exercise, together."""
    return submit(name, *(named.text for named in records(name)))


def main(wanted: list[str]) -> int:
    """Print which records get the verdict that they must get."""
    held = count = 0
    for name, exercise in catalogue.exercises().items():
        if not records(name) or (wanted and not {name, f"nb{exercise.notebook}"} & set(wanted)):
            continue
        began = time.monotonic()
        for named, verdict in zip(records(name), verdicts_of(name), strict=True):
            said = fault(named, verdict)
            count += 1
            held += not said
            print(f"{'FAILS' if said else 'holds'}  {named}")
            print(f"       {said or verdict.finding or 'accepted'}", flush=True)
        print(f"{time.monotonic() - began:5.1f} s  {name}", flush=True)
    print(f"{held} of {count} hold")
    return int(held < count)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
