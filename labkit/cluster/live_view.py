"""What the ranks of a running `%%px` cell are doing, in a display that is updated and then removed."""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from html import escape
from time import monotonic
from typing import Any
from uuid import uuid4

import ipyparallel as ipp
from IPython.display import clear_output, publish_display_data

from labkit.cluster.adapter import client
from labkit.cluster.ranks import Ranks
from labkit.guard import Guard, note_in_log
from labkit.text import counted, ranks_phrase
from labkit.units import duration
from mpiwatch.report import Activity, RankState

# Set where outputs are compared (nbval). Then show nothing that depends on the load of the machine.
NONINTERACTIVE = os.environ.get("IPP_NONINTERACTIVE", "") not in ("", "0")
AFTER_S = 2.0  # from the cell's start until the view appears
UPDATE_S = 0.5
TURN_S = 0.05  # of the thread that updates the view
AGE_S = 1.0  # of the lines that it shows: ranks note them four times a second
LINE_CHARACTERS = 120
LOOK_BACK_CHARACTERS = 4000  # in what a rank has printed, for its last line
MAX_ROWS = 12  # in each of the two tables
LAST_UPDATE_S = 5.0  # for an update under way to end, before the view is removed
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# A cell that is one `%%px` or `%px`, and no more; comments and other magics may stand above.
ALONE = re.compile(r"([ \t]*(#[^\n]*)?\n|%%[^\n]*\n)*%%px\b|%px\b[^\n]*\Z")


# A browser shows it below a view that nothing replaces: each update restarts the animation that hides it.
# Where there are no animations, as in a notebook that is not trusted, it is shown at once: that view is old.
OLD = """
<style>@keyframes labkit-live { from, to { visibility: hidden; height: 0 } }</style>
<div style="animation: labkit-live 10s">This view is old: the notebook was closed while the cell ran, or
its kernel has ended. If the kernel still runs, <code>%pxresult</code> in a new cell shows the output of the
last cell.</div>
"""
# Shown if the flight recorder is not in this machine's memory.
ELSEWHERE = (
    "The ranks are on other machines, so this view cannot show what they do. A hang is still reported."
)

PRINTED = "Last line printed:"


