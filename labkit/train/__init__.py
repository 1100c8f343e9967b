"""The synchronous training loop, its callbacks, and the files that a run leaves."""

from labkit.train.batches import Batches, EpochBatches
from labkit.train.bottleneck import Bottleneck, Straggler
from labkit.train.buckets import BucketPlan, Buckets
from labkit.train.callbacks import Callback, Contributions, contribution
from labkit.train.checkpoints import Checkpoints, stored_settings
from labkit.train.experiment.run_record import load_run, prepare, record, save
from labkit.train.local import local_sgd
from labkit.train.loop import Optimizer, gather, train
from labkit.train.speed import speeds
from labkit.train.steps import Epoch, Step
from labkit.train.timeline import Timeline, save_trace

__all__ = [
    "Batches",
    "Bottleneck",
    "BucketPlan",
    "Buckets",
    "Callback",
    "Checkpoints",
    "Contributions",
    "Epoch",
    "EpochBatches",
    "Optimizer",
    "Step",
    "Straggler",
    "Timeline",
    "contribution",
    "gather",
    "load_run",
    "local_sgd",
    "prepare",
    "record",
    "save",
    "save_trace",
    "speeds",
    "stored_settings",
    "train",
]
