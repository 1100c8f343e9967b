"""Run notebooks and save their outputs. A second run changes only measured values.

python tools/run_notebooks.py [--seconds FILE] [--no-run] notebooks/00_meet_the_cluster.ipynb …

With `--seconds`, FILE also gets how long each cell took (see `record_seconds`). With `--no-run`, outputs stay
as they are; only what follows from the cells is written anew: their places in slides (see `slide_type`).
"""

import argparse
import datetime
import json
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbclient import NotebookClient

CELL_LIMIT_S = 90
WEEKS = "my_ddp.json"  # what `collect` has measured, beside the notebooks


def normalise(notebook: nbformat.NotebookNode) -> None:
    """Remove when, where and by which version the notebook was run."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for cell in notebook.cells:
        # `jupyter` records which cells the author has collapsed.
        kept = {key: cell.metadata[key] for key in ("tags", "jupyter") if cell.metadata.get(key)}
        cell.metadata = nbformat.from_dict(kept)
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
    place_in_slides(notebook)


def slide_type(cell: nbformat.NotebookNode, previous: nbformat.NotebookNode | None) -> str:
    """Return where a cell begins in slides: a heading begins a slide, and other text a slide below it.

    A code cell appears below the text before it, and on a slide of its own after another code cell.
    """
    if cell.cell_type == "markdown":
        return "slide" if re.match("##? ", cell.source) else "subslide"
    is_after_text = previous is not None and previous.cell_type == "markdown"
    return "fragment" if is_after_text else "subslide"


def place_in_slides(notebook: nbformat.NotebookNode) -> None:
    """Note in each cell where it begins in slides; nbconvert reads it there."""
    for previous, cell in zip([None, *notebook.cells], notebook.cells, strict=False):
        cell.metadata["slideshow"] = {"slide_type": slide_type(cell, previous)}


def seconds_by_cell(notebook: nbformat.NotebookNode) -> dict[str, float]:
    """Return how long each code cell took, by its id, from the times that nbclient recorded."""
    seconds = {}
    for cell in notebook.cells:
        times = cell.metadata.get("execution")
        if times:
            begin, end = (
                datetime.datetime.fromisoformat(times[name].replace("Z", "+00:00"))
                for name in ("iopub.status.busy", "shell.execute_reply")
            )
            seconds[cell.id] = round((end - begin).total_seconds(), 1)
    return seconds


def record_seconds(file: Path, name: str, seconds: dict[str, float]) -> None:
    """Write a notebook's seconds to a JSON file, with the machine and the day; keep other notebooks."""
    measured = json.loads(file.read_text()) if file.exists() else {}
    machine = f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
    measured[name] = {"date": f"{datetime.date.today()}", "machine": machine, "seconds": seconds}
    file.write_text(json.dumps(dict(sorted(measured.items())), indent=1) + "\n")


def write(path: Path, notebook: nbformat.NotebookNode) -> None:
    """Write a notebook in one step."""
    nbformat.validate(notebook)
    whole = path.with_suffix(".part")
    nbformat.write(notebook, whole)
    whole.replace(path)


@contextmanager
def without_earlier_weeks(folder: Path) -> Iterator[None]:
    """Keep what my_ddp.py did in earlier runs out of the outputs; put it back at the end."""
    weeks, aside = folder / WEEKS, folder / f"{WEEKS}.aside"
    if weeks.exists():
        weeks.replace(aside)
    try:
        yield
    finally:
        weeks.unlink(missing_ok=True)
        if aside.exists():
            aside.replace(weeks)


def run(path: Path, seconds_file: Path | None = None) -> None:
    start = time.monotonic()
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_LIMIT_S,
        kernel_name="python3",
        resources={"metadata": {"path": path.parent}},
        coalesce_streams=True,  # output arrives in pieces that differ from run to run
    )
    with without_earlier_weeks(path.parent):
        client.execute()
    if seconds_file:
        record_seconds(seconds_file, path.stem, seconds_by_cell(notebook))
    normalise(notebook)
    write(path, notebook)
    print(f"{path}: {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=Path, metavar="FILE")
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("notebooks", type=Path, nargs="+")
    options = parser.parse_args()
    if options.no_run:
        for path in options.notebooks:
            unchanged = nbformat.read(path, as_version=4)
            place_in_slides(unchanged)
            write(path, unchanged)
        sys.exit()
    os.environ["IPP_NONINTERACTIVE"] = "1"  # `%%px` output by rank, in order
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder  # do not use the user's clusters
        os.environ["LABKIT_PROGRESS"] = f"{folder}/progress.json"  # nor note exercises as done by the user
        for path in options.notebooks:
            run(path, options.seconds)
