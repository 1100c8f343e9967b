"""Measure what docs/benchmarks.md and docs/scaling.md publish; write their tables and the figure anew.

python -m benchmarks.publish [benchmarks | scaling]

It needs PyTorch, a quiet machine, twenty minutes and, for the rows on hosts, the right to make network
namespaces: without it, these rows are left out. A table is written as a whole, after its last measurement.
"""

import json
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from mpi4py import MPI

from labkit.bench.pytorch import is_installed
from labkit.files import atomic_write
from labkit.plots.style import COLOURS, INK, one_panel, plain_numbers
from mpiwatch.processes import cores

LABKIT = [sys.executable, "-m", "labkit"]
DOCS = Path(__file__).resolve().parent.parent / "docs"
TABLE = re.compile(r"(<!-- results -->\n\n).*?(<!-- end -->)", re.DOTALL)
# A title, and the options of `labkit hosts up`.
FOUR_HOSTS = "Four hosts, links of 1 Gbit/s"
TWO_HOSTS = "Two hosts, a core each, links of 1 Gbit/s"
SLOW_HOSTS = "Two hosts, a core each, links of 100 Mbit/s"
HOSTS = {FOUR_HOSTS: "--n 4", TWO_HOSTS: "--n 2", SLOW_HOSTS: "--n 2 --bandwidth 100mbit"}
DEADLINE_S = 3600
Row = dict[str, str | float]

