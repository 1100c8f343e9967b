"""A student's own report: a question about their program, a prediction, runs in turn, one page of text.

A report is a folder. `begin` writes the prediction and the frame of the text; `run` runs two forms of the
program in turn, and keeps their times, the interval of their ratio and a figure; `faults` checks what a
machine can check. It cannot check that a sentence is true, and a student who edits the files can deceive it.
`notebook` packs the folder into one file to hand in, and `unpacked` makes a folder of that file again.
"""

from __future__ import annotations

import base64
import json
import math
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

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
NAME = "sixth_report"
NOTEBOOK = f"{NAME}.ipynb"  # the file to hand in
PACKED = "labkit_report"  # where a notebook's metadata hold the files besides the text
LEAST_ROUNDS = 5
MOST_ROUNDS = 1000
MOST_RANKS = 64
MOST_WORDS = 700
MOST_FILE = 1 << 20  # bytes of a packed file: a figure has 30 kB
LEVEL = 0.95
DRAWS = 2000
PREDICTED = "## What I predicted, and why"
OTHERS = "## Other explanations"
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:[.,]\d+)*")
WHOLE = re.compile(r"(?<![\w.,])-?\d+(?![\d.,]*\d)")  # a number without decimal places
ITEM = re.compile(r"^[-*] \S|^\d+\. \S", re.MULTILINE)
FRAME = """\
# {question}

{predicted}

## What I measured

![The time of a step in each round, of both forms of the program](figure.png)

## What it shows

{others}

-
-
"""


class ReportError(Exception):
    """A report cannot be begun, its runs not made, or its files not read."""


class Report(NamedTuple):
    """What the files of a report say."""

    prediction: dict[str, Any]
    runs: dict[str, Any]
    text: str
    is_later: bool  # the prediction was written after the runs, or changed after them
    results: dict[str, Any]  # what follows from the times of the runs


def begin(folder: Path, question: str, forms: tuple[str, str], predicted: tuple[float, float]) -> str:
    """Write the prediction and the frame of the text into a folder; return what to do next.

    `forms` are the options of the program's two forms, also "-n 2" for ranks; `predicted` is the least and
    the largest value that the ratio of their times, second to first, is expected to have. Raise ReportError
    if there is a report.
    """
    if (folder / PREDICTION).exists():
        raise ReportError(f"{folder} has a prediction already: begin another report in another folder")
    if not predicted[0] < predicted[1]:
        raise ReportError(f"expected a smaller and a larger ratio, got {predicted[0]:g} and {predicted[1]:g}")
    for form in forms:
        ranks_and_options(form, 1)
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
            file.write(FRAME.format(question=question, predicted=PREDICTED, others=OTHERS).encode())
    return f"{folder}: your prediction is written. Next: labkit report run {folder}"


def ranks_and_options(form: str, ranks: int) -> tuple[int, list[str]]:
    """Return the ranks and the options of a form of the program: "-n 2 --batch 64" names ranks of its own.

    Raise ReportError if the form cannot be read.
    """
    try:
        options = shlex.split(form)
        if options[:1] == ["-n"]:
            ranks = int(options[1])
            options = options[2:]
    except (ValueError, IndexError):
        ranks = 0
    if not 1 <= ranks <= MOST_RANKS:
        raise ReportError(f"expected options such as '-n 2 --average ring', got {form!r}")
    return ranks, options


