"""JupyterLab as a student uses it: `labkit lab` in a folder of its own, and its notebooks in a browser."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import nbformat
import psutil

from labkit.children import start_child
from tests.cluster.lab_session import Server
from tests.cluster_fixtures import DEADLINE_S, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page

ROOT = Path(__file__).parents[2]
CONNECT = "from labkit.cluster import connect\n\nrc = connect(n=4)"


class Lab:
    """A running `labkit lab`: its folder, address and token."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes], output: Path) -> None:
        self.folder = folder
        has_ended = lambda: "Ctrl-C ends" in output.read_text() or process.poll() is not None  # noqa: E731
        wait_until(has_ended, f"`labkit lab` says where JupyterLab is: {output}")
        line = re.search(r"JupyterLab: (\S+)\?token=(\w+)", output.read_text())
        assert line and process.poll() is None, output.read_text()
        address, self.token = line.groups()
        self.url, _, first = address.partition("lab/tree/")
        self.first = PurePosixPath(first)

    def ask(self, path: str, method: str = "GET") -> Any:
        """Return what the server's interface answers, as data; None while it cannot answer."""
        try:
            return Server(self.url, self.token).call(method, path)
        except (urllib.error.HTTPError, ConnectionError):  # 500 for a moment while kernels start or end
            return None

    def kernel(self, notebook: str) -> dict[str, Any] | None:
        """Return the kernel of a notebook, or None if it has none."""
        sessions = self.ask("api/sessions") or []
        return next((one["kernel"] for one in sessions if one["path"] == notebook), None)

    def shut_down_kernels(self) -> None:
        """End all kernels, as File > Close and Shut Down does."""
        for session in self.ask("api/sessions") or []:
            self.ask(f"api/sessions/{session['id']}", "DELETE")
        wait_until(lambda: self.ask("api/kernels") == [], "all kernels have ended")

    def write(self, name: str, *cells: str) -> str:
        """Write a notebook with these code cells to the folder; return its name."""
        notebook = nbformat.v4.new_notebook()
        notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3 (ipykernel)"}
        notebook.cells = [nbformat.v4.new_code_cell(cell) for cell in cells]
        nbformat.write(notebook, self.folder / name)
        return name

    def saved(self, name: str) -> Any:
        """Return a notebook as it is on disk."""
        return nbformat.read(self.folder / name, as_version=4)


