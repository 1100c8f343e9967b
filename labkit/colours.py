"""The colours of ranks: the same in all figures, and distinguishable by colour-blind people and in grey."""

from __future__ import annotations

# The hues are those of M. Okabe, K. Ito, Color Universal Design, 2008: blue, orange, green, purple, sky blue,
# vermilion, yellow. They are made darker or lighter so that any two also differ in luminance, by a contrast
# of 1.34 or more: in print without colour, ranks 2 and 3 had the same grey before. Black is reserved for
# quantities over all ranks.
COLOURS = ("#003F65", "#E6A013", "#007655", "#B56B94", "#A3CFF0", "#883900", "#F4EB94")


def colour(rank: int) -> str:
    """Return the colour that a rank has in all figures."""
    return COLOURS[rank % len(COLOURS)]


def ink_on(background: str) -> str:
    """Return "white" or "black", whichever is legible on a background such as "#003F65"."""
    red, green, blue = (int(background[place : place + 2], 16) for place in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.4 * 255 else "black"


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour such as "#003F65": 0 for black, 1 for white (WCAG 2)."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours: 1 if their luminance is equal, 21 for black and white (WCAG 2)."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
