"""The synchronous training loop, its callbacks, and the files that a run leaves.

The names are loaded when they are first used: the command line knows a run's settings, and a notebook's
kernel its buckets, without loading MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
        return [public_name for names in _NAMES.values() for public_name in names]
    for module, names in _NAMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
