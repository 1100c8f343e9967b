"""One JupyterLab and one Chromium for all browser tests; a page of its own for each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import chromium
from tests.browser.jupyterlab import DEADLINE_S, Lab, a_lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

VIEWPORT = {"width": 1366, "height": 768}  # a student's laptop

# What the browser may say on its console, and why.
HARMLESS: dict[str, str] = {}


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if (missing := chromium.missing()) is not None:
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  (it may not be installed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("chromium")))  # for its profiles
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium.find(), args=chromium.flags())
            yield browser
            browser.close()


@pytest.fixture(scope="session")
def lab(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with a_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def page(browser: Browser, lab: Lab) -> Iterator[Page]:
    """Yield a new page; afterwards the browser must have reported no error on its console."""
    context = browser.new_context(viewport=VIEWPORT)
    page = context.new_page()
    page.set_default_timeout(1000 * DEADLINE_S)
    errors: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(re.search(known, message.text) for known in HARMLESS):
            errors.append(f"{message.text} ({message.location.get('url', '')})")

    page.on("console", on_console)
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    lab.shut_down_kernels()
    assert errors == []
