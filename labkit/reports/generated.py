"""Generated reports on training runs, each with one planted fault or none: the unseen case of notebook 10."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from labkit import data, nn


@dataclass(frozen=True)
class Settings:
    """Settings of a run. Rank r trains on samples start[r] … stop[r] - 1, dealt to `updates` local batches.

    Two faults change the training itself: `left_out` is the rank that updates with its own gradient, and
    `factor` multiplies each update.
    """

    start: np.ndarray  # (p,)
    stop: np.ndarray  # (p,)
    updates: int  # per epoch; divides each shard
    epochs: int
    learning_rate: float
    order: int  # the seed of the samples' order
    left_out: int | None = None
    factor: int = 1

    @property
    def samples(self) -> np.ndarray:
        """Return the number of samples on each rank. Shape: (p,)."""
        return self.stop - self.start


_digits = cache(data.digits)


def in_order(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the training samples and labels, roughly sorted by label, so that the shards differ."""
    digits, rng = _digits(), np.random.default_rng([seed, 1])
    order = np.argsort(digits.y_train + rng.normal(0, 6, len(digits.y_train)), kind="stable")
    return digits.x_train[order], digits.y_train[order]


def train_as(settings: Settings, reverse: bool = False) -> dict[str, np.ndarray]:
    """Train, and return what the ranks print after each epoch.

    Each gradient is weighted with the size of its local batch. `reverse` adds the gradients from the last
    rank to the first, as another all-reduce algorithm may: results then differ by rounding.

    Shapes: local_loss, correct, checksum, bias_gradient (p, epochs); bias_change (epochs,). The last two are
    of the epoch's last update: the gradient and the change of the first bias, before and after averaging.
    """
    x, y = in_order(settings.order)
    model, p = nn.softmax_regression(seed=settings.order), len(settings.samples)
    shards = [(x[a:b], y[a:b]) for a, b in zip(settings.start, settings.stop, strict=True)]
    weights = (settings.samples / settings.samples.sum()).astype(model.params.dtype)
    common = model.params.copy()
    params = [model.params.copy() if rank == settings.left_out else common for rank in range(p)]
    printed: dict[str, np.ndarray] = {
        name: np.empty((p, settings.epochs)) for name in ("local_loss", "bias_gradient")
    }
    printed |= {name: np.empty((p, settings.epochs), np.int64) for name in ("correct", "checksum")}
    printed["bias_change"] = np.empty(settings.epochs)
    grads = np.empty((p, model.params.size), model.params.dtype)
    for epoch in range(settings.epochs):
        for update in range(settings.updates):
            for rank, (images, labels) in enumerate(shards):
                model.params[...] = params[rank]
                model.loss_and_gradient(
                    images[update :: settings.updates], labels[update :: settings.updates]
                )
                grads[rank] = model.grads
            before = float(model.views(common)["b"][0])
            order = range(p - 1, -1, -1) if reverse else range(p)
            mean = np.zeros_like(common)
            for rank in order:
                mean += weights[rank] * grads[rank]
            common -= settings.learning_rate * settings.factor * mean
            if settings.left_out is not None:
                params[settings.left_out] -= settings.learning_rate * grads[settings.left_out]
        printed["bias_change"][epoch] = float(model.views(common)["b"][0]) - before
        for rank, (images, labels) in enumerate(shards):
            printed["bias_gradient"][rank, epoch] = model.views(grads[rank])["b"][0]
            model.params[...] = params[rank]
            printed["local_loss"][rank, epoch] = model.loss(images, labels)
            printed["correct"][rank, epoch] = model.correct
            printed["checksum"][rank, epoch] = zlib.crc32(params[rank].tobytes())
    return printed


