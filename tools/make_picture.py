"""Draw docs/lab.gif, the moving picture of the README: the ring's rounds, then a real hang report.

python tools/make_picture.py [FILE]

The rounds are those of `labkit.schedules`. The hang happens in a notebook that this program runs on four real
ranks; the picture shows its cell, where each rank was and the report that the cell ended with.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import nbformat
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from nbclient import NotebookClient
from PIL import Image

from labkit.colours import colour
from labkit.plots.hang import COLOURS as STATE
from labkit.plots.style import INK, text_colour
from labkit.schedules import ALLREDUCE, Transfer, contents_by_round, verify
from labkit.text import wrapped
from mpiwatch.report import Entry, Report, table

TARGET = Path(__file__).resolve().parent.parent / "docs" / "lab.gif"
P = 4
GRADIENTS = np.array([[3, 1, 4, 1], [5, 9, 2, 6], [2, 6, 5, 8], [8, 3, 6, 9]])  # of ranks; any values will do
CELL = """%%px
comm.Barrier()
if rank != 2:  # a mistake
    comm.Allreduce(gradient, total)"""

WIDTH, HEIGHT, SCALE = 800, 710, 1.5  # the layout's unit is a pixel of a picture 800 wide
CENTRE, RADIUS = np.array([400, 340]), 132
CHUNK, TALL = 52, 58  # a chunk's width and height
ERROR = "#FFE6E6"  # about the colour that JupyterLab gives the output of an error
MOVE_MS, PARTS = 70, tuple(t * t * (3 - 2 * t) for t in np.arange(1, 7) / 7)  # of the way, in each frame
START_MS, ROUND_MS, SUM_MS, CELL_MS, WAIT_MS, REPORT_MS = 1500, 600, 1500, 1100, 1100, 7000

Frame = tuple[Figure, int]  # and for how many milliseconds it is shown


def canvas(title: str) -> tuple[Figure, Axes]:
    """Return a figure with a border and a title, and axes in units of the layout, y downwards."""
    figure = Figure(figsize=(WIDTH / 100, HEIGHT / 100), dpi=100 * SCALE)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(HEIGHT, 0)
    axes.axis("off")
    axes.add_patch(Rectangle((1, 1), WIDTH - 2, HEIGHT - 2, fill=False, edgecolor="#BBBBBB", lw=1.5))
    write(axes, (WIDTH / 2, 40), title, 30, weight="bold")
    return figure, axes


def write(axes: Axes, at: Sequence[float], text: str, pixels: float, **style: object) -> None:
    """Write a text whose font is `pixels` high, centred by default."""
    style = {"ha": "center", "va": "center", "color": "black", **style}
    axes.text(*at, text, fontsize=0.72 * pixels, **style)  # type: ignore[arg-type]


def rank_label(axes: Axes, at: Sequence[float], rank: int, text: str) -> None:
    """Draw a rank as a rounded box in its colour."""
    box = {
        "boxstyle": "round,pad=0.28,rounding_size=0.5",
        "facecolor": colour(rank),
        "edgecolor": INK,
        "lw": 1,
    }
    write(axes, at, text, 22, weight="bold", color=text_colour(colour(rank)), bbox=box)


def draw_chunk(axes: Axes, at: Sequence[float], value: int, held: np.ndarray, thick: bool = False) -> None:
    """Draw a chunk around its centre: its value, and below it a stripe for each rank whose input is in it."""
    left, top = at[0] - CHUNK / 2, at[1] - TALL / 2
    sources = np.flatnonzero(held)
    axes.add_patch(Rectangle((left, top), CHUNK, TALL, facecolor="white", lw=0, zorder=3 if thick else 1))
    for k, source in enumerate(sources):
        width = CHUNK / len(sources)
        stripe = Rectangle((left + k * width, top + 38), width, TALL - 38, facecolor=colour(source), lw=0)
        stripe.set_zorder(3 if thick else 1)
        axes.add_patch(stripe)
    frame = Rectangle((left, top), CHUNK, TALL, fill=False, edgecolor="black" if thick else INK)
    frame.set(linewidth=3.4 if thick else 1.2, zorder=4 if thick else 2)
    axes.add_patch(frame)
    weight = "bold" if len(sources) == P or thick else "normal"
    write(axes, (at[0], top + 20), str(value), 27, weight=weight, zorder=5 if thick else 2)


def ring_place(rank: float) -> np.ndarray:
    """Return where a rank is on the ring: rank 0 on top, the others clockwise."""
    angle = 2 * np.pi * rank / P
    return CENTRE + RADIUS * np.array([np.sin(angle), -np.cos(angle)])


def chunk_place(rank: int, chunk: int) -> np.ndarray:
    """Return the centre of a rank's chunk; its vector is outside the ring."""
    outwards = (ring_place(rank) - CENTRE) / RADIUS
    beside = outwards * (54 + CHUNK * P / 2, 56)
    return ring_place(rank) + beside + ((chunk - (P - 1) / 2) * CHUNK, 0)


