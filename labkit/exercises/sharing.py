"""What students choose to share of their progress, and the table of a class that it makes.

A shared file holds, for each exercise that was checked, its state, how often it was checked and what the last
check has found: no code, no answers, no times.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from labkit.exercises import catalogue, record
from labkit.files import atomic_write, printable, read_input
from labkit.text import COLUMNS, counted, wrapped

MANY_TRIES = 10  # of one exercise: such a student needs help
MOST_FINDINGS = 5  # that the table shows
MOST_BYTES = 1 << 20  # of a shared file
MOST_CHARACTERS = 200  # of a finding


class Checked(NamedTuple):
    """What a student shares of one exercise."""

    state: str  # "tried" or "done"
    tries: int
    finding: str


Shared = dict[str, Checked]  # by exercise


def share(folder: Path, name: str) -> str:
    """Write what is shared to a file of this name in a folder; return what was written, in words."""
    shared = mine()
    content = {exercise: checked._asdict() for exercise, checked in shared.items()}
    path = folder / f"{name}.json"
    with atomic_write(path) as file:
        file.write(json.dumps({"shared": content}, indent=1).encode() + b"\n")
    return (
        f"{path}: {counted(len(shared), 'exercise')}, each with its state, the number of your tries and the "
        "last finding. No code and no answers are in it."
    )


def mine() -> Shared:
    """Return what this student can share."""
    known = record.load().items()
    entries = {name: entry for name, entry in known if entry.get("state") in ("tried", "done")}
    return {
        name: Checked(entry["state"], int(entry.get("checks", 1)), str(entry.get("finding", "")))
        for name, entry in entries.items()
        if name in catalogue.exercises()
    }


def read(folder: Path) -> tuple[dict[str, Shared], list[str]]:
    """Return what the files in a folder share, by student, and the names of files that cannot be read."""
    students, damaged = {}, []
    for path in sorted(folder.glob("*.json")):
        try:
            if path.stat().st_size > MOST_BYTES:
                raise ValueError
            content = json.loads(read_input(path))["shared"]
            students[path.stem] = {
                name: _checked(content[name]) for name in catalogue.exercises() if name in content
            }
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            damaged.append(path.name)
    return students, damaged


def _checked(entry: Any) -> Checked:
    """Return what a shared file says of an exercise. Raise ValueError or TypeError if it is damaged."""
    state, tries, finding = entry["state"], entry["tries"], entry["finding"]
    if state not in ("tried", "done") or type(tries) is not int or type(finding) is not str:
        raise ValueError
    return Checked(state, tries, printable(finding)[:MOST_CHARACTERS])


def table(folder: Path) -> str:
    """Return where each student is, which findings are most frequent, and who has tried many times."""
    students, damaged = read(folder)
    lines = [f"{name}: {_where(shared)}" for name, shared in students.items()]
    findings = Counter(
        (exercise, checked.finding)
        for shared in students.values()
        for exercise, checked in shared.items()
        if checked.state == "tried" and checked.finding
    )
    if findings:
        lines += ["", "Most frequent findings:"]
        for (exercise, finding), count in findings.most_common(MOST_FINDINGS):
            lines.append(wrapped(f"  {counted(count, 'student')}, {exercise}: {finding}", COLUMNS))
    stuck = [
        f"  {name}, {exercise}: {checked.tries} tries"
        for name, shared in students.items()
        for exercise, checked in shared.items()
        if checked.state == "tried" and checked.tries >= MANY_TRIES
    ]
    if stuck:
        lines += ["", f"{MANY_TRIES} tries or more, and not correct yet:", *stuck]
    if damaged:
        lines += ["", f"Not readable: {', '.join(map(printable, damaged))}."]
    return "\n".join(lines)


def _where(shared: Shared) -> str:
    """Return how many exercises are done, and at which one the student is: a tried one, or the next."""
    names = list(catalogue.exercises())
    done = [name for name in names if name in shared and shared[name].state == "done"]
    tried = [name for name in names if name in shared and shared[name].state == "tried"]
    last = max((names.index(name) for name in shared), default=-1)
    open_ones = tried or [name for name in names[last + 1 :] if name not in shared]
    at = f"at {open_ones[-1] if tried else open_ones[0]}" if open_ones else "at the end"
    return f"{counted(len(done), 'exercise')} done, {at}"