class LiveView:
    """A display of what each rank does and of the last line that it has printed. It never fails a cell.

    A thread updates it: however long that takes, the notebook notices at once that the cell has ended.
    """

    # What an update does: an error in one of these leaves the display as it was.
    STEPS = "observe", "bundle", "publish"

    def __init__(self, ranks: Ranks, result: ipp.AsyncResult, after_s: float) -> None:
        self.ranks = ranks
        self.result = result
        self.after_s = after_s
        self.display_id = uuid4().hex
        self.began = self.next_update = monotonic()
        self.is_shown = False
        self.doing: dict[int, str] = {}  # by rank
        self.tails: dict[tuple[int, str], str] = {}  # by rank and stream
        self.printed: dict[int, str] = {}  # by rank: the last line
        self.guard = Guard("the live view", note_in_log)
        self.has_ended = threading.Event()
        self.publishing = threading.Lock()

    def start(self) -> None:
        """Begin to update the view."""
        if self.after_s >= 0:
            threading.Thread(target=self.keep_updated, name="labkit-live-view", daemon=True).start()

    def keep_updated(self) -> None:
        """Update the view until the cell has ended, also if the view cannot be removed then."""
        while not self.has_ended.wait(TURN_S) and not self.result.done():
            self.update()

    def update(self) -> None:
        """Show what the ranks are doing now. It can be called often: it acts twice a second."""
        now = monotonic()
        if self.after_s < 0 or now < self.next_update:
            return
        self.next_update = now + UPDATE_S
        self.guard.do("observe", self.observe)
        # A rank whose last line is about to be replaced, as in `check`, says that it takes a while.
        soon = self.after_s == AFTER_S and any(tail.endswith("\r") for tail in self.tails.values())
        if soon or now - self.began >= self.after_s:
            bundle = self.guard.do("bundle", self.bundle, now)
            if bundle is not None:
                with self.publishing:
                    if not self.has_ended.is_set():
                        self.guard.do("publish", self.publish, bundle)

    def publish(self, bundle: dict[str, str]) -> None:
        """Show a state of the view in place of the one before."""
        display = {"display_id": self.display_id}
        publish_display_data(bundle, transient=display, update=self.is_shown)
        self.is_shown = True

    def remove(self, output_follows: bool) -> None:
        """Remove the display: when the next output comes, without flicker, or at once if none follows."""
        self.has_ended.set()
        is_idle = self.publishing.acquire(timeout=LAST_UPDATE_S)
        if is_idle:
            self.publishing.release()
        if self.is_shown:
            clear_output(wait=output_follows)

    def observe(self) -> None:
        for rank, output in client.outputs(self.result).items():
            for name in ("stdout", "stderr"):
                tail = (output[name] or "")[-LOOK_BACK_CHARACTERS:]
                if tail != self.tails.get((rank, name), ""):
                    self.tails[rank, name] = tail
                    self.printed[rank] = last_line(tail)
        seen = {rank: ended(future) for rank, future in client.futures(self.result).items()}
        if not all(seen.values()):
            report = self.ranks.take_snapshot(AGE_S)
            for state in report.ranks if report is not None else ():
                if seen.get(state.rank) == "":  # it takes part in this cell and is not done
                    seen[state.rank] = activity(state)
        for rank, text in seen.items():
            self.doing[rank] = text or self.doing.get(rank, "running")

    def bundle(self, now: float) -> dict[str, str]:
        """Return the view as HTML, in the colours of the page around it, and as text."""
        done = sum(future.done() for future in client.futures(self.result).values())
        title = (
            f"{duration(now - self.began)}, {done} of {counted(len(self.doing), 'rank')} "
            "done. The stop button ends the cell."
        )
        if self.ranks.recorder is None:
            title += f" {ELSEWHERE}"
        texts, parts = [title], [f"<div>{escape(title)}</div>"]
        style = 'style="text-align: left; vertical-align: top; white-space: pre-wrap"'
        for heading, rows in (("", grouped(self.doing)), (PRINTED, grouped(self.printed))):
            if heading and rows:
                texts.append(heading)
                parts.append(f"<div>{escape(heading)}</div>")
            shown = [(ranks_phrase(ranks), text) for ranks, text in rows[:MAX_ROWS]]
            if len(rows) > MAX_ROWS:
                shown.append(("…", f"and {len(rows) - MAX_ROWS} more"))
            parts.append('<table style="margin: 0 0 0.5em 0">')
            for ranks, text in shown:
                texts.append(f"  {ranks}: {text}")
                marked = re.sub("`(.*)`", r"<code>\1</code>", escape(text, quote=False))
                parts.append(f'<tr><th scope="row" {style}>{ranks}</th><td {style}>{marked}</td></tr>')
            parts.append("</table>")
        return {"text/plain": "\n".join(texts), "text/html": "".join([*parts, OLD])}


def grouped(texts: dict[int, str]) -> list[tuple[list[int], str]]:
    groups: dict[str, list[int]] = {}
    for rank in sorted(texts):
        groups.setdefault(texts[rank], []).append(rank)
    return [(ranks, text) for text, ranks in groups.items()]


def ended(future: Any) -> str:
    """Return how a rank has ended the cell; nothing if it has not."""
    if not future.done():
        return ""
    with suppress(Exception):  # a cancelled future has no result
        # ipyparallel returns a rank's exception as a result.
        name = getattr(future.result(), "ename", "")
        if name:
            return f"raised {name}"
    return "done"


def activity(state: RankState) -> str:
    at = f" at {state.place}" if state.place else ""
    if state.activity is Activity.WAITING_IN_COLLECTIVE:
        return f"waiting in {state.calls[-1].operation}{at}"
    if state.message is not None:
        return f"waiting in {state.message.operation}{at}"
    return {
        Activity.IN_MPI_CALL: f"in {state.mpi_call}{at}",
        Activity.RUNNING: at.strip(),
        Activity.NOT_STARTED: "not started",
        Activity.UNRESPONSIVE: f"no response; last seen{at}" if at else "no response",
        Activity.DEAD: "died",
        Activity.UNREACHABLE: "cannot be reached",
    }.get(state.activity, "")


def last_line(text: str) -> str:
    """Return the last line of a text that is not empty, cut if it is long; a carriage return ends one."""
    lines = [line.rstrip() for line in re.split(r"[\r\n]", ANSI.sub("", text))]
    last = next((line for line in reversed(lines) if line), "")
    return last if len(last) <= LINE_CHARACTERS else last[: LINE_CHARACTERS - 1] + "…"


def fills_its_cell(shell: Any) -> bool:
    """Return whether the running cell consists of one `%%px` or `%px`, and prints nothing else.

    Removing a view clears the output of the whole cell. A view that is emptied instead would remain in the
    saved notebook, so a `%px` line among other lines has none.
    """
    if getattr(shell, "kernel", None) is None:
        return False
    code = shell.get_parent().get("content", {}).get("code", "")
    return ALONE.match(code.strip()) is not None
