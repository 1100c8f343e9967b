"""`python -m benchmarks training`: its rows on real ranks, and rows and tables from given times."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace

import pytest

from benchmarks import training as rows
from benchmarks.training import Time, median
from labkit.bench.ddp import Case
from labkit.bench.pytorch import is_installed
from labkit.bench.rows import Row
from labkit.schedules import CostModel
from labkit.train import Step
from tests.conftest import run_python

PARTS = "compute", "wait", "exposed", "rest"


def shares(found: list[Row]) -> dict[str, float]:
    """Return the sum of the shares of each set-up's parts."""
    sums: dict[str, float] = defaultdict(float)
    for row in found:
        setup, _, part = row.case.rpartition("/")
        if part in PARTS:
            assert row.against == "iteration"
            sums[setup] += row.ratio
    return sums


def test_it_starts_ranks_and_prints_rows_whose_parts_add_up() -> None:
    words = "--model", "lenet5", "--batch", "2", "--ranks", "2", "--rounds", "1", "--json"
    done = run_python("-m", "benchmarks", "training", *words)
    found = [Row(**row) for row in json.loads(done.stdout)]
    measured = rows.cases_of(2, 2, None, one_node=True, pytorch=is_installed())
    names = {f"lenet5/{case.size}/{case.setup}/shm" for case in measured}
    assert {"lenet5/1x4/one-rank/shm", "lenet5/2x2/shared-memory/shm"} <= names
    assert shares(found) == pytest.approx(dict.fromkeys(names, 1.0))
    assert any("ddp" in row.case + row.against for row in found) == is_installed()
    for row in found:
        assert row.ratio == pytest.approx(row.ours / row.theirs)
        if row.case in names:
            assert row.ours > 0 and row.unit == "ms"


# The time of an iteration in s, by set-up: on 4 ranks with 64 images each, or one rank with all 256.
SECONDS = {
    rows.ALONE: 2.0,
    rows.TORCH_ALONE: 2.5,
    rows.ROOT: 2.4,
    rows.ALLREDUCE: 2.0,
    rows.RING: 1.6,
    rows.OVERLAP: 1.2,
    rows.NO_AVERAGING: 1.0,
    rows.ZERO_3: 1.8,
    rows.FSDP2: 2.4,
    rows.DDP: 1.5,
    rows.DDP_HOOK: 1.35,
    rows.DDP_NO_OVERLAP: 1.75,
    rows.DDP_NO_SYNC: 1.25,
}


def given(pytorch: bool) -> dict[Case, Time]:
    found = rows.cases_of(4, 64, None, one_node=False, pytorch=pytorch)
    times = {case: Time(SECONDS[case.setup], 0.9, 0.0, SECONDS[case.setup] - 1) for case in found}
    for case in times:
        if case.setup in (rows.DDP, rows.DDP_HOOK, rows.DDP_NO_SYNC):  # their backward pass communicates
            times[case] = Time(SECONDS[case.setup], SECONDS[case.setup] - 0.1, 0.0, 0.0)
    return times


def test_set_ups_are_compared_with_ddp_and_overlap_with_its_own_algorithm() -> None:
    found = {(row.case, row.against): row for row in rows.setup_rows("vgg11", given(True), "hosts")}
    assert found["vgg11/4x64/overlap/hosts", "ddp-gloo"].ratio == pytest.approx(0.8)
    assert found["vgg11/4x64/ddp-hook/ring/hosts", "ddp-gloo"].ratio == pytest.approx(0.9)
    assert found["vgg11/4x64/overlap/hosts", "allreduce"].ratio == pytest.approx(0.6)
    assert found["vgg11/1x256/one-rank/hosts", "torch-one-rank"].ratio == pytest.approx(0.8)
    assert found["vgg11/4x64/zero-3/hosts", "fsdp2"].ratio == pytest.approx(0.75)
    assert found["vgg11/4x64/zero-3/hosts", "overlap"].ratio == pytest.approx(1.5)
    hidden = found["vgg11/4x64/overlap/hosts/hidden", "communication"]
    assert (hidden.ours, hidden.theirs, hidden.ratio) == pytest.approx((400, 600, 2 / 3))  # the ring's, in ms
    assert found["vgg11/4x64/ddp-gloo/hosts/hidden", "communication"].ratio == pytest.approx(0.5)
    assert found["vgg11/4x64/ddp-gloo/hosts/exposed", "iteration"].ours == pytest.approx(250)
    assert list(shares(list(found.values())).values()) == pytest.approx([1] * len(SECONDS))


def test_without_pytorch_there_are_no_rows_of_ddp() -> None:
    found = rows.setup_rows("vgg11", given(False), "hosts")
    assert not any("ddp" in row.case + row.against for row in found)
    assert {row.case for row in found} >= {"vgg11/4x64/overlap/hosts", "vgg11/4x64/overlap/hosts/hidden"}


def test_what_overlap_hides_is_compared_with_the_shorter_of_communication_and_backward_pass() -> None:
    times = given(False)
    (case,) = (case for case in times if case.setup == rows.OVERLAP)
    for backward, hideable in (0.5, 500), (0.7, 600):
        times[case] = replace(times[case], layers=((9, 0.3), (0, 0.3 + backward)))
        (row,) = (row for row in rows.setup_rows("vgg11", times, "hosts") if row.against == "hideable")
        assert (row.ours, row.theirs) == pytest.approx((400, hideable))


