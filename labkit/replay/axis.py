"""The time axis of a picture: to scale, but stretched where calls follow one another closely."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from labkit.units import approx_time

LEAST_GAP = 9.0  # between two events, in pixels, as long as there is room
MOST_STRETCHED = 0.6  # the largest part of the width that least gaps may take
TICK_PIXELS = 90.0


class Axis:
    """Places times on a picture: each two neighbouring events are a few pixels apart at least."""

    def __init__(self, times: Iterable[float], left: float, width: float) -> None:
        self.times = sorted(set(times))
        self.left, self.width = left, width
        gaps = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        least = min(LEAST_GAP, MOST_STRETCHED * width / max(1, len(gaps)))
        scale = _scale(gaps, least, width)
        self.places = [left]
        for gap in gaps:
            self.places.append(self.places[-1] + max(least, scale * gap))
        self.is_stretched = any(scale * gap < least for gap in gaps)

    def x(self, time_s: float) -> float:
        """Return the place of a time, in pixels; a time outside the recording is at its border."""
        index = bisect_right(self.times, time_s) - 1
        if index < 0:
            return self.places[0]
        if index >= len(self.times) - 1:
            return self.places[-1]
        before, after = self.times[index], self.times[index + 1]
        part = (time_s - before) / (after - before)
        return self.places[index] + part * (self.places[index + 1] - self.places[index])

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and labels of round times since the beginning, as far as there is room."""
        if len(self.times) < 2:
            return []
        duration = self.times[-1] - self.times[0]
        step = _round_step(duration * TICK_PIXELS / self.width)
        ticks: list[tuple[float, str]] = []
        number = 0
        while number * step <= duration * (1 + 1e-9):
            place = self.x(self.times[0] + number * step)
            if not ticks or place - ticks[-1][0] > TICK_PIXELS / 2:
                ticks.append((place, approx_time(number * step) if number else "0"))
            number += 1
        return ticks


def _scale(gaps: list[float], least: float, width: float) -> float:
    """Return the pixels of a second so that all gaps, of `least` pixels at least, take the whole width."""
    rest, room = sum(gaps), width
    scale = room / max(rest, 1e-12)
    for gap in sorted(gaps):
        if gap * scale >= least:
            break
        # This gap is stretched, and the longer ones share what is left.
        rest -= gap
        room -= least
        scale = room / max(rest, 1e-12)
    return scale


def _round_step(seconds: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is not below a time."""
    power = 1e-9
    while power * 5 < seconds:
        power *= 10
    return next(power * factor for factor in (1, 2, 5) if power * factor >= seconds or factor == 5)
