"""How much memory the ranks of a batch job need for a data set."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import PROGRAMS, run
from tests.made_sets import archive_files, random_samples, source_for, write_files


@pytest.fixture(scope="session")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a set of 60,000 images of MNIST's size, not yet unpacked."""
    cache = tmp_path_factory.mktemp("big")
    parts = random_samples("mnist", 60_000, 10_000)
    files = archive_files("mnist", parts)
    write_files(cache / "mnist", files)
    (cache / "mnist" / "sums.json").write_text(json.dumps(dict(source_for("mnist", files).files)))
    return cache


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the peak of a process's memory")
def test_a_rank_that_reads_its_own_shard_needs_memory_for_little_more(big: Path) -> None:
    """The first of the schemes also unpacks the files, on one of the ranks.

    A rank that reads the whole set holds four shards, and the measurement shows it.
    """
    schemes = ("strided", "contiguous", "shuffled", "by-label", "outlying", "weighted")
    done = run(4, PROGRAMS / "memory_of_a_shard.py", big, *schemes, "whole")
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout.splitlines()[-1])
    assert list(told) == [*schemes, "whole"]
    for scheme in schemes:
        for rank, (shard, grown) in enumerate(told[scheme]):
            assert shard == 15_000 * (784 * 4 + 8)
            assert 0.9 * shard < grown <= 1.2 * shard, (
                f"{scheme}, rank {rank}: {grown / shard:.2f} of a shard"
            )
    assert all(grown > 4 * shard for shard, grown in told["whole"])
