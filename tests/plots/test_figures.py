"""Figures of training, buckets, images and shards: what is drawn, from what data, under which labels."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from labkit import plots, schedules
from labkit.plots import buckets, images, links, sharding, training
from labkit.plots.collectives import before_after
from labkit.plots.schedules import (
    busiest_by_ranks,
    fits,
    times_by_ranks,
    times_on_networks,
    traffic_by_rank,
)
from labkit.plots.style import COLOURS
from labkit.train.steps import Step


def png(figure: Figure) -> bytes:
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=30)
    return picture.getvalue()


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


OF_RANKS: dict[str, Callable[[int], Figure]] = {
    "losses": lambda p: plots.losses([[1.0]] * p, [1.0]),
    "shards": lambda p: sharding.shards({"a": np.arange(20) % p}, (np.arange(20) % p).tolist()),
    "samples_by_step": lambda p: sharding.samples_by_step({"a": (np.arange(20) // 4, np.arange(20) % p)}),
    "label_counts": lambda p: sharding.label_counts({"a": np.ones((p, 3), int)}),
    "before_after": lambda p: before_after("Allgather", [[rank] for rank in range(p)], [range(p)] * p),
    "traffic_by_rank": lambda p: traffic_by_rank(
        {"ring": schedules.count_traffic(schedules.ring_allreduce(p), 256)}, "values"
    ),
}


@pytest.mark.parametrize("name", OF_RANKS)
@pytest.mark.parametrize("p", [1, 12])
def test_any_number_of_ranks_can_be_drawn(name: str, p: int) -> None:
    assert png(OF_RANKS[name](p)).startswith(b"\x89PNG")


def test_equal_curves_of_traffic_share_a_label() -> None:
    (axes,) = busiest_by_ranks([2, 4], {"a": [2, 6], "b": [2, 4], "c": [2, 6]}, "arrays").axes
    assert texts(axes) == ["a; c", "b"] and len(axes.lines) == 2


def test_the_legend_of_fits_has_their_largest_errors() -> None:
    figure = fits([8, 16], [1e-6, 2e-6], {"line": [1.1e-6, 1.5e-6]})
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["measured", "line: off by up to 25 %"]


def test_a_panel_for_each_network_has_a_curve_for_each_algorithm() -> None:
    times = {"ring": [1e-3, 2e-3], "tree": [2e-3, 3e-3]}
    figure = times_on_networks([1024, 2048], {"a switch": times, "two hosts": times})
    assert [(axes.get_title(), len(axes.lines)) for axes in figure.axes] == [
        ("a switch", 2),
        ("two hosts", 2),
    ]


def test_shards_of_ranks_need_each_sample_once() -> None:
    held = [{"dealt": np.array([0, 2])}, {"dealt": np.array([1])}]
    (axes,) = sharding.shards_of_ranks(held, [7, 8, 9]).axes
    assert {"7", "8", "9"} <= set(texts(axes))
    with pytest.raises(ValueError, match="dealt: expected each of 4 samples on one rank, got 3 in all"):
        sharding.shards_of_ranks(held, [7, 8, 9, 6])


def test_steps_of_ranks_are_drawn_below_those_of_one_rank() -> None:
    used = [{"dealt": [np.array([0]), np.array([2])]}, {"dealt": [np.array([1]), np.array([], int)]}]
    (axes,) = sharding.steps_of_ranks(used, 2).axes
    assert [text for text in texts(axes) if text in "01"] == ["0", "0", "0", "0", "1", "0"]


def test_a_tangent_passes_the_loss_at_zero() -> None:
    values = np.linspace(-2, 2, 5)
    (axes,) = training.tangent_and_chord(values, values**2 + 1, 3.0).axes
    _, tangent, chord, point = axes.lines
    assert tangent.get_ydata().tolist() == [-5, -2, 1, 4, 7]
    assert list(chord.get_ydata()) == [2, 2] and list(point.get_ydata()) == [1]


def test_each_dtype_has_a_curve_of_errors() -> None:
    (axes,) = training.errors_by_step_size([1e-4, 1e-3], {"float64": [1e-9, 1e-8], "float32": [1, 0.1]}).axes
    assert [line.get_label() for line in axes.lines] == ["float64", "float32"]


def test_losses_draws_each_rank_and_all() -> None:
    local = [[3.0, 2.0, 1.0], [1.0, 2.0, 3.0]]
    (axes,) = plots.losses(local, [2.0, 1.9, 1.8]).axes
    assert [line.get_label() for line in axes.lines] == ["rank 0", "rank 1", "all ranks"]
    assert axes.lines[1].get_xdata().tolist() == [1, 2, 3] and list(axes.lines[1].get_ydata()) == local[1]
    assert len({line.get_color() for line in axes.lines}) == 3
    assert axes.get_xlabel() == "Epoch" and "Loss" in axes.get_ylabel()


def test_losses_that_are_not_finite_leave_a_gap_and_a_narrow_range_can_be_read() -> None:
    runs = {"root": [2.0, 6.0], "ring": [2.0, 3.0]}
    figure = training.losses_by_step({"sum": {"p = 4": [2.0, np.inf, np.nan]}, "mean": runs})
    assert png(figure)
    first, second = figure.axes
    assert list(first.lines[0].get_xdata()) == [1, 2, 3] and first.get_yscale() == "log"
    assert {line.get_label(): list(line.get_ydata()) for line in second.lines} == runs
    axes = training.losses_by_step({"one": {"a": [2.3, 0.7]}}).axes[0]
    low, high = axes.get_ylim()
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 4 and axes.get_title() == ""


def test_gradients_add_up_over_time() -> None:
    layers = ["dense", "conv2", "conv1"]
    over_time, shares = buckets.gradients_over_time(layers, [0.01, 0.02, 0.1], [512, 1024, 512]).axes
    assert list(over_time.lines[1].get_ydata()) == [0.5, 1.5, 2.0]
    np.testing.assert_allclose(over_time.lines[1].get_xdata(), [10, 20, 100])
    assert texts(over_time) == layers
    assert texts(shares) == ["25", "50", "25", "10", "10", "80"]  # of the bytes, of the time


def test_the_memory_of_a_step_is_drawn_over_time_with_its_peak() -> None:
    step = [0, 0.1, 0.2], [12, 16.4, 12], 0.1, 0.15
    plain, other = buckets.memory_over_step({"plain": step, "ZeRO-1": step}).axes
    curve, peak = plain.get_lines()
    assert curve.get_xdata() == pytest.approx([0, 100, 200])
    assert set(peak.get_ydata()) == {16.4} and plain.get_title() == "plain\npeak 16.4"
    (shaded,) = (patch.get_extents() for patch in plain.patches)
    ends = plain.transData.inverted().transform([(shaded.x0, 0), (shaded.x1, 0)])[:, 0]
    np.testing.assert_allclose(ends, [100, 150])
    assert plain.get_ylim() == other.get_ylim() and plain.get_xlim() == other.get_xlim()


def test_all_bucket_sizes_near_the_best_are_marked() -> None:
    kib, model_ms = [8, 16, 64, 256, 512, 1024], [9, 3.6, 3, 3.7, 6, 3.5]
    (axes,) = buckets.exposed_by_bucket_size(kib, model_ms, [64], [4], 10).axes
    (marked,) = axes.collections
    ends = sorted((path.vertices[:, 0].min(), path.vertices[:, 0].max()) for path in marked.get_paths())
    assert ends[0] == (16, 256) and ends[-1][1] == 1024, "all ranges, also those beyond a worse size"
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert any("16 to 256 KiB\n1024 to 1024 KiB" in text for text in legend)
    model, measured, whole = axes.lines
    assert list(model.get_ydata()) == model_ms
    assert list(measured.get_ydata()) == [4] and set(whole.get_ydata()) == {10}


def test_the_bound_falls_where_communication_takes_longer() -> None:
    (axes,) = buckets.hidden_by_ratio([0.5, 4], [0.8, 0.2]).axes
    bound, measured = axes.lines
    x, y = bound.get_data()
    np.testing.assert_allclose(y, 100 * np.minimum(1, 1 / x))
    np.testing.assert_allclose(measured.get_ydata(), [80, 20])


def test_images_have_scales_of_their_own_around_zero() -> None:
    small, large = np.array([[0.5, -1.0]]), np.array([[8.0], [2.0]])
    drawn = images.images({"small": small, "large": large}).axes
    titles = [axes.get_title().split("\n") for axes in drawn]
    assert titles == [["small", "values: −1 … 0.5"], ["large", "values: 2 … 8"]]
    assert [axes.images[0].get_clim() for axes in drawn] == [(-1, 1), (-8, 8)]
    assert all("pixels" in axes.get_xlabel() and "pixels" in axes.get_ylabel() for axes in drawn)


def test_shards_colours_every_sample_by_its_rank() -> None:
    (axes,) = sharding.shards({"a": np.array([0, 1, 0]), "b": np.array([1, 1, 0])}, ["x", "y", "z"]).axes
    shown = [to_hex(patch.get_facecolor()).upper() for patch in axes.patches]
    assert shown == [COLOURS[rank] for rank in (0, 1, 0, 1, 1, 0)]
    assert texts(axes) == ["x", "y", "z"] * 2
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a", "b"]


def test_steps_colours_every_sample_by_its_step() -> None:
    (axes,) = sharding.samples_by_step({"one rank": (np.array([0, 0, 1]), np.array([0, 0, 0]))}).axes
    colours = [patch.get_facecolor() for patch in axes.patches]
    assert colours[0] == colours[1] != colours[2]
    assert colours[0][0] < 0.9, "the first step's boxes must stand out from the white background"
    assert texts(axes) == ["0", "0", "0"] and "rank" in axes.get_xlabel()
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["step 0", "step 1"]


def test_label_counts_writes_every_count() -> None:
    table = np.array([[3, 0], [1, 2]])
    first, second = sharding.label_counts({"a": table, "b": table.T}).axes
    assert texts(first) == ["3", "0", "1", "2"] and texts(second) == ["3", "1", "0", "2"]
    assert (first.get_title(), first.get_xlabel(), first.get_ylabel()) == ("a", "Label", "Rank")


def test_pictures_of_many_ranks_can_be_read_and_are_drawn_soon() -> None:
    """Of 64 ranks: a legend with 65 lines covered the curves; the timeline took most of a minute to draw."""
    ranks, steps = 64, 10
    legend = training.losses([[2.0, 1.0]] * ranks, [2.0, 1.0]).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["each of ranks 0–63", "all ranks"]
    moments = [(rank, number) for rank in range(ranks) for number in range(1, steps + 1)]
    many = [Step(1, number, rank, number + 0.0, *[number + 0.5] * 4) for rank, number in moments]
    figure = training.timeline(many)
    (axes,) = figure.axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[:2] == ["rank 0", "rank 8"] and len(names) == 8
    assert figure.get_size_inches()[1] < 12


def test_a_slow_link_is_drawn_with_what_bytes_need_at_least_and_measured_points() -> None:
    simulated, least = {"ring": [0.1, 0.2], "root": [0.3, 0.4]}, {"ring": [0.09, 0.18], "root": [0.1, 0.2]}
    figure = links.times_by_slow_link([1, 8], simulated, least, {"ring": ((1, 8), (0.11, 0.21))})
    assert png(figure)
    (axes,) = figure.axes
    drawn = [line.get_ydata() for line in axes.lines]
    np.testing.assert_allclose(drawn[:5], [[90, 180], [100, 200], [110, 210], [100, 200], [300, 400]])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "8"]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["ring", "root", "simulated", "bytes sent / bandwidth", "measured"]
    assert "measured" not in str(links.times_by_slow_link([1, 8], simulated, least, {}).axes[0].get_legend())


def test_remedies_have_a_bar_and_a_stroke_for_each_seed() -> None:
    times = {"slow link": {"unchanged": [3.0, 2.0, 2.5], "healthy": [1.0, 1.0, 1.0]}}
    (axes,) = links.times_with_remedies(times, "Time (s)").axes
    assert [bar.get_width() for bar in axes.patches] == [2.5, 1.0]
    assert list(axes.lines[0].get_xdata()) == [3.0, 2.0, 2.5]
    assert texts(axes) == ["  2.50 s", "  1.00 s"] and axes.get_title() == "One slow link"


def test_a_bar_is_cut_into_the_parts_of_a_step() -> None:
    rows = {"one rank": {"compute": 8.0}, "four": {"compute": 4.0, "exposed + waiting": 2.0, "rest": 0.125}}
    (axes,) = training.parts_of_a_step(rows).axes
    bars = [(patch.get_x(), patch.get_width(), patch.get_hatch()) for patch in axes.patches]
    assert bars == [(0, 8, None), (0, 4, None), (4, 2, "//"), (6, 0.125, None)]
    assert texts(axes) == ["8", "4", "2"]  # the rest is too narrow for its number
    assert axes.patches[0].get_facecolor() == axes.patches[1].get_facecolor()
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend == ["compute", "exposed + waiting", "rest"]


def test_scaling_shows_what_is_lost_and_what_is_gained() -> None:
    predicted = {"weak": {"slow": [1, 0.5]}, "strong": {"slow": [1, 1.5]}}
    weak, strong = training.scaling([1, 2], predicted, {"weak": [1, 0.4], "strong": [1, 1.2]}).axes
    np.testing.assert_allclose(weak.lines[0].get_ydata(), [np.nan, 50])
    np.testing.assert_allclose(weak.lines[1].get_ydata(), [np.nan, 60])
    assert [list(line.get_ydata()) for line in strong.lines] == [[1, 1.5], [1, 1.2], [1, 2]]


def test_times_by_ranks_are_predicted_beyond_those_that_were_measured() -> None:
    times = {"4 KiB": {"ring": ([1e-3, 4e-3], [2e-3])}, "1 MiB": {"ring": ([1e-2, 4e-2], [2e-2])}}
    small, large = times_by_ranks([2, 64], times, measured_on=2).axes
    assert [list(line.get_ydata()) for line in small.lines[:2]] == [[1, 4], [2]]
    assert [list(line.get_ydata()) for line in large.lines[:2]] == [[10, 40], [20]]
    assert small.get_title() == "All-reduce of 4 KiB" and list(small.lines[1].get_xdata()) == [2]
