"""The space-time diagram of a recording, as SVG: a line for each rank, and time to the right.

The colours of text and lines are the page's own, so the picture is legible on light and dark pages.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from labkit.colours import colour
from labkit.replay.axis import Axis
from labkit.replay.words import (
    COLLECTIVES,
    RECEIVING,
    cost_sentence,
    event_text,
    failed_receive,
    has_failed,
    is_too_large,
    plain_error,
    short_line,
    values_text,
)
from labkit.text import ranks_phrase
from labkit.units import approx_size, approx_time
from mpiwatch.trace import Collective, Event, Kind, Message, Span, Trace

LEFT, RIGHT, TOP = 64.0, 180.0, 34.0
WIDTH, WIDEST = 900.0, 3000.0
PIXELS_PER_EVENT = 9.0
BAR = 16.0  # the height of what a rank does
LEGEND_ROW = 18.0
LANE = 66.0  # from one rank's line to the next, without requests
REQUEST_HEIGHT = 9.0
MOST_REQUEST_ROWS = 4
CHARACTER, BOLD_CHARACTER = 5.7, 6.1  # the width of a character of a label
BUNDLED_ABOVE = 150  # messages: then those of two ranks that leave at about the same time share an arrow
BUNDLE_PIXELS = 16.0
LEAST_WIDTH = 1.5  # of what a rank does, in pixels
NARROW = 3.0  # pixels: calls and messages that take less cannot be told apart
LONG_WAIT_S = 0.02  # more than the ranks of a cell begin apart
LONG_PART = 0.3  # of the time: so long a wait is what the picture is about
MOST_ARROWS = 1500  # then those that share an arrow may be further apart
STUB = 26.0  # the length of the arrow of a message that nobody has received
STARTS = Kind.START_SEND, Kind.START_RECEIVE, Kind.START_COLLECTIVE
WARNING = "#D55E00"
UNDER_LINE = 'stroke="currentColor" stroke-width="3.2" stroke-opacity="0.45"'
PAPER = "var(--jp-layout-color0, var(--vscode-editor-background, Canvas))"


class Bundle(NamedTuple):
    """Messages from one rank to another that share an arrow."""

    messages: list[Message]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all of them."""
        return sum(max(0, message.nbytes) for message in self.messages)


class Bracket(NamedTuple):
    """The life of a request, from its start to the wait that saw it complete; `end` None: there was none.

    `is_cut`: an error, or a call that never returned, came before any wait could see it complete.
    """

    start: Event
    end: Event | None
    row: int
    is_cut: bool = False

    @property
    def is_faulty(self) -> bool:
        """Return whether the program has forgotten the request."""
        return self.end is None and not self.is_cut


class Label(NamedTuple):
    """Words above a rank's line, and the places between which they stand."""

    words: str
    left: float
    right: float


