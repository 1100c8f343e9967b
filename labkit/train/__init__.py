"""The synchronous training loop, and the files that a run leaves."""

from labkit.train.loop import Epoch, contribution, gather, train
from labkit.train.record import record, save
from labkit.train.speed import speeds

__all__ = ["Epoch", "contribution", "gather", "record", "save", "speeds", "train"]
