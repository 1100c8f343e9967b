"""Figures of schedules show what the schedules say, for any number of ranks."""

import re
from itertools import product

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from labkit.colours import colour
from labkit.plots.schedules import step_through, time_by_size, traffic_by_rank
from labkit.schedules import ALLREDUCE, Schedule, contents_by_round, count_traffic, reduce_round


def contributions(image, p):
    """Return which inputs each cell shows, (ranks, chunks, p), from its colours."""
    ranks, stripes, _ = image.shape
    cells = image.reshape(ranks, stripes // p, p, 3)
    return (np.abs(cells - np.array([to_rgb(colour(rank)) for rank in range(p)])) < 1e-9).all(axis=-1)


@pytest.mark.parametrize(("name", "p"), [*product(ALLREDUCE, (2, 5)), ("tree", 8)])  # 8 are crowded
def test_a_round_has_an_arrow_for_each_transfer_and_shows_what_the_ranks_hold(name, p):
    schedule = ALLREDUCE[name](p)
    figures, contents = step_through(schedule).figures, contents_by_round(schedule)
    for figure, round_, held in zip(figures, [(), *schedule], contents, strict=True):
        (axes,) = figure.axes
        arrows = [text for text in axes.texts if hasattr(text, "arrow_patch")]
        words = [text.get_text() for text in axes.texts]
        assert len(arrows) == len(round_)
        assert {str(transfer).split()[1] for transfer in round_} <= set(words)
        thick = sum(patch.get_linewidth() > 1 for patch in axes.patches)
        assert thick == sum(transfer.stop - transfer.first for transfer in round_)
        cells = np.array([contributions(image.get_array(), p)[0] for image in axes.images])
        np.testing.assert_array_equal(cells, held > 0)


def test_an_input_that_is_added_twice_is_black():
    wrong = Schedule("wrong", "allreduce", 2, 1, lambda: iter([reduce_round(0, 1, 0), reduce_round(0, 1, 0)]))
    image = step_through(wrong).figures[2].axes[0].images[1].get_array()
    assert image[0, 0].tolist() == [0, 0, 0] and image[0, 1].tolist() == list(to_rgb(colour(1)))


def test_step_through_has_an_image_with_alt_text_for_each_round():
    """It must be useful without the script: all images are there. tests/browser steps through them."""
    rounds = step_through(ALLREDUCE["ring"](4))
    html = rounds._repr_html_()
    alts = re.findall(r'<img alt="([^"]*)" style="[^"]*" src="data:image/png;base64,[\w+/=]+">', html)
    assert len(alts) == 7 and "http" not in html and " hidden" not in html.partition("<script>")[0]
    assert alts[2] == "ring_allreduce, 4 ranks, round 2 of 6: 0→1 +2  1→2 +3  2→3 +0  3→0 +1"
    assert repr(rounds).splitlines() == alts
    assert len(html) < 1 << 20


def test_traffic_by_rank_stacks_sent_and_received_values():
    counts = {name: count_traffic(make(8), 256) for name, make in ALLREDUCE.items()}
    panels = traffic_by_rank(counts, "values").axes
    for axes, (name, one) in zip(panels, counts.items(), strict=True):
        assert [bar.get_height() for bar in axes.patches] == [*one.sent, *one.received]
        assert axes.get_title() == f"{name}\nbusiest rank: {one.busiest} values"


def test_points_have_the_colour_of_their_curve():
    measured = {"ring": ([4, 64], [1e-6, 2e-3]), "only measured": ([8], [1.0])}
    (axes,) = time_by_size([4, 8, 64], {"root": [1, 2, 3], "ring": [1e-6, 1e-5, 1e-3]}, measured).axes
    root, points, curve, alone = axes.lines
    assert points.get_color() == curve.get_color() != root.get_color() != alone.get_color()
    assert points.get_linestyle() == "None" and list(points.get_xdata()) == [4, 64]
    assert list(curve.get_ydata()) == [1e-6, 1e-5, 1e-3] and axes.get_xscale() == axes.get_yscale() == "log"
    lines = axes.get_legend().get_lines()
    markers = {line.get_label(): line.get_marker() for line in lines[:3]}
    assert markers == {"root": "", "ring": points.get_marker(), "only measured": alone.get_marker()}
    assert [line.get_label() for line in lines[3:]] == ["line: predicted", "marker: measured"]
