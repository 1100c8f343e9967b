"""Pictures of communication show what the ranks held, and nothing that they did not hold."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from labkit.plots.collectives import before_after, colour, origins

SIZES = [1, 2, 5, 15]


def chunks(rank, count):
    return (np.arange(count) % 9 + 1) * 10**rank


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def fills(figure):
    """Return the colours of all filled rectangles as drawn, without the swatches at the ranks' names."""
    patches = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle) and patch.get_fill()]
    return [to_hex(patch.get_facecolor()).upper() for patch in patches if patch.get_height() > 0.25]


@pytest.mark.parametrize("p", SIZES)
def test_allgather_shows_each_ranks_values_in_its_colour(p):
    before = [chunks(rank, 1) for rank in range(p)]
    figure = before_after("Allgather", before, [np.concatenate(before)] * p, "Allgather")
    colours = [colour(rank) for rank in range(p)]
    assert fills(figure) == colours + colours * p
    assert texts(figure).count(str(10 ** (p - 1))) == 1 + p


@pytest.mark.parametrize("p", SIZES)
def test_allreduce_shows_sums_with_the_stripes_of_all_ranks(p):
    before = [chunks(rank, 2) for rank in range(p)]
    figure = before_after("Allreduce", before, [sum(before)] * p)
    stripes = [colour(rank) for rank in range(p)]
    assert fills(figure)[2 * p :] == stripes * 2 * p
    assert ("sum of these ranks' values" in texts(figure)[-1]) == (p > 1)


def test_ranks_may_have_no_buffer_or_buffers_of_unequal_size():
    whole = chunks(0, 5)
    figure = before_after("Scatterv", [whole, None, None], [whole[:2], whole[2:4], whole[4:]])
    assert texts(figure).count("–") == 2
    assert fills(figure) == [colour(0)] * 10
    assert fills(before_after("Barrier", [None, None], [[], None])) == []


def test_zeros_are_white_and_values_of_unknown_origin_are_grey():
    figure = before_after("odd", [[1], [10]], [[0], [12]])
    assert fills(figure) == [colour(0), colour(1), "#FFFFFF", "#BBBBBB"]
    assert "12 ?" in texts(figure)
    assert "grey, ?" in texts(figure)[-1]


OF_THREE = {
    **{3: (0,), 200: (2,), 111: (0, 1, 2), 110: (1, 2), 303: (0, 2), 0: ()},
    **{112: None, 4: None},  # a sum of no ranks, a value of none
}
CANCELS = np.array([[1.2345678], [0.1], [-1.2345677], [-0.0999]], dtype=np.float32)  # nearly
NOISE = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("value", "before", "rank", "made_from"),
    [
        *[(value, [chunks(rank, 3) for rank in range(3)], 0, ranks) for value, ranks in OF_THREE.items()],
        (7, [[7], [7], [5]], 1, (1,)),  # a value that several ranks held counts as the rank's own
        (7, [[7], [7], [5]], 2, (0,)),
        (NOISE[::-1].sum(axis=0)[1], list(NOISE), 0, (0, 1, 2, 3)),  # float32, in any order of adding
        (NOISE.sum(axis=0)[1] * np.float32(1.001), list(NOISE), 0, None),
        (CANCELS.sum(axis=0)[0], list(CANCELS), 0, (0, 1, 2, 3)),
        (10**9 + 1, [[10**9], [3]], 0, None),  # integers are compared exactly
    ],
)
def test_a_value_is_one_ranks_or_a_sum_of_several(value, before, rank, made_from):
    assert origins(value, before, rank) == made_from


def test_sums_keep_their_stripes_in_a_second_call_if_coloured_by_the_first_values():
    first = [chunks(rank, 2) for rank in range(2)]
    sums = [[value] for value in sum(first)]
    figure = before_after("Allgather", sums, [sum(first)] * 2, coloured_by=first)
    assert fills(figure) == [colour(0), colour(1)] * 6
