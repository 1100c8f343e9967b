"""The colours of ranks: the same in all figures, and distinguishable for colour-blind people."""

from __future__ import annotations

# Source: M. Okabe, K. Ito, Color Universal Design, 2008. Black is reserved for quantities over all ranks.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")


def colour(rank: int) -> str:
    """Return the colour that a rank has in all figures."""
    return COLOURS[rank % len(COLOURS)]


def ink_on(background: str) -> str:
    """Return "white" or "black", whichever is legible on a background such as "#0072B2"."""
    red, green, blue = (int(background[place : place + 2], 16) for place in (1, 3, 5))
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.4 * 255 else "black"
