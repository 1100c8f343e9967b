"""The page that `labkit lab` opens, and a tab that is still open when it starts again."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from labkit.exercises import catalogue
from tests.browser.jupyterlab import CONNECT, Lab, Notebook, a_lab
from tests.cluster_fixtures import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab in which nothing is done yet."""
    with a_lab(tmp_path_factory.mktemp("start")) as lab:
        yield lab


def open_start(lab: Lab, page: Page) -> Locator:
    """Open the start page; return it."""
    page.goto(f"{lab.url}lab/tree/{lab.first}?token={lab.token}&reset")
    shown = page.locator(".jp-MarkdownViewer")
    shown.locator("h2").first.wait_for()
    return shown


def test_the_start_page_leads_to_the_next_exercise(lab: Lab, page: Page) -> None:
    assert lab.first.name == "START.md"
    record = lab.folder.parent / "progress.json"
    assert open_start(lab, page).locator("p", has_text="Begin here").locator("a").count() == 1
    before = (lab.folder / lab.first).read_text()
    done = [each.name for each in catalogue.exercises().values() if each.notebook == "00"]
    names = {name: {"state": "done"} for name in [*done, "linear_backward"]}
    record.write_text(json.dumps({"exercises": names}))
    wait_until(lambda: (lab.folder / lab.first).read_text() != before, "the page has been written anew")
    shown = open_start(lab, page)
    assert shown.locator("li", has_text="00 · Meet the cluster").get_by_text("✔ done").count() == 1
    following = shown.locator("p", has_text="Next:").locator("a").first
    title = following.inner_text()
    following.click()
    notebook = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
    heading = notebook.locator("h3", has_text=title)
    heading.wait_for()
    in_view = """heading => {
        const box = heading.getBoundingClientRect();
        return box.top >= 0 && box.bottom <= innerHeight;
    }"""
    wait_until(lambda: heading.evaluate(in_view), f"{title} is on the screen")


def test_the_first_cell_to_run_is_on_the_first_screen(lab: Lab, page: Page) -> None:
    first = str(lab.first.with_name("00_meet_the_cluster.ipynb"))
    for width, height in (1280, 800), (853, 533):  # the second: at 150 %
        page.set_viewport_size({"width": width, "height": height})
        page.goto(f"{lab.url}lab/tree/{first}?token={lab.token}&reset")
        cell = page.locator(".jp-CodeCell").first
        cell.wait_for()
        Notebook(lab, page, first).wait_until_ready()
        box = cell.bounding_box()
        assert box is not None and box["y"] + box["height"] < height - 30, box  # above the status bar


