"""Fill in the numbers of README.md, CHANGELOG.md, docs/instructors.md and the notebooks' first cells.

It also prints where minutes go.

python tools/course_numbers.py

In a plan, the sections to read and the names of exercises, in `code`, are the author's. The minutes behind a
list of exercises are the sum of theirs. The table of notebooks is made as a whole.

The minutes that a notebook's first cell states are those of a first reading, and one rule makes them for all
notebooks (`first_reading`): the minutes that are counted, for words, lines of code, figures, running cells,
verdicts, tickets, and the writing of exercises as their headings state it, times FIRST_READING, rounded up to
five. Thinking, questions and mistakes are in this factor. On the core path, only cells count that are not
marked *not on the core path* or *optional*: a heading marks all cells up to the next heading of its level or
above it, the line below an exercise's heading marks its task, its cell and its check.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from labkit.exercises import catalogue, program

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/instructors.md"
SECONDS = ROOT / "tools/cell_seconds.json"  # measured, by `make times`
NOT_MEASURED_S = 3  # of a cell that is newer than the measurement
CONNECT = "connect"  # the id of the cell that starts the ranks

# Assumptions. Nobody has timed a student: when you have, correct these.
WORDS_A_MINUTE = 160  # of a technical text
WORDS_OF_A_FORMULA = 2  # inside a sentence
FORMULA_S = 15  # on lines of its own
FIGURE_S = 30
CODE_LINE_S = 3
TRIES = 3  # of a check, until the function is correct
# Outside readers estimated a first reading of the twelve notebooks 00 to 10, thinking included: 1.06 to 1.9
# times the minutes that are counted, and 1.5 times in the median.
FIRST_READING = 1.5
VERDICT_MIN, TICKET_MIN = 4, 5  # for a verdict in notebook 10; for a ticket in 11 that is not optional
BOARD_MIN, CLOSE_MIN = 10, 10  # for each notebook; for each session
OPTIONAL = {"my_allreduce"}  # exercises that a notebook's minutes and points leave out
CORE = ["00", "01", "03", "04", "05", "06"]  # the notebooks of the core path; 11 can close it
ANSWER = re.compile(r"answer\(")  # begins a cell in which a student writes sentences
NOT_CORE = re.compile(r"^(###? .*\(|★.* · )(not on the core path|optional)\)?$", re.MULTILINE)

TABLE = re.compile(r"(<!-- notebooks -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
PLAN = re.compile(r"<!-- plan (\w+): (\d+) minutes -->\n\n(.*?)\n\n<!-- end -->", re.DOTALL)
LIST = re.compile(r"((?:`\w+`(?:, )?)+|–) \| \d+ \|")
PART = re.compile(r"\[(\d\d\w?)\]\([^)]*\): ([\d, –]+)")
HEADING = re.compile(r"^##(?:(?P<task>#) Exercise| (?P<number>\d+) · | )")
MINUTES = re.compile(r"(?<=Time: about )\d+(?= minutes)")
CORE_MINUTES = re.compile(r"\d+(?= on the core path)")
TIME = re.compile(
    r"Time:(?:\*\*)? about (?P<all>\d+) minutes(?:, (?P<part>\d+) of them for the (?P<count>\w+) exercises)?"
)
NUMBERS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9}


class Count(NamedTuple):
    """A number in a page: the group of `pattern`, which is there `times` times, and what makes it."""

    page: str
    pattern: str
    value: Callable[[], str]
    times: int = 1


def _exercises() -> str:
    return str(len(catalogue.exercises()))


def _functions_of_the_program() -> str:
    return str(len(program.places()))


def _lines_of_the_program() -> str:
    """Return how many lines the program has if all functions are written, without empty ones."""
    everything = {name: exercise.text for name, exercise in program.places().items()}
    lines = program.program(program.fitting(everything)).splitlines()
    return f"{round(sum(bool(line.strip()) for line in lines), -1):,}"


def _notebooks() -> str:
    return str(len(list(ROOT.glob("notebooks/*.ipynb"))))


def _core_hours() -> str:
    return f"{math.ceil(sum(map(core_minutes, CORE)) / 30) / 2:g}"


def _all_hours() -> str:
    return f"{round(sum(times(path)[0] for path in ROOT.glob('notebooks/*.ipynb')) / 60)}"


COUNTS = (
    Count("README.md", r"up to (\d+) of them", _functions_of_the_program),
    Count("README.md", r"about ([\d,]+) lines", _lines_of_the_program),
    Count("README.md", r"(\d+) functions", _exercises, times=2),
    Count("README.md", r"takes about ([\d.]+) hours", _core_hours),
    Count("README.md", r"all (\d+) notebooks about", _notebooks),
    Count("README.md", r"notebooks about (\d+);", _all_hours),
    Count("CHANGELOG.md", r"In (\d+) exercises", _exercises),
)


class Session(NamedTuple):
    """One row of a plan. `parts` holds, for each notebook, the sections that students read in class.

    The introduction, section "0", belongs to section 1.
    """

    name: str
    parts: dict[str, list[str]]
    in_class: list[str]
    at_home: list[str]


class Minutes(NamedTuple):
    """Where the time of a session goes."""

    board: float
    reading: float
    running: float
    writing: float
    checks: float
    closing: float


class Cell(NamedTuple):
    """A cell of a notebook, or a part of a Markdown cell: below one heading.

    `section` is the number of its section, "0" above the first, empty below the last. `task` is the name of
    the exercise that it belongs to, as its task, stub or check. `is_core`: on the core path.
    """

    id: str
    kind: str  # text, stub, check or code
    section: str
    task: str
    source: str
    figures: int
    is_folded: bool = False
    is_core: bool = True


def with_numbers(page: str) -> str:
    """Return the text of the page with the numbers of the catalogue and the notebooks."""
    minutes = {name: exercise.heading.minutes for name, exercise in catalogue.exercises().items()}

    def counted(found: re.Match[str]) -> str:
        names = re.findall(r"`(\w+)`", found[1])
        return f"{found[1]} | {sum(minutes[name] for name in names)} |"

    page = TABLE.sub(lambda found: found[1] + "\n".join(_rows()) + found[2], page)
    return LIST.sub(counted, page)


def with_counts(page: str, text: str) -> str:
    """Return the text of a page with its counts. Raise ValueError if one is not where it belongs."""
    for count in COUNTS:
        if count.page != page:
            continue
        found = list(re.finditer(count.pattern, text))
        if len(found) != count.times:
            raise ValueError(f"{page}: expected {count.pattern!r} {count.times} times, found {len(found)}")
        for match in reversed(found):
            text = text[: match.start(1)] + count.value() + text[match.end(1) :]
    return text


def sessions(page: str, plan: str) -> list[Session]:
    """Return the sessions of a plan: "one", "six" or "twelve"."""
    found = []
    (text,) = (each[3] for each in PLAN.finditer(page) if each[1] == plan)
    for line in text.splitlines()[2:]:
        name, parts, in_class, _, at_home, _ = line.strip("| ").split(" | ")
        found.append(
            Session(
                name,
                {number: _expanded(some) for number, some in PART.findall(parts)},
                re.findall(r"`(\w+)`", in_class),
                re.findall(r"`(\w+)`", at_home),
            )
        )
    return found


def minutes_of(session: Session) -> Minutes:
    """Return where the time of a session goes.

    Students run each notebook from its top to the end of the last section that they read.
    """
    reading = running = checks = 0.0
    for number, sections in session.parts.items():
        cells = up_to(number, sections)
        for cell in cells:
            if cell.section in sections and (not cell.task or cell.task in session.in_class):
                reading += seconds_to_read(cell)
        more = _running(number, cells, session.in_class)
        running, checks = running + more[0], checks + more[1]
    writing = sum(catalogue.find(name).heading.minutes for name in session.in_class)
    return Minutes(
        BOARD_MIN * len(session.parts), reading / 60, running / 60, writing, checks / 60, CLOSE_MIN
    )


def first_reading(number: str, on_core_path: bool = False) -> int:
    """Return the minutes of a first reading of a notebook, thinking included: the rule is at the top.

    The optional contest does not count. On the core path, students still run all cells.
    """
    cells = [cell for cell in _cells(number) if cell.is_core or not on_core_path]
    tasks = {cell.task for cell in cells if cell.task} - OPTIONAL
    reading = sum(seconds_to_read(cell) for cell in cells if cell.task not in OPTIONAL)
    running = sum(_running(number, _cells(number), [*tasks]))
    writing = sum(catalogue.find(name).heading.minutes for name in tasks)
    writing += VERDICT_MIN * sum(cell.source.count("verdict=") for cell in cells if cell.kind == "code")
    tickets = [cell for cell in cells if cell.source.startswith("case.diagnose(") and cell.is_core]
    minutes = (reading + running) / 60 + writing + TICKET_MIN * len(tickets)
    return 5 * math.ceil(FIRST_READING * minutes / 5)


def core_minutes(number: str) -> int:
    """Return the minutes of a notebook on the core path, as its first cell states them if they are fewer."""
    (path,) = ROOT.glob(f"notebooks/{number}_*.ipynb")
    stated = CORE_MINUTES.search(_first_cell(path))
    return int(stated[0]) if stated else times(path)[0]


def with_minutes(first_cell: str, number: str) -> str:
    """Return the text of a notebook's first cell with the minutes of a first reading."""
    text = MINUTES.sub(str(first_reading(number)), first_cell)
    return CORE_MINUTES.sub(str(first_reading(number, on_core_path=True)), text)