class Picture:
    """The picture of a recording, with the places of its times."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.spans = {rank: trace.spans(rank) for rank in trace.logs}
        self.messages = [message for message in trace.messages if message.send is not None]
        times = list(_times(trace, self.spans))
        wanted = LEFT + RIGHT + PIXELS_PER_EVENT * len(set(times)) / 0.9
        self.width = min(WIDEST, max(WIDTH, wanted))
        room = self.width - LEFT - RIGHT
        to_scale = is_readable_to_scale(trace, self.spans, room)
        self.axis = Axis(times, LEFT, room, to_scale=to_scale)
        self.brackets = {rank: _brackets(trace, rank, self.axis) for rank in trace.logs}
        rows = max((bracket.row + 1 for of_rank in self.brackets.values() for bracket in of_rank), default=0)
        self.lane = LANE + REQUEST_HEIGHT * rows
        self.height = TOP + trace.size * self.lane + 64 + LEGEND_ROW
        digest = hashlib.sha256(repr((times, self.width)).encode()).hexdigest()
        self.key = f"r{digest[:8]}"  # of the names of patterns: those of two pictures on a page must differ

    def y(self, rank: int) -> float:
        """Return the middle of a rank's line."""
        return TOP + self.lane * rank + 30

    def svg(self) -> str:
        """Return the picture."""
        parts = [
            *self._head(),
            *self._collectives(),
            *self._axis(),
            *(part for rank in range(self.trace.size) for part in self._rank(rank)),
            *(part for rank in self.trace.logs for part in self._backgrounds(rank)),
            *self._arrows(),
            *(part for rank in self.trace.logs for part in self._texts(rank)),  # above all lines
            *self._lost(),  # no label hides what is wrong
            *self._forgotten(),
            *self._names(),
            *self._legend(),
            "</g>",
            f'<line class="cursor" x1="-9" x2="-9" y1="{TOP - 8:.0f}" '
            f'y2="{self.height - 58 - LEGEND_ROW:.0f}" '
            f'stroke="{WARNING}" stroke-width="2"/>',
            "</svg>",
        ]
        return "\n".join(parts)

    def _head(self) -> Iterator[str]:
        words = escape(cost_sentence(self.trace))
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{words}" '
            f'viewBox="0 0 {self.width:.0f} {self.height:.0f}" width="{self.width:.0f}" '
            f'height="{self.height:.0f}" font-family="sans-serif" font-size="11" fill="currentColor" '
            'style="color: #222222; background: #ffffff">'
        )
        yield (
            f'<defs><pattern id="{self.key}t" width="6" height="6" patternUnits="userSpaceOnUse" '
            'patternTransform="rotate(45)"><rect width="2.4" height="6" fill="currentColor"/></pattern>'
            f'<marker id="{self.key}a" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" '
            'markerHeight="8" '
            'markerUnits="userSpaceOnUse" orient="auto"><path d="M0,0.5L10,5L0,9.5z" fill="currentColor"/>'
            "</marker></defs>"
        )
        yield (
            f"<style>.{self.key} .halo{{paint-order:stroke;stroke:{PAPER};stroke-width:3px;"
            f"stroke-linejoin:round}}.{self.key} .background{{fill:{PAPER};opacity:0.8}}"
            # A dark colour on a dark page has an outline.
            f".{self.key} rect[fill^='#']{{stroke:currentColor;stroke-width:0.8;stroke-opacity:0.6}}</style>"
        )
        yield f'<g class="{self.key}">'

    def _axis(self) -> Iterator[str]:
        y = TOP + self.lane * self.trace.size + 6
        faint = 'stroke="currentColor" opacity="0.5"'
        yield f'<line x1="{LEFT}" x2="{self.width - RIGHT}" y1="{y}" y2="{y}" {faint}/>'
        for left, right in self.axis.stretched():
            yield (
                f'<line class="stretched" x1="{left:.1f}" x2="{right:.1f}" y1="{y + 1.5}" y2="{y + 1.5}" '
                'stroke="currentColor" stroke-width="4" opacity="0.3"/>'
            )
        for place, label in self.axis.ticks():
            yield f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{y}" y2="{y + 4}" {faint}/>'
            yield f'<text x="{place:.1f}" y="{y + 15}" text-anchor="middle" opacity="0.75">{label}</text>'
        name, why = "time", ""
        if self.axis.is_stretched:
            name = "time (not to scale where grey)"
            why = "<title>stretched where calls follow one another closely</title>"
        yield f'<text x="{self.width - RIGHT + 10}" y="{y + 4}" opacity="0.75">{name}{why}</text>'

    def _names(self) -> Iterator[str]:
        """Yield the names of the ranks: the page keeps them in sight when the picture is scrolled."""
        yield '<g class="names">'
        for rank in range(self.trace.size):
            at = f'x="8" y="{self.y(rank) + 4}"'
            yield f'<text class="halo" {at} font-weight="bold" font-size="13">rank {rank}</text>'
        yield "</g>"

    def _rank(self, rank: int) -> Iterator[str]:
        y = self.y(rank)
        if rank not in self.spans:
            yield f'<text x="{LEFT}" y="{y + 4}" fill="{WARNING}">no recording</text>'
            return
        for span in self._visible(self.spans[rank]):
            yield from self._span(rank, span)
        for bracket in self.brackets[rank]:
            if not bracket.is_faulty:
                yield from self._bracket(rank, bracket)

    def _visible(self, spans: Sequence[Span]) -> Iterator[Span]:
        """Yield spans that can be seen: of neighbours that are too narrow, the longest stands for all."""
        narrow: list[Span] = []
        for span in spans:
            is_narrow = self.axis.x(span.end_s) - self.axis.x(span.begin_s) < LEAST_WIDTH
            if is_narrow or narrow:
                narrow.append(span)
            if not is_narrow and not narrow:
                yield span
            elif narrow and self.axis.x(span.end_s) - self.axis.x(narrow[0].begin_s) >= LEAST_WIDTH:
                longest = max(narrow, key=lambda candidate: candidate.end_s - candidate.begin_s)
                yield longest._replace(begin_s=narrow[0].begin_s, end_s=span.end_s)
                narrow = []
        if narrow:
            yield narrow[-1]._replace(begin_s=narrow[0].begin_s)

    def _span(self, rank: int, span: Span) -> Iterator[str]:
        y, left, right = self.y(rank), self.axis.x(span.begin_s), self.axis.x(span.end_s)
        if right - left < 0.1:
            return
        title = f"<title>{escape(self._title(rank, span))}</title>"
        if span.what == "compute":
            yield (
                f'<rect x="{left:.1f}" y="{y - BAR / 2}" width="{right - left:.1f}" height="{BAR}" '
                f'fill="{colour(rank)}">{title}</rect>'
            )
        elif span.what == "transfer":
            yield (
                f'<rect x="{left:.1f}" y="{y - BAR / 2}" width="{right - left:.1f}" height="{BAR}" '
                f'fill="url(#{self.key}t)" stroke="currentColor" stroke-width="0.8">{title}</rect>'
            )
        else:
            yield (
                f'<rect x="{left:.1f}" y="{y - BAR / 2}" width="{right - left:.1f}" height="{BAR}" '
                f'fill="transparent">{title}</rect>'
            )
            yield from self._wait(rank, span, left, right)

    def _wait(self, rank: int, span: Span, left: float, right: float) -> Iterator[str]:
        """Yield a dotted line, with room for the ranks that a rank waits for."""
        y, half = self.y(rank), self._half_of_words(span, left, right)
        if half:
            middle = (left + right) / 2
            yield from self._dots(left, middle - half, y)
            yield from self._dots(middle + half, right, y)
        else:
            yield from self._dots(left, right, y)

    @staticmethod
    def _half_of_words(span: Span, left: float, right: float) -> float:
        """Return half of the pixels that the words on a wait take; 0 if there is no room or it has none."""
        if span.what != "wait" or not span.awaited or (span.event is not None and span.event.never_ended):
            return 0.0
        half = CHARACTER * len(f"waits for {ranks_phrase(span.awaited)}") / 2 + 4
        return half if right - left > 2 * half + 12 else 0.0

    def _texts(self, rank: int) -> Iterator[str]:
        """Yield the texts on a rank's line: of its calls, its waits, and how it ended."""
        yield from self._labels(rank)
        y = self.y(rank)
        for span in self._visible(self.spans[rank]):
            left, right = self.axis.x(span.begin_s), self.axis.x(span.end_s)
            who = ranks_phrase(span.awaited) if span.awaited else ""
            if span.what == "wait" and span.event is not None and span.event.never_ended:
                still = f"still waiting for {who}" if who else "still waiting"
                yield self._mark(right, y, still, still)
            elif self._half_of_words(span, left, right):
                yield (
                    f'<text class="halo" x="{(left + right) / 2:.1f}" y="{y + 4}" text-anchor="middle" '
                    f'font-style="italic" pointer-events="none">waits for {who}</text>'
                )
        yield from self._errors(rank)

    def _errors(self, rank: int) -> Iterator[str]:
        """Yield a mark for each error: with its first words if it has ended the rank's program."""
        y, events = self.y(rank), self.trace.logs[rank].events
        ended = {event.error for event in events if event.kind is Kind.RAISED}
        for event in events:
            if (
                not event.error
                or event.end_s is None
                or (event.kind is not Kind.RAISED and event.error in ended)
            ):
                continue
            error = plain_error(event.error)
            words = error if event.kind is Kind.RAISED else error.partition(":")[0]
            yield self._mark(self.axis.x(event.end_s), y, words, f"{error}; {event.line}")

    def _mark(self, place: float, y: float, words: str, title: str) -> str:
        """Return a cross with words, as many as there is room for, and all of them as a title."""
        most = max(8, int((self.width - place - 18) / BOLD_CHARACTER))
        shown = words if len(words) <= most else f"{words[: most - 1]}…"
        about = f"<title>{escape(title)}</title>" if title != shown else ""
        return (
            f'<text class="halo" x="{place + 5:.1f}" y="{y + 4}" fill="{WARNING}" font-weight="bold">'
            f"✕ {escape(shown)}{about}</text>"
        )

    @staticmethod
    def _dots(left: float, right: float, y: float) -> Iterator[str]:
        yield (
            f'<line x1="{left + 2:.1f}" x2="{right:.1f}" y1="{y}" y2="{y}" stroke="currentColor" '
            'stroke-width="2.5" stroke-dasharray="0.1 5.5" stroke-linecap="round" pointer-events="none"/>'
        )

    def _title(self, rank: int, span: Span) -> str:
        took = approx_time(span.end_s - span.begin_s)
        if span.event is None:
            return f"rank {rank} computes for {took}"
        what = "waits" if span.what == "wait" else "transfers"
        awaited = f" for {ranks_phrase(span.awaited)}" if span.awaited else ""
        return f"rank {rank} {what}{awaited} for {took} in {event_text(span.event)}, {span.event.line}"

    def _absences(self, rank: int) -> list[Label]:
        """Return the words on the collectives to which a rank never came, where they do not overlap."""
        labels: list[Label] = []
        words = f"rank {rank} never came"
        for collective in self.trace.collectives:
            if rank not in collective.missing:
                continue
            left = min(self.axis.x(call.begin_s) for call in collective.calls.values()) + 6
            if not labels or left >= labels[-1].right:
                labels.append(Label(words, left, left + BOLD_CHARACTER * len(words) + 6))
        return labels

    def _labels(self, rank: int) -> Iterator[str]:
        """Yield the source lines of a rank's calls where there is room for them."""
        y = self.y(rank) - BAR / 2 - 5
        for label in self._absences(rank):
            at = f'x="{label.left:.1f}" y="{y}"'
            yield f'<text class="halo" {at} fill="{WARNING}" font-weight="bold">{label.words}</text>'
        for label in self._labels_of_calls(rank):
            at = f'x="{label.left:.1f}" y="{y}"'
            yield f'<text {at} font-size="10" opacity="0.85">{escape(label.words)}</text>'

    def _backgrounds(self, rank: int) -> Iterator[str]:
        """Yield what lies behind the labels of a rank's calls: below the arrows, which it must not hide."""
        y = self.y(rank) - BAR / 2 - 14
        for label in self._labels_of_calls(rank):
            at = f'x="{label.left - 1:.1f}" y="{y}"'
            yield f'<rect class="background" {at} width="{label.right - label.left - 4:.1f}" height="11"/>'

    def _labels_of_calls(self, rank: int) -> Iterator[Label]:
        """Yield the source lines of a rank's calls, with their places, where there is room for them."""
        free_from, last = 0.0, ""
        absences = self._absences(rank)
        for event in self.trace.logs[rank].events:
            if event.kind in (Kind.COMPLETE, Kind.CANCELLED, Kind.RAISED):
                continue
            place = self.axis.x(event.begin_s)
            if event.kind in COLLECTIVES:  # beside the mark of its arrival
                place += 7
            text = f"{short_line(event.line)} {event.operation}".strip()
            right = place + CHARACTER * len(text) + 6
            is_free = all(right <= label.left or label.right <= place for label in absences)
            if place >= free_from and text != last and is_free:
                yield Label(text, place, right)
                free_from, last = right, text

    def _bracket(self, rank: int, bracket: Bracket) -> Iterator[str]:
        y = self.y(rank) + BAR / 2 + 4 + REQUEST_HEIGHT * bracket.row
        left = self.axis.x(bracket.start.begin_s)
        about = f"request of {event_text(bracket.start)}, {short_line(bracket.start.line)}"
        if bracket.is_cut:
            right, colour_of_line, dashes, ending = (
                self.trace.end_of(rank),
                colour(rank),
                ' stroke-dasharray="4 3"',
                "h0",
            )
            about += ": the rank had not seen it complete when it failed"
        elif bracket.end is None:
            right, colour_of_line, dashes, ending = (
                self.trace.end_of(rank),
                WARNING,
                ' stroke-dasharray="4 3"',
                "h0",
            )
            about += ": no wait has seen it complete"
        else:
            right, colour_of_line, dashes, ending = bracket.end.begin_s, colour(rank), "", "v-4"
            about += f", complete in {bracket.end.operation}, {short_line(bracket.end.line)}"
        path = f'd="M{left:.1f},{y}v4H{self.axis.x(right):.1f}{ending}" fill="none"'
        if not dashes:
            yield f"<path {path} {UNDER_LINE}/>"
        yield (
            f'<path {path} stroke="{colour_of_line}" stroke-width="2"{dashes}>'
            f"<title>{escape(about)}</title></path>"
        )

    def _collectives(self) -> Iterator[str]:
        free_from: dict[float, float] = defaultdict(float)  # for names of bands, by their height
        for number, collective in enumerate(self.trace.collectives, 1):
            yield from self._band(number, collective)
            name = collective.operation
            if len(collective.members) < self.trace.size:
                name += f" of {ranks_phrase(collective.members)}"
            top = self.y(min(collective.members)) - self.lane / 2 + 2
            left = min(self.axis.x(call.begin_s) for call in collective.calls.values()) + 2
            if left >= free_from[top]:
                at = f'x="{left:.1f}" y="{top:.1f}"'
                yield f'<text class="halo" {at} font-weight="bold">{escape(name)}</text>'
                free_from[top] = left + BOLD_CHARACTER * len(name) + 6

    def _band(self, number: int, collective: Collective) -> Iterator[str]:
        """Yield a band from the first arrival to the last end, with a mark for each rank's arrival."""
        arrivals = {rank: self.axis.x(call.begin_s) for rank, call in collective.calls.items()}
        left, right = min(arrivals.values()), max(arrivals.values())
        for rank, call in collective.calls.items():
            end_s = self.trace.end_of(rank) if call.end_s is None else call.end_s
            right = max(right, self.axis.x(end_s))
        half = self.lane / 2
        for rank in collective.members:
            yield (
                f'<rect x="{left:.1f}" y="{self.y(rank) - half:.1f}" width="{max(2, right - left):.1f}" '
                f'height="{self.lane:.1f}" fill="currentColor" opacity="0.09"/>'
            )
        ranks = sorted(arrivals)
        is_late = len(ranks) > 1 and max(arrivals.values()) - min(arrivals.values()) > 4
        for rank, following in pairwise(collective.members):
            if rank in arrivals and following in arrivals:
                yield (
                    f'<line x1="{arrivals[rank]:.1f}" y1="{self.y(rank)}" x2="{arrivals[following]:.1f}" '
                    f'y2="{self.y(following)}" stroke="currentColor" stroke-width="1.2" opacity="0.55"/>'
                )
        latest = collective.last_arrival.rank
        for rank in ranks:
            size = 5 if rank == latest and is_late else 3
            place, y = arrivals[rank], self.y(rank)
            yield (
                f'<path class="arrival" d="M{place:.1f},{y - size - BAR / 2}l{size},{size}l-{size},{size}'
                f'l-{size},-{size}z" fill="currentColor"><title>rank {rank} arrives in '
                f"{escape(collective.operation)} {number}</title></path>"
            )

    def bundles(self) -> list[Bundle]:
        """Return the messages that share an arrow; if there are few, each has its own."""
        if len(self.messages) <= BUNDLED_ABOVE:
            return [Bundle([message]) for message in self.messages]
        pixels = BUNDLE_PIXELS
        bundles = self._bundles_within(pixels)
        while len(bundles) > MOST_ARROWS and pixels < self.width:
            pixels *= 2
            bundles = self._bundles_within(pixels)
        return bundles

    def _bundles_within(self, pixels: float) -> list[Bundle]:
        """Return the messages in bundles: between two ranks, those that leave so many pixels apart."""
        groups: dict[tuple[int, int, bool, int], list[Message]] = defaultdict(list)
        for message in self.messages:
            assert message.send is not None
            place = round(self.axis.x(message.send.begin_s) / pixels)
            groups[message.source, message.dest, message.arrived_s is None, place].append(message)
        return [Bundle(messages) for messages in groups.values()]

    def _arrows(self) -> Iterator[str]:
        """Yield the arrows of messages that were received."""
        for bundle in self.bundles():
            if bundle.messages[0].arrived_s is not None:
                yield from self._arrow(bundle)

    def _lost(self) -> Iterator[str]:
        """Yield the arrows of messages that were not received."""
        for bundle in self.bundles():
            if bundle.messages[0].arrived_s is None:
                yield from self._arrow(bundle)

    def _forgotten(self) -> Iterator[str]:
        """Yield the requests that no wait has seen complete."""
        for rank, brackets in self.brackets.items():
            for bracket in brackets:
                if bracket.is_faulty:
                    yield from self._bracket(rank, bracket)

    def _arrow(self, bundle: Bundle) -> Iterator[str]:
        message = bundle.messages[0]
        assert message.send is not None
        source, dest = message.source, message.dest
        down = 1 if dest >= source else -1
        begin_y, end_y = self.y(source) + down * BAR / 2, self.y(dest) - down * BAR / 2
        left = self.axis.x(message.send.begin_s)
        width = min(6.0, 1.2 + 0.45 * max(0.0, math.log2(max(1, bundle.nbytes) / 256) / 2))
        title = f"<title>{escape(_message_text(self.trace, bundle))}</title>"
        style = f'fill="none" stroke="currentColor" stroke-width="{width:.1f}"'
        dot = f'<circle cx="{left:.1f}" cy="{begin_y}" r="2.6"/>'
        if message.arrived_s is None:
            tip_x, tip_y = left + STUB, begin_y + down * STUB * 0.6
            path = f"M{left:.1f},{begin_y}L{tip_x:.1f},{tip_y:.1f}"
            ring = f'cx="{tip_x + 3:.1f}" cy="{tip_y + down * 2:.1f}" r="3.5" fill="none"'
            yield (
                f'<g class="lost" color="{WARNING}" fill="{WARNING}">{dot}'
                f'<path d="{path}" {style} stroke-dasharray="4 3">{title}</path>'
                f'<circle {ring} stroke="currentColor"/></g>'
            )
            return
        last = max(m.arrived_s for m in bundle.messages if m.arrived_s is not None)
        right = max(self.axis.x(last), left)
        asked = self.axis.x(message.asked_s) if message.asked_s is not None else left
        marker = f'marker-end="url(#{self.key}a)"'
        if source == dest:
            top = self.y(source) - BAR / 2
            path = f"M{left:.1f},{top}C{left:.1f},{top - 16} {right + 8:.1f},{top - 16} {right + 8:.1f},{top}"
            yield f'<g class="message"><path d="{path}" {style} {marker}>{title}</path></g>'
            return
        parts = [dot]
        if left < asked < right:
            middle = begin_y + (end_y - begin_y) * (asked - left) / (right - left)
            parts.append(
                f'<path d="M{left:.1f},{begin_y}L{asked:.1f},{middle:.1f}" {style} stroke-dasharray="5 4"/>'
            )
            parts.append(
                f'<path d="M{asked:.1f},{middle:.1f}L{right:.1f},{end_y}" {style} {marker}>{title}</path>'
            )
        else:
            parts.append(
                f'<path d="M{left:.1f},{begin_y}L{right:.1f},{end_y}" {style} {marker}>{title}</path>'
            )
        if len(bundle.messages) > 1:
            middle_x, middle_y = (left + right) / 2, (begin_y + end_y) / 2
            at = f'x="{middle_x + 3:.1f}" y="{middle_y:.1f}"'
            parts.append(f'<text class="halo" {at} font-size="10">×{len(bundle.messages)}</text>')
        yield f'<g class="message">{"".join(parts)}</g>'

    def _words_on_lost(self) -> str:
        """Return what the messages are that did not arrive; empty if all have."""
        errors = [failed_receive(self.trace, m) for m in self.messages if m.arrived_s is None]
        if not errors:
            return ""
        if all(map(is_too_large, errors)):
            return "message that was too large for its receive"
        return "message whose receive has failed" if all(errors) else "message that nobody received"

    def _legend(self) -> Iterator[str]:
        """Yield the marks that this picture has, with their meanings."""
        y = self.height - 14
        dots = f'<line x1="0" x2="22" y1="{y - 4}" y2="{y - 4}" stroke="currentColor" stroke-width="2.5" '
        dots += 'stroke-dasharray="0.1 5.5" stroke-linecap="round"/>'
        computes = f'<rect y="{y - 9}" width="22" height="11" fill="{colour(0)}"/>'
        hatched = f'<rect y="{y - 9}" width="22" height="11" fill="url(#{self.key}t)" '
        hatched += 'stroke="currentColor" stroke-width="0.8"/>'
        arrow = f'<path d="M0,{y - 4}h22" stroke="currentColor" stroke-width="1.5" '
        arrow += f'marker-end="url(#{self.key}a)"/>'
        lost = f'<g color="{WARNING}" fill="none" stroke="{WARNING}" stroke-width="2">'
        lost += f'<path d="M0,{y - 4}h15" stroke-dasharray="4 3"/><circle cx="18" cy="{y - 4}" r="3.5"/></g>'
        path = f'<path d="M0,{y - 7}v4h22v-4" fill="none"'
        bracket = f'{path} {UNDER_LINE}/>{path} stroke="{colour(0)}" stroke-width="2"/>'
        never = f'<path d="M0,{y - 7}v4h22" fill="none" stroke="{WARNING}" stroke-width="2" '
        never += 'stroke-dasharray="4 3"/>'
        brackets = [bracket for of_rank in self.brackets.values() for bracket in of_rank]
        is_open = any(bracket.is_faulty for bracket in brackets)
        is_cut = any(bracket.is_cut for bracket in brackets)
        cut = f'<path d="M0,{y - 7}v4h22" fill="none" stroke="{colour(0)}" stroke-width="2" '
        cut += 'stroke-dasharray="4 3"/>'
        lost_words = self._words_on_lost()
        entries = [
            (True, computes, "computes"),
            (True, dots, "waits"),
            (True, hatched, "transfers"),
            (bool(self.messages), arrow, "message (dashed: nobody asks for it yet)"),
            (bool(lost_words), lost, lost_words),
            (len(brackets) > 0, bracket, "request, from its start to its wait"),
            (is_open, never, "request that was never waited for"),
            (is_cut, cut, "request that was not complete when the rank failed"),
            (
                bool(self.trace.collectives),
                f'<path d="M14,{y - 10}l5,5l-5,5l-5,-5z"/>',
                "arrives in a collective (lines join the arrivals)",
            ),
        ]
        x, down = 8.0, -18.0
        yield f'<g class="legend" data-width="{WIDTH:.0f}">'
        for is_used, mark, words in entries:
            width = 28 + CHARACTER * len(words) + 16
            if not is_used:
                continue
            if x + width > WIDTH:  # a second row
                x, down = 8.0, 0.0
            place = f"translate({x:.0f} {down:.0f})"
            yield f'<g transform="{place}">{mark}<text x="28" y="{y}">{words}</text></g>'
            x += width
        yield "</g>"


