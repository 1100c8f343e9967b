"""A generated report: its figures, and the text that a student might have written about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labkit.reports.generated.faults import figures
from labkit.reports.generated.remarks import remark

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
    ends = round(f["global_loss"][-1], 4), round(f["other_global_loss"][-1], 4)
    better = one if ends[0] < ends[1] else other
    learning = f"{one} and {other} learn equally well" if ends[0] == ends[1] else f"{better} learns better"
    return learning, int(f["accuracy_percent"][:, -1].argmax()), int(f["total_s"].sum(axis=1).argmin())