def test_nothing_is_said_about_overlap_if_communication_takes_no_time() -> None:
    times = {
        case: Time(1.0, 0.9, 0.0, 0.0) for case in rows.cases_of(2, 8, None, one_node=True, pytorch=False)
    }
    assert not any("hidden" in row.case for row in rows.setup_rows("lenet5", times, "shm"))


@pytest.mark.parametrize(
    ("scaling", "sizes"),
    [("strong", ["1x256", "2x128", "3x85", "4x64"]), ("weak", ["1x64", "2x64", "3x64", "4x64"])],
)
def test_scaling_compares_with_one_rank(scaling: str, sizes: list[str]) -> None:
    found = rows.cases_of(4, 64, scaling, one_node=True, pytorch=True)
    assert [case.size for case in found if case.setup in (rows.ALONE, rows.OVERLAP)] == sizes
    assert {case.batch for case in found} == ({256} if scaling == "strong" else {64, 128, 192, 256})
    one_rank = {rows.ALONE: 1.0, rows.TORCH_ALONE: 2.0}
    times = {case: Time(one_rank.get(case.setup, 0.5), 0.4, 0.0, 0.0) for case in found}
    efficiency = {row.case: row.ratio for row in rows.scaling_rows("vgg11", times, "shm", "strong")}
    speed_up = 2 if scaling == "strong" else 8
    assert efficiency["vgg11/strong/4x64/overlap/shm"] == pytest.approx(speed_up / 4)
    assert efficiency["vgg11/strong/4x64/ddp-gloo/shm"] == pytest.approx(2 * speed_up / 4)


def test_a_prediction_averages_each_bucket_when_it_is_complete_and_the_link_is_free() -> None:
    alone = Time(10.0, 8.0, 0.0, 0.0, ((6, 3.0), (2, 5.0), (0, 8.0)))  # 2 s from its last layer to its end
    buckets = [(6, 9), (2, 6), (0, 2)]
    assert rows.predicted(alone, buckets, lambda nbytes: nbytes / 16) == pytest.approx(10.5)  # 8 bytes late
    # Complete after 3, 5 and 8 s; the link is free after 9, 17 and 21 s.
    assert rows.predicted(alone, buckets, lambda nbytes: nbytes / 2) == pytest.approx(23)
    assert rows.predicted(alone, [(0, 9)], lambda nbytes: nbytes / 16) == pytest.approx(12.25)
    assert rows.predicted(alone, buckets, lambda nbytes: 0.0) == 10.0


def test_strong_scaling_is_predicted_to_one_image_a_rank_from_one_rank_with_the_same_local_batch() -> None:
    cases = [*rows.cases_of(2, 8, "strong", one_node=False, pytorch=True)]
    cases += [Case(rows.OVERLAP, 1, 16 // p) for p in rows.ranks_of(16)]
    assert [case.batch for case in cases[-5:]] == [16, 8, 4, 2, 1]
    # Half a second for any batch, and a second more for 16 images; one layer.
    times = {case: Time(0.5 + case.batch / 16 * (case.p == 1), 0.4, 0.0, 0.0, ((0, 0.3),)) for case in cases}
    links = {rows.HERE: CostModel(1e-3, 1e-9), "1gbit/predicted": CostModel(1e-3, 8e-9)}
    found = {row.case: row for row in rows.prediction_rows("lenet5", times, links)}
    computing = found["lenet5/strong/8x2/no-averaging/1gbit/predicted"]
    assert computing.ours == pytest.approx(16 / 0.625) and computing.theirs == pytest.approx(8 * 16 / 1.5)
    ring = found["lenet5/strong/8x2/ring/1gbit/predicted"]
    assert 16 / ring.ours - 0.625 == pytest.approx(14e-3 + 2 * 7 / 8 * 61_706 * 4 * 8e-9, rel=1e-3)
    halving = found["lenet5/strong/8x2/overlap/halving-doubling/1gbit/predicted"]
    assert ring.ours < halving.ours < computing.ours
    names = "no-averaging", "ring", "overlap"
    measured = [row for row in found.values() if row.against == "predicted"]
    assert [row.case for row in measured] == [f"lenet5/strong/2x8/{name}/hosts" for name in names]
    assert {row.ours for row in measured} == {32}


def test_a_prediction_needs_strong_scaling() -> None:
    done = run_python("-m", "benchmarks", "training", "--predict", "10gbit", code=2)
    assert "--scaling strong" in done.stderr


def test_an_iteration_lasts_from_one_end_to_the_next_and_the_first_step_does_not_count() -> None:
    moments = (0, 9, 9, 9, 10), (11, 14, 15, 17, 18), (18, 23, 24, 26, 28)
    steps = [Step(1, number, 0, *times) for number, times in enumerate(moments, 1)]
    time = Time.of(steps)
    assert time == Time(iteration=9, compute=4, wait=1, exposed=2)
    bucketed = [replace(step, layers=((5, step.begin + step.number), (0, step.ready))) for step in steps]
    assert Time.of(bucketed).layers == ((5, 2.5), (0, 4.0))
    assert Time.of(bucketed).backward == 1.5
    steps[1].gathered(12, 14)  # for its backward pass
    assert Time.of(steps) == Time(iteration=9, compute=3, wait=1, exposed=3)
    assert time.parts == {"compute": 4, "wait": 1, "exposed": 2, "rest": 2}
    assert median([Time(3, 1, 0, 0), Time(1, 0, 0, 0), Time(2, 1, 0, 0), Time(9, 0, 0, 0)]).iteration == 2
