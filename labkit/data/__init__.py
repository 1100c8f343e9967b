"""Data sets by name, and the ways to share them out among ranks. No MPI."""

from labkit.data.batches import dealt
from labkit.data.sets import DATASETS, Dataset, digits, linear, load
from labkit.data.shards import by_label, contiguous, strided

__all__ = ["DATASETS", "Dataset", "by_label", "contiguous", "dealt", "digits", "linear", "load", "strided"]
