"""The book's index of what is taught where: each notebook's sections and exercises, each term's notebooks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from labkit.exercises import catalogue

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
HEADING = re.compile(r"^(#{2,3}) (.+)$", re.MULTILINE)
STUB = re.compile(r"^def (\w+)\(", re.MULTILINE)
TO_GLOSSARY = re.compile(r"\]\(\.\./docs/glossary\.md#([\w-]+)\)")
# A row of the glossary: the term's cell, the definition, PyTorch's word, the notebooks.
ROW = re.compile(r"^\| (?P<term>.*?\*\*.*?) \| .* \| .* \| (?P<notebooks>.*) \|$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([\w-]+)"></a>')


def page() -> str:
    """Return the page as Markdown; its links are relative to docs/book/."""
    cells = {path: json.loads(path.read_text(encoding="utf-8"))["cells"] for path in NOTEBOOKS}
    parts = ["# What is taught where\n", "## By notebook\n"]
    for path in NOTEBOOKS:
        parts += of_notebook(path, cells[path])
    parts += ["## By term\n", "| Term | Introduced in | Also in |", "|---|---|---|", *of_terms(cells)]
    return "\n".join(parts) + "\n"


def of_notebook(path: Path, cells: list[dict]) -> Iterator[str]:
    """Yield the lines of one notebook: its title, its sections, a table of its exercises."""
    title = _source(cells[0]).splitlines()[0].lstrip("# ")
    yield f"### {title}\n"
    section, rows, sections = "", [], []
    for cell in cells:
        if cell["cell_type"] == "markdown":
            for level, heading in HEADING.findall(_source(cell)):
                section = f"[{heading}](../../notebooks/{path.name}#{slug(heading)})"
                if level == "##":
                    sections.append(section)
        elif "exercise" in cell["metadata"].get("tags", ()):
            name = STUB.findall(_source(cell))[-1]
            exercise = catalogue.exercises()[name]
            stars = "★" * exercise.heading.difficulty + "☆" * (5 - exercise.heading.difficulty)
            rows.append(f"| {section} | `{name}` | {stars} | {exercise.heading.minutes} |")
    yield " · ".join(sections) + "\n"
    yield "| Exercise | You write | Difficulty | Minutes |\n|---|---|---|---|"
    yield "\n".join(rows) + "\n"


def of_terms(cells: dict[Path, list[dict]]) -> Iterator[str]:
    """Yield a row for each term of the glossary, in alphabetical order."""
    links = {path: set(TO_GLOSSARY.findall("\n".join(map(_source, cells[path])))) for path in NOTEBOOKS}
    rows = {}
    for row in ROW.finditer((ROOT / "docs/glossary.md").read_text(encoding="utf-8")):
        term, first = ANCHOR.sub("", row["term"]), row["notebooks"].replace("../notebooks", "../../notebooks")
        anchors = ANCHOR.findall(row["term"])
        if anchors:
            term = f"[{term}](../glossary.md#{anchors[0]})"
        also = [
            f"[{path.name.partition('_')[0]}](../../notebooks/{path.name})"
            for path in NOTEBOOKS
            if links[path] & set(anchors) and f"[{path.name.partition('_')[0]}]" not in first
        ]
        rows[term.lower().lstrip("[*`")] = f"| {term} | {first} | {', '.join(also)} |"
    yield from (rows[key] for key in sorted(rows))


def slug(heading: str) -> str:
    """Return a heading's anchor, as GitHub and MyST make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _source(cell: dict) -> str:
    return "".join(cell["source"])
