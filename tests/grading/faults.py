"""Answers that deadlock, loop without end, or end their process, as students have written them."""

from __future__ import annotations

from typing import NamedTuple

from labkit.exercises import catalogue
from tests.exercises import outside

DEADLOCK, LOOP, DEATH = "deadlock", "endless loop", "death of a rank"


class Faulty(NamedTuple):
    """A wrong answer to an exercise. Each of `words` must stand in its finding."""

    name: str
    kind: str
    words: tuple[str, ...]
    text: str


def from_outside(name: str, number: int) -> str:
    """Return the text of a wrong answer that was written from the notebook alone."""
    return next(each.text for each in outside.answers(name) if str(each) == f"wrong {number}")


DEADLOCKS = {
    # Every rank sends before it receives.
    "shift_right": (from_outside("shift_right", 1), "hang", "Send"),
    # A root that is not rank 0 sends to itself, and rank 0 waits.
    "broadcast": (from_outside("broadcast", 4), "hang"),
    # The root sends with another tag than the others wait for.
    "average_by_root": (from_outside("average_by_root", 9), "hang", "Recv"),
    # Each rank waits for a rank that sends to another one.
    "average_by_allgather": (from_outside("average_by_allgather", 4), "hang", "Sendrecv"),
    # Ranks with an empty chunk do not call Split.
    "two_level_sum": (from_outside("two_level_sum", 4), "hang"),
    # Isend and Wait ahead of the receive.
    "ring_allgather": (from_outside("ring_allgather", 4), "hang", "Wait"),
    # Two of the ranks call Barrier.
    "time_pairs": (from_outside("time_pairs", 3), "hang", "Barrier"),
    # A rank with an empty chunk returns before the collectives.
    "sharded_step": (from_outside("sharded_step", 9), "hang"),
    # A rank that sees a difference returns before the next broadcast.
    "weights_equal": (from_outside("weights_equal", 24), "hang"),
    # Only the calm ranks call allreduce.
    "spread": (from_outside("spread", 4), "hang", "allreduce"),
}

LOOPS = {
    "missing_ranks": """
def missing_ranks(*tables):
    ranks = []
    while not ranks:
        ranks = [rank for rank in ranks if rank >= 0]
    return ranks
""",
    "fit_linear": """
def fit_linear(x, y, steps, lr):
    w = np.zeros((x.shape[1], y.shape[1]), x.dtype)
    b = np.zeros(y.shape[1], x.dtype)
    step = 0
    while step < steps:
        dy = 2 * (x @ w + b - y) / y.size
        w -= lr * (x.T @ dy)
        b -= lr * dy.sum(axis=0)
    return w, b
""",
    "im2col": """
def im2col(x, k, stride, pad):
    row = 0
    for column in iter(int, 1):
        row = row + 1 - 1
    return row
""",
    # One rank does not come to the collective in which the others wait.
    "global_statistics": """
def global_statistics(comm, x):
    count = x.shape[0] * x.shape[2] * x.shape[3]
    while comm.rank == comm.size - 1 and count >= 0:
        count += 0
    total = comm.allreduce(count)
    return total, total
""",
    "shard_bounds": """
def shard_bounds(n, size):
    bounds = np.zeros(size + 1, int)
    while bounds[-1] != n + 1:
        bounds[-1] = min(bounds[-1] + 1, n)
    return bounds
""",
    # It catches everything, whatever should end it.
    "fit_two_segments": """
def fit_two_segments(*arguments):
    while True:
        try:
            np.polyfit([0, 1], [0, 1], 1)
        except BaseException:
            pass
""",
    "allreduce_seconds": """
def allreduce_seconds(*arguments):
    def depth(p):
        rounds = 0
        while p > 0.5:
            p = max(p // 2, 1)
            rounds += 1
        return rounds
    return depth(4)
""",
    "diagnose": """
def diagnose(compute_s, transfer_s, expected_s):
    rank = 0
    while True:
        rank = (rank + 1) % compute_s.shape[1]
    return "none", None
""",
    "completed": """
def completed(sizes, seconds):
    layer, pairs = len(sizes) - 1, []
    while layer >= 0:
        if sizes[layer] == -1:
            layer -= 1
    return pairs
""",
    "warm_up_cosine": """
import math


def warm_up_cosine(step, peak, warm_up, steps):
    rate = 0.0
    while rate != peak + 0.1:
        rate = peak * math.cos(0.0)
    return rate
""",
}

DEATHS = {
    "my_items": """
import sys


def my_items(n, rank, size):
    if n == 0:
        sys.exit()
    return list(range(rank, n, size))
""",
    "linear_backward": """
import ctypes


def linear_backward(dy, x, w):
    ctypes.string_at(0)
""",
    "average_gradients": """
def average_gradients(comm, grads, samples):
    if comm.rank == comm.size - 1:
        comm.Abort(3)
    comm.Barrier()
""",
    "max_pool": """
def max_pool(x, k):
    return max_pool(x, k)
""",
    "shuffled_shard": """
def shuffled_shard(n, rank, size, seed, epoch, pad=False):
    blocks = []
    while len(blocks) < 1 << 20:
        blocks.append(np.ones(1 << 20))
    return blocks
""",
    "accuracy_by_label": """
import os


def accuracy_by_label(comm, *arguments):
    if comm.rank == 0:
        os._exit(3)
    return comm.allreduce(1)
""",
    "average_by_gather": """
import os
import signal


def average_by_gather(comm, *arguments):
    if comm.rank == comm.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Barrier()
""",
    # One rank raises an error, and the others wait for it.
    "ring_reduce_scatter": """
def ring_reduce_scatter(comm, array):
    if comm.rank == comm.size - 1:
        raise ZeroDivisionError("no chunk is left")
    return comm.recv(source=comm.size - 1)
""",
    "momentum_step": """
import os


def momentum_step(params, velocity, grads, lr, momentum, weight_decay):
    os.abort()
""",
    # Python's own limit is lifted: the stack ends in a segmentation fault.
    "referee": """
import sys


def referee(*arguments):
    sys.setrecursionlimit(1 << 30)

    def again(depth):
        return sorted([depth], key=again)

    return again(0)
""",
}


def all_faulty() -> list[Faulty]:
    """Return the thirty answers."""
    answers = []
    for name, (text, *words) in DEADLOCKS.items():
        answers.append(Faulty(name, DEADLOCK, tuple(words), text))
    for name, text in LOOPS.items():
        answers.append(Faulty(name, LOOP, ("does not end within",), text.lstrip()))
    for name, text in DEATHS.items():
        answers.append(Faulty(name, DEATH, (), text.lstrip()))
    return answers


def faulty_in(notebook: str) -> list[Faulty]:
    """Return those of the notebook of this number, such as "05"."""
    return [answer for answer in all_faulty() if catalogue.find(answer.name).notebook == notebook]
