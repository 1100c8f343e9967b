"""A student's first hour: notebook 00 from top to bottom, then the one that it links to, then back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

from labkit.exercises import catalogue
from tests.browser.jupyterlab import ROOT, Lab, Notebook, a_page, open_notebook

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

FIRST, NEXT = "00_meet_the_cluster.ipynb", "01_backprop_by_hand.ipynb"
ENDLESS = """
from labkit.exercises import check

calls = []


def linear_backward(dy, x, w):
    calls.append(x)
    while len(calls) == 4:
        pass
    return dy @ w.T, x.T @ dy, dy.sum(axis=0)
"""
CHECK = "linear_backward = check(linear_backward)"
RUN_ALL_S = 240.0  # on a busy machine; some 15 s on an idle one


@pytest.fixture(scope="module")
def first(browser: Browser, lab: Lab) -> Iterator[Notebook]:
    """Yield notebook 00, opened from the page that `labkit lab` opens, after Run All."""
    with a_page(browser, lab) as page:
        page.goto(f"{lab.url}lab/tree/{lab.first}?token={lab.token}&reset")
        page.locator(".jp-MarkdownViewer li a", has_text="00 · Meet the cluster").click()
        notebook = Notebook(lab, page, str(lab.first.with_name(FIRST)))
        notebook.wait_until_ready()
        notebook.run_all(RUN_ALL_S)
        yield notebook


def form(cell: Any) -> list[Any]:
    """Return a cell's outputs without what differs from run to run."""
    measured = "nbval-ignore-output" in cell.metadata.get("tags", [])
    forms = []
    for output in cell.outputs:
        data = {kind: text if kind == "text/plain" else "" for kind, text in output.get("data", {}).items()}
        text = (output.get("text"), data)
        forms.append((output.output_type, output.get("name"), sorted(data) if measured else text))
    return forms


def test_notebook_00_runs_to_its_end(first: Notebook) -> None:
    cells = [cell for cell in first.content().cells if cell.cell_type == "code"]
    assert [cell.id for cell in cells if cell.source and not cell.execution_count] == []
    meant = {cell.id for cell in cells if "raises-exception" in cell.metadata.get("tags", [])}
    assert {cell: error for cell, error in first.errors().items() if cell not in meant} == {}
    figure = first.output("allreduce-picture").locator("img")
    figure.scroll_into_view_if_needed()
    assert figure.evaluate("image => image.complete && image.naturalWidth > 200 && image.checkVisibility()")


def test_saved_outputs_have_the_form_of_the_committed_ones(first: Notebook) -> None:
    """So a look at the changes shows what a student has changed."""
    committed = nbformat.read(ROOT / "notebooks" / FIRST, as_version=4)
    saved = {cell.id: form(cell) for cell in first.save().cells if cell.cell_type == "code"}
    expected = {cell.id: form(cell) for cell in committed.cells if cell.cell_type == "code"}
    assert {cell: outputs for cell, outputs in saved.items() if outputs != expected[cell]} == {}
    assert saved.keys() == expected.keys()


def test_a_students_function_is_checked_and_used_from_then_on(first: Notebook) -> None:
    right = catalogue.find("my_items").text
    first.write("my-items-yours", f"%%px\n{right.replace('range(rank,', 'range(0,')}")
    first.run("my-items-yours")
    assert "✗ not correct yet my_items: with n = 5, " in first.run("my-items-check")
    verdict = first.output("my-items-check").last
    buttons = verdict.locator("summary:visible")
    assert buttons.all_inner_texts() == ["Hint 1 of 2"]
    buttons.first.focus()
    for key in "Enter", "Tab", "Enter":  # by keyboard alone
        first.page.keyboard.press(key)
    assert buttons.all_inner_texts() == ["Hint 1 of 2", "Hint 2 of 2 (the last)"]
    verdict.get_by_text("takes a first item").wait_for()
    first.assert_legible(verdict)

    first.write("my-items-yours", f"%%px\n{right}")
    first.run("my-items-yours")
    assert "✓ correct my_items: 24 cases. 1 point." in first.run("my-items-check")
    assert not verdict.get_by_text("The reference:").is_visible()
    verdict.locator("summary").click()
    rectangles = "pres => pres.map(pre => pre.getBoundingClientRect().toJSON())"
    yours, reference = verdict.locator("pre").evaluate_all(rectangles)
    assert yours["y"] == reference["y"] and yours["x"] + yours["width"] <= reference["x"]
    assert verdict.locator("pre").first.evaluate("pre => getComputedStyle(pre).wordBreak") == "normal"
    first.assert_legible(verdict)
    assert first.run("pi").count("3.14159") == 4


def test_the_next_notebook_has_ranks_of_its_own(first: Notebook) -> None:
    first.panel.locator(f"a[href*='{NEXT}']").last.click()
    second = Notebook(first.lab, first.page, str(first.lab.first.with_name(NEXT)))
    second.wait_until_ready()
    second.run_all(RUN_ALL_S)
    assert second.errors() == {}
    assert "cluster started; it ends with this notebook" in second.text(0)

    first.show()
    assert first.run("hello").count("I am rank") == 4
    assert first.run("pi").count("3.14159") == 4  # with the variables of its earlier cells


# The end of a page shuts down all kernels, the one of the notebook above too, so this test comes last.
def test_a_check_in_the_kernel_shows_that_it_runs_and_can_be_stopped(lab: Lab, page: Page) -> None:
    notebook = open_notebook(lab, page, lab.write("check.ipynb", ENDLESS, CHECK))
    notebook.run(0)
    notebook.start(1)
    notebook.output(1).filter(has_text="checking linear_backward …").wait_for()
    notebook.stop()
    notebook.wait()
    lines = [line for line in notebook.text(1).splitlines() if line]
    assert lines == [f"{start}: the check was stopped." for start in ("linear_backward", "KeyboardInterrupt")]
