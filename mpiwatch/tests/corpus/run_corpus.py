"""Run the corpus in strict mode and print the table: python -m corpus.run_corpus [--help].

A job runs several programs like cells of a notebook: a hang or an error ends one of them, and the ranks
continue with the next (see several.py). If a rank is stuck inside MPI, the watchdog ends the job, and a new
job continues.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mpi4py
import numpy as np

from corpus import after_corrbench, collectives, messages, others
from corpus.program import CATEGORIES, Program
from mpiwatch.launch import HANG_EXIT_CODE, mpiexec, settings

HERE = Path(__file__).parent
DEADLINE_S = 1.0
JOB_S = 240.0  # time limit of a job of a few programs, on a busy machine
PROGRAMS_PER_JOB = 20


def corpus(after_mpi_corrbench: bool = False) -> dict[str, Program]:
    """Return all programs of our own, or those after MPI-CorrBench, by name."""
    if after_mpi_corrbench:
        made = [*after_corrbench.programs()]
    else:
        made = [*messages.programs(), *collectives.programs(), *others.programs()]
    programs = {program.name: program for program in made}
    assert len(programs) == len(made), "two programs have the same name"
    return programs


@dataclass(frozen=True)
class Outcome:
    """Strict mode's verdict on a program: `how` is `findings`, `report`, `error`, `late` or empty."""

    program: Program
    how: str
    said: list[str]

    @property
    def verdict(self) -> str:
        """Return TP, FN, TN or FP."""
        if self.program.is_correct:
            return "FP" if self.how else "TN"
        return "TP" if self.how and self.how != "late" else "FN"

    def __str__(self) -> str:
        """Return the verdict, the program's name and, unless that is known, what was said of it."""
        said = [self.program.blind] if self.program.blind else [self.how, *self.said]
        return "\n".join([f"{self.verdict} {self.program.name}: {said[0]}", *said[1:]])


def run(programs: Sequence[Program], deadline_s: float = DEADLINE_S, mode: str = "strict") -> list[Outcome]:
    """Run the programs in a mode (strict, plain or cells), two jobs at a time; return their outcomes."""
    batches: list[list[Program]] = []
    for ranks in sorted({program.ranks for program in programs}):
        same = [program for program in programs if program.ranks == ranks]
        batches += [same[i : i + PROGRAMS_PER_JOB] for i in range(0, len(same), PROGRAMS_PER_JOB)]
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(2) as pool:
        for made in pool.map(lambda batch: _run_batch(batch, deadline_s, mode), batches):
            outcomes += made
            print(f"{len(outcomes)} of {len(programs)} programs", file=sys.stderr, flush=True)
    return outcomes


def _run_batch(batch: list[Program], deadline_s: float, mode: str) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="mpiwatch-corpus-") as name:
        folder = Path(name)
        for index, program in enumerate(batch):
            (folder / f"{index}.py").write_text(program.source)
        while len(outcomes) < len(batch):
            outcomes += _run_job(batch, len(outcomes), folder, deadline_s, mode)
    return outcomes


def _run_job(batch: list[Program], first: int, folder: Path, deadline_s: float, mode: str) -> list[Outcome]:
    """Run programs from number `first` on in one job; return the outcomes of those that the job reached."""
    results = folder / "results"
    results.unlink(missing_ok=True)
    left = batch[first:]
    words = [mpiexec(), "-n", str(left[0].ranks), sys.executable, str(HERE / "several.py"), str(results)]
    words += [str(deadline_s), mode, *(str(folder / f"{first + i}.py") for i in range(len(left)))]
    job = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **settings(), "PYTHONPATH": str(HERE.parents[1] / "src")},
        start_new_session=True,
    )
    is_late = False
    try:
        output, _ = job.communicate(timeout=JOB_S)
    except subprocess.TimeoutExpired:
        is_late = True
        os.killpg(job.pid, signal.SIGKILL)
        output, _ = job.communicate()
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    outcomes = [_outcome(program, line) for program, line in zip(left, lines, strict=False)]
    if len(outcomes) < len(left):  # this program has ended the job
        how = "late" if is_late else "report" if job.returncode == HANG_EXIT_CODE else "error"
        said = [f"exit code {job.returncode}", *output.splitlines()[-12:]]
        outcomes.append(Outcome(left[len(outcomes)], how, said))
    return outcomes


def _outcome(program: Program, line: dict[str, Any]) -> Outcome:
    ranks = [each for each in line["ranks"] if each["how"]]
    hows = {each["how"] for each in ranks}
    how = "error" if "error" in hows else "report" if hows else "findings" if line["findings"] else ""
    said = [text for each in ranks for text in each["said"].splitlines()]
    said += [f"{finding['category']}: {finding['text']}" for finding in line["findings"]]
    return Outcome(program, how, said)


def table(outcomes: Sequence[Outcome]) -> str:
    """Return the table in the form of the MPI Bugs Initiative, as Markdown."""
    lines = [
        "| Category | Programs | TP | FN | TN | FP | Recall | Specificity |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    rows = [(name, [each for each in outcomes if each.program.category == name]) for name in CATEGORIES]
    for name, some in [*rows, ("all", list(outcomes))]:
        if not some:
            continue
        tp, fn, tn, fp = (
            sum(each.verdict == verdict for each in some) for verdict in ("TP", "FN", "TN", "FP")
        )
        ratios = _ratio(tp, tp + fn), _ratio(tn, tn + fp)
        bold = "**" if name == "all" else ""
        cells = [f"{bold}{cell}{bold}" for cell in (name, len(some), tp, fn, tn, fp, *ratios)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ratio(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "–"


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Run the corpus in strict mode and print the table.")
    parser.add_argument("--only", default="", metavar="REGEX", help="programs whose names match")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes to a file")
    parser.add_argument("--list", action="store_true", help="print the programs' names and end")
    parser.add_argument("--show", metavar="NAME", help="print a program and end")
    parser.add_argument("--after-corrbench", action="store_true", help="the programs after MPI-CorrBench")
    parser.add_argument("--plain", action="store_true", help="without strict mode")
    options = parser.parse_args()
    chosen = corpus(options.after_corrbench)
    programs = [each for each in chosen.values() if re.search(options.only, each.name)]
    if options.show:
        print(chosen[options.show].source)
        return
    if options.list:
        print(
            *(f"{each.name} ({each.category}{', correct' * each.is_correct})" for each in programs), sep="\n"
        )
        return
    outcomes = run(programs, mode="plain" if options.plain else "strict")
    if options.json:
        rows = [asdict(each) | {"verdict": each.verdict} for each in outcomes]
        options.json.write_text(json.dumps(rows, indent=1))
    print(table(outcomes))
    print(*(f"\n{each}" for each in outcomes if each.verdict in ("FN", "FP")), sep="\n")
    print(
        f"\n{len(outcomes)} programs, {sum(each.program.is_correct for each in outcomes)} of them correct. "
        f"Python {platform.python_version()}, mpi4py {mpi4py.__version__}, NumPy {np.__version__}."
    )


if __name__ == "__main__":
    main()