def on_the_way(transfer: Transfer, part: float) -> np.ndarray:
    """Return where a chunk is that has gone this part of its way, clockwise around the ring."""
    angles, radii = [], []
    for rank in transfer.source, transfer.dest:
        x, y = chunk_place(rank, transfer.first) - CENTRE
        angles.append(np.arctan2(x, -y))
        radii.append(np.hypot(x, y))
    angle = angles[0] + part * ((angles[1] - angles[0]) % (2 * np.pi))
    return CENTRE + (radii[0] + part * (radii[1] - radii[0])) * np.array([np.sin(angle), -np.cos(angle)])


def draw_ring(
    inside: str,
    caption: str,
    values: np.ndarray,
    held: np.ndarray,
    *,
    written: Sequence[Transfer] = (),
    under_way: Sequence[Transfer] = (),
    part: float = 0.0,
) -> Figure:
    """Draw the ring, what all ranks hold, and the chunks that have gone a part of their way."""
    figure, axes = canvas("All-reduce on a ring of four ranks")
    axes.add_patch(Circle(tuple(CENTRE), RADIUS, fill=False, edgecolor="#999999", lw=4, zorder=0))
    arrow = {"arrowstyle": "-|>", "color": "#777777", "mutation_scale": 34, "lw": 0}
    for rank in range(P):
        axes.annotate("", ring_place(rank + 0.56), ring_place(rank + 0.5), arrowprops=arrow)
        for chunk in range(P):
            thick = any((t.dest, t.first) == (rank, chunk) for t in written)
            draw_chunk(axes, chunk_place(rank, chunk), values[rank, chunk], held[rank, chunk], thick)
        rank_label(axes, ring_place(rank), rank, f"rank {rank}")
    for t in under_way:
        draw_chunk(axes, on_the_way(t, part), values[t.source, t.first], held[t.source, t.first], thick=True)
    write(axes, CENTRE, inside, 26, linespacing=1.35)
    write(axes, (WIDTH / 2, HEIGHT - 34), caption, 24)
    return figure


def ring_frames() -> Iterator[Frame]:
    """Yield the rounds of the ring on four ranks; fail unless every rank ends with the sum."""
    schedule = ALLREDUCE["ring"](P)
    verify(schedule)
    contents, rounds = list(contents_by_round(schedule)), list(schedule)
    values, last = GRADIENTS.copy(), len(rounds)
    yield (
        draw_ring(
            f"p = {P}\nranks", "Each rank holds a gradient. Every rank needs the sum.", values, contents[0]
        ),
        START_MS,
    )
    for number, round_ in enumerate(rounds, 1):
        transfers = list(round_)
        what, does = ("chunk", "adds") if transfers[0].reduce else ("sum", "copies")
        caption = f"Each rank sends one {what} to the next, which {does} it."
        words = f"round {number}\nof {last}", caption
        for part in PARTS:
            figure = draw_ring(*words, values, contents[number - 1], under_way=transfers, part=part)
            yield figure, MOVE_MS
        sent = [values[t.source, t.first] for t in transfers]
        for t, value in zip(transfers, sent, strict=True):
            values[t.dest, t.first] = value + (values[t.dest, t.first] if t.reduce else 0)
        yield draw_ring(*words, values, contents[number], written=transfers), ROUND_MS
    assert np.array_equal(values, np.tile(GRADIENTS.sum(axis=0), (P, 1)))
    caption = f"After 2(p − 1) = {last} rounds every rank holds the sum."
    yield draw_ring(f"p = {P}\nranks", caption, values, contents[-1]), SUM_MS


