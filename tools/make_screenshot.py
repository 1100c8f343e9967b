"""Make docs/lab.png: an exercise of notebook 05 in JupyterLab, with what `check` says of a wrong answer.

python tools/make_screenshot.py [FILE]    (after `make test-browser`, which installs Playwright)
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser import chromium  # noqa: E402
from tests.browser.jupyterlab import a_lab, open_notebook  # noqa: E402

NOTEBOOK = "05_ring_reduce.ipynb"
BEFORE = "connect", "imports", "imports-on-ranks"
ANSWER = '''%%px
def chunk(n, p, i):
    """Return the slice of chunk i of n values cut in p."""
    return slice(i * n // p, (i + 1) * n // p)


def ring_reduce_scatter(comm, array):
    """Return chunk `comm.rank` of the sum of all ranks' arrays."""
    n, p, r = len(array), comm.size, comm.rank
    for k in range(1, p):
        outgoing = array[chunk(n, p, (r - k) % p)]
        mine = array[chunk(n, p, (r - k - 1) % p)]
        received = np.empty_like(mine)
        comm.Sendrecv(outgoing, (r + 1) % p, recvbuf=received, source=(r - 1) % p)
        mine[:] = received
    return array[chunk(n, p, r)]'''
WIDTH, HEIGHT, SCALE = 1167, 820, 1.2  # 1400 pixels wide


def main() -> None:
    """Run JupyterLab and the notebook's cells up to the first check, and write the screenshot."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "lab.png"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright, a_lab(Path(folder)) as lab:
        browser = playwright.chromium.launch(executable_path=chromium.find(), args=chromium.flags())
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SCALE)
        page.set_default_timeout(150_000)
        notebook = open_notebook(lab, page, str(lab.first.parent / NOTEBOOK))
        for cell in BEFORE:
            notebook.run(cell)
        notebook.write("ring-reduce-scatter", ANSWER)
        notebook.run("ring-reduce-scatter")
        print(notebook.run("ring-reduce-scatter-check"))
        page.locator("[title^='Table of Contents']").first.click()
        heading = page.locator(".jp-tocItem-content", has_text="Exercise 5.1")
        heading.first.click()
        notebook.save()
        heading.first.click()
        page.mouse.move(WIDTH - 60, HEIGHT / 2)
        page.wait_for_timeout(1000)  # for the scrolling to end
        picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        browser.close()
    picture.quantize(128, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target}: {picture.width} × {picture.height}, {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
