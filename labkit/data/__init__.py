"""Data sets by name, and how to divide them into shards and local batches. No MPI."""

from labkit.data.augmentation import Augmentation
from labkit.data.datasets import (
    DATASETS,
    Dataset,
    FileDataset,
    cifar10,
    digits,
    linear,
    load,
    mnist,
    open_dataset,
)
from labkit.data.fetching import SOURCES, FetchError, Source, cache, fetch, is_cached
from labkit.data.formats import FormatError
from labkit.data.shards import (
    SCHEMES,
    Scheme,
    batches_by_index,
    by_label,
    contiguous,
    local_batches,
    outlying,
    scheme,
    shuffled,
    strided,
    weighted,
)

__all__ = [
    "DATASETS",
    "SCHEMES",
    "SOURCES",
    "Augmentation",
    "Dataset",
    "FetchError",
    "FileDataset",
    "FormatError",
    "Scheme",
    "Source",
    "batches_by_index",
    "by_label",
    "cache",
    "cifar10",
    "contiguous",
    "digits",
    "fetch",
    "is_cached",
    "linear",
    "load",
    "local_batches",
    "mnist",
    "open_dataset",
    "outlying",
    "scheme",
    "shuffled",
    "strided",
    "weighted",
]