def times(
    rng: np.random.Generator, samples: np.ndarray, updates: int, epochs: int, slowdown: np.ndarray
) -> dict[str, np.ndarray]:
    """Draw the ranks' times in each epoch from a model of a synchronous job. Shapes: (p, epochs), seconds.

    Computation is proportional to the samples, times a rank's slowdown, within 4 %. Each rank then waits for
    the slowest, and the transfer takes updates · (2(p - 1) α + 2(p - 1)/p · n β), the cost of a ring. The
    latency α is drawn so that the transfer takes 0.25 to 0.7, or 1.4 to 2.5 times as long as the computation
    without a slow rank. Every rank books its wait as synchronisation: `sync_s` is wait plus transfer. Clocks
    agree within 0.1 %.
    """
    p = len(samples)
    per_sample = rng.uniform(5e-6, 2e-5)
    longest = per_sample * samples.max()
    bandwidth_s = 2 * (p - 1) / p * 650 * 4 / 1e9
    latency = rng.choice([rng.uniform(0.25, 0.7), rng.uniform(1.4, 2.5)]) * longest / (updates * 2 * (p - 1))
    transfer = updates * (2 * (p - 1) * latency + bandwidth_s)
    compute = per_sample * (samples * slowdown)[:, None] * rng.uniform(0.96, 1.04, (p, epochs))
    total = compute.max(axis=0) + transfer * rng.uniform(0.95, 1.05, epochs)
    total = total * rng.uniform(0.999, 1.001, (p, epochs))
    return {"compute_s": compute, "sync_s": total - compute, "total_s": total}


KINDS = {
    "none": "The figures fit each other.",
    "left out": "One rank updates with its own gradient instead of the average.",
    "sum": "A division by the number of ranks is missing: each update is that many times the weighted mean.",
    "shards": "One rank's shard does not start where the shard of the rank before it ends.",
    "count": "One rank's accuracy is divided by a wrong number of samples.",
    "unweighted": "The global loss is the plain mean of the local losses, though the shards are unequal.",
    "settings": "The two runs differ in more than the algorithm: one makes more updates per epoch.",
    "straggler": "One rank computes slowly; the others count their wait for it as synchronisation.",
    "clock": "One rank's clock stops too early, so this rank seems faster than the others.",
}
ON_ONE_RANK = {"left out", "shards", "count", "straggler", "clock"}


class Answer(NamedTuple):
    """The planted fault, and the rank it is on; None if it is on no rank in particular."""

    kind: str
    rank: int | None


def answer(seed: int) -> Answer:
    """Return the fault that is planted in the report of this seed."""
    return _placed(np.random.default_rng([seed, 0]))[0]


def _placed(rng: np.random.Generator) -> tuple[Answer, int]:
    """Draw a fault, its rank, and the number of ranks."""
    kind = str(rng.choice(list(KINDS)))
    p = int(rng.integers(3 if kind == "left out" else 2, 9))  # of two ranks, none is the odd one
    first = 1 if kind == "shards" else 0
    return Answer(kind, int(rng.integers(first, p)) if kind in ON_ONE_RANK else None), p