def run_cell() -> tuple[str, Report]:
    """Run CELL in a notebook on four ranks; return the error that the cell ends with, and the hang report."""
    connect = "from labkit.cluster import connect, last_hang\nrc = connect(n=4)"
    gradient = f"%%px\ngradient = np.array({GRADIENTS.tolist()}[rank])\ntotal = np.empty_like(gradient)"
    code = connect, gradient, CELL, "print(last_hang().to_json().decode())"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in code])
    notebook.cells[2].metadata.tags = ["raises-exception"]
    os.environ["IPP_NONINTERACTIVE"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder  # do not use the user's clusters
        NotebookClient(notebook, timeout=90, kernel_name="python3").execute()
    (error,) = notebook.cells[2].outputs
    report = Report.from_json(notebook.cells[3].outputs[0].text.encode())
    name = error.traceback[0].partition(":")[0]  # as the notebook shows it
    return f"{name}: {error.evalue}", report


def line_of(report: Report, rank: int) -> int:
    """Return the line of the cell at which a rank waits, or the line below the cell if it has returned."""
    state = report.ranks[rank]
    return len(CELL.splitlines()) + 1 if rank in report.missing() else state.calls[-1].line


def draw_cell(
    lines: Mapping[int, float], entries: Sequence[Sequence[Entry]], caption: str, said: Sequence[str] = ()
) -> Figure:
    """Draw the cell with the ranks beside their lines (which count from 1), and below it what they called.

    `entries` are the rows of the report's table; `said` is what the report says before and after the table.
    """
    figure, axes = canvas("Rank 2 forgets a collective")
    code, left, top, high = CELL.splitlines(), 24, 72, 31
    bottom = top + 18 + high * len(code)
    axes.add_patch(
        Rectangle((left, top), WIDTH - 2 * left, bottom - top, facecolor="#F3F3F3", edgecolor="#BBBBBB")
    )
    for number, line in enumerate(code, 1):
        write(axes, (left + 12, top + 9 + high * (number - 0.5)), line, 21, ha="left", family="monospace")
    write(axes, (WIDTH - left - 12, top + 9 + high / 2), "where the ranks are", 19, ha="right", color=INK)
    for rank, line in lines.items():
        at = WIDTH - 52 - 46 * (P - 1 - rank), top + 9 + high * (line - 0.5)
        rank_label(axes, at, rank, str(rank))
    if said:
        output = left, bottom + 34
        axes.add_patch(Rectangle(output, WIDTH - 2 * left, 402, facecolor=ERROR, lw=0, zorder=0))
    *before, after = said or [""]
    for number, line in enumerate(before):
        write(axes, (left + 10, bottom + 56 + 25 * number), line, 16.2, ha="left", family="monospace")
    draw_table(axes, entries, bottom + 194)
    write(axes, (left + 10, bottom + 412), after, 16.2, ha="left", family="monospace")
    write(axes, (WIDTH / 2, HEIGHT - 32), caption, 24)
    return figure


def draw_table(axes: Axes, entries: Sequence[Sequence[Entry]], top: float) -> None:
    """Draw what each rank did in each collective, as `labkit.plots.hang` does."""
    columns = "#1 Barrier", "#2 Allreduce"
    for x, column in enumerate(columns):
        write(axes, (344 + 220 * x, top), column, 20)
    for rank, row in enumerate(entries):
        y = top + 38 + 44 * rank
        rank_label(axes, (184, y), rank, f"rank {rank}")
        for x, entry in enumerate(row):
            place = 344 + 220 * x, y
            box = Rectangle((place[0] - 106, y - 19), 212, 38, facecolor=STATE[entry.status], lw=0)
            axes.add_patch(box)
            write(axes, place, entry.label, 22)


def hang_frames() -> Iterator[Frame]:
    """Yield the cell: before the mistake, the ranks going on, their wait, and the report."""
    text, report = run_cell()
    rows = [entries for _, entries in table(report).rows]
    assert report.missing() == [2] and len(rows) == P
    start = {rank: 2.0 for rank in range(P)}
    end = {rank: float(line_of(report, rank)) for rank in range(P)}
    barrier = [row[:1] for row in rows]
    yield draw_cell(start, barrier, "All ranks have finished the Barrier."), CELL_MS
    for part in PARTS:
        lines = {rank: start[rank] + part * (end[rank] - start[rank]) for rank in range(P)}
        yield draw_cell(lines, barrier, ""), MOVE_MS
    waiting = [row[: 1 if rank == 2 else 2] for rank, row in enumerate(rows)]
    yield draw_cell(end, waiting, "Ranks 0, 1 and 3 wait. With plain MPI they wait forever."), WAIT_MS
    says, _, advice = text.split("\n\n")  # between them is the table
    said = [*wrapped(says, 75).splitlines(), advice]
    yield draw_cell(end, rows, "The cell says which rank, where, and what it did instead.", said), REPORT_MS


def main() -> None:
    """Draw all frames and write them as one GIF with one palette."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    frames, times = [], []
    for figure, milliseconds in [*ring_frames(), *hang_frames()]:
        drawn = FigureCanvasAgg(figure)
        drawn.draw()
        rgb = np.asarray(drawn.buffer_rgba())[..., :3]
        frames.append((15 * np.round(rgb / 15)).astype(np.uint8))  # few, distant colours: GIF has only 256
        times.append(milliseconds)
    # The most frequent colours of the ring and of the cell, so that no flat area changes its colour.
    both = Image.fromarray(np.concatenate([frames[0], frames[-1]]))
    counts = sorted(both.getcolors(both.width * both.height) or [], reverse=True)
    palette = Image.new("P", (1, 1))
    palette.putpalette([component for _, rgb in counts[:256] for component in rgb])
    images = [Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    whole = target.with_suffix(".part")
    images[0].save(
        whole, format="GIF", save_all=True, append_images=images[1:], duration=times, loop=0, disposal=1
    )
    whole.replace(target)
    print(f"{target}: {len(images)} frames, {sum(times) / 1000:.0f} s, {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
