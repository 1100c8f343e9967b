"""The points of a class in a contest: the incidents of notebook 11, or schedules of an all-reduce."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from labkit.cli.course import submissions
from labkit.exercises import allreduce_contest, on_call

INCIDENTS, SCHEDULES = "incidents", "allreduce_contest"  # names of the assignments
MOST_POINTS = 10.0
SCORE = "score"


class ContestPoints(NamedTuple):
    """An assignment's name, the most points of its parts, the points by student and part, and the table."""

    name: str
    parts: dict[str, float]
    points: dict[str, dict[str, float]]
    table: str


@contextmanager
def files_by_student(download: Path, ending: str) -> Iterator[Path]:
    """Yield a folder with a download's newest file of each student, named by the student."""
    with TemporaryDirectory(prefix="labkit-contest-") as place:
        for student, file in submissions.newest_files(download, ending).items():
            Path(place, f"{student}{ending}").write_bytes(file.content())
        yield Path(place)


def incidents(download: Path, seeds: Sequence[int]) -> ContestPoints:
    """Return the points for diagnoses in notebook 11: means over the incidents."""
    with files_by_student(download, ".json") as folder:
        rows = on_call.class_rows(folder.glob("*.json"), seeds)
    points = {row["student"]: {part: row[part] for part in on_call.POINTS} for row in rows}
    parts = {part: float(most) for part, most in on_call.POINTS.items()}
    return ContestPoints(INCIDENTS, parts, points, on_call.class_table(rows))


def schedules(download: Path, ranks: int, say: Callable[[str], None]) -> ContestPoints:
    """Return the points for schedules: the mean score, which is 1 at the lower bound, of ten points.

    An entry that cannot take part gets none. Each runs in a sandbox if the system allows one.
    """
    allreduce_contest.use_sandbox(say)
    with files_by_student(download, ".py") as folder:
        results = allreduce_contest.judge_folder(folder, ranks, say)
    entries = [result for result in results if not result.entry.startswith("[")]
    points = {result.entry: {SCORE: round(MOST_POINTS * result.score, 2)} for result in entries}
    return ContestPoints(SCHEDULES, {SCORE: MOST_POINTS}, points, allreduce_contest.table(results))
