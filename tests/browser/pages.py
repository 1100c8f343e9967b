"""Pages of the browser that must not report an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.browser.jupyterlab import DEADLINE_S, Lab

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page

# What the browser may say on its console, and why.
HARMLESS: dict[str, str] = {}
VIEWPORT = {"width": 1366, "height": 768}  # a student's laptop


@contextmanager
def a_page(browser: Browser, lab: Lab) -> Iterator[Page]:
    """Open a page in a browser without memory; at its end there must have been no error on its console."""
    context = browser.new_context(viewport=VIEWPORT)
    page = context.new_page()
    page.set_default_timeout(1000 * DEADLINE_S)
    errors: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error" and not any(re.search(known, message.text) for known in HARMLESS):
            errors.append(f"{message.text} ({message.location.get('url', '')})")

    page.on("console", on_console)
    page.on("pageerror", lambda error: errors.append(error.stack or str(error)))
    yield page
    context.close()
    lab.shut_down_kernels()
    assert not errors, "\n".join(errors)