OVERLAP = "python -m benchmarks training --setup ring --setup overlap --setup no-averaging"
OVERLAP_ROWS = r"/(ring|overlap)/hosts/exposed |/hidden "
# A title, a command, and a pattern of the rows to publish, as "case against".
COMMANDS = [
    ("One rank", "python -m benchmarks step", r"b64/t1 "),
    (
        "Four ranks",
        "labkit bench collectives -n 4 --sizes 4B,1KiB,64KiB,1MiB,16MiB",
        r"^auto\S+ (mpi-allreduce|best)|^ring/\d+MiB\S+ (hand-written|gloo)",
    ),
    (
        "Four ranks",
        "python -m benchmarks training -n 4 --batch 16",
        r"/(ring|allreduce|shared-memory|overlap|one-rank)/\w+ |/hidden ",
    ),
    ("Four ranks", "python -m benchmarks watching -n 4", r"^watched\S+ mpi-allreduce"),
    (
        FOUR_HOSTS,
        "labkit bench collectives --sizes 64KiB,16MiB --bandwidth 1gbit",
        r"^(auto|ring)/\S+ (mpi-allreduce|gloo|wire-bound|tcp-bound)",
    ),
    (
        FOUR_HOSTS,
        "python -m benchmarks training --batch 16",
        r"/(ring|allreduce|overlap|ddp-hook/ring|zero-3)/\w+ |/hidden ",
    ),
    (TWO_HOSTS, f"{OVERLAP} --rounds 7", OVERLAP_ROWS),
    (SLOW_HOSTS, f"{OVERLAP} --rounds 3", OVERLAP_ROWS),
]
SCALING = [
    (
        TWO_HOSTS,
        f"{OVERLAP} --setup one-rank --batch 128 --scaling strong "
        "--predict 1gbit --predict 10gbit --predict 100gbit",
        r"/hosts |/(4|16|64|256)x\S+/(overlap\S*/10+gbit|no-averaging/100gbit)/predicted ",
    )
]
# The figure's curves: a set-up and a link, the label, how far it is moved up (points), a line style.
CURVES = [
    ("no-averaging/100gbit", "computing alone", 17, ":"),
    ("overlap/halving-doubling/100gbit", "100 Gbit/s, halving-doubling", 4, "-"),
    ("overlap/halving-doubling/10gbit", "10 Gbit/s, halving-doubling", -9, "-"),
    ("overlap/10gbit", "10 Gbit/s, ring", -4, "--"),
    ("overlap/halving-doubling/1gbit", "1 Gbit/s, halving-doubling", 0, "-"),
]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a command of this environment, and keep what it prints on standard output."""
    return subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False)


def rows_of(title: str, command: str, wanted: str) -> tuple[list[str], list[Row]]:
    """Return the lines of a command's part of the table, and all its rows; neither without hosts for them.

    Raise SystemExit if the command fails.
    """
    program, *words = command.removeprefix("python -m ").split()  # labkit, or benchmarks
    on_hosts = [*LABKIT, "hosts", "run"] if title in HOSTS else []
    if on_hosts and run(*LABKIT, "hosts", "up", *HOSTS[title].split()).returncode:
        return [], []
    try:
        done = run(*on_hosts, sys.executable, "-m", program, *words, "--json")
    finally:
        if on_hosts:
            run(*LABKIT, "hosts", "down")
    if done.returncode:
        raise SystemExit(f"{command} ended with exit code {done.returncode}")
    rows = json.loads(done.stdout)
    shown = [row for row in rows if re.search(wanted, f"{row['case']} {row['against']}")]
    return [f"| **{title}**, `{command}` | | | | |", *map(line, shown)], rows


def line(row: Row) -> str:
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


def points(rows: list[Row], suffix: str) -> tuple[list[int], list[float]]:
    """Return numbers of ranks, and the images per second of the set-up and link that `suffix` names."""
    found = {}
    for row in rows:
        _, _, size, ending = str(row["case"]).split("/", 3)
        if ending == suffix and row["against"] == "linear":
            found[int(size.partition("x")[0])] = float(row["ours"])
    return list(found), list(found.values())


def draw(rows: list[Row]) -> Figure:
    """Return the figure of strong scaling: images per second against the number of ranks."""
    figure, axes = one_panel((7.5, 4.6), "Ranks (together 256 images in a step)", "Images per second")
    ranks, _ = points(rows, f"{CURVES[0][0]}/predicted")
    one = next(float(row["theirs"]) / 2 for row in rows if row["case"] == "vgg11/strong/2x128/overlap/hosts")
    axes.plot(ranks, [one * p for p in ranks], color=INK, linewidth=1)
    axes.annotate("linear", (ranks[-2], one * ranks[-2]), (-8, 0), textcoords="offset points", ha="right")
    for k, (suffix, label, up, line_style) in enumerate(CURVES):
        ranks, rates = points(rows, f"{suffix}/predicted")
        axes.plot(ranks, rates, line_style, color=COLOURS[k], linewidth=2, zorder=3 - k / 10)
        place: dict[str, Any] = {"xytext": (6, up), "textcoords": "offset points", "va": "center"}
        axes.annotate(label, (ranks[-1], rates[-1]), color=INK, **place)
    ranks, rates = points(rows, "overlap/hosts")
    axes.plot([1, *ranks], [one, *rates], "o", color=INK, markersize=7, zorder=4)
    below: dict[str, Any] = {"xytext": (8, -14), "textcoords": "offset points"}
    axes.annotate("measured, 1 Gbit/s", (ranks[0], rates[0]), **below)
    axes.set(xscale="log", yscale="log", xlim=(0.9, 2200))
    axes.set_xticks(points(rows, f"{CURVES[0][0]}/predicted")[0])
    for axis in axes.xaxis, axes.yaxis:
        plain_numbers(axis)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def write(name: str, commands: list[tuple[str, str, str]]) -> list[Row]:
    """Measure, and write the table of this page anew; return all rows that were measured."""
    path = DOCS / f"{name}.md"
    lines: list[str] = []
    rows: list[Row] = []
    for command in commands:
        more, measured = rows_of(*command)
        lines, rows = [*lines, *more], [*rows, *measured]
    head = ["| case | ours | against | theirs | ratio |", "|---|---|---|---|---|"]
    text, found = TABLE.subn(
        lambda match: match[1] + "\n".join([machine(), "", *head, *lines, "", ""]) + match[2],
        path.read_text(),
    )
    if not found:
        raise SystemExit(f"{path} has no place for the results")
    with atomic_write(path) as file:
        file.write(text.encode())
    return rows


def main() -> None:
    if not is_installed():
        raise SystemExit("expected PyTorch in this environment: pip install torch")
    names = sys.argv[1:] or ["benchmarks", "scaling"]
    if "benchmarks" in names:
        write("benchmarks", COMMANDS)
    rows = write("scaling", SCALING) if "scaling" in names else []
    if rows:
        with atomic_write(DOCS / "scaling.svg") as file, rc_context({"svg.hashsalt": "scaling"}):
            draw(rows).savefig(file, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
