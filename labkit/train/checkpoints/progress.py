"""How far a run is: what one rank carries from step to step besides the model and the optimiser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from labkit.train.callbacks import Epoch
from labkit.train.gradients import StepTimes


@dataclass
class Progress:
    """Which step is next, the sums of the epoch so far, and the records of the epochs before.

    `epoch` counts from 1; `step` is how many of its steps are done, and `done` how many of all steps. The
    sums: the loss over this rank's samples, its correct predictions, and times (s) as in `Epoch`.
    """

    epoch: int = 1
    step: int = 0
    done: int = 0
    loss: float = 0.0
    correct: int = 0
    wait_s: float = 0.0
    transfer_s: float = 0.0
    time_s: float = 0.0
    rows: list[Epoch] = field(default_factory=list)

    def add(self, loss: float, correct: int, times: StepTimes) -> None:
        """Count a step: its loss summed over this rank's samples, its correct predictions and its times."""
        self.step += 1
        self.done += 1
        self.loss += loss
        self.correct += correct
        self.wait_s += times.start - times.ready
        self.transfer_s += times.end - times.start

    def next_epoch(self, row: Epoch) -> None:
        """Keep the record of the epoch, and begin the next one."""
        self.rows.append(row)
        self.epoch, self.step = self.epoch + 1, 0
        self.loss, self.correct, self.wait_s, self.transfer_s, self.time_s = 0.0, 0, 0.0, 0.0, 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold; floats keep all their bits there."""
        return asdict(self)

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Progress:
        """Return the progress that `as_dict` has turned into a dictionary."""
        return cls(**{**stored, "rows": [Epoch(**row) for row in stored["rows"]]})


def dealt(ranks: Sequence[Progress], samples: Sequence[int]) -> list[Progress]:
    """Return the progress of other ranks, which take over from `ranks` and hold so many samples each.

    The sums of the epoch so far are dealt in proportion to the samples, so the epoch's global loss and
    accuracy are exact, while the local ones mix those of several ranks. Times are those of the slowest rank.
    Rows keep the rank that measured them.
    """
    total, loss = sum(samples), sum(each.loss for each in ranks)
    correct, before = sum(each.correct for each in ranks), 0
    new = []
    for rank, held in enumerate(samples):
        until = before + held
        one = Progress(ranks[0].epoch, ranks[0].step, ranks[0].done, loss * held / total)
        one.correct = correct * until // total - correct * before // total
        for name in "wait_s", "transfer_s", "time_s":
            setattr(one, name, max(getattr(each, name) for each in ranks))
        one.rows = [row for old in ranks[rank :: len(samples)] for row in old.rows]
        new.append(one)
        before = until
    return new
