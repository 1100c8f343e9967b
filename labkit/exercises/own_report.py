"""A student's own report: a question about their program, a prediction, runs in turn, one page of text.

A report is a folder. `begin` writes the prediction and the frame of the text; `run` runs two forms of the
program in turn, and keeps their times, the interval of their ratio and a figure; `faults` checks what a
machine can check. It cannot check that a sentence is true, and a student who edits the files can deceive it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from labkit.colours import COLOURS
from labkit.exercises.weeks import STEP, output_on_ranks
from labkit.files import atomic_write, read_input
from labkit.text import counted

PREDICTION, RUNS, TEXT, FIGURE, PAGE = (
    "prediction.json",
    "runs.json",
    "report.md",
    "figure.png",
    "report.html",
)
LEAST_ROUNDS = 5
MOST_WORDS = 700
LEVEL = 0.95
DRAWS = 2000
OTHERS = "## Other explanations"
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:[.,]\d+)*")
ITEM = re.compile(r"^[-*] \S|^\d+\. \S", re.MULTILINE)
FRAME = """\
# {question}

## What I predicted, and why

## What I measured

![The time of a step in each round, of both forms of the program](figure.png)

## What it shows

{others}

-
-
"""


class ReportError(Exception):
    """A report cannot be begun, or its runs not made."""


def begin(folder: Path, question: str, forms: tuple[str, str], predicted: tuple[float, float]) -> str:
    """Write the prediction and the frame of the text into a folder; return what to do next.

    `forms` are the options of the program's two forms; `predicted` is the least and the largest value that
    the ratio of their times, second to first, is expected to have. Raise ReportError if there is a report.
    """
    if (folder / PREDICTION).exists():
        raise ReportError(f"{folder} has a prediction already: begin another report in another folder")
    if not predicted[0] < predicted[1]:
        raise ReportError(f"expected a smaller and a larger ratio, got {predicted[0]:g} and {predicted[1]:g}")
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "question": question,
        "forms": forms,
        "predicted": predicted,
        "written": datetime.now(UTC).isoformat(),
    }
    _write(folder / PREDICTION, content)
    if not (folder / TEXT).exists():
        with atomic_write(folder / TEXT) as file:
            file.write(FRAME.format(question=question, others=OTHERS).encode())
    return f"{folder}: your prediction is written. Next: labkit report run {folder}"


def run(folder: Path, program: Path, ranks: int, rounds: int, say: Callable[[str], None]) -> str:
    """Run both forms of the program in turn, and keep times, interval and figure; return a sentence."""
    prediction = json.loads(read_input(folder / PREDICTION))
    began = datetime.now(UTC).isoformat()
    times: list[list[float]] = []
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        pair = [0.0, 0.0]
        for form in order:
            words = [str(program), *shlex.split(prediction["forms"][form])]
            step = STEP.search(output_on_ranks(ranks, *words))
            if step is None:
                raise ReportError(f"{shlex.join(words)} prints no time of a step")
            pair[form] = float(step[1])
        times.append(pair)
        say(f"round {number + 1} of {rounds}: {pair[0]:.3f} and {pair[1]:.3f} ms")
    content = {
        "began": began,
        "prediction": _hash(folder / PREDICTION),
        "ranks": ranks,
        "times_ms": times,
        **_results(times),
    }
    with atomic_write(folder / FIGURE) as file:
        file.write(_drawn(times, prediction["forms"]))
    _write(folder / RUNS, {**content, "figure": _hash(folder / FIGURE)})
    low, high = content["interval"]
    return (
        f"Medians {content['medians_ms'][0]:.3f} and {content['medians_ms'][1]:.3f} ms; the second takes "
        f"{content['ratio']:.3f} times as long, {100 * LEVEL:.0f} % interval {low:.3f} to {high:.3f}. "
        f"Write {folder / TEXT}, then: labkit report check {folder}"
    )


def _results(times: list[list[float]]) -> dict[str, Any]:
    """Return what follows from the times: medians, ratio, and the bootstrap interval of paired rounds."""
    pairs = np.array(times)
    rows = np.random.default_rng(0).integers(len(pairs), size=(DRAWS, len(pairs)))
    medians = np.median(pairs[rows], axis=1)
    ends = np.quantile(medians[:, 1] / medians[:, 0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    middle = np.median(pairs, axis=0)
    return {
        "medians_ms": [float(value) for value in middle],
        "ratio": float(middle[1] / middle[0]),
        "interval": [float(end) for end in ends],
    }


def _drawn(times: list[list[float]], forms: list[str]) -> bytes:
    from matplotlib.figure import Figure  # noqa: PLC0415  (slow)

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot()
    for form, hue, marker in zip((0, 1), COLOURS[::2], "os", strict=False):
        label = forms[form] or "no options"
        axes.plot(range(1, len(times) + 1), [pair[form] for pair in times], marker, color=hue, label=label)
    axes.set(xlabel="round", ylabel="a step (ms)")
    axes.legend()
    content = BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def faults(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a report, as far as a machine can tell."""
    try:
        prediction = json.loads(read_input(folder / PREDICTION))
        runs = json.loads(read_input(folder / RUNS))
        text = read_input(folder / TEXT).decode(errors="replace")
        times, written, began = runs["times_ms"], prediction["written"], runs["began"]
        results = _results(times)
        is_later = datetime.fromisoformat(written) >= datetime.fromisoformat(began)
    except OSError as error:
        yield f"{Path(str(error.filename)).name} is missing: `labkit report` begin and run make it"
        return
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        yield f"{PREDICTION} or {RUNS} is damaged"
        return
    if is_later or runs.get("prediction") != _hash(folder / PREDICTION):
        yield "the prediction is not older than the runs: it was written, or changed, after them"
    if len(times) < LEAST_ROUNDS:
        yield f"there are {counted(len(times), 'round')}: an interval needs {LEAST_ROUNDS} or more"
    if any(not np.allclose(runs.get(name, np.nan), value) for name, value in results.items()):
        yield "medians, ratio or interval are not those of the times"
    if not (folder / FIGURE).exists() or runs.get("figure") != _hash(folder / FIGURE):
        yield f"{FIGURE} is not the one that was drawn from the runs"
    if FIGURE not in text:
        yield f"{TEXT} does not show {FIGURE}"
    for number in invented(text, prediction, runs):
        yield f"{number} stands in no record: a number in the text must be measured, predicted or counted"
    words = len(text.split())
    if words > MOST_WORDS:
        yield f"the text has {words} words: one page has {MOST_WORDS}"
    below = text.partition(OTHERS)[2].partition("\n## ")[0]
    if len(ITEM.findall(below)) < 2:
        yield f"below '{OTHERS}', name two other explanations of the numbers, as items of a list"


