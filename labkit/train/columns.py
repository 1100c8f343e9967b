"""What a run's record says of each iteration: the columns of iterations.csv. Needs neither NumPy nor MPI."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from labkit.train.steps import Step


class Column(NamedTuple):
    """A column of iterations.csv: its name, what a step says, and for a time what it means.

    `time` says from when to when it is measured, `entry` under which name the files say so (by default the
    column's), and `part` what it is called where parts of an iteration's time are shown.
    """

    name: str
    of: Callable[[Step], float]
    kind: type = float
    time: str = ""
    entry: str = ""
    part: str = ""


# A new column is a new line here: iterations.csv, run.json and the tables of parts have it then.
COLUMNS = (
    Column("rank", lambda step: step.rank, int),
    Column("iteration", lambda step: step.number, int),
    Column("loss", lambda step: step.loss),
    Column(
        "time_s",
        lambda step: step.done - step.begin,  # `iterations` makes it end with the start of the next
        entry="time_s of an iteration",
        time="from its start to the start of the next; the first is included in the files, and left out of "
        "means",
    ),
    Column(
        "compute_s",
        lambda step: step.compute_s,
        part="compute",
        time="forward pass, backward pass and update",
    ),
    Column(
        "wait_s",
        lambda step: step.wait_s,
        part="wait for the last rank",
        time="from the end of the rank's own gradient to the end of a barrier before averaging, and in "
        "epoch 1 also for the last rank's call of `train`; 0 where averaging overlaps with the backward pass",
    ),
    Column(
        "communication_s",
        lambda step: step.transfer_s,
        part="exposed communication",
        time="as transfer_s, of an iteration",
    ),
)

PARTS = {column.part: column.name for column in COLUMNS if column.part}

# From when to when each time (s) of the files is measured, on the rank's own clock.
TIMES = {
    "total_s": "the call of `train`, from before the first step to after the last epoch, without the "
    "test; of a resumed run, up to its checkpoint and from the resume on",
    "time_s of an epoch": "its steps, from the start of the first to the end of the last, callbacks included",
    "transfer_s": "averaging itself, after that barrier; with overlap, what the backward pass does not hide",
    **{column.entry or column.name: column.time for column in COLUMNS if column.time},
}