def leaves_out(number: str) -> bool:
    """Tell whether the core path leaves out sections or exercises of a notebook, which say so themselves."""
    return not all(cell.is_core for cell in _cells(number))


def up_to(number: str, sections: list[str]) -> list[Cell]:
    """Return the cells of a notebook from its top to the end of the last of some sections."""
    cells = _cells(number)
    last = max(place for place, cell in enumerate(cells) if cell.section == sections[-1])
    return cells[: last + 1]


def seconds_to_read(cell: Cell) -> float:
    """Return the seconds to read a cell, with its figures.

    The lines of a stub count nothing, since the writing includes them; nor do those of a folded cell.
    """
    figures = FIGURE_S * cell.figures
    if cell.kind != "text":
        lines = [line for line in cell.source.splitlines() if line.strip()]
        is_read = cell.kind == "code" and not cell.is_folded
        return figures + (CODE_LINE_S * len(lines) if is_read else 0)
    text, formulas = re.subn(r"\$\$.*?\$\$", "", cell.source, flags=re.DOTALL)
    text, inline = re.subn(r"\$[^$]+\$", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    words = len(re.findall(r"[^\W_]+(?:['’.,-][^\W_]+)*", text)) + WORDS_OF_A_FORMULA * inline
    return figures + 60 * words / WORDS_A_MINUTE + FORMULA_S * formulas


def times(notebook: Path) -> tuple[int, int, int]:
    """Return the minutes, those for the exercises, and the exercises that a notebook's first cell states."""
    found = TIME.search(_first_cell(notebook))
    if not found:
        raise ValueError(
            f"{notebook.name}: the first cell needs 'Time: about N minutes, N of them for the … exercises'"
        )
    count = found["count"] or 0  # a notebook without exercises names none
    return int(found["all"]), int(found["part"] or 0), NUMBERS.get(count) or int(count)


def _first_cell(notebook: Path) -> str:
    return " ".join("".join(json.loads(notebook.read_text())["cells"][0]["source"]).split())


def of_catalogue(number: str) -> tuple[int, int, int]:
    """Return the minutes, the number and the points of a notebook's exercises; `number`: "05", "07b"."""
    every = [each for name, each in catalogue.exercises().items() if name not in OPTIONAL]
    some = [exercise for exercise in every if exercise.notebook == number]
    return sum(each.heading.minutes for each in some), len(some), sum(each.points for each in some)


def lines_written_and_read(number: str) -> tuple[int, int]:
    """Return the lines of code that a student writes in a notebook, and those that they only read.

    A line of code is a line without empty ones, comments, docstrings and magics. Written are the lines of the
    references of all exercises, without those of the stubs. Read are the lines of all other cells, without
    folded cells, checks, and answers to questions.
    """
    written = read = 0
    for cell in _cells(number):
        if cell.kind == "stub" and cell.task not in OPTIONAL:
            written += code_lines(catalogue.find(cell.task).text) - code_lines(cell.source)
        elif cell.kind == "code" and not cell.is_folded and not ANSWER.match(cell.source):
            read += code_lines(cell.source)
    return written, read


def code_lines(source: str) -> int:
    """Return the number of lines of code in a cell's text."""
    without_magics = [line if not line.lstrip().startswith("%") else "" for line in source.splitlines()]
    counted = {
        number
        for number, line in enumerate(without_magics, 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    for node in ast.walk(ast.parse("\n".join(without_magics))):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if ast.get_docstring(node) is not None:
            docstring = node.body[0]
            counted -= set(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(counted)


def _rows() -> list[str]:
    titles = (
        "Notebook",
        "Minutes",
        "Core path",
        "Exercises",
        "Their minutes",
        "Points",
        "Lines written",
        "Lines read",
    )
    rows = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    sums = [0] * (len(titles) - 1)
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        minutes, count, points = of_catalogue(path.name.partition("_")[0])
        core = (
            core_minutes(path.name.partition("_")[0]) if path.name.partition("_")[0] in CORE else 0
        )  # an empty cell
        lines = lines_written_and_read(path.name.partition("_")[0])
        numbers = times(path)[0], core, count, minutes, points, *lines
        sums = [a + b for a, b in zip(sums, numbers, strict=True)]
        link = f"[{path.stem}](../notebooks/{path.name})"
        rows.append(f"| {link} | {' | '.join(str(number or '') for number in numbers)} |")
    return [*rows, f"| all | {' | '.join(map(str, sums))} |"]


def _accounts(page: str) -> Iterator[str]:
    """Yield where the minutes go: of whole notebooks; of each plan's sessions, and how many are left."""
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        number = path.name.partition("_")[0]
        core = first_reading(number, on_core_path=True) if number in CORE else "–"
        minutes = f"{first_reading(number):>4} minutes of a first reading"
        yield f"{path.stem:<25}{minutes}, {core:>4} on the core path"
    for plan, length in ((found[1], int(found[2])) for found in PLAN.finditer(page)):
        columns = *Minutes._fields, "left"
        yield f"{plan + ', minutes':<16}" + "".join(f"{name:>9}" for name in columns)
        for session in sessions(page, plan):
            parts = [math.ceil(each) for each in minutes_of(session)]
            yield f"{session.name:<16}" + "".join(f"{n:>9}" for n in (*parts, length - sum(parts)))


def _running(number: str, cells: list[Cell], written: list[str]) -> tuple[float, float]:
    """Return the seconds of the checks of the exercises `written`, and before it those of all other cells."""
    seconds = _measured(number)
    code = [cell for cell in cells if cell.kind != "text"]
    checks = [cell for cell in code if cell.kind == "check" and cell.task in written]
    others = [cell for cell in code if cell not in checks]
    return (
        sum(seconds.get(cell.id, NOT_MEASURED_S) for cell in others),
        TRIES * sum(seconds.get(cell.id, NOT_MEASURED_S) for cell in checks),
    )


def _expanded(text: str) -> list[str]:
    """Return the sections of a list such as "1–3, 5"."""
    found = []
    for part in text.split(", "):
        first, _, last = part.partition("–")
        found += [str(each) for each in range(int(first), int(last or first) + 1)]
    return ["0", *found] if "1" in found else found


def _measured(number: str) -> dict[str, float]:
    """Return the seconds of a notebook's code cells that were measured."""
    every = json.loads(SECONDS.read_text())
    return {
        id_: s
        for name, each in every.items()
        if name.partition("_")[0] == number
        for id_, s in each["seconds"].items()
    }


@cache
def _cells(number: str) -> list[Cell]:
    """Return the cells of a notebook; a Markdown cell in parts, one for each heading."""
    (path,) = ROOT.glob(f"notebooks/{number}_*.ipynb")
    cells = json.loads(path.read_text())["cells"]
    checks = iter([_name(cell) for cell in cells if "check" in _tags(cell)])
    found, section, task = [], "0", ""
    is_core = section_is_core = True
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            task = ""
            for text in re.split(r"^(?=##)", source, flags=re.MULTILINE):
                heading = HEADING.match(text)
                if heading:
                    task = next(checks) if heading["task"] else ""
                    if not heading["task"]:
                        section = heading["number"] or ""
                if text.startswith("##"):
                    is_marked = bool(NOT_CORE.search(text))
                    if not text.startswith("###"):
                        section_is_core = not is_marked
                    is_core = section_is_core and not is_marked
                found.append(Cell(cell["id"], "text", section, task, text, 0, is_core=is_core))
        else:
            kind = "check" if "check" in _tags(cell) else "code"
            if "exercise" in _tags(cell):
                kind = "stub"
            figures = sum(_is_figure(output) for output in cell["outputs"])
            own = task if kind != "code" else ""
            is_folded = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
            found.append(Cell(cell["id"], kind, section, own, source, figures, is_folded, is_core))
            if kind == "check":  # an exercise that is not on the core path ends here
                is_core = section_is_core
    return found


def _is_figure(output: Any) -> bool:
    """Return whether an output is a figure, or what `%%replay` shows."""
    data = output.get("data", {})
    return "image/png" in data or "labkit-replay" in "".join(data.get("text/html", ""))


def _tags(cell: Any) -> list[str]:
    return list(cell["metadata"].get("tags", []))


def _name(cell: Any) -> str:
    match = re.search(r"(\w+) = check\(", "".join(cell["source"]))
    assert match
    return match[1]


def _fill_in_minutes(path: Path) -> None:
    """Write the minutes of a first reading into a notebook's first cell."""
    notebook = json.loads(path.read_text())
    first = notebook["cells"][0]
    text = with_minutes("".join(first["source"]), path.name.partition("_")[0])
    if text != "".join(first["source"]):
        first["source"] = text.splitlines(keepends=True)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        _fill_in_minutes(path)
    for name in sorted({count.page for count in COUNTS}):
        (ROOT / name).write_text(with_counts(name, (ROOT / name).read_text()))
    PAGE.write_text(with_numbers(PAGE.read_text()))
    print(*_accounts(PAGE.read_text()), sep="\n")
