"""The page that `labkit lab` opens: the notebooks in their order, what is done, and where to go on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

from labkit.checks.exercise import ORIGINALS, Exercise
from labkit.exercises.record import Progress, progress
from labkit.files import atomic_write

NAME = "START.md"
CORE = "00", "01", "03", "04", "05", "06"
CLOSES_CORE = "11"
SENTENCES = {
    "00": "Meet ranks, `%%px`, messages and collectives, and read the report of a hang.",
    "01": "Write an MLP's gradient, check it, and train on all ranks.",
    "02": "Write convolution, pooling and batch norm.",
    "03": "Decide which rank trains on which samples, and see what a bad choice costs.",
    "04": "Average gradients by all-gather, root and tree, and predict what each costs.",
    "05": "Write the ring all-reduce, by hand and as a schedule, and find out when it pays off.",
    "06": "Measure whether a rank or a link is slow, and write the remedies.",
    "07": "Average while the backward pass still runs; shard the optimiser.",
    "07b": "Shard gradients and parameters: ZeRO-2 and ZeRO-3 (FSDP).",
    "08": "Train convolutional networks: momentum, gradient accumulation, learning rate.",
    "09": "Take a job to a cluster, and predict what 256 ranks gain.",
    "10": "Test the claims of five students' reports with numbers.",
    "11": "Find the hidden fault of a job with probes of your own, and repair it.",
}
MINUTES = re.compile(r"Time: about (\d+) minutes")
CORE_MINUTES = re.compile(r"(\d+) on the core path")


@dataclass(frozen=True)
class Entry:
    """A notebook on the page. `minutes`: those of a first reading, on the core path if it is part of it."""

    number: str
    file: str
    title: str
    minutes: int


@cache
def entries() -> dict[str, Entry]:
    """Return the notebooks by number, in their order, as their first cells describe them."""
    by_number = {}
    for path in sorted(ORIGINALS.glob("*.ipynb")):
        number = path.name.partition("_")[0]
        if number not in SENTENCES or number in by_number:  # a file of the student's, or a duplicate
            continue
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"]
        whole = " ".join(" ".join(texts).split())
        time = MINUTES.search(whole)
        on_core_path = CORE_MINUTES.search(whole)
        shown = on_core_path or time
        minutes = int(shown[1]) if shown else 0
        by_number[number] = Entry(number, path.name, texts[0].splitlines()[0].lstrip("# "), minutes)
    return by_number


def text(known: Progress, now: datetime) -> str:
    """Return the page as Markdown."""
    by_notebook: dict[str, list[Exercise]] = {number: [] for number in entries()}
    for exercise in known.exercises:
        by_notebook.get(exercise.notebook, []).append(exercise)
    optional = [number for number in entries() if number not in CORE]
    core = [number for number in CORE if number in entries()]
    following = _next([exercise for number in core for exercise in by_notebook[number]], known.states)
    lines = ["# Allreduce Lab", "", *_beginning(following, known), "", *_short_path(), "## The core path", ""]
    for place, number in enumerate(core, 1):
        lines.append(f"{place}. {_item(entries()[number], by_notebook[number], known.states)}")
    lines += ["", "## Optional notebooks", ""]
    for number in optional:
        lines.append(f"- {_item(entries()[number], by_notebook[number], known.states)}")
    lines += [
        "",
        "06, 07 and 11 need 05; 07b and 08 need 07; 09 and 10 need 08. "
        f"{CLOSES_CORE} closes the core path, for those who want it.",
        "",
        f"This page shows what was done on {now:%d %B at %H:%M}. It is written anew after each check: "
        "close and open it to see that. `progress()` in a cell lists all exercises.",
    ]
    return "\n".join(lines) + "\n"


def _beginning(following: Exercise | None, known: Progress) -> Iterator[str]:
    """Yield the lines that say where to begin or to go on."""
    first = next(iter(entries().values()))
    if not any(known.states.get(exercise.name) for exercise in known.exercises):
        yield f"**Begin here: [{first.title}]({first.file}).** You need no knowledge of MPI."
    elif following is None:
        yield "**The core path is done.**"
    else:
        notebook = entries()[following.notebook]
        task = f"[{following.heading.title}]({following.heading.link})"
        yield f"**Next: {task}** in [{notebook.title}]({notebook.file})."
    yield ""
    yield f"Done: {known.summary()}."


def _short_path() -> Iterator[str]:
    """Yield the lines about a first taste of two hours, if both of its notebooks are there."""
    if {"00", "01"} <= entries().keys():
        first, second = entries()["00"], entries()["01"]
        yield (
            f"**Only two hours?** Read sections 1, 3, 4 and 5 of [{first.title}]({first.file}); of exercise "
            f"0.3, only run the cells. In [{second.title}]({second.file}), select the heading of section 7, "
            "choose *Run > Run All Above Selected Cell*, and read sections 7 and 8. `collect`, near its end, "
            "writes a training program with your functions and runs it."
        )
        yield ""


def _item(entry: Entry, exercises: Sequence[Exercise], states: Mapping[str, str]) -> str:
    """Return the text of a notebook's item: its state, link, minutes and sentence, and its next exercise."""
    done = sum(states.get(exercise.name) == "done" for exercise in exercises)
    core = (
        [exercise for exercise in exercises if exercise.heading.on_core_path]
        if entry.number in CORE
        else exercises
    )
    is_begun = any(states.get(exercise.name) for exercise in exercises)
    following = _next(core, states)
    title = f"[{entry.title}]({entry.file})"
    state = ""
    if exercises and following is None:
        state = " **✔ done**"
    elif is_begun:
        state = " **… begun**"
    parts = [f"{title}{state} · about {entry.minutes} minutes"]
    if exercises:
        parts[0] += f" · {done} of {len(exercises)} exercises"
    parts.append(SENTENCES[entry.number])
    if is_begun and following is not None:
        parts.append(f"Next: [{following.heading.title}]({following.heading.link}).")
    return "<br>".join(parts)


def _next(exercises: Sequence[Exercise], states: Mapping[str, str]) -> Exercise | None:
    """Return the first exercise on the core path that is not done; None if all are."""
    rest = (
        exercise
        for exercise in exercises
        if exercise.heading.on_core_path and states.get(exercise.name) != "done"
    )
    return next(rest, None)


def write(folder: Path) -> Path:
    """Write the page into a folder of notebooks; return its path."""
    path = folder / NAME
    with atomic_write(path) as file:
        file.write(text(progress(), datetime.now()).encode())
    return path
