"""`labkit train` on real ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit import __version__
from labkit.train import load_run
from tests.conftest import PROGRAMS, run, run_commands, thorough

TRAIN = ("-m", "labkit", "train")
FILES = {"model.npz", "iterations.csv", "loss.png", "timeline.png", "trace.json", "run.json"}


def train(p: int, out: Path, *options: str) -> str:
    """Train, and return the output."""
    done = run(p, *TRAIN, "--out", out, *options)
    assert done.returncode == 0, done.stdout
    return done.stdout


def weights(out: Path) -> np.ndarray:
    return load_run(out).params


def epochs(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "run.json").read_text())["epochs"]


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of one rank with the seeds 0 and 1, in folders of these names."""
    out = tmp_path_factory.mktemp("one")
    linear = ("train", "--model", "linear", "--epochs", "10")
    ends = run_commands(1, *((*linear, "--seed", seed, "--out", out / seed) for seed in "01"))
    assert [statuses for statuses, _ in ends] == [[0], [0]], ends
    assert not any("A contribution over 100 %" in said for _, said in ends)  # one rank's is 100 %
    return out


@pytest.mark.parametrize("p", [thorough(2), 3, thorough(4), thorough(5)])
def test_any_number_of_ranks_gets_the_weights_of_one_rank(p: int, alone: Path, tmp_path: Path) -> None:
    output = train(p, tmp_path, "--model", "linear", "--epochs", "10")

    expected = weights(alone / "0")
    np.testing.assert_allclose(weights(tmp_path), expected, rtol=0, atol=1e-6 * np.abs(expected).max())
    assert len(expected) == 11 and np.abs(weights(alone / "1") - expected).max() > 0.01

    pairs = [(e, r) for e in range(1, 11) for r in range(p)]
    lines = [line.split(":")[0] for line in output.splitlines() if "] epoch " in line]
    assert lines == [f"[rank {r}] epoch {e}" for e, r in pairs for _ in range(3)]
    printed = output.replace(str(tmp_path), "").splitlines()  # the folder may have any length
    assert output.count("test loss") == p and max(map(len, printed)) <= 100
    for word in (
        "loss",
        "(all ",
        "gradient of W: mean",
        "gradient of b: mean",
        "contribution",
        "wait",
        "transfer",
    ):
        assert output.count(word) >= len(pairs)

    assert {path.name for path in tmp_path.iterdir()} == FILES
    rows = epochs(tmp_path)
    assert [(row["epoch"], row["rank"]) for row in rows] == pairs
    assert all(row["wait_s"] > 0 and row["transfer_s"] > 0 for row in rows)
    assert all(row["contribution"].keys() == {"W", "b"} for row in rows)
    contributions = [part for row in rows for part in row["contribution"].values()]
    assert min(contributions) > 0 and max(contributions) > 1 == output.count("A contribution over 100 %")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")

    record = json.loads((tmp_path / "run.json").read_text())
    assert record["ranks"] == p == len(record["hosts"])
    expected = {
        "model": "linear", "data": "linear", "epochs": 10, "lr": 0.1, "batch": None,
        "shard": "contiguous", "algorithm": "auto", "aggregate": "weighted", "seed": 0,
    }  # fmt: skip
    assert expected.items() <= record["settings"].items()
    assert record["versions"]["labkit"] == __version__ and record["versions"]["mpi_library"]
    by_epoch = [row["global_loss"] for row in record["epochs"] if row["rank"] == 0]
    assert by_epoch[-1] < by_epoch[0] and len(record["epochs"]) == len(pairs)


def test_the_digits_are_learned_and_bottlenecks_do_not_change_the_weights(tmp_path: Path) -> None:
    settings = ("--model", "softmax", "--epochs", "2", "--batch", "300", "--algorithm", "ring")
    bottlenecks = ["2:slow-processor=2", "2:slow-link=1mbit", "1:jitter=1ms", "0:pause=30ms@3"]
    options = [word for bottleneck in bottlenecks for word in ("--bottleneck", bottleneck)]
    runs = {
        "long": ("--model", "softmax", "--data", "digits"),
        "even": settings,
        "slow": (*settings, "--link", "10mbit+100us", *options),
        "float16": (*settings, "--compress", "float16", "--link", "10mbit"),
        "library": (*settings[:-1], "mpi", "--compress", "top-k=0.2"),
    }
    ends = run_commands(3, *(("train", *more, "--out", tmp_path / name) for name, more in runs.items()))
    assert [statuses for statuses, _ in ends] == [[0] * 3] * 5, ends
    learned = json.loads((tmp_path / "long" / "run.json").read_text())["ended"]
    assert min(row["test_accuracy"] for row in learned) >= 0.94
    assert weights(tmp_path / "long").shape == (650,)
    np.testing.assert_array_equal(weights(tmp_path / "slow"), weights(tmp_path / "even"))

    record = json.loads((tmp_path / "slow" / "run.json").read_text())
    assert record["settings"]["bottleneck"] == bottlenecks and record["settings"]["link"] == "10mbit+100us"
    assert record["links"] == "emulated links: 10mbit+100us, rank 2 1mbit"
    assert "links" not in json.loads((tmp_path / "even" / "run.json").read_text())
    # 2(p-1) messages of a third of 650 float32 each, over a link of 1 Mbit/s.
    least_s = 4 * 650 * 4 / 3 * 8 / 1e6
    times = [row["transfer_s"] for row in epochs(tmp_path / "slow")]
    assert max(times) > 5 * least_s, times

    sent = {name: json.loads((tmp_path / name / "run.json").read_text()) for name in runs}
    sent = {name: record["bytes_sent_per_step"] for name, record in sent.items()}
    assert sum(sent["even"]) == 4 * 650 * 4 == sum(sent["slow"]) == 2 * sum(sent["float16"])
    assert sent["long"] is None is sent["library"]  # the MPI library's own messages cannot be counted
    assert f"bytes sent in a step by the rank that sends most: {max(sent['even']):,.0f}" in ends[1][1]
    kept = weights(tmp_path / "even")
    for name, tolerance in ("float16", 1e-3), ("library", 0.5):
        assert 0 < np.abs(weights(tmp_path / name) - kept).max() < tolerance * np.abs(kept).max(), name

    trace = json.loads((tmp_path / "slow" / "trace.json").read_text())
    assert trace["otherData"]["links"] == record["links"]
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["tid"] for event in spans} == {1, 3, 5}
    assert {event["args"]["step"] for event in spans} == set(range(1, 11))
    [paused] = [e for e in spans if (e["name"], e["tid"], e["args"]["step"]) == ("idle", 1, 3)]
    assert paused["dur"] > 30_000


@pytest.mark.parametrize("rank", [thorough(0), 2])
def test_the_job_ends_if_one_rank_fails(rank: int) -> None:
    done = run(3, PROGRAMS / "one_rank_fails.py", rank)
    assert done.returncode != 0
    assert f"labkit test: rank {rank} of 3 failed: RuntimeError: out of paper" in done.stdout
