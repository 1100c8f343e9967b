"""A replay in a notebook: by keyboard and by buttons, on a phone, and where no script runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from PIL import Image

from labkit.replay.page import Replay
from tests.browser.jupyterlab import Lab, open_notebook
from tests.conftest import run_python
from tests.replay.recordings import deadlock, ring

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[2]

SOURCE = "\n".join(["%%replay", *(f"line {number}" for number in range(2, 10))])
PHONE = {"width": 390, "height": 740}


def test_the_picture_is_there_without_the_script(lab: Lab, page: Page) -> None:
    """JupyterLab removes the script, and SVG too, from a notebook that it does not trust."""
    name = lab.write("untrusted-replay.ipynb", "1")
    notebook = lab.saved(name)
    html = Replay(ring(), SOURCE)._repr_html_()
    notebook.cells[0].outputs = [nbformat.v4.new_output("display_data", {"text/html": html})]
    nbformat.write(notebook, lab.folder / name)
    box = open_notebook(lab, page, name).code(0).locator(".labkit-replay")
    image = box.locator("img")
    assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") >= 800
    assert box.locator("tbody tr").count() == 4 and box.locator("input").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_step_through_a_replay_on_a_phone(browser: Browser, scheme: str) -> None:
    with browser.new_page(viewport=PHONE, color_scheme=scheme) as page:
        page.set_content(Replay(ring(), SOURCE)._repr_html_())
        assert page.locator("svg g.message").count() == 4 and page.locator("img").count() == 0
        slider = page.locator("input[type=range]")
        last = slider.get_attribute("max")
        assert last is not None and int(last) >= len(ring().messages)
        slider.focus()
        for key, expected in ("ArrowRight", "1"), ("ArrowRight", "2"), ("End", last), ("Home", "0"):
            page.keyboard.press(key)
            assert slider.input_value() == expected
        page.get_by_role("button", name="next event").click()
        assert page.locator(".state .rank").first.inner_text() == "0"
        assert "starts Irecv from rank 3" in page.locator(".state").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_names_of_the_ranks_stay_in_sight_when_the_picture_is_scrolled(browser: Browser) -> None:
    with browser.new_page(viewport=PHONE) as page:
        page.set_content(Replay(ring(), SOURCE)._repr_html_())
        page.evaluate("document.querySelector('.picture').scrollLeft = 300")
        name = page.locator("svg .names text").first
        page.wait_for_function("document.querySelector('svg .names').getAttribute('transform') != null")
        box = name.bounding_box()
        assert name.inner_html() == "rank 0" and box is not None and box["x"] >= 0


def test_a_failed_cell_is_shown_at_its_end(browser: Browser) -> None:
    with browser.new_page() as page:
        page.set_content(Replay(deadlock(), SOURCE, "ranks wait for each other\n  in Send")._repr_html_())
        assert page.locator("input[type=range]").input_value() == "4"
        assert "in Send to rank 1" in page.locator(".state").inner_text()


def test_the_pictures_of_the_pages_are_made_anew(tmp_path: Path) -> None:
    run_python(ROOT / "tools/make_replay_pictures.py", tmp_path)
    for path in ROOT / "docs/replay.png", ROOT / "mpiwatch/docs/trace.png":
        with Image.open(path) as kept, Image.open(tmp_path / path.name) as made:
            assert made.width == kept.width and made.height > 300
