"""The formats that JupyterLab offers in *Save and Export Notebook As*."""

from __future__ import annotations

import shutil
from importlib.metadata import entry_points
from pathlib import Path

import nbformat
import pytest
from nbconvert.exporters.base import get_exporter

from labkit.checks.exercise import ORIGINALS
from labkit.cli import lab
from labkit.cli.export import as_program

NOTEBOOK = ORIGINALS / "05_ring_reduce.ipynb"


def test_program_is_what_labkit_export_writes() -> None:
    text, resources = get_exporter("program")().from_filename(str(NOTEBOOK))
    expected = as_program(nbformat.read(NOTEBOOK, as_version=4), NOTEBOOK.name, f"{NOTEBOOK.stem}.py")
    assert text == expected and resources["output_extension"] == ".py"
    compile(text, "program", "exec")


@pytest.mark.parametrize("tools", [set(), {"pandoc"}, {"pandoc", "xelatex"}])
def test_formats_whose_tools_are_missing_are_not_offered(
    monkeypatch: pytest.MonkeyPatch, tools: set[str]
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in tools else None)
    options = [option.removeprefix("--").split(".") for option in lab.export_options()]
    refused = {name for name, setting in options if setting == "enabled=False"}
    assert ("LatexExporter" in refused) == ("pandoc" not in tools)
    assert ("PDFExporter" in refused) == (len(tools) < 2)
    assert "ScriptExporter" in refused
    known = {entry.value.partition(":")[2] for entry in entry_points(group="nbconvert.exporters")}
    assert refused <= known
    assert refused.isdisjoint(
        {"SlidesExporter", "HTMLExporter", "MarkdownExporter", "NotebookExporter", "ProgramExporter"}
    )


def test_html_is_a_whole_page(tmp_path: Path) -> None:
    text, _ = get_exporter("html")().from_filename(str(NOTEBOOK))
    assert "</html>" in text and "ring_reduce_scatter" in text
