"""A whole run from its settings to its files, as `labkit train` starts it."""

from labkit.train.experiment.run_record import load_run, prepare, record, save
from labkit.train.experiment.running import Results, run

__all__ = ["Results", "load_run", "prepare", "record", "run", "save"]