def _message_text(trace: Trace, bundle: Bundle) -> str:
    """Return what an arrow stands for."""
    first = bundle.messages[0]
    assert first.send is not None
    if len(bundle.messages) > 1:
        link = f"from rank {first.source} to rank {first.dest}"
        return f"{len(bundle.messages)} messages {link}, {approx_size(bundle.nbytes)}"
    size = f", {approx_size(first.nbytes)}" if first.nbytes >= 0 else ""
    values = values_text(first.send)
    text = f"rank {first.source} → rank {first.dest}, tag {first.tag}{size}; {first.send.line}"
    if first.arrived_s is None:
        has_failed_receive = bool(failed_receive(trace, first))
        text += "; its receive has failed" if has_failed_receive else "; no rank has received it"
    return f"{text}; {values}" if values else text


def is_readable_to_scale(trace: Trace, spans: dict[int, list[Span]], pixels: float) -> bool:
    """Return whether an axis of so many pixels can be to scale: most calls and messages are wide enough.

    It can be, too, if a rank waits for another one during a large part of the time: then this is what there
    is to see, and a stretched axis would hide it. How long a hang lasts says nothing.
    """
    duration_s = max(trace.end_s - trace.begin_s, 1e-12)
    for of_rank in spans.values():
        for span in of_rank:
            is_hang = span.event is not None and span.event.never_ended
            is_wait = span.what == "wait" and bool(span.awaited) and not is_hang
            if is_wait and span.end_s - span.begin_s > max(LONG_WAIT_S, LONG_PART * duration_s):
                return True
    lengths = list(_lengths(trace))
    narrow = [length for length in lengths if length * pixels < NARROW * duration_s]
    return len(narrow) <= len(lengths) / 2


