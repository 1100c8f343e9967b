"""Data sets by name, and the ways to share them out among ranks. No MPI."""

from labkit.data.batches import dealt, in_order
from labkit.data.errors import FetchError, FormatError
from labkit.data.fetching import fetch, is_cached
from labkit.data.sets import DATASETS, Dataset, cifar10, digits, linear, load, mnist
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
from labkit.data.stored import Stored, stored

__all__ = [
    "DATASETS",
    "SCHEMES",
    "SOURCES",
    "Dataset",
    "FetchError",
    "FormatError",
    "Scheme",
    "Source",
    "Stored",
    "by_label",
    "cache",
    "cifar10",
    "contiguous",
    "dealt",
    "digits",
    "fetch",
    "in_order",
    "is_cached",
    "linear",
    "load",
    "mnist",
    "outlying",
    "scheme",
    "shuffled",
    "stored",
    "strided",
    "weighted",
]
