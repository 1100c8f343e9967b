"""The time axis of a picture: to scale, or stretched where calls follow one another closely."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from labkit.units import approx_time

LEAST_GAP = 9.0  # between two events, in pixels, as long as there is room
MOST_STRETCHED = 0.6  # the largest part of the width that least gaps may take
TICK_PIXELS = 90.0


class Axis:
    """Places times on a picture: each two neighbouring events are a few pixels apart at least.

    `to_scale`: equal lengths are equal times everywhere, but events may lie closer together.
    """

    def __init__(self, times: Iterable[float], left: float, width: float, *, to_scale: bool = False) -> None:
        self.times = sorted(set(times))
        self.left, self.width = left, width
        gaps = [after - before for before, after in zip(self.times, self.times[1:], strict=False)]
        least = 0.0 if to_scale else min(LEAST_GAP, MOST_STRETCHED * width / max(1, len(gaps)))
        scale = _scale(gaps, least, width)
        self.places = [left]
        for gap in gaps:
            self.places.append(self.places[-1] + max(least, scale * gap))
        self.is_stretched = any(scale * gap < least for gap in gaps)
        self._stretched_gaps = [scale * gap < least for gap in gaps]

    def stretched(self) -> list[tuple[float, float]]:
        """Return the parts of the axis that are stretched, from left to right."""
        parts: list[tuple[float, float]] = []
        for number, is_stretched in enumerate(self._stretched_gaps):
            left, right = self.places[number], self.places[number + 1]
            if is_stretched and parts and parts[-1][1] > left - LEAST_GAP:
                parts[-1] = parts[-1][0], right
            elif is_stretched:
                parts.append((left, right))
        return parts

    def time_at(self, place: float) -> float:
        """Return the time that is drawn at a place, in pixels."""
        index = max(0, min(bisect_right(self.places, place) - 1, len(self.places) - 2))
        left, right = self.places[index], self.places[index + 1]
        part = (place - left) / max(right - left, 1e-9)
        return self.times[index] + part * (self.times[index + 1] - self.times[index])

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
        """Return places and labels of times since the beginning, at equal distances.

        The times are round where the axis is to scale. On a stretched one, they are what stands there; of
        several that look alike, the first has a label.
        """
        if len(self.times) < 2:
            return []
        if self.is_stretched:
            count = max(1, round(self.width / TICK_PIXELS))
            places = [self.left + number * self.width / count for number in range(count + 1)]
            times = [self.time_at(place) - self.times[0] for place in places]
            labels = ["0", *map(approx_time, times[1:])]
            before = ["", *labels]
            return [
                (place, label if label != last else "")
                for place, label, last in zip(places, labels, before, strict=False)
            ]
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