def run(folder: Path, program: Path, ranks: int, rounds: int, say: Callable[[str], None]) -> str:
    """Run both forms of the program in turn, and keep times, interval and figure; return a sentence."""
    prediction = json.loads(read_input(folder / PREDICTION))
    began = datetime.now(UTC).isoformat()
    times: list[list[float]] = []
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        pair = [0.0, 0.0]
        for form in order:
            ranks_of_form, options = ranks_and_options(prediction["forms"][form], ranks)
            words = [str(program), *options]
            step = STEP.search(output_on_ranks(ranks_of_form, *words))
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
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.add_subplot()
    for form, hue, marker in zip((0, 1), COLOURS[::2], "os", strict=False):
        label = forms[form] or "no options"
        axes.plot(range(1, len(times) + 1), [pair[form] for pair in times], marker, color=hue, label=label)
    axes.set(xlabel="round", ylabel="a step (ms)", ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend()
    content = BytesIO()
    figure.savefig(content, format="png", dpi=120)
    return content.getvalue()


def read(folder: Path) -> Report:
    """Return what the files of a report say. Raise ReportError if one is missing or damaged."""
    try:
        prediction = json.loads(read_input(folder / PREDICTION))
        runs = json.loads(read_input(folder / RUNS))
        text = read_input(folder / TEXT).decode(errors="replace")
        began = datetime.fromisoformat(runs["began"])
        is_later = datetime.fromisoformat(prediction["written"]) >= began
        is_whole = _are_numbers(prediction["predicted"], 2)
        is_whole = is_whole and _are_texts([prediction["question"], *prediction["forms"]], 3)
        is_whole = is_whole and 1 <= len(runs["times_ms"]) <= MOST_ROUNDS
        is_whole = is_whole and all(_are_numbers(pair, 2) and min(pair) > 0 for pair in runs["times_ms"])
        if not is_whole:
            raise ValueError
        results = _results(runs["times_ms"])
    except OSError as error:
        name = Path(str(error.filename)).name
        raise ReportError(f"{name} is missing: `labkit report` begin and run make it") from None
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError):
        raise ReportError(f"{PREDICTION} or {RUNS} is damaged") from None
    is_later = is_later or runs.get("prediction") != _hash(folder / PREDICTION)
    return Report(prediction, runs, text, is_later, results)


def _are_numbers(value: Any, count: int) -> bool:
    """Tell whether a value from a file is a list of so many finite numbers."""
    is_list = isinstance(value, list) and len(value) == count
    return is_list and all(isinstance(number, int | float) and math.isfinite(number) for number in value)


def _are_texts(values: list[Any], count: int) -> bool:
    return len(values) == count and all(isinstance(value, str) for value in values)