def test_a_narrow_window_shows_the_page_and_not_the_files(lab: Lab, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    shown = open_start(lab, page)
    files = page.locator("#jp-left-stack")
    files.wait_for(state="hidden")
    box = shown.bounding_box()
    assert box is not None and box["width"] > 290, box
    page.set_viewport_size({"width": 1280, "height": 800})
    page.locator("[role=tab][data-id=filebrowser]").click()
    files.wait_for(state="visible")
    page.set_viewport_size({"width": 853, "height": 533})  # at 150 %
    files.wait_for(state="hidden")


EDGE = "editor => getComputedStyle(editor).borderLeftStyle + getComputedStyle(editor).borderLeftWidth"


def test_cells_of_exercises_have_an_edge_and_progress_links_to_them(lab: Lab, page: Page) -> None:
    first = str(lab.first.with_name("00_meet_the_cluster.ipynb"))
    name = lab.write("my-notebooks/list.ipynb", "from labkit.exercises import progress\nprogress('00')")
    page.goto(f"{lab.url}lab/tree/{name}?token={lab.token}&reset")
    shown = Notebook(lab, page, name)
    shown.wait_until_ready()
    shown.run(0)
    shown.output(0).locator("a", has_text="Broadcast by hand").click()
    notebook = Notebook(lab, page, first)
    notebook.wait_until_ready()
    notebook.panel.locator("h3", has_text="Broadcast by hand").wait_for()
    edges = {
        cell: notebook.code(cell).locator(".jp-InputArea-editor").evaluate(EDGE)
        for cell in ("broadcast-yours", "broadcast-check", "send-recv")
    }
    assert [*edges.values()][:2] == ["solid5px", "dotted5px"], edges
    assert edges["send-recv"] == "solid1px", edges
    editor = notebook.code("broadcast-yours").locator(".jp-InputArea-editor")
    editor.locator(".cm-content").click()  # to write in it
    notebook.panel.locator(".jp-mod-editMode").wait_for()
    assert editor.evaluate(EDGE) == "solid5px"


def test_figures_have_an_alternative_text(lab: Lab, page: Page) -> None:
    draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.xlabel('Epoch')\nplt.show()"
    name = lab.write("figures.ipynb", CONNECT.replace("4", "1"), draw, f"%%px\n%matplotlib inline\n{draw}")
    page.goto(f"{lab.url}lab/tree/{name}?token={lab.token}&reset")
    shown = Notebook(lab, page, name)
    shown.wait_until_ready()
    shown.run(0)
    for cell in 1, 2:
        shown.run(cell)
        image = shown.output(cell).locator("img[alt]")
        image.wait_for()
        assert image.get_attribute("alt") == "Figure: Epoch."


WRONG = """
from labkit.exercises import check


def my_items(n, rank, size):
    return []


my_items = check(my_items)
"""


def test_a_key_leads_from_the_next_cell_to_the_hints(lab: Lab, page: Page) -> None:
    name = lab.write("hints.ipynb", WRONG, "print(1)")
    page.goto(f"{lab.url}lab/tree/{name}?token={lab.token}&reset")
    shown = Notebook(lab, page, name)
    shown.wait_until_ready()
    shown.run(0)  # as Shift+Enter does: the next cell is selected now
    verdict = shown.output(0).last
    button = verdict.locator("summary").first
    assert button.evaluate("button => getComputedStyle(button, '::after').content") == '" · key H"'
    page.keyboard.press("h")
    for opened in 1, 2:
        assert page.evaluate("document.activeElement.textContent").startswith(f"Hint {opened} of 2")
        page.keyboard.press("Enter")
        assert verdict.locator("details[open]").count() == opened
        page.keyboard.press("j")  # back to the cells
        page.keyboard.press("h")
    shown.write(1, "h")  # in a cell, the key is a letter
    page.keyboard.press("h")
    assert shown.content().cells[1].source == "hh"


def test_stars_have_words(lab: Lab, page: Page) -> None:
    first = str(lab.first.with_name("00_meet_the_cluster.ipynb"))
    page.goto(f"{lab.url}lab/tree/{first}?token={lab.token}&reset")
    shown = Notebook(lab, page, first)
    shown.wait_until_ready()
    exercise = shown.panel.locator(".jp-MarkdownCell", has_text="Which items are mine?").last
    exercise.scroll_into_view_if_needed()
    line = exercise.locator("p", has_text="importance").first
    line.get_by_role("img", name="difficulty 1 of 5", exact=True).wait_for()
    assert line.get_by_role("img", name="4 of 5", exact=True).inner_text() == "●●●●○"
    assert line.inner_text() == "★☆☆☆☆ · importance ●●●●○ · 5 minutes"


def test_a_tab_goes_on_when_the_lab_starts_again(browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context()
    page = context.new_page()
    with socket.socket() as trial:  # a port that no other test's server takes in between
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    served = hashlib.sha256(bytes((tmp_path / "lab/lab").resolve())).hexdigest()[:16]
    secrets = tmp_path / "lab/home/.local/state/allreduce-lab/servers" / served
    secrets.mkdir(parents=True)
    kept = {"server.json": json.dumps({"token": "0123456789ab" * 4, "port": port}), "cookie_secret": "0" * 64}
    for file, content in kept.items():
        (secrets / file).write_text(content)
        (secrets / file).chmod(0o600)
    with a_lab(tmp_path / "lab") as lab:
        notebook = lab.write("tab.ipynb", "print(6 * 7)")
        page.goto(f"{lab.url}lab/tree/{notebook}?token={lab.token}&reset")
        Notebook(lab, page, notebook).wait_until_ready()
        for path in map(secrets.joinpath, kept):
            assert path.stat().st_mode & 0o077 == 0, path
        assert secrets.stat().st_mode & 0o077 == 0
    with a_lab(tmp_path / "lab") as again:
        assert (again.url, again.token) == (lab.url, lab.token)
        # JupyterLab shows a dialog if it has looked for the server in between.
        close = page.locator(".jp-Dialog button", has_text="Close")
        page.add_locator_handler(close, close.click)
        Notebook(again, page, notebook).write(0, "print(7 * 7)")
        page.evaluate("() => { jupyterapp.commands.execute('docmanager:save'); }")  # nothing is lost
        wait_until(lambda: "7 * 7" in (again.folder / notebook).read_text(), "the tab has saved")
        page.reload()
        shown = Notebook(again, page, notebook)
        shown.wait_until_ready()
        assert shown.run(0) == "49\n"
    context.close()
