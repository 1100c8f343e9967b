"""Data sets by name, and how to divide them into shards and local batches. No MPI."""

from labkit.data.augmentation import Augmentation
from labkit.data.batches import batches_by_index, local_batches
from labkit.data.datasets import DATASETS, Dataset, cifar10, digits, linear, load, mnist
from labkit.data.errors import FetchError, FormatError
from labkit.data.fetching import fetch, is_cached
from labkit.data.file_dataset import FileDataset, open_dataset
from labkit.data.shards import (
    SCHEMES,
    Scheme,
    by_label,
    contiguous,
    outlying,
    scheme,
    shuffled,
    strided,
    weighted,
)
from labkit.data.sources import SOURCES, Source, cache

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