def faults(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a report, as far as a machine can tell."""
    try:
        report = read(folder)
    except ReportError as error:
        yield str(error)
        return
    runs, text = report.runs, report.text
    if report.is_later:
        yield "the prediction is not older than the runs: it was written, or changed, after them"
    rounds = len(runs["times_ms"])
    if rounds < LEAST_ROUNDS:
        yield f"there are {counted(rounds, 'round')}: an interval needs {LEAST_ROUNDS} or more"
    if any(not _is_same(runs.get(name), value) for name, value in report.results.items()):
        yield "medians, ratio or interval are not those of the times"
    if not (folder / FIGURE).exists() or runs.get("figure") != _hash(folder / FIGURE):
        yield f"{FIGURE} is not the one that was drawn from the runs"
    if FIGURE not in text:
        yield f"{TEXT} does not show {FIGURE}"
    for number in invented(text, report):
        yield f"{number} stands in no record: a number in the text must be measured, predicted or counted"
    words = len(text.split())
    if words > MOST_WORDS:
        yield f"the text has {words} words: one page has {MOST_WORDS}"
    below = text.partition(OTHERS)[2].partition("\n## ")[0]
    if len(ITEM.findall(below)) < 2:
        yield f"below '{OTHERS}', name two other explanations of the numbers, as items of a list"


def _is_same(recorded: Any, value: Any) -> bool:
    """Tell whether a recorded number, or list of numbers, is this one."""
    wanted = value if isinstance(value, list) else [value]
    values = recorded if isinstance(recorded, list) else [recorded]
    return _are_numbers(values, len(wanted)) and bool(np.allclose(values, wanted))


def summary(report: Report) -> str:
    """Return the records of a report in a sentence, for a reader who has not seen the files."""
    low, high = report.results["interval"]
    first, second = report.results["medians_ms"]
    return (
        f"Predicted at {report.prediction['written'][:19]} UTC: "
        f"{report.prediction['predicted'][0]:g} to {report.prediction['predicted'][1]:g}. "
        f"Run at {report.runs['began'][:19]} UTC, {counted(len(report.runs['times_ms']), 'round')}: "
        f"medians {first:.3f} and {second:.3f} ms, ratio {report.results['ratio']:.3f}, "
        f"{100 * LEVEL:.0f} % interval {low:.3f} to {high:.3f}."
    )


def invented(text: str, report: Report) -> list[str]:
    """Return the numbers of a text that no record holds, as the text rounds them.

    Numbers in headings, in `code`, in links and before the items of a list do not count, nor do whole numbers
    in the sections on the prediction and on other explanations: those count messages, or propose runs.
    """
    for heading in (PREDICTED, OTHERS):
        before, same_heading, after = text.partition(heading)
        section, next_heading, rest = after.partition("\n## ")
        text = before + same_heading + WHOLE.sub("", section) + next_heading + rest
    plain = re.sub(r"^#.*$|`[^`]*`|!?\[[^]]*\]\([^)]*\)|^\d+\. ", "", text, flags=re.MULTILINE)
    times, predicted = report.runs["times_ms"], report.prediction["predicted"]
    known = list(_numbers([times, predicted, report.runs.get("ranks"), *report.results.values()]))
    known += [len(times), 2 * len(times), 100 * LEVEL, *prediction_counts(report.prediction)]
    ratios = [report.results["ratio"], *report.results["interval"], *predicted]
    known += [100 * abs(value - 1) for value in ratios] + [100 * value for value in ratios]
    return [number for number in NUMBER.findall(plain) if not _is_known(number, known)]


def prediction_counts(prediction: dict[str, Any]) -> list[float]:
    """Return the numbers in the question and in the options of both forms."""
    words = " ".join([prediction["question"], *prediction["forms"]])
    values = [_value(number) for number in NUMBER.findall(words)]
    return [value for value in values if value is not None]


def _value(number: str) -> float | None:
    """Return the value of a number as a text writes it; None if it is none, such as 1.2.3."""
    try:
        return float(number.replace(",", ""))
    except ValueError:
        return None


def _numbers(value: Any) -> Iterator[float]:
    """Yield the numbers in a list of lists."""
    if isinstance(value, list):
        for member in value:
            yield from _numbers(member)
    elif isinstance(value, int | float):
        yield float(value)


def _is_known(number: str, known: list[float]) -> bool:
    """Tell whether a known value, rounded as the text rounds it, is this number."""
    value, places = _value(number), len(number.replace(",", "").partition(".")[2])
    if value is None:
        return False
    return any(abs(round(known_value, places) - value) < 10.0**-places / 1000 for known_value in known)


def page(folder: Path) -> Path:
    """Write the report as a page to read or to print, with its figure inside; return its path."""
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


def notebook(folder: Path) -> Path:
    """Pack the report into one file to hand in, a notebook with text, figure and records; return its path."""
    import nbformat  # noqa: PLC0415  (slow)

    packed = {name: read_input(folder / name).decode() for name in (PREDICTION, RUNS)}
    content: Any = nbformat.v4.new_notebook(cells=[packed_cell(folder)], metadata={PACKED: packed})
    with atomic_write(folder / NOTEBOOK) as file:
        file.write(f"{nbformat.writes(content)}\n".encode())
    return folder / NOTEBOOK


def packed_cell(folder: Path) -> Any:
    """Return a Markdown cell with the text of a report and, inside, its figure."""
    from nbformat.v4 import new_markdown_cell  # noqa: PLC0415  (slow)

    text = read_input(folder / TEXT).decode(errors="replace")
    figure = base64.b64encode(read_input(folder / FIGURE)).decode()
    cell = new_markdown_cell(text.replace(f"]({FIGURE})", f"](attachment:{FIGURE})"), id="report")
    cell["attachments"] = {FIGURE: {"image/png": figure}}
    return cell


@contextmanager
def unpacked(content: Any) -> Iterator[Path]:
    """Yield a folder with the files of a report, from the notebook that was handed in.

    Raise ReportError if the notebook holds none.
    """
    try:
        packed = {name: content["metadata"][PACKED][name].encode() for name in (PREDICTION, RUNS)}
        (cell,) = [cell for cell in content["cells"] if FIGURE in cell.get("attachments", {})]
        figure = "".join(cell["attachments"][FIGURE]["image/png"])
        packed[FIGURE] = base64.b64decode(figure, validate=True)
        text = "".join(cell["source"])
        packed[TEXT] = text.replace(f"](attachment:{FIGURE})", f"]({FIGURE})").encode()
    except (KeyError, TypeError, AttributeError, ValueError):
        raise ReportError(f"no report is in it: `labkit report check` writes {NOTEBOOK}") from None
    large = [name for name, file in packed.items() if len(file) > MOST_FILE]
    if large:
        raise ReportError(f"{large[0]} has more than {MOST_FILE >> 20} MB")
    with TemporaryDirectory(prefix="labkit-report-") as place:
        for name, file in packed.items():
            Path(place, name).write_bytes(file)
        yield Path(place)


def _hash(path: Path) -> str:
    return sha256(read_input(path)).hexdigest()


def _write(path: Path, content: dict[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(content, indent=1).encode() + b"\n")
