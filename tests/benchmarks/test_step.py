"""Rows of ratios, `python -m benchmarks step` and `watching`: what is measured, not how long it takes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import step
from labkit.bench.pytorch import is_installed
from labkit.bench.rows import Row, interleaved, rows_of, table
from labkit.nn import lenet5, vgg11
from tests.conftest import run_python


def test_functions_take_turns_in_changing_order() -> None:
    calls: list[str] = []
    medians = interleaved({name: lambda name=name: calls.append(name) for name in "ab"}, rounds=3, warm_up=1)
    assert "".join(calls) == "ab" + "ba" + "ab" + "ba"
    assert list(medians) == ["a", "b"] and all(time >= 0 for time in medians.values())


def test_rows_compare_the_first_with_the_others_and_a_table_shows_them() -> None:
    rows = rows_of("net/b1/t1", {"labkit": 3.0, "floor": 2.0, "pytorch": 4.0}, "ms")
    assert rows == [
        Row("net/b1/t1", 3.0, "floor", 2.0, "ms", 1.5),
        Row("net/b1/t1", 3.0, "pytorch", 4.0, "ms", 0.75),
    ]
    head, *lines = table(rows).splitlines()
    assert head.split() == ["case", "ours", "against", "theirs", "unit", "ratio"]
    assert lines[1].split() == ["net/b1/t1", "3.00", "pytorch", "4.00", "ms", "0.75"]


def flops(products: list[tuple[int, int, int, int]]) -> float:
    return 2.0 * sum(many * rows * inner * columns for many, rows, inner, columns in products)


def test_the_floor_computes_every_product_once() -> None:
    # VGG-11 at batch 64: 59 GFLOP with im2col, where the first layer has no dx.
    model = vgg11()
    im2col = flops(step.products(model, 64, as_computed=False))
    assert im2col == pytest.approx(58.6e9, rel=0.005)
    conv1 = 2.0 * 64 * 32 * 32 * 27 * 64
    as_computed = flops(step.products(model, 64, as_computed=True)) - 2 * conv1
    # 16 products instead of 36, in all layers but conv1 and the dense one: for a 2 × 2 tile with Winograd's
    # method, for a 2 × 2 image without those with padding.
    dense = 3 * 2.0 * 64 * 512 * 10
    assert as_computed - dense == pytest.approx((im2col - 2 * conv1 - dense) * 16 / 36)
    small = lenet5()
    assert step.products(small, 8, as_computed=True) == step.products(small, 8, as_computed=False)
    assert (1, 8 * 28 * 28, 25, 6) in step.products(small, 8, as_computed=False)
    step.floor(small, 8, as_computed=False)()


def test_the_measured_step_trains() -> None:
    take = step.labkit_step("lenet5", 8)
    losses = [take() for _ in range(40)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0]


def test_the_command_prints_rows() -> None:
    done = run_python("-m", "benchmarks", "step", "--model", "lenet5", "--batch", "2", "--json")
    rows = json.loads(done.stdout)
    against = ["sgemm-floor", "own-sgemm", *(["pytorch", "pytorch"] if is_installed() else [])]
    assert [row["against"] for row in rows] == against
    for row in rows:
        assert list(row) == ["case", "ours", "against", "theirs", "unit", "ratio"]
        assert row["case"] in ("lenet5/b2/t1", "lenet5/b2/peak")
        assert row["unit"] == ("MiB" if row["case"].endswith("peak") else "ms")
        assert row["ratio"] == pytest.approx(row["ours"] / row["theirs"]) and row["theirs"] > 0


def test_watching_is_compared_with_the_library() -> None:
    rows = json.loads(run_python("-m", "benchmarks", "watching", "-n", "2", "--json").stdout)
    against = {
        row["case"]: {other["against"] for other in rows if other["case"] == row["case"]} for row in rows
    }
    for size in "1KiB", "1MiB", "16MiB":
        assert against.pop(f"compared/{size}/p2") == {"mpi-allreduce"}
        assert against.pop(f"watched/{size}/p2") == {"mpi-allreduce", "barrier+mpi-allreduce"}
    assert against == {} and all(row["ours"] > 0 for row in rows)


@pytest.mark.skipif(not is_installed(), reason="PyTorch is not installed")
@pytest.mark.parametrize("name", ["lenet5", "vgg11"])
def test_pytorch_has_the_same_model(name: str) -> None:
    from labkit.bench.pytorch import pytorch_model  # noqa: PLC0415
    from labkit.nn import MODELS  # noqa: PLC0415

    theirs, shape = pytorch_model(name)
    ours = MODELS[name]()
    assert shape == ours.input_shape
    assert sum(parameter.numel() for parameter in theirs.parameters()) == ours.params.size


@pytest.mark.skipif(not is_installed(), reason="PyTorch is not installed")
def test_a_step_of_vgg_needs_no_more_memory_than_that_of_pytorch() -> None:
    assert step.peak("labkit", "vgg11", 64) <= step.peak("pytorch", "vgg11", 64)
