"""Fill in the numbers of docs/instructors.md: minutes and points of notebooks, minutes of each session.

python tools/course_numbers.py

A table's names of exercises, in `code`, are the author's. The number behind each list of names is the sum of
the exercises' minutes. The table of notebooks is made as a whole.
"""

import json
import re
from pathlib import Path

from labkit.exercises import catalogue

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/instructors.md"
TABLE = re.compile(r"(<!-- notebooks -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
LIST = re.compile(r"((?:`\w+`(?:, )?)+|–) \| \d+ \|")
TIME = re.compile(
    r"Time:(?:\*\*)? about (?P<all>\d+) minutes, (?P<part>\d+) of them for the (?P<count>\w+) exercises"
)
NUMBERS = {"four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9}


def with_numbers(page: str) -> str:
    """Return the text of the page with the numbers of the catalogue and of the notebooks."""
    minutes = {name: exercise.minutes for name, exercise in catalogue.exercises().items()}

    def counted(found: re.Match[str]) -> str:
        names = re.findall(r"`(\w+)`", found[1])
        return f"{found[1]} | {sum(minutes[name] for name in names)} |"

    page = TABLE.sub(lambda found: found[1] + "\n".join(_rows()) + found[2], page)
    return LIST.sub(counted, page)


def times(notebook: Path) -> tuple[int, int, int]:
    """Return the minutes, those for the exercises, and the exercises that a notebook's first cell states."""
    first = "".join(json.loads(notebook.read_text())["cells"][0]["source"])
    found = TIME.search(" ".join(first.split()))
    if not found:
        raise ValueError(
            f"{notebook.name}: the first cell needs 'Time: about N minutes, N of them for the … exercises'"
        )
    count = found["count"]
    return int(found["all"]), int(found["part"]), NUMBERS.get(count) or int(count)


def of_catalogue(number: str) -> tuple[int, int, int]:
    """Return the minutes, the number and the points of a notebook's exercises; `number` is as in "05"."""
    some = [exercise for exercise in catalogue.exercises().values() if exercise.notebook == number]
    return sum(each.minutes for each in some), len(some), sum(each.points for each in some)


def _rows() -> list[str]:
    rows = ["| Notebook | Minutes | Exercises | Their minutes | Points |", "|---|---|---|---|---|"]
    sums = [0, 0, 0, 0]
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        minutes, count, points = of_catalogue(path.name[:2])
        numbers = times(path)[0], count, minutes, points
        sums = [a + b for a, b in zip(sums, numbers, strict=True)]
        link = f"[{path.stem}](../notebooks/{path.name})"
        rows.append(f"| {link} | {' | '.join(map(str, numbers))} |")
    return [*rows, f"| all | {' | '.join(map(str, sums))} |"]


if __name__ == "__main__":
    PAGE.write_text(with_numbers(PAGE.read_text()))
