"""Find a Chromium for the browser tests; as a program, fail with a message if something is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
NO_CHROMIUM = (
    f"no browser: none of {', '.join(NAMES)} is on PATH, and Playwright has none of its own. "
    "Install one: `apt-get install chromium`, or `python -m playwright install chromium`"
)


def find() -> str | None:
    """Return the path of the browser; None if there is none."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  (it may not be installed)

    for name in NAMES:
        if (path := shutil.which(name)) is not None:
            return path
    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    return own if Path(own).exists() else None


def missing() -> str | None:
    """Return what is missing to run the browser tests, and how to get it; None if nothing is."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed: `make test-browser` installs it"
    return None if find() else NO_CHROMIUM


def flags() -> list[str]:
    """Return options for a Chromium that keeps to itself, and that starts for root, too."""
    alone = ["disable-background-networking", "disable-component-update", "disable-sync", "disable-quic"]
    names = [*alone, "disable-gpu", "no-first-run", *(["no-sandbox"] if os.geteuid() == 0 else [])]
    return [f"--{name}" for name in names]


if __name__ == "__main__":
    sys.exit(missing())
