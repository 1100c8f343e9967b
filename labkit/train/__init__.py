"""The synchronous training loop, and the files that a run leaves."""

from labkit.train.bottleneck import Bottleneck, Straggler
from labkit.train.local import local_sgd
from labkit.train.loop import Epoch, contribution, gather, train
from labkit.train.run_record import record, save
from labkit.train.speed import speeds
from labkit.train.timeline import Step, Timeline, save_trace

__all__ = [
    "Bottleneck",
    "Epoch",
    "Step",
    "Straggler",
    "Timeline",
    "contribution",
    "gather",
    "local_sgd",
    "record",
    "save",
    "save_trace",
    "speeds",
    "train",
]
