"""Measure what docs/benchmarks.md publishes, and write its table of results anew.

python tools/make_benchmarks.py

It needs PyTorch, a quiet machine, ten minutes and, for the rows on four hosts, the right to make network
namespaces: without it, these rows are left out. The table is written as a whole, after the last measurement.
"""

import json
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from mpi4py import MPI

from labkit.bench.pytorch import is_installed
from labkit.files import atomic_write
from mpiwatch.processes import cores

PAGE = Path(__file__).resolve().parent.parent / "docs/benchmarks.md"
TABLE = re.compile(r"(<!-- results -->\n\n).*?(<!-- end -->)", re.DOTALL)
LABKIT = [sys.executable, "-m", "labkit"]
HOSTS = "Four hosts, links of 1 Gbit/s"
DEADLINE_S = 3600

# A title, a command, and a pattern of the rows to publish, as "case against".
COMMANDS = [
    ("One rank", "bench step", r"b64/t1 "),
    (
        "Four ranks",
        "bench collectives -n 4 --sizes 4B,1KiB,64KiB,1MiB,16MiB",
        r"^auto\S+ (mpi-allreduce|best)|^ring/\d+MiB\S+ (hand-written|gloo)",
    ),
    (
        "Four ranks",
        "bench training -n 4 --batch 16",
        r"/(ring|allreduce|shared-memory|overlap|one-rank)/\w+ |/hidden ",
    ),
    ("Four ranks", "bench watching -n 4", r"^watched\S+ mpi-allreduce"),
    (
        HOSTS,
        "bench collectives --sizes 64KiB,16MiB --bandwidth 1gbit",
        r"^(auto|ring)/\S+ (mpi-allreduce|gloo|wire-bound)",
    ),
    (HOSTS, "bench training --batch 16", r"/(ring|allreduce|overlap|ddp-hook/ring|zero-3)/\w+ |/hidden "),
]


def labkit(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*LABKIT, *words], stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False
    )


def rows_of(title: str, command: str, wanted: str) -> list[str]:
    """Return the lines of a command's part of the table. Raise SystemExit if the command fails."""
    words = ["hosts", "run", *LABKIT] if title == HOSTS else []
    ended = labkit(*words, *command.split(), "--json")
    if ended.returncode:
        raise SystemExit(f"labkit {command} ended with exit code {ended.returncode}")
    rows = [row for row in json.loads(ended.stdout) if re.search(wanted, f"{row['case']} {row['against']}")]
    return [f"| **{title}**, `labkit {command}` | | | | |", *map(line, rows)]


def line(row: dict[str, str | float]) -> str:
    ours, theirs, ratio = (float(row[name]) for name in ("ours", "theirs", "ratio"))
    ends = f"{row['case']} | {_digits(ours)} {row['unit']} | {row['against']} | {_digits(theirs)}"
    return f"| {ends} | {ratio:.2f} |"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def machine() -> str:
    """Return the day, the machine and the versions, as a sentence."""
    vendor, numbers = MPI.get_vendor()
    library = f"{vendor} {'.'.join(map(str, numbers))}"
    names = ("numpy", "mpi4py", "torch")
    versions = [f"Python {platform.python_version()}", library]
    versions += [f"{name} {version(name).split('+')[0]}" for name in names]
    day = f"{datetime.now(UTC):%-d %B %Y}"
    return f"Measured on {day}, {cores()} cores ({platform.machine()}), {', '.join(versions)}."


def main() -> None:
    if not is_installed():
        raise SystemExit("expected PyTorch in this environment: pip install torch")
    hosts = labkit("hosts", "up").returncode == 0
    try:
        lines = [text for command in COMMANDS if hosts or command[0] != HOSTS for text in rows_of(*command)]
    finally:
        if hosts:
            labkit("hosts", "down")
    head = ["| case | ours | against | theirs | ratio |", "|---|---|---|---|---|"]
    text, found = TABLE.subn(
        lambda match: match[1] + "\n".join([machine(), "", *head, *lines, "", ""]) + match[2],
        PAGE.read_text(),
    )
    if not found:
        raise SystemExit(f"{PAGE} has no place for the results")
    with atomic_write(PAGE) as file:
        file.write(text.encode())


if __name__ == "__main__":
    main()
