"""The synchronous training loop, its callbacks, and the files that a run leaves.

The names are loaded when they are first used: the command line knows a run's settings, and a notebook's
kernel its buckets, without loading MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.train.batches import Batches as Batches
    from labkit.train.bottleneck import Bottleneck as Bottleneck
    from labkit.train.bottleneck import Straggler as Straggler
    from labkit.train.bottleneck import speeds as speeds
    from labkit.train.callbacks import Callback as Callback
    from labkit.train.callbacks import Contributions as Contributions
    from labkit.train.callbacks import Timeline as Timeline
    from labkit.train.checkpoints import Checkpoints as Checkpoints
    from labkit.train.loop import gather as gather
    from labkit.train.loop import local_sgd as local_sgd
    from labkit.train.loop import train as train
    from labkit.train.overlap import Buckets as Buckets
    from labkit.train.run_record import load_run as load_run
    from labkit.train.run_record import prepare as prepare
    from labkit.train.steps import Epoch as Epoch
    from labkit.train.steps import Step as Step

_NAMES = {
    "batches": ["Batches"],
    "bottleneck": ["Bottleneck", "Straggler", "speeds"],
    "callbacks": ["Callback", "Contributions", "Timeline"],
    "checkpoints": ["Checkpoints"],
    "loop": ["gather", "local_sgd", "train"],
    "overlap": ["Buckets"],
    "run_record": ["load_run", "prepare"],
    "steps": ["Epoch", "Step"],
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [each for names in _NAMES.values() for each in names]
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
