"""Draw the pictures of docs/architecture.md: packages, processes, a cell's way. SVG, with the text as text.

python tools/make_architecture.py [FOLDER]

Packages and their arrows come from the imports, as tests/test_packages.py reads them. The processes and the
steps of a cell are written down here; each names the code that it stands for, which must exist.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.test_packages import MODULES, TOP_PACKAGES, imported, top_package_of  # noqa: E402

WHITE, MPI, LINE, GREY = "#ffffff", "#cfe3f5", "#444444", "#666666"
WIDTH, GAP = 860, 20


class Step(NamedTuple):
    """A box: what it is or does, the code that it stands for, and a remark."""

    title: str
    code: str  # "file" or "file:name", such as "mpiwatch/report.py:render"
    remark: str = ""


ADAPTER = "labkit/cluster/adapter"
# From the kernel downwards; each ends with another process, whatever kills that one.
KERNEL = Step("kernel of the notebook", "labkit/cluster/connection.py:connect")
LEFT = [
    Step("supervisor", "labkit/cluster/supervisor.py:main", "ends with its command or with the kernel"),
    Step(
        "controller",
        f"{ADAPTER}/controller.py:Controller",
        "ends with the process that started it",
    ),
    Step("hub", f"{ADAPTER}/controller.py:Hub", "in the controller; watches the engines' processes"),
]
RIGHT = [
    Step("supervisor", "labkit/cluster/supervisor.py:main", "ends with its command or with the controller"),
    Step("process that forks the ranks", "labkit/forked_ranks.py:fork_ranks", "ends with the supervisor"),
    Step("engine = rank", f"{ADAPTER}/engine.py:run_engine", "ends with the process that forks"),
]

# A cell, from the top: what the kernel does before, during and after it, and what each engine does.
BEFORE = [
    Step("take the cell", "labkit/cluster/magics.py:RankMagics.run_cell"),
    Step("the controller and all ranks are there", "labkit/cluster/ranks.py:Ranks.check_engines"),
    Step("no message of a failed cell is left", "labkit/cluster/ranks.py:Ranks.renew_if_due"),
]
DURING = [
    Step("show what each rank is doing", "labkit/cluster/live_view.py:LiveView.update", "after 2 s"),
    Step("interrupt ranks, or end the engines", "labkit/cluster/ranks.py:Ranks.end_if_hung", "after a hang"),
]
AFTER = [
    Step("show the output, rank by rank", "labkit/cluster/output.py:show"),
    Step("show the report once, then tracebacks", "labkit/cluster/failures.py:error_of", "if ranks failed"),
]
ON_THE_ENGINE = [
    Step("record that the cell has begun", "labkit/cluster/engine_setup.py:record_cells"),
    Step("comm.Allreduce: record, compare", "mpiwatch/collectives.py:Channel.begin_collective"),
    Step("wait until all ranks are there", "mpiwatch/waiting.py:wait_until"),
    Step("give up: look at all ranks", "mpiwatch/snapshot.py:take_snapshot", "mismatch, or deadline"),
    Step("write the report", "mpiwatch/report.py:render", "as the error of each waiting rank"),
    Step("record that the cell has ended", "labkit/cluster/engine_setup.py:record_cells"),
]


def path_of(file: str) -> Path:
    """Return the path of a file of labkit or mpiwatch."""
    return (ROOT / "mpiwatch/src" if file.startswith("mpiwatch/") else ROOT) / file


@cache
def names_in(file: str) -> set[str]:
    """Return the functions and classes of a file, and the methods as `Class.method`."""
    top = ast.parse(path_of(file).read_text(encoding="utf-8")).body
    found = set()
    for node in top:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def missing() -> list[str]:
    """Return the code that a picture names and that does not exist."""
    steps = [KERNEL, *LEFT, *RIGHT, *BEFORE, *DURING, *AFTER, *ON_THE_ENGINE]
    places = [(step.code, *step.code.partition(":")[::2]) for step in steps]
    return [
        code
        for code, file, name in places
        if not path_of(file).exists() or (name and name not in names_in(file))
    ]


def text(x: float, y: float, words: str, *, size: int = 13, colour: str = "#111111", more: str = "") -> str:
    shown = f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" {more}>{escape(words)}</text>'
    return shown if words else ""


def box(x: float, y: float, width: float, step: Step, fill: str = WHITE) -> str:
    """Return a box of 54 units with a step's three lines."""
    file, _, name = step.code.partition(":")
    code = f"{file}  {name.rpartition('.')[2]}"
    return "\n".join([
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="54" rx="5" fill="{fill}" stroke="{LINE}"/>',
        text(x + 10, y + 17, step.title, more='font-weight="bold"'),
        text(x + 10, y + 33, code, size=11, more='font-family="monospace" xml:space="preserve"'),
        text(x + 10, y + 48, step.remark, size=11, colour=GREY),
    ])  # fmt: skip


def arrow(x1: float, y1: float, x2: float, y2: float, words: str = "") -> str:
    line = f'<path d="M {x1:g} {y1:g} L {x2:g} {y2:g}" stroke="{LINE}" fill="none" marker-end="url(#head)"/>'
    return line + (text((x1 + x2) / 2, (y1 + y2) / 2 - 6, words, size=12, more='text-anchor="middle"'))


def column(x: float, y: float, width: float, steps: Sequence[Step], fill: str = WHITE) -> Iterator[str]:
    """Yield boxes one below the other, with arrows between them."""
    for number, step in enumerate(steps):
        top = y + number * 72
        yield box(x, top, width, step, fill)
        if number:
            yield arrow(x + width / 2, top - 18, x + width / 2, top - 2)


