"""Make docs/replay.png, a replay of four ranks, and mpiwatch/docs/trace.png, the picture of another.

python tools/make_replay_pictures.py [FOLDER]    (after `make test-browser`, which installs Playwright)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.testing.globalipapp import start_ipython
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from labkit.cluster import connect, last_replay  # noqa: E402
from tests.browser import chromium  # noqa: E402

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RANKS = 4
# Each rank passes on what it has received until every rank has all values. Rank 3 begins late.
RING = """%%replay
import time
time.sleep(0.06 * (rank == 3))
part = np.full(4, 10.0 ** rank)
got = np.empty(4)
for step in range(size - 1):
    request = comm.Irecv(got, (rank - 1) % size, step)
    comm.Send(part, (rank + 1) % size, step)
    request.Wait()
    part = got.copy()
    time.sleep(0.02)
print(part, comm.allreduce(rank))
"""
# Each rank sends one message around the ring. Rank 2 is the last to call the collective.
LATE = """%%replay
import time
got = np.empty(1000)
time.sleep(0.03 * rank)
request = comm.Irecv(got, (rank - 1) % size)
comm.Send(np.ones(1000), (rank + 1) % size)
request.Wait()
time.sleep(0.1 * (rank == 2))
comm.allreduce(rank)
"""
WIDTH = 1130  # pixels


def replay_of(shell: object, cell: str) -> str:
    """Run a cell on the ranks, where all begin at about the same time; return the page of its replay."""
    shell.run_cell("%%px\ncomm.Barrier()").raise_error()  # type: ignore[attr-defined]
    shell.run_cell(cell).raise_error()  # type: ignore[attr-defined]
    replay = last_replay()
    assert replay is not None, "the cell has no replay"
    print(replay.sentence)
    return replay._repr_html_()


def photograph(browser: Browser, html: str, target: Path, part: str, *, event: int = 0) -> None:
    """Write the picture of a part of a page (a CSS selector), with the slider at an event."""
    page = browser.new_page(viewport={"width": WIDTH, "height": 900})
    page.set_content(f'<body style="font-family: sans-serif; margin: 0">{html}</body>')
    page.evaluate("document.fonts.ready")
    slider = page.locator("input[type=range]")
    for _ in range(event):
        slider.press("ArrowRight")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "picture.png")
        page.locator(part).first.screenshot(path=file)
        picture = Image.open(file).convert("RGB")
    picture.quantize(128, dither=Image.Dither.NONE).save(target, optimize=True)
    page.close()
    print(f"{target}: {picture.width} × {picture.height}, {target.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Start ranks, run both cells, and write both pictures: to their places, or to FOLDER."""
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    shell = start_ipython()
    connect(RANKS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=chromium.flags())
        html = replay_of(shell, RING)
        photograph(browser, html, (chosen or ROOT / "docs") / "replay.png", ".labkit-replay", event=24)
        html = replay_of(shell, LATE)
        photograph(browser, html, (chosen or ROOT / "mpiwatch/docs") / "trace.png", ".picture svg")
        browser.close()


if __name__ == "__main__":
    main()
