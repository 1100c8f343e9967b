"""Write copies of notebooks into a folder, with the documents that they link to."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat

from labkit.files import atomic_write

LINK = re.compile(r"(?<!\!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def write(
    originals: list[Path], folder: Path, change: Callable[[Any], None], *, of_their_own: bool = False
) -> None:
    """Write each notebook to `folder`, after `change(notebook)`, and the documents it links to beside it.

    Documents are files outside the folder of the notebooks, such as the glossary. With `of_their_own`, each
    notebook `01_x.ipynb` gets a folder `01_x` with its documents. Links lead to the copies; a document's
    links to files that are not copied become plain text.
    """
    root = originals[0].parent.resolve().parent
    notebooks = {path.resolve(): _place(path, folder, of_their_own) for path in originals}
    files: dict[Path, bytes] = {}  # written together: nothing is written if one notebook is not right
    for original, copy in notebooks.items():
        notebook = nbformat.read(original, as_version=4)
        change(notebook)
        texts = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
        documents = {
            target: copy.parent / target.relative_to(root)
            for cell in texts
            for target in _targets(cell.source, original)
            if target not in notebooks and target.is_file() and root in target.parents
        }
        places = notebooks | documents
        for cell in texts:
            cell.source = _relinked(cell.source, original, places)
        files[copy] = nbformat.writes(notebook).encode() + b"\n"
        for target, place in documents.items():
            content = target.read_bytes()
            if target.suffix == ".md":
                content = _relinked(content.decode(), target, places).encode()
            files[place] = content
    for place, content in files.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(place) as file:
            file.write(content)


def _place(path: Path, folder: Path, of_its_own: bool) -> Path:
    return (folder / path.stem if of_its_own else folder) / path.name


def _targets(text: str, origin: Path) -> list[Path]:
    return [(origin.parent / match[2]).resolve() for match in LINK.finditer(text)]


def _relinked(text: str, origin: Path, places: dict[Path, Path]) -> str:
    """Return a text of the file `origin` with links from its copy to the copies of the linked files."""
    here = places[origin].parent

    def relinked(match: re.Match[str]) -> str:
        place = places.get((origin.parent / match[2]).resolve())
        if not place:
            return match[1]
        return f"[{match[1]}]({Path(os.path.relpath(place, here)).as_posix()}{match[3] or ''})"

    return LINK.sub(relinked, text)
