"""The ranks' colours: any two can be told apart, also in grey and by colour-blind people."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb

from labkit.colours import COLOURS, ink_on
from labkit.plots import losses

# What people without the pigment for medium wavelengths see, in linear RGB: G. M. Machado et al., A
# Physiologically-based Model for Simulation of Color Vision Deficiency, 2009.
DEUTERANOPIA = [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
]


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as "#003F65": 0 for black, 1 for white (WCAG 2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours: 1 if their luminance is equal, 21 for black and white (WCAG 2)."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def as_deuteranopes_see_it(colour: str) -> str:
    values = np.array(to_rgb(colour))
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    seen = np.clip(DEUTERANOPIA @ linear, 0, 1)
    return to_hex(np.where(seen <= 0.0031308, 12.92 * seen, 1.055 * seen ** (1 / 2.4) - 0.055))


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert luminance("#FFFFFF") == pytest.approx(1)
    assert contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(range(len(COLOURS)), 2)])
def test_two_ranks_differ_in_grey(one: int, other: int) -> None:
    assert contrast(COLOURS[one], COLOURS[other]) >= 1.34


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(range(4), 2)])
def test_the_first_four_ranks_differ_in_luminance_for_deuteranopes(one: int, other: int) -> None:
    assert contrast(*(as_deuteranopes_see_it(COLOURS[rank]) for rank in (one, other))) >= 1.34


@pytest.mark.parametrize("colour", COLOURS)
def test_text_on_each_colour_is_legible(colour: str) -> None:
    assert contrast(colour, {"white": "#FFFFFF", "black": "#000000"}[ink_on(colour)]) >= 4.5


def test_the_curves_of_ranks_differ_in_lines_and_markers() -> None:
    lines = losses([[1.0, 0.5]] * 4, [1.0, 0.5]).axes[0].get_lines()
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines[:4]}) == 4