@contextmanager
def a_lab(folder: Path) -> Iterator[Lab]:
    """Run `labkit lab` in a folder of its own, with settings, state and sockets in `folder`, too.

    What is there from an earlier call stays.
    """
    folder.mkdir(exist_ok=True)
    home = folder / "home"
    work = folder / "lab"
    work.mkdir(exist_ok=True)
    env = {
        **os.environ,
        "HOME": str(home),
        "IPYTHONDIR": os.environ.get("IPYTHONDIR", str(home / "ipython")),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "LABKIT_PROGRESS": str(folder / "progress.json"),
    }
    env.pop("IPP_NONINTERACTIVE", None)  # a student's `%%px`, not that of tests
    env.pop("XDG_STATE_HOME", None)
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "config" / "jupyter_lab_config.py").write_text("c.LabApp.expose_app_in_browser = True\n")
    output = folder / "output"
    with output.open("w") as file:
        command = [sys.executable, "-m", "labkit", "lab"]
        process = start_child(command, cwd=work, env=env, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield Lab(work, process, output)
    finally:
        for command in psutil.Process(process.pid).children():  # the supervisor would give it 10 s to end
            command.send_signal(signal.SIGINT)
        process.wait(DEADLINE_S)


# JupyterLab's own promises of the commands that run cells or save, so that their end is known.
WATCH_RUNS = """
() => {
    if (window.runs) return;
    window.runs = {started: 0, ended: 0};
    jupyterapp.commands.commandExecuted.connect((_, command) => {
        if (!/^(notebook:(run|restart-run)|runmenu:|docmanager:save$)/.test(command.id)) return;
        window.runs.started += 1;
        const end = () => { window.runs.ended += 1; };
        command.result.then(end, end);
    });
}
"""

# After an error that a cell is expected to raise, Run All promises its end while the next cells still run. A
# request that the kernel answers after all others tells their end.
ASK_LAST = """
() => {
    window.answered = false;
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const end = () => { window.answered = true; };
    kernel.requestExecute({code: "", silent: true}).done.then(end, end);
}
"""


# The contrast of text, by the formula of the Web Content Accessibility Guidelines.
# For each element with text of its own: the text, its colour, and the colours of the backgrounds from the
# element outwards, up to the first that is opaque.
COLOURS = """
box => [box, ...box.querySelectorAll("*")].flatMap(element => {
    const text = [...element.childNodes].filter(n => n.nodeType == 3).map(n => n.data.trim()).join("");
    if (!text || !element.checkVisibility() || element.closest("script, style")) return [];
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const behind = [];
    for (let at = element; at; at = at.parentElement) {
        const colour = numbers(getComputedStyle(at).backgroundColor);
        behind.push(colour);
        if (colour.length == 3 || colour[3] == 1) break;
    }
    return [{text, ink: numbers(getComputedStyle(element).color), behind}];
})
"""


def over(colour: list[float], below: list[float]) -> list[float]:
    """Return the colour that is seen where a colour, perhaps translucent, lies over an opaque one."""
    alpha = colour[3] if len(colour) > 3 else 1.0
    return [alpha * c + (1 - alpha) * b for c, b in zip(colour[:3], below[:3], strict=True)]


def luminance(colour: list[float]) -> float:
    """Return the relative luminance of an sRGB colour with components from 0 to 255."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour[:3])
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: dict[str, Any]) -> float:
    """Return the contrast of a text: 1 is invisible, 21 is black on white."""
    ground = [255.0, 255.0, 255.0]
    for colour in reversed(one["behind"]):
        ground = over(colour, ground)
    dark, light = sorted((luminance(over(one["ink"], ground)), luminance(ground)))
    return (light + 0.05) / (dark + 0.05)


def lowest_contrast(box: Locator) -> float:
    """Return the lowest contrast of all texts in an element; fail if there is no text."""
    texts = box.evaluate(COLOURS)
    assert texts, "no text to look at"
    return min(contrast(one) for one in texts)


class Notebook:
    """A notebook that is open in a page. A code cell is given by its number among them, or by its id."""

    def __init__(self, lab: Lab, page: Page, path: str) -> None:
        self.lab, self.page, self.path = lab, page, path
        self.panel = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    def wait_until_ready(self) -> None:
        """Wait until the notebook is shown and its kernel is idle and connected."""
        self.page.locator(".jp-mod-current[role=tab]", has_text=Path(self.path).name).wait_for()
        self.panel.locator(".jp-CodeCell").first.wait_for()
        wait_until(self.is_idle, f"the kernel of {self.path} is idle")
        self.page.locator(".jp-StatusBar-Widget :text('| Idle')").first.wait_for()
        self.page.evaluate(WATCH_RUNS)

    def is_idle(self) -> bool:
        kernel = self.lab.kernel(self.path)
        return kernel is not None and kernel["execution_state"] == "idle" and kernel["connections"] > 0

    def code(self, cell: int | str) -> Locator:
        """Return a code cell."""
        if isinstance(cell, str):
            cell = [one.id for one in self.content().cells if one.cell_type == "code"].index(cell)
        return self.panel.locator(".jp-CodeCell").nth(cell)

    def output(self, cell: int | str) -> Locator:
        return self.code(cell).locator(".jp-OutputArea-output")

    def text(self, cell: int | str) -> str:
        """Return a code cell's output as the page shows it."""
        return "\n".join(self.output(cell).all_text_contents())

    def menu(self, menu: str, entry: str) -> None:
        """Click an entry of JupyterLab's menus."""
        self.page.locator(f".lm-MenuBar-item:has-text('{menu}')").first.click()
        self.page.locator(".lm-Menu-item", has_text=re.compile(f"^{re.escape(entry)}")).first.click()

    def start(self, cell: int | str) -> None:
        """Run a code cell as Shift+Enter does."""
        self.code(cell).locator(".jp-InputPrompt").click()
        self.begin(lambda: self.page.keyboard.press("Shift+Enter"))

    def begin(self, act: Callable[[], None]) -> None:
        """Do what runs cells, and wait until JupyterLab has begun."""
        before = self.page.evaluate("runs.started")
        act()
        self.page.wait_for_function("before => runs.started > before", arg=before)

    def wait(self, seconds: float = DEADLINE_S) -> None:
        """Wait until no cell runs or waits for its turn."""
        self.page.wait_for_function("runs.started == runs.ended", timeout=1000 * seconds)
        self.page.evaluate(ASK_LAST)
        self.page.wait_for_function("answered", timeout=1000 * seconds)

    def run_all(self, seconds: float = DEADLINE_S) -> None:
        self.begin(lambda: self.menu("Run", "Run All Cells"))
        self.wait(seconds)

    def run(self, cell: int | str) -> str:
        """Run a code cell to its end; return the text of its output."""
        self.start(cell)
        self.wait()
        return self.text(cell)

    def theme(self, name: str) -> None:
        """Choose a theme: `JupyterLab Light` or `JupyterLab Dark`."""
        self.page.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", name)
        self.page.locator(f"body[data-jp-theme-name='{name}']").wait_for(state="attached")
        # JupyterLab fails to remove its splash screen if another theme is chosen while this one fades.
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def assert_legible(self, box: Locator) -> None:
        """Check the contrast of an element in both themes."""
        for theme in "JupyterLab Dark", "JupyterLab Light":
            self.theme(theme)
            assert lowest_contrast(box) >= 4.5, theme

    def content(self) -> Any:
        """Return the notebook as it would be saved now."""
        return nbformat.from_dict(self.page.evaluate("jupyterapp.shell.currentWidget.context.model.toJSON()"))

    def errors(self) -> dict[str, str]:
        """Return the errors in the notebook, by cell id."""
        return {
            cell.id: f"{one.ename}: {one.evalue}"
            for cell in self.content().cells
            for one in cell.get("outputs", [])
            if one.output_type == "error"
        }

    def write(self, cell: str, text: str) -> None:
        """Replace the text of a code cell as a student does: click in it, select all, type."""
        self.code(cell).locator(".cm-content").click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(text)

    def show(self) -> None:
        """Click the notebook's tab."""
        name = Path(self.path).name
        self.page.locator("#jp-main-dock-panel [role=tab]", has_text=name).click()
        self.page.locator(".jp-mod-current[role=tab]", has_text=name).wait_for()

    def stop(self) -> None:
        """Click the stop button of the notebook's toolbar."""
        self.panel.locator("[data-jp-item-name=interrupt]").click()

    def save(self) -> Any:
        """Click File > Save Notebook; return what is in the file then."""
        self.begin(lambda: self.menu("File", "Save Notebook"))
        self.wait()
        return self.lab.saved(self.path)


def open_notebook(lab: Lab, page: Page, path: str) -> Notebook:
    """Open a notebook in a JupyterLab without other tabs, and wait for its kernel."""
    page.goto(f"{lab.url}lab/tree/{quote(path)}?token={lab.token}&reset")
    notebook = Notebook(lab, page, path)
    notebook.wait_until_ready()
    return notebook


VIEWPORT = {"width": 1366, "height": 768}  # a student's laptop


@contextmanager
def a_page(browser: Browser, lab: Lab) -> Iterator[Page]:
    """Open a page in a browser without memory; at its end there must have been no error on its console."""
    context = browser.new_context(viewport=VIEWPORT)
    page = context.new_page()
    page.set_default_timeout(1000 * DEADLINE_S)
    errors: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(f"{message.text} ({message.location.get('url', '')})")

    page.on("console", on_console)
    page.on("pageerror", lambda error: errors.append(error.stack or str(error)))
    yield page
    context.close()
    lab.shut_down_kernels()
    assert not errors, "\n".join(errors)
