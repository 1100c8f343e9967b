"""A replay for a notebook: the picture with a stepper, the traffic by rank, and all events as text.

The output is complete without its script: exported pages and GitHub show the picture, the table and the list.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from labkit.colours import colour, ink_on
from labkit.replay.case import CaseNotes
from labkit.replay.compare import Comparison, compare, has_ended_early
from labkit.replay.headlines import headlines, is_explained
from labkit.replay.parts import EXPECTED
from labkit.replay.picture import Picture
from labkit.replay.rounds import price_sentence, schedule_of
from labkit.replay.steps import data_for_script
from labkit.replay.words import cost_sentence, event_lines, notes, plain_error, traffic_rows
from labkit.schedules import Schedule
from labkit.stepper import MAKE_STEPPER
from mpiwatch.trace import Trace

MOST_BYTES = 2 << 20  # of an output
TEXT_LINES = 40  # of the list of events in an output as plain text

STYLE = """
.labkit-replay { color: var(--jp-content-font-color1, inherit); font-size: 13px; max-width: 100%; }
.labkit-replay .picture { overflow-x: auto; }
.labkit-replay svg, .labkit-replay img { display: block; max-width: none; }
.labkit-replay table { border-collapse: collapse; margin: 6px 0; font-size: 12px; }
.labkit-replay th, .labkit-replay td { padding: 2px 8px; text-align: right; border-bottom: 1px solid #8884; }
.labkit-replay tbody td:first-child { white-space: nowrap; }
.labkit-replay .scroll { overflow-x: auto; }
.labkit-replay .beside th, .labkit-replay .beside td { text-align: left; }
.labkit-replay .state { display: flex; flex-wrap: wrap; gap: 4px 24px; margin: 4px 0; }
.labkit-replay pre { margin: 0; font-size: 12px; line-height: 1.45; overflow-x: auto;
    background: none; color: inherit; padding: 0; }
.labkit-replay .rank { display: inline-block; min-width: 1.3em; text-align: center; border-radius: 3px;
    margin-right: 2px; font-weight: bold; }
.labkit-replay pre.report { border-left: 3px solid #D55E00; padding-left: 8px; margin: 6px 0; }
.labkit-replay .notes { opacity: 0.75; font-size: 12px; }
"""

SCRIPT = """
(() => {
    MAKE_STEPPER
    const box = document.currentScript.parentElement;
    const data = JSON.parse(box.querySelector("script[type='application/json']").textContent);
    const scrolled = box.querySelector(".picture");
    const encoded = scrolled.querySelector("img").src.split(",")[1];
    const bytes = Uint8Array.from(atob(encoded), character => character.charCodeAt(0));
    const text = new TextDecoder().decode(bytes);
    const svg = new DOMParser().parseFromString(text, "image/svg+xml").documentElement;
    svg.removeAttribute("style");
    scrolled.replaceChildren(svg);
    const keepInSight = () => {
        const names = svg.querySelector(".names"), legend = svg.querySelector(".legend");
        const left = scrolled.scrollLeft;
        const hidden = Math.max(0, legend.dataset.width - scrolled.clientWidth);  // it can be scrolled, too
        names.setAttribute("transform", `translate(${left})`);
        legend.setAttribute("transform", `translate(${Math.max(0, left - hidden)})`);
    };
    scrolled.addEventListener("scroll", keepInSight);
    const cursor = svg.querySelector(".cursor");
    const state = box.querySelector(".state");
    const make = (tag, name, text) => {
        const element = document.createElement(tag);
        element.className = name;
        element.textContent = text;
        return element;
    };
    const badge = rank => {
        const element = make("span", "rank", rank);
        element.style.background = data.colours[rank];
        element.style.color = data.inks[rank];
        return element;
    };
    const show = step => {
        const lines = Array(data.size).fill(0), texts = Array(data.size).fill("computes");
        const values = Array(data.size).fill("");
        for (const [, rank, line, text, held] of data.steps.slice(0, step)) {
            lines[rank] = line || lines[rank];
            texts[rank] = data.texts[text];
            values[rank] = held < 0 ? values[rank] : data.texts[held];
        }
        const now = step > 0 ? data.steps[step - 1] : null;
        const place = now ? now[0] : -9;
        cursor.setAttribute("x1", place);
        cursor.setAttribute("x2", place);
        const shown = place - scrolled.scrollLeft;
        if (now && (shown < 80 || shown > scrolled.clientWidth - 80)) {
            scrolled.scrollLeft = place - scrolled.clientWidth / 2;
        }
        state.replaceChildren();
        if (data.source.length) {
            const pre = document.createElement("pre");
            data.source.forEach(([number, text], index) => {
                const row = document.createElement("div");
                const marks = [...lines.keys()].filter(rank => lines[rank] == index + 1);
                const left = make("span", "", "");
                left.style.display = "inline-block";
                left.style.minWidth = `${1.5 * Math.min(data.size, 8)}em`;
                marks.forEach(rank => left.append(badge(rank)));
                row.append(left, `${number.padStart(3)}  ${text}`);
                row.style.fontWeight = now && now[2] == index + 1 ? "bold" : "normal";
                pre.append(row);
            });
            state.append(pre);
        }
        const about = document.createElement("div");
        texts.forEach((text, rank) => {
            const row = document.createElement("div");
            row.append(badge(rank), ` ${text}`);
            if (values[rank]) row.append(make("code", "", ` ${values[rank]}`));
            if (now && now[1] == rank) row.style.fontWeight = "bold";
            about.append(row);
        });
        const under_way = data.messages.filter(([first, last]) => first < step && (last < 0 || step <= last));
        const list = under_way.slice(0, 12).map(([, , text]) => text);
        if (under_way.length > 12) list.push(`and ${under_way.length - 12} more`);
        const words = list.length ? `under way: ${list.join("; ")}` : "no message is under way";
        about.append(make("div", "", words));
        state.append(about);
        return now ? `after ${now[5]}: rank ${now[1]} ${data.texts[now[3]]}` : "before the first call";
    };
    const last = data.steps.length;
    if (last) makeStepper(box.querySelector(".steps"), last, "event", show, data.start);
})();
"""


class Replay:
    """What the ranks of a cell did: shows itself in a notebook.

    `source`: the text of the cell. `report`: why it failed, in words; empty if it ended well. `case`: what
    is known of the case that it has run. `cells`: the texts of earlier cells by their numbers, as far as they
    have made the calls.
    """

    def __init__(
        self,
        trace: Trace,
        source: str = "",
        report: str = "",
        case: CaseNotes | None = None,
        cells: Mapping[str, str] | None = None,
    ) -> None:
        self.trace, self.source, self.report = trace, source, report
        self.case, self.cells = case or CaseNotes(), cells or {}

    @property
    def sentence(self) -> str:
        """Return what cost the time, or of a cell that failed, the first line of its report."""
        if self.report:
            return plain_error(self.report.strip().splitlines()[0])
        return cost_sentence(self.trace)

    @property
    def comparison(self) -> Comparison | None:
        """Return how the traffic differs from what was expected; None if that was not recorded."""
        expected = self.trace.part(EXPECTED)
        if expected is None or is_explained(self.trace, self.report, self.case):
            return None
        return compare(self.trace, expected)

    def schedule(self) -> tuple[Schedule, int]:
        """Return what the ranks sent as a schedule, and the bytes of its array: see `rounds.schedule_of`."""
        return schedule_of(self.trace)

    @property
    def notes(self) -> list[str]:
        """Return sentences about the messages as a schedule, and about the recording."""
        price = price_sentence(self.trace)
        if self.case.values or self.case.finding or has_ended_early(self.trace):  # the fault is elsewhere
            price = ""
        return [*filter(None, [price]), *notes(self.trace)]

    def __repr__(self) -> str:
        lines = event_lines(self.trace)
        shown = lines[:TEXT_LINES]
        if len(lines) > len(shown):
            shown.append(f"… and {len(lines) - len(shown)} more lines")
        rows = ["  ".join(cell.rjust(17) for cell in row) for row in traffic_rows(self.trace)]
        comparison = self.comparison
        sentences = headlines(self.trace, self.report, comparison, self.case)
        inputs = [self.case.inputs] if self.case.inputs else []
        parts = [*sentences[:1], *filter(None, [self._rest_of_report]), *sentences[1:], *inputs]
        if comparison is not None:
            table = ["  ".join(cell.ljust(24) for cell in row).rstrip() for row in comparison.rows]
            parts += ["", *table]
        return "\n".join([*parts, "", *rows, "", *shown, "", *self.notes])

    @property
    def _rest_of_report(self) -> str:
        return self.report.strip().partition("\n")[2]

    def _repr_html_(self) -> str:
        """Return the page; the steps, and then the list of events, are left out if it became too large."""
        picture = Picture(self.trace)
        html = self._html(picture)
        if len(html.encode()) > MOST_BYTES:
            html = self._html(picture, with_steps=False)
        if len(html.encode()) > MOST_BYTES:
            html = self._html(picture, with_steps=False, with_events=False)
        return html

    def _html(self, picture: Picture, *, with_steps: bool = True, with_events: bool = True) -> str:
        parts = [f'<div class="labkit-replay"><style>{STYLE}</style>']
        comparison = self.comparison
        sentences = headlines(self.trace, self.report, comparison, self.case)
        parts += [f"<p><strong>{escape(text)}</strong></p>" for text in sentences]
        if self.case.inputs:
            parts.append(f'<p class="inputs">{escape(self.case.inputs)}</p>')
        if comparison is not None and comparison.rows:
            parts.append(_table(comparison.rows, "beside"))
        rest = self._rest_of_report
        if rest:
            parts.append(f'<pre class="report">{escape(rest)}</pre>')
        parts.append(f'<div class="picture">{_image(picture, self.sentence)}</div>')
        if with_steps:
            parts.append('<div class="steps"></div><div class="state"></div>')
        parts.append(_table(traffic_rows(self.trace)))
        parts.append(f'<p class="notes">{escape(" ".join(self.notes))}</p>')
        if with_events:
            items = "".join(f"<li>{escape(line)}</li>" for line in event_lines(self.trace))
            parts.append(f"<details><summary>All events as a list</summary><ol>{items}</ol></details>")
        data = data_for_script(picture, self.source, self.cells) if with_steps else {"steps": []}
        parts.append(_script(picture, data, starts_at_end=bool(self.report)))
        return "\n".join([*parts, "</div>"])


def _table(table: Sequence[Sequence[str]], name: str = "") -> str:
    """Return a table whose first row is its head."""
    head, *rows = table
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    parts = f"<thead><tr>{cells}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll {name}"><table>{parts}</table></div>'


def _image(picture: Picture, words: str) -> str:
    """Return the picture as an image: JupyterLab and GitHub show no SVG of a notebook that they do not trust.

    Where scripts run, the picture itself takes its place, in the colours of the page.
    """
    encoded = base64.b64encode(picture.svg().encode()).decode()
    return f'<img alt="{escape(words)}" src="data:image/svg+xml;base64,{encoded}">'


def _script(picture: Picture, data: dict[str, Any], *, starts_at_end: bool) -> str:
    """Return the script with its data: see `data_for_script`."""
    size = picture.trace.size
    data["start"] = len(data["steps"]) if starts_at_end else 0
    data["colours"] = [colour(rank) for rank in range(size)]
    data["inks"] = [ink_on(colour(rank)) for rank in range(size)]
    encoded = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    script = SCRIPT.replace("MAKE_STEPPER", MAKE_STEPPER)
    return f'<script type="application/json">{encoded}</script>\n<script>{script}</script>'
