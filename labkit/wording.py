"""Phrases that messages share."""

from __future__ import annotations

from collections.abc import Collection


def counted(number: int, noun: str) -> str:
    """Return `1 rank`, `2 ranks`, `0 ranks`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def ranks_phrase(ranks: Collection[int], size: int | None = None) -> str:
    """Return `rank 2`, `ranks 0, 1, 5` or `ranks 0–3, 5`; with `size`, `all 4 ranks` if these are all."""
    if size is not None and len(ranks) == size > 1:
        return f"all {size} ranks"
    texts: list[str] = []
    for run in runs(ranks):
        texts += [f"{run[0]}–{run[-1]}"] if len(run) > 2 else map(str, run)
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(texts)


def runs(numbers: Collection[int]) -> list[list[int]]:
    """Return the numbers in ascending order, each run of consecutive numbers as a list of its own."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def duration(seconds: float) -> str:
    """Return a time in whole seconds: `34 s`, `2 min 5 s`, `1 h 0 min`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minute} min"
    return f"{minutes} min {second} s" if minutes else f"{second} s"
