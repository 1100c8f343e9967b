"""Where the original notebooks are, and folders of copies with the documents that they link to."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat

import labkit

# An image begins with an exclamation mark.
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
# The wheel carries the originals inside the package. In a clone they are beside it.
PACKAGE = Path(labkit.__file__).resolve().parent
ROOT = PACKAGE / "originals" if (PACKAGE / "originals").is_dir() else PACKAGE.parent
ORIGINALS = ROOT / "notebooks"
DOCUMENTS = ("docs", "examples", "labkit/reports/figures")  # beside the notebooks; copied if linked to


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """Yield a new folder, whose contents are in `folder` when the block ends; nothing is left if it raises.

    `folder` is absent or empty. Moving the contents needs no room on the disk.
    """
    folder = folder.resolve()
    new = [path for path in (folder, *folder.parents) if not path.exists()]
    (folder.parent if new else folder).mkdir(parents=True, exist_ok=True)
    part = (folder.parent if new else folder) / f".labkit-part-{os.getpid()}"
    try:
        part.mkdir()
        yield part
        if new:
            part.rename(folder)
        else:
            for path in part.iterdir():
                path.rename(folder / path.name)
            part.rmdir()
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        for path in new:
            with suppress(OSError):
                path.rmdir()
        raise


def write(
    originals: list[Path], folder: Path, change: Callable[[Any], None], *, of_their_own: bool = False
) -> None:
    """Write each notebook to `folder`, after `change(notebook)`, and the documents it needs beside it.

    With `of_their_own`, each notebook `01_x.ipynb` gets a folder `01_x` with its documents.
    """
    # All contents first: nothing is written if one notebook is not right.
    for place, content in contents(originals, change, of_their_own=of_their_own).items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(content)


def contents(
    originals: list[Path], change: Callable[[Any], None], *, of_their_own: bool = False
) -> dict[Path, bytes]:
    """Return the files of a folder of copies, by their path in it.

    These are the notebooks after `change(notebook)`, and the documents that they and other documents link
    to. A notebook's metadata say which version of the lab made the copy. Links lead to the copies; links to
    files that are not copied become plain text.
    """
    root = originals[0].parent.resolve().parent
    notebooks = {
        path.resolve(): Path(path.stem, path.name) if of_their_own else Path(path.name) for path in originals
    }
    files: dict[Path, bytes] = {}
    for original, copy in notebooks.items():
        notebook = nbformat.read(original, as_version=4)
        change(notebook)
        notebook.metadata["labkit"] = {"version": labkit.__version__}
        texts = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
        documents = _documents([cell.source for cell in texts], original, root)
        places = notebooks | {path: copy.parent / path.parent.name / path.name for path in documents}
        for cell in texts:
            cell.source = _relinked(cell.source, original, places)
        files[copy] = nbformat.writes(notebook).encode() + b"\n"
        for path in documents:
            content = path.read_bytes()
            if path.suffix == ".md":
                content = _relinked(content.decode(), path, places).encode()
            files[places[path]] = content
    return files


def _documents(texts: Iterable[str], origin: Path, root: Path) -> set[Path]:
    """Return the documents that texts of the file `origin` link to, and those that these link to."""
    found: set[Path] = set()
    new = {target for text in texts for target in _targets(text, origin)}
    while new:
        new = {
            path
            for path in new - found
            if path.is_file() and any(root / name in path.parents for name in DOCUMENTS)
        }
        found |= new
        new = {target for path in new if path.suffix == ".md" for target in _targets(path.read_text(), path)}
    return found


def _targets(text: str, origin: Path) -> list[Path]:
    return [(origin.parent / match[3]).resolve() for match in LINK.finditer(text)]


def _relinked(text: str, origin: Path, places: dict[Path, Path]) -> str:
    """Return a text of the file `origin` with links from its copy to the copies of the linked files."""
    here = places[origin].parent

    def relinked(match: re.Match[str]) -> str:
        place = places.get((origin.parent / match[3]).resolve())
        if not place:
            return match[2]
        return f"{match[1]}[{match[2]}]({Path(os.path.relpath(place, here)).as_posix()}{match[4] or ''})"

    return LINK.sub(relinked, text)
