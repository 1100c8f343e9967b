"""The timeline of a run as a trace file and as a picture."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from labkit.plots import timeline
from labkit.plots.style import COLOURS
from labkit.train.run_record import save_trace
from labkit.train.steps import BucketTimes, Step

P = 3


def steps(count: int = 4) -> list[Step]:
    """Return steps of 10 ms, in which rank r computes 1 + r ms and transfers 2 ms."""
    made = []
    for number in range(1, count + 1):
        for rank in range(P):
            begin = 0.010 * (number - 1)
            times = begin, begin + 0.001 * (1 + rank), begin + 0.004, begin + 0.006, begin + 0.007
            made.append(Step(1, number, rank, *times))
    return made


def test_the_timeline_has_a_row_per_rank_and_names_its_steps() -> None:
    figure = timeline(steps(), "emulated links: 1gbit", first=2, last=3)
    [axes] = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"rank {rank}" for rank in range(P)]
    assert axes.get_title() == "emulated links: 1gbit, steps 2–3"
    assert "ms" in axes.get_xlabel() and axes.get_xlim() == pytest.approx((0, 17))
    bars = [bars for bars in axes.collections if isinstance(bars, PolyCollection)]
    drawn = [path.get_extents() for one in bars for path in one.get_paths()]
    assert len(drawn) == 2 * P * 4
    assert sum(box.width for box in drawn) == pytest.approx(2 * P * 7)
    assert {round(box.y0 + box.height / 2) for box in drawn} == set(range(P))
    assert not {to_hex(one.get_facecolor()[0]).upper() for one in bars} & set(COLOURS)  # of ranks
    with pytest.raises(ValueError, match="no step in 9"):
        timeline(steps(), first=9)


def with_buckets() -> list[Step]:
    """Return the steps with two layers and two buckets in each; the second transfer ends 2 ms after them."""
    made = []
    for step in steps():
        layers = (8, step.begin + 0.0005), (8, step.begin + 0.0007), (0, step.ready)
        transfers = (
            BucketTimes(0, layers[0][1], layers[0][1], step.ready),
            BucketTimes(1, step.ready, step.ready, step.end),
        )
        made.append(replace(step, start=step.ready, layers=layers, transfers=transfers))
    return made


@pytest.mark.parametrize("rows", [("",), ("", ", buckets")])
def test_the_trace_has_the_trace_event_format_and_no_gaps(rows: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    save_trace(path, with_buckets() if rows[1:] else steps(), {"links": "emulated links: 1gbit"})
    assert list(tmp_path.iterdir()) == [path]
    trace = json.loads(path.read_text())
    assert trace["otherData"] == {"links": "emulated links: 1gbit"}
    events = trace["traceEvents"]
    assert all(e["ph"] in "MX" and {"pid", "tid", "name"} <= set(e) for e in events)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    expected = [f"rank {rank}{row}" for rank in range(P) for row in rows]
    assert [names[tid] for tid in sorted(names)] == expected and 0 not in names
    for tid, name in names.items():
        own = [e for e in events if e["ph"] == "X" and e["tid"] == tid]
        if name.endswith("buckets"):
            assert [e["name"] for e in own] == ["bucket 1", "bucket 2"] * 4
            assert all(before["ts"] + before["dur"] <= e["ts"] + 0.01 for before, e in pairwise(own))
            continue
        ends = np.array([e["ts"] + e["dur"] for e in own])
        np.testing.assert_allclose([e["ts"] for e in own][1:], ends[:-1], atol=0.01)
        sums = {what: sum(e["dur"] for e in own if e["name"] == what) for what in ("compute", "wait", "idle")}
        rank, waits = int(name.split()[1]), not rows[1:]
        assert {e["name"] for e in own} == {"compute", "wait", "transfer", "idle"}
        assert sums == pytest.approx(
            {"compute": 4e3 * (2 + rank), "wait": 4e3 * (3 - rank) * waits, "idle": 9e3}
        )
