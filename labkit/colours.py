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
