"""Data sets by name, and how to divide them into shards and local batches. No MPI."""

from labkit.data.augmentation import Augmentation
from labkit.data.datasets import (
    DATASETS,
    Dataset,
    FileDataset,
    digits,
    linear,
    load,
    open_dataset,
)
from labkit.data.fetching import SOURCES, FetchError, Source, cache, fetch, is_cached
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
