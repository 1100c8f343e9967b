"""Give the figures of the book's notebooks an alt text: the first sentence of the caption below them.

JupyterLab shows no alt text of a figure. The book does, and so does `jupyter nbconvert`.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import nbformat

# A caption is emphasised and begins the Markdown cell below the figure.
CAPTION = re.compile(r"\*(?!\*)(.+?\.)[\s*]", re.DOTALL)
MARKUP = re.compile(r"\[([^]]*)\]\([^)]*\)|[*`$]")


def alt_text(caption: str) -> str | None:
    """Return the first sentence of a caption, without markup and line breaks; None if it is no caption."""
    found = CAPTION.match(caption)
    return " ".join(MARKUP.sub(r"\1", found[1]).split()) if found else None


def describe(path: Path) -> None:
    """Note the alt texts of a notebook's figures in the metadata of the cells that draw them."""
    notebook = nbformat.read(path, as_version=4)
    for cell, below in pairwise(notebook.cells):
        shows = any("image/png" in output.get("data", {}) for output in cell.get("outputs", []))
        text = alt_text(below.source) if shows and below.cell_type == "markdown" else None
        if text:
            cell.metadata.alt = text  # read by nbconvert
            cell.metadata.mystnb = {"image": {"alt": text}}
    nbformat.write(notebook, path)
