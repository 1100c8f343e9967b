"""Processes and temporary files of JupyterLab, the ranks and the browser end when a test run is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.browser.jupyterlab import ROOT, Lab, wait_until
from tests.cluster_fixtures import World

pytestmark = pytest.mark.browser

PROGRAM = """
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser import chromium
from tests.browser.jupyterlab import a_lab

with sync_playwright() as playwright, a_lab(Path(sys.argv[1])) as lab:
    browser = playwright.chromium.launch(executable_path=chromium.find(), args=chromium.flags())
    browser.new_page().goto(f"{lab.url}lab?token={lab.token}")
    print("running", flush=True)
    time.sleep(1000)
"""


def test_nothing_is_left_of_a_test_run_that_is_killed(lab: Lab, tmp_path: Path) -> None:
    """The fixture `lab` is needed only for its reasons to skip."""
    world = World(tmp_path / "ipython")
    with (
        tempfile.TemporaryDirectory() as temporary,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "lab")],
            cwd=ROOT,
            env={**world.env, "TMPDIR": temporary},
            stdout=subprocess.PIPE,
            text=True,
        ) as run,
    ):
        assert run.stdout is not None and run.stdout.readline() == "running\n"
        commands = [os.path.basename(command[0]) for command in world.commands() if command]
        assert any("chrom" in name for name in commands) and len(commands) > 20
        run.kill()
        wait_until(lambda: not world.processes(), "all processes gone", 60)
        assert os.listdir(temporary) == []