def svg(height: float, title: str, parts: Sequence[str]) -> str:
    """Return a picture on a white ground, which dark themes show as it is."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" '
        'font-family="sans-serif">\n'
        f"<title>{escape(title)}</title>\n"
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
        f'orient="auto"><path d="M 0 0 L 8 4 L 0 8 z" fill="{LINE}"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{height:g}" fill="{WHITE}"/>\n'
    )
    return head + "\n".join(parts) + "\n</svg>\n"


def loads_mpi(path: Path) -> bool:
    """Return whether a module imports MPI as soon as it is imported itself."""
    statements = ast.parse(path.read_text()).body
    imported_names = (
        name.name
        for statement in statements
        if isinstance(statement, ast.ImportFrom) and statement.module == "mpi4py"
        for name in statement.names
    )
    return "MPI" in imported_names


def imports() -> dict[str, set[str]]:
    """Return the packages that each package imports, without those that it reaches through another one."""
    direct: dict[str, set[str]] = {package: set() for package in TOP_PACKAGES}
    for module, path in MODULES.items():
        if module != "labkit.__main__":
            own = top_package_of(module)
            direct[own] |= {top_package_of(name) for name in imported(path) & MODULES.keys()} - {own}
    reached: dict[str, set[str]] = {}
    for package in TOP_PACKAGES:  # from the bottom
        reached[package] = direct[package].union(*(reached[each] for each in direct[package]))
    return {
        package: {
            each for each in direct[package] if not any(each in reached[other] for other in direct[package])
        }
        for package in TOP_PACKAGES
    }


def packages() -> str:
    """Draw the packages, each above all that it imports."""
    below = imports()
    level: dict[str, int] = {}
    for package in TOP_PACKAGES:
        level[package] = 1 + max((level[each] for each in below[package]), default=-1)
    top = max(level.values())
    width, parts = 118, []
    place: dict[str, tuple[float, float]] = {}
    for number in range(top + 1):
        here = [package for package in TOP_PACKAGES if level[package] == number]
        here.sort(
            key=lambda package: sum(place[each][0] for each in below[package]) / (len(below[package]) or 1)
        )
        for slot, package in enumerate(here):
            place[package] = WIDTH * (slot + 1) / (len(here) + 1), 62 + (top - number) * 72
    for package, (x, y) in place.items():
        for each in sorted(below[package]):
            to_x, to_y = place[each]
            parts.append(arrow(x, y + 34, to_x + (x - to_x) * 0.12, to_y - 1))
    loads = {top_package_of(name) for name, path in MODULES.items() if loads_mpi(path)}
    for package, (x, y) in place.items():
        fill = MPI if package in loads else WHITE
        shown = {"labkit": "labkit/*.py"}.get(package, package.replace(".", "/"))
        parts += [
            f'<rect x="{x - width / 2:g}" y="{y:g}" width="{width}" height="34" rx="5" fill="{fill}" '
            f'stroke="{LINE}"/>',
            text(x, y + 22, shown, more='text-anchor="middle"'),
        ]
    words = "Arrow: imports (left out where another way leads there). Blue: loads MPI."
    parts.append(text(20, 28, words, size=12, colour=GREY))
    return svg(62 + top * 72 + 54, "The packages and their imports", parts)


def processes() -> str:
    """Draw the processes of a notebook with its cluster."""
    width = (WIDTH - 3 * GAP) / 2
    right = 2 * GAP + width
    parts = [box(WIDTH / 2 - width / 2, GAP, width, KERNEL)]
    parts += [arrow(WIDTH / 2 - 60, GAP + 54, GAP + width / 2, 108), *column(GAP, 110, width, LEFT)]
    parts += [arrow(WIDTH / 2 + 60, GAP + 54, right + width / 2, 108), *column(right, 110, width, RIGHT)]
    return svg(110 + len(RIGHT) * 72, "The processes that connect() starts", parts)


def cell() -> str:
    """Draw a cell's way from the kernel to the engines and back."""
    width = 350
    right = WIDTH - GAP - width
    first, second, third = 50, 50 + 3 * 72 + 30, 50 + 5 * 72 + 60
    parts = [
        text(GAP, 30, "kernel", size=15, more='font-weight="bold"'),
        text(right, 30, "each engine", size=15, more='font-weight="bold"'),
        *column(GAP, first, width, BEFORE),
        arrow(GAP + width, first + 2 * 72 + 27, right - 2, first + 27, "%%px"),
        *column(right, first, width, ON_THE_ENGINE, MPI),
        text(GAP, second - 10, "while the cell runs, in a loop:", size=12, colour=GREY),
        *column(GAP, second, width, DURING),
        text(GAP, third - 10, "when all ranks have ended it:", size=12, colour=GREY),
        *column(GAP, third, width, AFTER),
        arrow(right, first + 5 * 72 + 27, GAP + width + 2, third + 27, "output, errors"),
    ]
    return svg(third + 2 * 72, "The way of a %%px cell", parts)


PICTURES = {"packages": packages, "processes": processes, "cell": cell}


def main(folder: Path) -> None:
    """Write the pictures; exit with an error if one names code that does not exist."""
    wrong = missing()
    if wrong:
        sys.exit("tools/make_architecture.py names code that does not exist: " + ", ".join(wrong))
    for name, draw in PICTURES.items():
        (folder / f"architecture-{name}.svg").write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