def invented(text: str, prediction: dict[str, Any], runs: dict[str, Any]) -> list[str]:
    """Return the numbers of a text that no record holds, as the text rounds them.

    Numbers in headings, in `code`, in links and before the items of a list do not count.
    """
    plain = re.sub(r"^#.*$|`[^`]*`|!?\[[^]]*\]\([^)]*\)|^\d+\. ", "", text, flags=re.MULTILINE)
    known = list(_numbers({**runs, "predicted": prediction["predicted"]}))
    known += [len(runs["times_ms"]), 2 * len(runs["times_ms"]), 100 * LEVEL, *prediction_counts(prediction)]
    ratios = [runs["ratio"], *runs["interval"], *prediction["predicted"]]
    known += [100 * abs(value - 1) for value in ratios] + [100 * value for value in ratios]
    return [number for number in NUMBER.findall(plain) if not _is_known(number, known)]


def prediction_counts(prediction: dict[str, Any]) -> list[float]:
    """Return the numbers in the question and in the options of both forms."""
    words = " ".join([prediction["question"], *prediction["forms"]])
    return [float(number.replace(",", "")) for number in NUMBER.findall(words)]


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for member in value.values():
            yield from _numbers(member)
    elif isinstance(value, list):
        for member in value:
            yield from _numbers(member)
    elif isinstance(value, int | float):
        yield float(value)


def _is_known(number: str, known: list[float]) -> bool:
    """Tell whether a known value, rounded as the text rounds it, is this number."""
    digits = number.replace(",", "")
    try:
        value, places = float(digits), len(digits.partition(".")[2])
    except ValueError:  # such as 1.2.3
        return False
    return any(abs(round(each, places) - value) < 10.0**-places / 1000 for each in known)


def page(folder: Path) -> Path:
    """Write the report as a page to hand in, with its figure inside; return its path."""
    from nbconvert.exporters import HTMLExporter  # noqa: PLC0415  (slow)
    from nbformat.v4 import new_markdown_cell, new_notebook  # noqa: PLC0415

    cell = new_markdown_cell(read_input(folder / TEXT).decode(errors="replace"))
    exporter = HTMLExporter(embed_images=True)
    html, _ = exporter.from_notebook_node(
        new_notebook(cells=[cell]), {"metadata": {"path": str(folder), "name": "report"}}
    )
    with atomic_write(folder / PAGE) as file:
        file.write(str(html).encode())
    return folder / PAGE


def _hash(path: Path) -> str:
    return sha256(read_input(path)).hexdigest()


def _write(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")
