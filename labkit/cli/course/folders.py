"""Where the original notebooks are, and folders of copies: for a course, and a student's own.

A student's copies are made once, and never overwritten where the student has changed them. Their folder
holds `.origins.json`: for each file, the fingerprint of the version that the copy was made from, and a hash
of the copy as it was made. A fingerprint covers what an author writes (cells, tags, attachments), not what a
run produces, so a copy that was only run counts as unchanged: a newer version takes its place, and the copy
with its outputs is kept under another name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat

import labkit
from labkit.cli.course import RECORD
from labkit.cli.course.copies import clear
from labkit.files import atomic_write, kept_beside, locked

# An image begins with an exclamation mark.
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
# Beside the notebooks; copied if linked to.
DOCUMENTS = ("docs", "examples", "mpiwatch/docs", "labkit/reports/figures")

NOT_COPIED = "docs/instructors.md", "docs/grading.md", "docs/exercises.md", "docs/course.md"
# They tell what checks look for, or are an instructor's.


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """Yield a new folder; its contents are in `folder` when the block ends, or nowhere if it raises."""
    place = next(path for path in (folder, *folder.absolute().parents) if path.exists())  # on the same disk
    with TemporaryDirectory(prefix=".labkit-part-", dir=place) as part:
        yield Path(part)
        folder.mkdir(parents=True, exist_ok=True)
        for path in Path(part).iterdir():
            path.rename(folder / path.name)


def contents(
    originals: list[Path], change: Callable[[Any], None], *, of_their_own: bool = False
) -> dict[Path, bytes]:
    """Return the files of a folder of copies, by their path in it.

    These are the notebooks after `change(notebook)`, and the documents that they and other documents link
    to. With `of_their_own`, each notebook gets a folder of its own name with its documents. A notebook's
    metadata say which version of the lab made the copy. Links lead to the copies; links to files that are not
    copied become plain text.
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
    documents: set[Path] = set()
    new = {target for text in texts for target in _targets(text, origin)}
    while new:
        new = {
            path
            for path in new - documents
            if path.is_file()
            and any(root / name in path.parents for name in DOCUMENTS)
            and path not in [root / name for name in NOT_COPIED]
        }
        documents |= new
        new = {target for path in new if path.suffix == ".md" for target in _targets(path.read_text(), path)}
    return documents


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


WAIT_S = 60.0  # for another process that updates the same copies, which takes a second


def update(originals: Path, copies: Path) -> list[str]:
    """Copy the notebooks that are new, and the newer versions of those that the student has not changed.

    The documents that they link to are copied alike. Return lines that say what was done, and which changed
    notebooks have a newer version.
    """
    copies.mkdir(exist_ok=True)
    files = contents(sorted(originals.glob("*.ipynb")), clear)
    with locked(copies / ".lock", WAIT_S):
        return _update(files, copies)


def _update(files: dict[Path, bytes], copies: Path) -> list[str]:
    record = _read(copies / RECORD)
    origins: dict[str, str] = {}
    copied, refreshed, old, unchanged = [], [], [], []
    for place, content in sorted(files.items()):
        name, copy, newest = place.as_posix(), copies / place, fingerprint(content)
        # A copy without an origin (the record is lost): assume the newest, and say nothing.
        origin, _, bytes_made = record.get(name, newest).partition(" ")
        origins[name] = f"{newest} {_hash(content)}"
        exists = copy.exists()
        now = copy.read_bytes() if exists else b""
        mine = fingerprint(now) if exists else ""
        if not exists:
            copied.append(name)
        elif mine == newest:
            if name in record and origin == newest:
                origins[name] = record[name]
            continue
        elif mine == origin:
            refreshed.append(name)
            if _hash(now) != bytes_made:
                old.append(kept_beside(copy))
        else:
            origins[name] = record.get(name, newest)
            if origin != newest:
                unchanged.append(
                    f"{copy} is kept because you have changed it, but there is a newer version. "
                    f"For the new version, rename your copy and start again."
                )
            continue
        copy.parent.mkdir(exist_ok=True)
        with atomic_write(copy) as file:
            file.write(content)
    if origins != record:
        with atomic_write(copies / RECORD) as file:
            file.write(json.dumps(origins, indent=1).encode())
    lines = []
    if copied:
        new = (
            "your own copies of the notebooks" if len(copied) == len(origins) else f"new: {', '.join(copied)}"
        )
        lines.append(f"{copies}: {new}")
    if refreshed:
        lines.append(f"{copies}: replaced by newer versions: {', '.join(refreshed)}")
    if old:
        lines.append(f"{copies}: your runs of the older versions are in {', '.join(old)}")
    return lines + unchanged


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def fingerprint(content: bytes) -> str:
    """Return a hash of what an author writes in a notebook; of all bytes if they are not a notebook."""
    try:
        cells = [
            [
                cell["cell_type"],
                "".join(cell["source"]),
                cell["metadata"].get("tags", []),
                cell.get("attachments", {}),
            ]
            for cell in json.loads(content)["cells"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _hash(content)
    return _hash(json.dumps(cells, sort_keys=True).encode())


def _read(path: Path) -> dict[str, str]:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    is_record = isinstance(record, dict) and all(isinstance(origin, str) for origin in record.values())
    return record if is_record else {}
