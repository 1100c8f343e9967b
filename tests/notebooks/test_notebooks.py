"""The `%%px` cells of notebooks run under mpiexec; saved notebooks are tidy, and their numbers true."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner
from nbconvert.exporters.base import get_exporter

from check_jobs import checks_in, run_checks
from labkit.cli.export import command
from tests import lab_checks
from tests.conftest import DEADLINE_S, run_python, thorough

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
TOOL = ROOT / "tools/run_notebooks.py"
SHORT = "00_meet_the_cluster", "03_sharding"
RANKS = 3  # nbval runs the same cells on four
CHECKS = """\
import runpy
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
"""
CHECK = "def check_{0}(comm): runpy.run_path({1!r}, run_name='__main__'), plt.close('all')\n"
PAGE_COLUMNS = 100  # at 1366 pixels
COLUMN_GAP = re.compile(r"\S {2,}(?=\S)")
# A number with a unit, or with decimals. "exercise 3.1" and sizes such as "8 × 8" are neither.
UNITS = r"(?:%|times\b|ms\b|µs\b|s\b|seconds\b|[kMG]B\b|[KMG]iB\b|bytes\b|[kmgMG]bit\b)"
NUMBER = re.compile(rf"(?<![\w.$\\{{-])(?:(\d[\d,]*(?:\.\d+)?)\s?(?={UNITS})|(\d+\.\d+)(?![\w.]*\d))")
NOT_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$|\]\([^)]*\)|^#.*$|^★.*$|[Ee]xercises? \d\.\d",
    re.DOTALL | re.MULTILINE,
)
# What no cell of the notebook can show.
GIVEN = {
    "04": {"1.7", "98.29", "98.05"},  # report D's figures
    "07": {"30", "60"},  # a question's made-up times
    "10": {"1.2"},  # a section of report E
}


@pytest.mark.parametrize(
    "paths",
    [
        [path for path in NOTEBOOKS if path.stem in SHORT],  # in one job
        *(thorough([path]) for path in NOTEBOOKS if path.stem not in SHORT),
    ],
    ids=lambda paths: " ".join(path.stem for path in paths),
)
def test_the_exported_cells_run_under_mpiexec(paths: list[Path], tmp_path: Path) -> None:
    checks = CHECKS
    for path in paths:
        program = str(tmp_path / f"{path.stem}.py")
        done = CliRunner().invoke(command, [str(path), "--out", program])
        assert done.exit_code == 0, done.output
        checks += CHECK.format(path.stem, program)
    (tmp_path / "checks.py").write_text(checks)
    faults = run_checks(RANKS, checks_in([tmp_path / "checks.py"]), DEADLINE_S, lab_checks.PROGRAM)
    if faults:
        pytest.fail("\n".join(faults.values()), pytrace=False)


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem, scope="module")
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture(scope="module")
def notebook(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def test_a_notebook_is_saved_as_make_notebooks_saves_it(notebook: nbformat.NotebookNode) -> None:
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags", "jupyter", "slideshow"}, cell.id
        if cell.cell_type == "code":
            assert cell.execution_count is not None, f"{cell.id} was not run: make notebooks"


@pytest.fixture(scope="module")
def with_slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with copies of all notebooks, marked by a single process to import its modules once."""
    folder = tmp_path_factory.mktemp("slides")
    copies = [Path(shutil.copy(path, folder)) for path in NOTEBOOKS]
    run_python(TOOL, "--no-run", *copies)
    return folder


def test_cells_say_where_slides_begin(path: Path, with_slides: Path) -> None:
    copy = with_slides / path.name
    assert copy.read_bytes() == path.read_bytes(), f"python tools/run_notebooks.py --no-run {path.name}"


def test_outputs_are_those_of_a_first_week(tmp_path: Path) -> None:
    """What `collect` has measured in the folder before is put aside, and is there again afterwards."""
    weeks, path = tmp_path / "my_ddp.json", tmp_path / "weeks.ipynb"
    weeks.write_text("earlier")
    source = """\
from pathlib import Path
weeks = Path("my_ddp.json")
print(weeks.exists())
weeks.write_text("new");"""
    cell = nbformat.v4.new_code_cell(source)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    seconds = tmp_path / "seconds.json"
    run_python(TOOL, "--seconds", seconds, path)
    assert nbformat.read(path, as_version=4).cells[0].outputs[0].text == "False\n"
    assert list(json.loads(seconds.read_text())["weeks"]["seconds"]) == [cell.id]
    assert weeks.read_text() == "earlier"


def test_a_heading_begins_a_slide() -> None:
    """Headings of exercises, other text and code stand on slides below it."""
    path = next(path for path in NOTEBOOKS if path.stem.startswith("05"))
    cells = nbformat.read(path, as_version=4).cells
    headings = sum(bool(re.match("##? ", cell.source)) for cell in cells if cell.cell_type == "markdown")
    page, _ = get_exporter("slides")().from_filename(str(path))
    # Each slide is a section with sections below it.
    assert len(re.findall(r"<section[^>]*>\s*<section", page)) == headings > 3
    assert len(re.findall("<section", page)) > 2 * headings


def test_a_kernel_without_labkit_is_told_what_to_do(notebook: nbformat.NotebookNode) -> None:
    """Its first error shows the line that imports labkit, and with it what the line says."""
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    first = next(line for line in code.splitlines() if re.match("(from|import) labkit", line))
    assert first.endswith("  # No module named labkit? Start JupyterLab with `make lab`.")


def test_a_table_fits_the_page(notebook: nbformat.NotebookNode) -> None:
    """JupyterLab breaks longer lines, and a table is then hard to read. Text may break."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for line in output.get("text", "").splitlines():
                is_row = len(COLUMN_GAP.findall(line)) > 1
                assert not is_row or len(line) <= PAGE_COLUMNS, f"{cell.id}: {line}"


def test_relative_links_have_a_target(path: Path, notebook: nbformat.NotebookNode) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", cell.source):
                assert (path.parent / target).exists(), f"{cell.id}: {target}"


def numbers_of(notebook: nbformat.NotebookNode) -> set[str]:
    """Return all numbers in code and outputs, without thousands separators."""
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            parts.append(cell.source)
            for output in cell.outputs:
                parts += [output.get("text", ""), *output.get("traceback", [])]
                parts += [str(output.get("data", {}).get(kind, "")) for kind in ("text/plain", "text/html")]
    return {re.sub("[,_]", "", found) for found in re.findall(r"\d[\d,_]*(?:\.\d+)?", "\n".join(parts))}


def test_numbers_in_prose_stand_in_a_cell(path: Path, notebook: nbformat.NotebookNode) -> None:
    known = numbers_of(notebook) | GIVEN.get(path.name.partition("_")[0], set())
    missing = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            prose = NOT_PROSE.sub(" ", cell.source)
            for found in NUMBER.finditer(prose):
                number = (found[1] or found[2]).replace(",", "")
                if number not in known:
                    context = " ".join(prose[max(0, found.start() - 60) : found.end() + 20].split())
                    missing.append(f"{cell.id}: … {context} …")
    assert missing == []
