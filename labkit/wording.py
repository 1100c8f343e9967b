"""Phrases that messages about ranks share."""

from __future__ import annotations

from collections.abc import Collection


def ranks_phrase(ranks: Collection[int], size: int | None = None) -> str:
    """Return `rank 2` or `ranks 0, 1, 3`; with `size`, `all 4 ranks` if these are all of them."""
    if size is not None and len(ranks) == size > 1:
        return f"all {size} ranks"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
