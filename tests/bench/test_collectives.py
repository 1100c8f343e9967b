"""`labkit bench collectives`: its output on real ranks, not its times; and what it makes of given times."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from labkit.bench import collectives
from labkit.bench.collectives import Times, busbw, wire_bound
from labkit.bench.rows import Row
from labkit.cli import ranks
from labkit.schedules import ALLREDUCE, CostModel, cost
from tests.conftest import run, run_python, thorough

BENCH = ("-m", "labkit", "bench", "collectives", "--seconds", "0")


@pytest.mark.parametrize("p", [thorough(1), 3])
def test_without_mpiexec_it_starts_ranks_and_prints_rows(p: int) -> None:
    rows = json.loads(run_python(*BENCH, "--json", "--ranks", str(p), "--sizes", "4B,20B,1KiB").stdout)
    assert all(list(row) == ["case", "ours", "against", "theirs", "unit", "ratio"] for row in rows)
    compared = {(row["case"], row["against"]) for row in rows}
    for size in ("4B", "20B", "1KiB"):
        assert {(f"{algorithm}/{size}/p{p}", "mpi-allreduce") for algorithm in ALLREDUCE} <= compared
        assert (f"ring/{size}/p{p}", "hand-written") in compared
        assert {(f"auto/{size}/p{p}", other) for other in ("mpi-allreduce", "best")} <= compared
    for row in rows:
        assert row["ours"] > 0 and row["ratio"] == pytest.approx(row["ours"] / row["theirs"])


def test_under_mpiexec_it_uses_those_ranks(tmp_path: Path) -> None:
    plot = tmp_path / "costs.png"
    done = run(2, *BENCH, "--sizes", "8B,64KiB,128KiB", "--plot", plot)
    assert done.returncode == 0, done.stdout
    # Only long runs print lines about their progress on standard error.
    head, *lines = [line for line in done.stdout.splitlines() if not line.startswith("pass ")]
    assert head.split() == ["size", "algorithm", "time", "algbw", "busbw", "×", "MPI"]
    algorithms = {line.split()[1] for line in lines if line.split()[:1] == ["8B"]}
    assert {
        "mpi-allreduce",
        "hand-written",
        "allgather",
        "gather-scatter",
        "shared-memory",
        "shared-memory-copied",
        "mpi-allgather",
        "auto",
        *ALLREDUCE,
    } <= algorithms
    assert "alpha = " in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG") and list(tmp_path.iterdir()) == [plot]


def test_a_rank_that_it_started_starts_no_ranks_whatever_the_launcher_sets() -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ranks.RANK_VARIABLES}
    done = run_python(*BENCH, "--json", "--sizes", "4B", env={**environment, ranks.STARTED: "1"})
    assert {row["case"].split("/")[2] for row in json.loads(done.stdout)} == {"p1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ranks", "3"), "all 2 ranks: expected 3 ranks (--ranks), got 2 from mpiexec"),
        (("--plot", "nowhere/costs.png"), "there is no such folder"),
    ],
)
def test_wrong_options_are_reported_before_anything_is_measured(
    options: tuple[str, ...], message: str
) -> None:
    done = run(2, *BENCH, "--sizes", "8B", *options)
    assert done.returncode != 0 and message in done.stdout and "algbw" not in done.stdout


MS = 1e-3
TIMES = {
    1024: {"mpi-allreduce": 2 * MS, "hand-written": 4 * MS, "ring": 5 * MS, "tree": 3 * MS},
    2**20: {
        "mpi-allreduce": 8 * MS,
        "hand-written": 5 * MS,
        "gloo": 10 * MS,
        "ring": 4 * MS,
        "tree": 16 * MS,
    },
}


@pytest.mark.parametrize("p", range(1, 9))
def test_busbw_is_the_least_that_each_rank_sends_per_second(p: int) -> None:
    # In a ring, every rank sends 2(p-1) chunks of n/p bytes; here n = 840 bytes in one second.
    assert busbw(840, 1.0, p) == pytest.approx(2 * (p - 1) * 840 / p)
    # So a ring that only sends takes exactly the least time on a link.
    assert wire_bound(840, p, rate := 8 * 1e3) * rate / 8 == pytest.approx(busbw(840, 1.0, p))


def test_rows_compare_every_algorithm_with_the_baselines_that_were_measured() -> None:
    rows = collectives.rows(TIMES, 4, "p4")
    assert rows[:3] == [
        Row("ring/1KiB/p4", 5.0, "mpi-allreduce", 2.0, "ms", 2.5),
        Row("ring/1KiB/p4", 5.0, "hand-written", 4.0, "ms", 1.25),
        Row("tree/1KiB/p4", 3.0, "mpi-allreduce", 2.0, "ms", 1.5),
    ]
    assert [(row.case, row.against, row.ratio) for row in rows[3:]] == [
        ("ring/1MiB/p4", "mpi-allreduce", 0.5),
        ("ring/1MiB/p4", "gloo", 0.4),
        ("ring/1MiB/p4", "hand-written", 0.8),
        ("tree/1MiB/p4", "mpi-allreduce", 2.0),
        ("tree/1MiB/p4", "gloo", 1.6),
    ]


def test_auto_is_compared_with_the_library_and_with_the_best() -> None:
    others = {"mpi-allreduce": 4 * MS, "ring": 3 * MS, "gloo": 2 * MS, "shared-memory-copied": MS}
    rows = collectives.rows({1024: {"auto": 6 * MS, **others}}, 4, "hosts")
    found = {row.against: row.ratio for row in rows if row.case == "auto/1KiB/hosts"}
    assert found == {"mpi-allreduce": 1.5, "gloo": 3.0, "best": 2.0}
    assert not [row for row in rows if row.against == "best" and not row.case.startswith("auto/")]


def test_rows_against_the_least_time_on_a_link() -> None:
    # 1 MiB over 4 ranks at 100 Mbit/s: 1.5 · 2^20 · 8 bits.
    bound = 1.5 * 2**20 * 8 / 100e6 * 1e3
    found = {(row.case, row.against): row for row in collectives.rows(TIMES, 4, "hosts", 100e6)}
    assert found["ring/1MiB/hosts", "wire-bound"].theirs == pytest.approx(bound)
    assert found["ring/1MiB/hosts", "wire-bound"].ratio == pytest.approx(4.0 / bound)
    assert found["ring/1MiB/hosts", "tcp-bound"].theirs == pytest.approx(bound * 1514 / 1448)
    # One rank needs no wire.
    assert all(row.against != "wire-bound" for row in collectives.rows(TIMES, 1, "p1", 100e6))


def test_the_table_sorts_algorithms_by_time_and_shows_bandwidths() -> None:
    lines = [line.split() for line in collectives.table(TIMES, 4).splitlines()]
    assert lines[0] == ["size", "algorithm", "time", "algbw", "busbw", "×", "MPI"]
    assert [line[:2] for line in lines[1:5]] == [
        ["1KiB", "mpi-allreduce"],
        ["1KiB", "tree"],
        ["1KiB", "hand-written"],
        ["1KiB", "ring"],
    ]
    assert lines[5] == ["1MiB", "ring", "4", "ms", "262", "MB/s", "393", "MB/s", "0.50"]
    assert collectives.table(TIMES, 1).splitlines()[-1].split()[-3:] == ["0", "kB/s", "2.00"]


def test_a_cost_model_is_fitted_to_each_schedule_if_there_are_enough_sizes() -> None:
    p, rates = 4, CostModel(20e-6, 1e-9, 0.3e-9)
    times: Times = {
        size: {"mpi-allreduce": 1.0, **{name: cost(make(p), size, rates) for name, make in ALLREDUCE.items()}}
        for size in (1024, 2**14, 2**20)
    }
    sizes, curves = collectives.curves(collectives.fit(times, p), p, list(times))
    assert sizes[0] == 1024 and sizes[-1] == 2**20 and len(sizes) > 50
    for name, make in ALLREDUCE.items():
        assert curves[name] == pytest.approx([cost(make(p), size, rates) for size in sizes], rel=1e-3)
    assert collectives.fit(times, 1) == {} == collectives.fit(dict(list(times.items())[:2]), p)
