"""The sixth report in a course: an assignment without exercises, whose rubric has a cell for each row.

Students hand in the notebook that `labkit report check` writes. It holds text, figure and records, and no
marks of nbgrader. When nbgrader grades it, `prepare` checks the records once more, and puts below the text
what the machine has found, and the rubric, for whoever gives the points in formgrader.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nbformat.v4 import new_markdown_cell, new_notebook

from labkit.cli.course import questions
from labkit.exercises import own_report

NAME = own_report.NAME
ROW_ID = "report-"  # nbgrader's id of a row of the rubric is this and the row's name
RUBRIC = {
    "question": (1, "a question that these runs can answer"),
    "prediction": (2, "a prediction with its reason, from a cost model or a count"),
    "result": (2, "the result as an interval, and whether it contains the prediction"),
    "conclusions": (2, "each conclusion names the number that it rests on, and claims no more"),
    "alternatives": (2, "two other explanations, and for each the run that would decide"),
    "page": (1, "one page that a fellow student can follow"),
}
INTRODUCTION = f"""\
# The sixth report

Write a report of your own, on a question about your `my_ddp.py`. Type in the folder of the lab:

```
labkit report begin ring --question "Does my ring beat the root?" --first "--average root" \\
    --second "--average ring" --predict 0.7 1
labkit report run ring
labkit report check ring
```

Between the second and the third command you write one page, `ring/report.md`. Hand in the file
`ring/{own_report.NOTEBOOK}` that the third command writes, not this one. Points are given by this rubric:
"""
GIVE_POINTS = "Points for this row of the rubric:"  # makes a cell of a report differ from the one handed out


def row_text(name: str) -> str:
    """Return what a row of the rubric says."""
    points, text = RUBRIC[name]
    return f"**{name.capitalize()}** ({points}): {text}."


def source() -> Any:
    """Return the notebook of the assignment, as it is handed out."""
    cells = [new_markdown_cell(INTRODUCTION, id="introduction")]
    for name, (points, _) in RUBRIC.items():
        marks = questions.marks_of(f"{ROW_ID}{name}", points, "markdown")
        cells.append(new_markdown_cell(row_text(name), id=f"rubric-{name}", metadata={"nbgrader": marks}))
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel})


def prepare(notebook: Any, points: Mapping[str, float]) -> None:
    """Replace what was handed in by the text, what a machine finds in it, and the rubric.

    `points` maps nbgrader's ids of the rows to their most points, as the course has recorded them. If nothing
    was written, the rubric is as it was handed out, and nbgrader gives no points.
    """
    try:
        with own_report.unpacked(notebook) as folder:
            cells = [own_report.packed_cell(folder)]
            finding = machine_finding(folder)
    except own_report.ReportError as error:
        cells = written_cells(notebook)
        finding = f"- {error}"
    is_written = bool(cells)
    cells.append(new_markdown_cell(f"**What a machine finds**\n\n{finding}"))
    for name in RUBRIC:
        grade_id = f"{ROW_ID}{name}"
        if grade_id in points:
            text = f"{GIVE_POINTS} {row_text(name)}" if is_written else row_text(name)
            marks = questions.marks_of(grade_id, points[grade_id], "markdown")
            cells.append(new_markdown_cell(text, metadata={"nbgrader": marks}))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    notebook.cells, notebook.nbformat_minor = cells, 5  # cells have ids since version 4.5


def machine_finding(folder: Path) -> str:
    """Return what the records of a report say, and what is wrong with the report."""
    faults = [f"- {fault}" for fault in own_report.faults(folder)] or ["Nothing is wrong with the records."]
    try:
        records = own_report.summary(own_report.read(folder))
    except own_report.ReportError:
        records = ""
    return "\n".join(faults) + f"\n\n{records}"


def written_cells(notebook: Any) -> list[Any]:
    """Return the cells of a notebook that the assignment did not have, without marks."""
    handed_out = {cell.source for cell in source().cells}
    cells = [cell for cell in notebook.cells if cell.source.strip() and cell.source not in handed_out]
    for cell in cells:
        cell.metadata.pop("nbgrader", None)
    return cells
