"""A student's own copies of the notebooks: made once, never overwritten where the student has changed them.

The folder of the copies holds `.origins.json`: for each file, the fingerprint of the version that the copy
was made from. A fingerprint covers what an author writes (cells, tags, attachments), not what a run
produces, so a copy that was only run counts as unchanged.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from labkit.cli.course import folders
from labkit.files import atomic_write

RECORD = ".origins.json"


def update(originals: Path, copies: Path) -> list[str]:
    """Copy the notebooks that are new, and the newer versions of those that the student has not changed.

    The documents that they link to are copied alike. Return lines that say what was done, and which changed
    notebooks have a newer version.
    """
    copies.mkdir(exist_ok=True)
    files = folders.contents(sorted(originals.glob("*.ipynb")), lambda notebook: None)
    record = _read(copies / RECORD)
    origins: dict[str, str] = {}
    made, refreshed, kept = [], [], []
    for place, content in sorted(files.items()):
        name, copy, newest = place.as_posix(), copies / place, fingerprint(content)
        # A copy without an origin (the record is lost): assume the newest, and say nothing.
        origin = record.get(name, newest)
        origins[name] = newest
        if not copy.exists():
            made.append(name)
        elif (mine := fingerprint(copy.read_bytes())) == newest:
            continue
        elif mine == origin:
            refreshed.append(name)
        else:
            origins[name] = origin
            if origin != newest:
                kept.append(
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
    if made:
        new = "your own copies of the notebooks" if len(made) == len(origins) else f"new: {', '.join(made)}"
        lines.append(f"{copies}: {new}")
    if refreshed:
        lines.append(f"{copies}: replaced by newer versions: {', '.join(refreshed)}")
    return lines + kept


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
    except (ValueError, KeyError, TypeError, AttributeError):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha256(json.dumps(cells, sort_keys=True).encode()).hexdigest()


def _read(path: Path) -> dict[str, str]:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