def figures(seed: int) -> dict[str, Any]:
    """Return the figures of the report of this seed by name: arrays by rank and epoch, and numbers."""
    rng = np.random.default_rng([seed, 0])
    (kind, rank), p = _placed(rng)
    updates = int(rng.choice([2, 4, 6]))
    batches = rng.permutation(np.r_[4, 14, rng.choice([4, 6, 8, 10, 12, 14], p - 2)])
    stop = np.cumsum(updates * batches)
    settings = Settings(
        start=stop - updates * batches,
        stop=stop,
        updates=updates,
        epochs=int(rng.integers(5, 9)),
        learning_rate=float(rng.choice([0.05, 0.1, 0.2])),
        order=seed,
    )
    total = int(stop[-1])
    slowdown = np.ones(p)
    if kind == "shards" and rank is not None:
        settings.start[rank] += updates * int(rng.choice([-4, -2, 2]))
    elif kind == "straggler":
        slowdown[rank] = rng.uniform(1.8, 3)
    elif kind == "left out":
        settings = replace(settings, left_out=rank)
    elif kind == "sum":
        settings = replace(settings, factor=p)
    other = settings
    if kind == "settings":
        other = replace(settings, updates=updates * 2 if rng.random() < 0.5 else updates // 2)

    samples = settings.samples
    printed = train_as(settings)
    correct = printed.pop("correct")
    clocks = times(rng, samples, updates, settings.epochs, slowdown)
    counted = np.repeat(samples[:, None], settings.epochs, axis=1)
    if kind == "count":
        counted[rank] = _wrong_count(rng, correct[rank], int(samples[rank]))
    elif kind == "clock":
        missed = rng.uniform(0.5, 0.8) * clocks["sync_s"][rank]
        clocks["sync_s"][rank] -= missed
        clocks["total_s"][rank] -= missed
    weights = np.ones(p) / p if kind == "unweighted" else samples / samples.sum()
    return {
        "ranks": p,
        "epochs": settings.epochs,
        "learning_rate": settings.learning_rate,
        "training_samples": total,
        "updates_per_epoch": np.array([updates, other.updates]),
        "start": settings.start,
        "stop": settings.stop,
        "samples": samples,
        "accuracy_percent": 100 * correct / counted,
        "global_loss": weights @ printed["local_loss"],
        "other_global_loss": weights @ train_as(other, reverse=True)["local_loss"],
        **printed,
        **clocks,
    }


def _wrong_count(rng: np.random.Generator, correct: np.ndarray, samples: int) -> int:
    """Return a number that is too large by a few, and with which the accuracies are no whole counts."""
    for wrong in samples + rng.permutation(np.arange(1, 9)):
        counts = correct / wrong * samples
        if np.abs(counts - np.rint(counts)).max() > 0.05:
            return int(wrong)
    raise AssertionError("each number of samples gives whole counts")  # not with 8 or more samples


# What holds unless this fault is planted.
HOLDS = {
    "left out": "all ranks print the same checksum of their weights in each epoch",
    "sum": "each change of the bias is the weighted mean of the gradients times -learning_rate",
    "shards": "each shard starts where the shard of the rank before it ends",
    "count": "each accuracy is a whole count of that rank's samples",
    "unweighted": "the global loss is the mean of the local losses, weighted with the samples",
    "settings": "both runs make the same number of updates per epoch and print the same losses",
    "straggler": "all ranks need about the same time per sample; the rank with most samples takes longest",
    "clock": "all ranks take the same time per epoch",
}
# Where to look if a fault was missed: two kinds to each sentence, so that it does not give the answer away.
PLACES = {
    ("left out", "sum"): "the weights, or their changes, do not fit the rest",
    ("shards", "count"): "the numbers of samples do not fit the rest",
    ("unweighted", "settings"): "the losses do not fit each other",
    ("straggler", "clock"): "the times of one rank do not fit those of the others",
}


def remark(seed: int, student_answer: Any) -> str | None:
    """Return why an answer `(kind, rank)` to the report of this seed is wrong; None if it is right."""
    if not isinstance(student_answer, (tuple, list)) or len(student_answer) != 2:
        return f"the answer is {student_answer!r}, expected two values: kind, rank"
    (kind, rank), right = student_answer, answer(seed)
    if not isinstance(kind, str) or kind not in KINDS:
        return f"{kind!r} is not one of the kinds {', '.join(map(repr, KINDS))}"
    if (kind, rank) == right:
        return None
    if kind == right.kind and right.rank is None:
        shown = "this fault is not on one rank: return None as the rank"
    elif kind == right.kind and rank is None:
        shown = "this fault is on one rank: return its number"
    elif kind == right.kind:
        shown = f"this fault is on another rank than {rank}"
    elif kind == "none":
        shown = next(text for kinds, text in PLACES.items() if right.kind in kinds)
    else:
        shown = HOLDS[kind]
    return f"you answered {kind!r}{'' if rank is None else f' on rank {rank}'}, but {shown}"


TEXT = """\
What was done. Softmax regression on {training_samples} digits, {ranks} ranks, {epochs} epochs, plain SGD,
learning rate {learning_rate}. Rank r holds the samples from `start` to `stop` - 1. After each backward pass,
the gradients are averaged, weighted with the local batches: with {one} ({first} updates per epoch), and in a
second run with {other} ({second}). All other figures are of the run with {one}. The gradient and the
change of the first bias are those of the epoch's last update.

After epoch {epochs}:
{by_rank}

{by_epoch}

Conclusion. The ranks spend {percent:.0f} % of their time on synchronisation, so the network limits this job.
The loss ends at {one_ends:.4f} with {one} and at {other_ends:.4f} with {other}: {learning}.
Rank {best} has the best model, and rank {fastest} is the fastest."""

ALGORITHMS = ["root", "ring", "tree", "recursive-doubling"]


@dataclass(frozen=True)
class Unseen:
    """A generated report. `text` is the report, `figures` its figures by name, all epochs, not rounded."""

    seed: int
    text: str
    figures: dict[str, Any] = field(repr=False)

    def judge(self, kind: str, rank: int | None = None) -> str:
        """Return whether this is the planted fault, and otherwise what the report shows against it."""
        wrong = remark(self.seed, (kind, rank))
        return f"Not right: {wrong}." if wrong else f"Right: {kind!r}, rank {rank}."


def unseen(seed: int) -> Unseen:
    """Return the report of this seed: a training run on 2 to 8 ranks, with one planted fault or none.

    Arrays in `figures` have the shape (ranks, epochs), (ranks,) or (epochs,); `updates_per_epoch` holds one
    number for each of the two runs. The same seed gives the same report. Raise ValueError if it is negative.
    """
    if seed < 0:
        raise ValueError(f"expected a seed of 0 or more, got {seed}")
    printed = figures(seed)
    return Unseen(seed, _text(seed, printed), printed)


def _text(seed: int, f: dict[str, Any]) -> str:
    one, other = np.random.default_rng([seed, 2]).permutation(ALGORITHMS)[:2]
    by_rank = [
        "rank  samples start stop  local loss accuracy %  checksum bias gradient compute ms sync ms total ms"
    ]
    by_rank += [
        f"{rank:4} {f['samples'][rank]:8} {f['start'][rank]:5} {f['stop'][rank]:4}"
        f" {f['local_loss'][rank, -1]:11.4f} {f['accuracy_percent'][rank, -1]:10.3f}"
        f"  {f['checksum'][rank, -1]:08x} {f['bias_gradient'][rank, -1]:13.6f}"
        f" {1e3 * f['compute_s'][rank, -1]:10.3f} {1e3 * f['sync_s'][rank, -1]:7.3f}"
        f" {1e3 * f['total_s'][rank, -1]:8.3f}"
        for rank in range(f["ranks"])
    ]
    by_epoch = [f"epoch  global loss ({one})  global loss ({other})  bias change ({one})"]
    by_epoch += [
        f"{epoch + 1:5} {f['global_loss'][epoch]:{15 + len(one)}.5f}"
        f" {f['other_global_loss'][epoch]:{15 + len(other)}.5f} {f['bias_change'][epoch]:{15 + len(one)}.6f}"
        for epoch in range(f["epochs"])
    ]
    first, second = f["updates_per_epoch"]
    learning, best, fastest = _conclusions(f, one, other)
    return TEXT.format(
        one=one,
        other=other,
        first=first,
        second=second,
        by_rank="\n".join(by_rank),
        by_epoch="\n".join(by_epoch),
        percent=100 * f["sync_s"].sum() / f["total_s"].sum(),
        one_ends=f["global_loss"][-1],
        other_ends=f["other_global_loss"][-1],
        learning=learning,
        best=best,
        fastest=fastest,
        **f,
    )


def _conclusions(f: dict[str, Any], one: str, other: str) -> tuple[str, int, int]:
    """Return which algorithm ends lower, the rank with the highest accuracy and that with the least time."""
    ends = f["global_loss"][-1], f["other_global_loss"][-1]
    better = one if ends[0] < ends[1] else other
    is_rounding = np.isclose(*ends, rtol=1e-4)
    learning = f"{one} and {other} learn equally well" if is_rounding else f"{better} learns better"
    return learning, int(f["accuracy_percent"][:, -1].argmax()), int(f["total_s"].sum(axis=1).argmin())
