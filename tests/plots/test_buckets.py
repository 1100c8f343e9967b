"""Figures about buckets and overlap: what is drawn, from what data."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from labkit.plots import buckets as plot
from labkit.plots.style import COLOURS

PLAIN = plot.DrawnStep(2, (1.0, 1.2), [(1.2, 1.3), (1.3, 1.6)], [(1.6, 2.0)], 0.4)
OVERLAPPED = PLAIN._replace(transfers=[(1.3, 1.5), (1.5, 1.7)], exposed_s=0.1)


def rendered(figure: Figure) -> Figure:
    figure.savefig(io.BytesIO())
    return figure


def texts(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def bars(axes) -> list[tuple[str, float, float]]:
    """Return the row, the beginning and the end of all bars."""
    boxes = [path.get_extents() for bar in axes.collections for path in bar.get_paths()]
    names = [label.get_text() for label in axes.get_yticklabels()]
    return [(names[round((box.y0 + box.y1) / 2)], round(box.x0, 6), round(box.x1, 6)) for box in boxes]


def test_gradients_add_up_over_time():
    figure = rendered(
        plot.gradients_over_time(["dense", "conv2", "conv1"], [0.01, 0.02, 0.1], [512, 1024, 512])
    )
    over_time, shares = figure.axes
    assert list(over_time.lines[1].get_ydata()) == [0.5, 1.5, 2.0]
    np.testing.assert_allclose(over_time.lines[1].get_xdata(), [10, 20, 100])
    assert texts(over_time) == ["dense", "conv2", "conv1"]
    of_bytes, of_time = ([bar.get_width() for bar in container] for container in shares.containers)
    np.testing.assert_allclose(of_bytes, [25, 50, 25])
    np.testing.assert_allclose(of_time, [10, 10, 80])
    assert texts(shares) == ["25", "50", "25", "10", "10", "80"]


def test_a_step_shows_layers_buckets_and_what_is_exposed():
    steps = {"plain": PLAIN, "overlapped": OVERLAPPED}
    plain, overlapped = rendered(plot.step_timelines(steps, ["dense", "conv"])).axes
    computed = [("rank 2", -200, 0), ("rank 2", 0, 100), ("rank 2", 100, 400)]
    assert bars(plain) == [*computed, ("its link", 400, 800)]
    hidden, half_hidden, exposed = ("its link", 100, 300), ("its link", 300, 400), ("its link", 400, 500)
    assert bars(overlapped) == [*computed, hidden, half_hidden, exposed]
    colours = [bar.get_facecolor()[0].tolist() for bar in overlapped.collections[3:]]
    assert colours[0] == colours[1] != colours[2]
    assert "exposed: 400 ms" in texts(plain) and "exposed: 100 ms" in texts(overlapped)
    assert texts(plain)[:4] == ["forward", "dense", "conv", "1"], "an exposed bucket has its number, too"
    assert texts(overlapped)[3:5] == ["1", "2"], "a bucket that is partly exposed has its number once"
    assert plain.get_xlim() == overlapped.get_xlim()
    assert not {to_hex(bar.get_facecolor()[0]).upper() for bar in overlapped.collections} & set(COLOURS[:5])


def test_the_legend_has_no_hidden_transfer_if_all_are_exposed():
    both = plot.step_timelines({"plain": PLAIN, "overlapped": OVERLAPPED}).legends[0].get_texts()
    alone = plot.step_timelines({"plain": PLAIN}).legends[0].get_texts()
    assert {text.get_text() for text in both} - {text.get_text() for text in alone} == {"link, hidden"}


def test_the_bucket_sizes_around_the_best_are_marked():
    kib, model_ms = [8, 16, 64, 256, 512, 1024], [9, 3.6, 3, 3.7, 6, 3.5]
    (axes,) = rendered(plot.exposed_by_bucket_size(kib, model_ms, [64], [4], 10)).axes
    (marked,) = (patch.get_extents() for patch in axes.patches)
    ends = axes.transData.inverted().transform([(marked.x0, 0), (marked.x1, 0)])[:, 0]
    np.testing.assert_allclose(ends, [16, 256])
    assert any("16 to 256 KiB" in text.get_text() for text in axes.get_legend().get_texts())
    model, measured, whole = axes.lines
    assert list(model.get_ydata()) == model_ms
    assert list(measured.get_ydata()) == [4]
    assert set(whole.get_ydata()) == {10}


def test_the_bound_falls_where_communication_takes_longer():
    (axes,) = rendered(plot.hidden_by_ratio([0.5, 4], [0.8, 0.2])).axes
    bound, measured = axes.lines
    x, y = bound.get_data()
    np.testing.assert_allclose(y[x <= 1], 100)
    np.testing.assert_allclose(y[x > 1], 100 / x[x > 1])
    np.testing.assert_allclose(measured.get_ydata(), [80, 20])
