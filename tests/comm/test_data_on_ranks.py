"""Data sets in batch jobs on real ranks: memory, sharding schemes, the message about a missing data set."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from labkit import data
from tests.made_sets import archive_files, random_samples, source_for, write_files

Run = Callable[..., subprocess.CompletedProcess[str]]
TRAIN = ("-m", "labkit", "train", "--model", "linear")


@pytest.fixture(scope="session")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a set of 60,000 images of MNIST's size, not yet unpacked."""
    cache = tmp_path_factory.mktemp("big")
    parts = random_samples("mnist", 60_000, 10_000)
    files = archive_files("mnist", parts)
    write_files(cache / "mnist", files)
    (cache / "mnist" / "sums.json").write_text(json.dumps(dict(source_for("mnist", parts, files).files)))
    return cache


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the peak of a process's memory")
@pytest.mark.parametrize("how", ["strided", "contiguous", "shuffled", "by-label", "outlying", "weighted"])
def test_a_rank_that_reads_its_own_shard_needs_memory_for_little_more(
    how: str, big: Path, run: Run, programs: Path
) -> None:
    """The first of these runs also unpacks the files, on one of its ranks."""
    done = run(4, programs / "memory_of_a_shard.py", big, how)
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout.splitlines()[-1])
    for rank, (shard, grown) in enumerate(told):
        assert shard == 15_000 * (784 * 4 + 8)
        assert 0.9 * shard < grown <= 1.2 * shard, f"rank {rank}: {grown / shard:.2f} of its share"


def test_scattering_holds_the_whole_set_on_rank_0(big: Path, run: Run, programs: Path) -> None:
    """The measure can fail: rank 0 has all of the set, and once more in the order of the ranks."""
    done = run(4, programs / "memory_of_a_shard.py", big, "scatter")
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout.splitlines()[-1])
    shard, grown = told[0]
    assert grown > 4 * shard
    assert all(grown < 1.5 * shard for shard, grown in told[1:])


def weights(out: Path) -> np.ndarray:
    return np.loadtxt(out / "weights.txt", dtype=np.float32)


@pytest.mark.parametrize("scheme", ["strided", "shuffled", "weighted"])
def test_schemes_that_promise_it_give_the_weights_of_one_rank(scheme: str, run: Run, tmp_path: Path) -> None:
    for p in (1, 3):
        done = run(p, *TRAIN, "--shard", scheme, "--epochs", "2", "--batch", "50", "--out", tmp_path / str(p))
        assert done.returncode == 0, done.stdout
    expected = weights(tmp_path / "1")
    np.testing.assert_allclose(weights(tmp_path / "3"), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    record = json.loads((tmp_path / "3" / "run.json").read_text())
    assert record["settings"]["shard"] == scheme
    assert len(record.get("speeds", [])) == (3 if scheme == "weighted" else 0)


def test_shuffling_changes_from_epoch_to_epoch_and_with_the_seed(run: Run, tmp_path: Path) -> None:
    outs = {}
    for name, options in {
        "strided": ("--shard", "strided"),
        "shuffled": ("--shard", "shuffled"),
        "again": ("--shard", "shuffled"),
    }.items():
        done = run(2, *TRAIN, *options, "--epochs", "2", "--batch", "50", "--out", tmp_path / name)
        assert done.returncode == 0, done.stdout
        outs[name] = weights(tmp_path / name)
    assert not np.allclose(outs["strided"], outs["shuffled"], atol=1e-4)
    np.testing.assert_array_equal(outs["shuffled"], outs["again"])


@pytest.fixture(scope="session")
def alone(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of the one-rank twin, all samples in each step."""
    out = tmp_path_factory.mktemp("alone")
    done = run(1, *TRAIN, "--epochs", "5", "--out", out)
    assert done.returncode == 0, done.stdout
    return out


@pytest.mark.parametrize("scheme", data.SCHEMES)
def test_all_schemes_agree_if_a_step_takes_all_samples(
    scheme: str, alone: Path, run: Run, tmp_path: Path
) -> None:
    done = run(3, *TRAIN, "--epochs", "5", "--shard", scheme, "--out", tmp_path)
    assert done.returncode == 0, done.stdout
    np.testing.assert_allclose(weights(tmp_path), weights(alone), atol=1e-6)


def test_a_data_set_in_files_trains_or_is_reported_missing(run: Run, programs: Path, tmp_path: Path) -> None:
    for there in ("there", "missing"):
        done = run(3, programs / "train_on_made_files.py", tmp_path / there, there)
        if there == "there":
            assert done.returncode == 0, done.stdout
            assert "test accuracy" in done.stdout
            assert np.loadtxt(tmp_path / there / "out" / "weights.txt").shape == (784, 10)
        else:
            assert done.returncode == 2, done.stdout
            assert done.stdout.count("Offline, use the embedded data set") == 1
            assert "Traceback" not in done.stdout