def _lengths(trace: Trace) -> Iterator[float]:
    """Yield how long each message, blocking call and request took, in seconds."""
    for message in trace.messages:
        if message.left_s is not None and message.arrived_s is not None:
            yield message.arrived_s - message.left_s
    for rank, log in trace.logs.items():
        completed = {event.request: event for event in log.events if event.kind is Kind.COMPLETE}
        for event in log.events:
            if event.kind in STARTS:
                complete = completed.get(event.request)
                end_s = complete.end_s if complete is not None else None
            elif event.kind in (Kind.SEND, Kind.RECEIVE, Kind.COLLECTIVE, Kind.PROBE):
                end_s = event.end_s
            else:
                continue
            yield (trace.end_of(rank) if end_s is None else end_s) - event.begin_s


def _times(trace: Trace, spans: dict[int, list[Span]]) -> Iterator[float]:
    """Yield the times that a picture keeps apart."""
    yield from (trace.begin_s, trace.end_s)
    for of_rank in spans.values():
        for span in of_rank:
            yield from (span.begin_s, span.end_s)
    for log in trace.logs.values():
        for event in log.events:
            if event.kind in (*RECEIVING, *COLLECTIVES, Kind.START_SEND):
                yield event.begin_s
    for message in trace.messages:
        yield from (time_s for time_s in (message.left_s, message.arrived_s) if time_s is not None)


def _brackets(trace: Trace, rank: int, axis: Axis) -> list[Bracket]:
    """Return the requests of a rank, in rows so that no two overlap; those of too many rows are left out."""
    events: Sequence[Event] = trace.logs[rank].events
    ends = {event.request: event for event in events if event.kind in (Kind.COMPLETE, Kind.CANCELLED)}
    free_from: list[float] = []
    brackets = []
    for event in events:
        if event.kind not in STARTS or not event.request:
            continue
        end = ends.get(event.request)
        left = axis.x(event.begin_s)
        right = axis.x(trace.end_of(rank) if end is None else end.begin_s)
        row = next((row for row, place in enumerate(free_from) if place < left), len(free_from))
        if row >= MOST_REQUEST_ROWS or (end is not None and right - left < LEAST_WIDTH):
            continue
        free_from[row : row + 1] = [right + 3]
        brackets.append(Bracket(event, end, row, is_cut=end is None and has_failed(trace.logs[rank])))
    return brackets
