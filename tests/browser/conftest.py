"""One JupyterLab and one Chromium for all browser tests; a page of its own for each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser import chromium
from tests.browser.jupyterlab import Lab, a_lab, a_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if (missing := chromium.missing()) is not None:
        pytest.skip(missing)
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  (it may not be installed)

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
    with a_page(browser, lab) as page:
        yield page
