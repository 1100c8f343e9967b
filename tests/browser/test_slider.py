"""The rounds of a schedule in a notebook: by keyboard, by buttons, and where no script runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nbformat
import pytest

from labkit.plots.schedules import step_through
from labkit.schedules import ALLREDUCE
from tests.browser.jupyterlab import Lab, open_notebook

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = pytest.mark.browser

STEPS = """
from labkit.plots.schedules import step_through
from labkit.schedules import ALLREDUCE

step_through(ALLREDUCE["ring"](4))
"""
ANOTHER = 'step_through(ALLREDUCE["recursive-doubling"](4))'
PHONE = {"width": 360, "height": 740}


def html() -> str:
    return step_through(ALLREDUCE["ring"](4))._repr_html_()


def shown(rounds: Locator) -> list[str]:
    """Return the alt texts of the pictures that can be seen, from the word `round` on."""
    pictures = rounds.locator("img").all()
    return [alt[alt.index("round") :] for p in pictures if p.is_visible() and (alt := p.get_attribute("alt"))]


def round_shown(rounds: Locator) -> int:
    """Return which round is shown; check that slider and label say the same."""
    (words,) = shown(rounds)
    number = int(words.split()[1])
    slider = rounds.locator("input[type=range]")
    assert slider.input_value() == str(number)
    assert slider.get_attribute("aria-valuetext").endswith(words)
    assert rounds.locator("output").inner_text() == words.partition(":")[0]
    return number


def test_step_through_by_keys_and_buttons(lab: Lab, page: Page) -> None:
    """Two on one page do not affect each other; the active cell stays where it is."""
    notebook = open_notebook(lab, page, lab.write("slider.ipynb", STEPS, ANOTHER))
    notebook.run_all()
    ring, other = (notebook.code(k).locator(".jp-RenderedHTML > div") for k in range(2))
    assert (round_shown(ring), round_shown(other)) == (0, 0)

    slider = ring.locator("input[type=range]")
    slider.click(position={"x": 2, "y": 5})  # at its left end
    for key, expected in [
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowDown", 1),
        ("ArrowUp", 2),
        ("End", 6),
        ("Home", 0),
    ]:
        page.keyboard.press(key)
        assert round_shown(ring) == expected, key
    assert "jp-mod-active" in notebook.code(0).get_attribute("class")

    forward = ring.get_by_role("button", name="next round")
    back = ring.get_by_role("button", name="previous round")
    for press, expected in [(forward, 1), (forward, 2), (back, 1), (back, 0), (back, 0)]:
        press.click()
        assert round_shown(ring) == expected
    for key, expected in [("Tab", 0), ("ArrowRight", 1), ("Tab", 1), ("Enter", 2), ("Space", 3)]:
        page.keyboard.press(key)  # from the button to the slider, and to the other button
        assert round_shown(ring) == expected, key
    assert round_shown(other) == 0
    assert "jp-mod-active" in notebook.code(0).get_attribute("class")
    assert notebook.panel.locator(".jp-CodeCell").count() == 2

    notebook.assert_legible(ring)


def test_all_rounds_are_shown_without_the_script(lab: Lab, page: Page) -> None:
    """JupyterLab removes the script from a notebook that it does not trust."""
    name = lab.write("untrusted.ipynb", STEPS)
    notebook = lab.saved(name)
    notebook.cells[0].outputs = [nbformat.v4.new_output("execute_result", {"text/html": html()})]
    nbformat.write(notebook, lab.folder / name)
    box = open_notebook(lab, page, name).code(0).locator(".jp-RenderedHTML > div")
    assert [words.split(":")[0] for words in shown(box)] == [f"round {k} of 6" for k in range(7)]
    assert box.locator("input").count() == box.locator("script").count() == 0


def test_step_through_on_a_phone(browser: Browser) -> None:
    """On a page of its own, as nbconvert makes them."""
    with browser.new_page(viewport=PHONE) as page:
        page.set_content(html())
        page.get_by_role("button", name="next round").click()
        assert round_shown(page.locator("body > div")) == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
