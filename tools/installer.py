"""Install packages into an environment: by uv, which takes seconds, or else by pip.

uv is the one on PATH or, if there is none that runs, one that pip puts into the environment. It gets the
package indexes that pip is configured with: a university's mirror or proxy is usually set for pip alone.
"""

import ast
import importlib.util
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from labkit.supervisor import supervised

# pip's settings, and the environment variables by which uv gets the same.
UV_NAMES = {
    "index-url": ("UV_INDEX_URL",),
    "extra-index-url": ("UV_EXTRA_INDEX_URL",),
    "no-index": ("UV_NO_INDEX",),
    "find-links": ("UV_FIND_LINKS",),
    "trusted-host": ("UV_INSECURE_HOST",),
    "cert": ("SSL_CERT_FILE",),
    "client-cert": ("SSL_CLIENT_CERT",),
    "proxy": ("HTTPS_PROXY", "HTTP_PROXY"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
    "no-cache-dir": ("UV_NO_CACHE",),
}
SECTIONS = ("global", "install", ":env:")  # of pip's configuration; a later one overrides an earlier one
LISTS = {"UV_EXTRA_INDEX_URL": " ", "UV_FIND_LINKS": ",", "UV_INSECURE_HOST": " "}  # and their separators
SHOWN_EVERY_S = {True: 1.0, False: 10.0}  # on a terminal, where each line replaces the last; in a file


class Progress:
    """What an installer is doing, from its output; shown in one line on a terminal."""

    def __init__(self) -> None:
        self.start = self.shown = time.monotonic()
        self.terminal = sys.stdout.isatty()
        self.doing, self.found, self.megabytes = "", 0, 0.0

    def step(self, doing: str) -> None:
        """Begin with a new command."""
        self.doing, self.found = doing, 0

    def read(self, line: str) -> None:
        """Note what a line of output of uv or pip says."""
        if found := re.match(r"Resolved (\d+) packages?", line):
            self.found = int(found[1])
            self.doing = f"getting {self.found} packages"
        elif line.startswith("Prepared "):
            self.doing = f"installing {self.found} packages"
        elif line.startswith("Collecting "):
            self.found += 1
            if self.found > 1:
                self.doing = f"getting packages, {self.found} so far"
        elif line.startswith("Installing collected packages: ") and self.found > 1:
            self.doing = f"installing {self.found} packages"
        elif found := re.match(r"\s*Downloading .*\((\d+(?:\.\d+)?) ?([kKMG])i?B\)", line):
            self.megabytes += float(found[1]) * {"k": 1e-3, "K": 1e-3, "M": 1, "G": 1e3}[found[2]]

    def show(self) -> None:
        """Print a line, unless the last one is too recent."""
        now = time.monotonic()
        if now - self.shown < SHOWN_EVERY_S[self.terminal]:
            return
        self.shown = now
        line = f"  {now - self.start:3.0f} s: {self.doing}"
        line += f", {self.megabytes:.0f} MB downloaded" if self.megabytes else ""
        print(f"\r{line}\033[K" if self.terminal else line, end="" if self.terminal else "\n", flush=True)

    def clear(self) -> None:
        """Remove the line from the terminal."""
        if self.terminal:
            print("\r\033[K", end="", flush=True)


def run(command: list[str], log: IO[str], progress: Progress, env: Mapping[str, str] | None = None) -> None:
    """Run a command with its output in the log; raise CalledProcessError if it fails.

    The command ends with this process, however this process ends.
    """
    log.write(f"\n$ {' '.join(command)}\n")
    log.flush()
    with subprocess.Popen(
        [*supervised("child"), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        cwd=Path(__file__).parents[1],
    ) as process:
        assert process.stdout
        try:
            for line in lines(process.stdout.fileno(), progress):
                progress.read(line)
                log.write(line + "\n")
                log.flush()
        except BaseException:  # Ctrl-C: the command ends, too
            process.terminate()
            raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def lines(descriptor: int, progress: Progress) -> Iterator[str]:
    """Yield the lines that can be read there until its end, and show the progress while none comes."""
    received, more = b"", b"?"
    while more:
        if select.select([descriptor], [], [], 1)[0]:
            more = os.read(descriptor, 1 << 16)
            *whole, received = (received + more).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
        progress.show()
    if received:
        yield received.decode(errors="replace")


def own_pip() -> list[str]:
    """Return the path of the pip of the Python that runs this, as a list; an empty one if it has none."""
    found = importlib.util.find_spec("pip")
    return [str(Path(found.origin).parent)] if found and found.origin else []


def uv_settings(pip: list[str]) -> dict[str, str]:
    """Return the environment variables that make uv use pip's indexes, certificates and proxy."""
    text = subprocess.run(
        [sys.executable, *pip, "config", "list"], capture_output=True, text=True, check=False
    )
    settings: dict[str, str] = {}
    for section in SECTIONS:
        for line in text.stdout.splitlines():
            found = re.fullmatch(rf"{section}\.([a-z-]+)=(['\"].*['\"])", line)
            for name in UV_NAMES.get(found[1], ()) if found else ():
                assert found
                value = ast.literal_eval(found[2]).strip()
                settings[name] = LISTS[name].join(value.split()) if name in LISTS else value
    for name in ("CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):  # pip uses them, uv does not
        if name in os.environ:
            settings.setdefault("SSL_CERT_FILE", os.environ[name])
    if "UV_EXTRA_INDEX_URL" in settings:
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip: the best version of all indexes
    return settings


def install(folder: Path, wanted: list[str], log: IO[str], progress: Progress) -> str:
    """Install the packages and pip into the environment; return what installed them.

    Nothing is compiled to bytecode: Python does that for the modules that it imports, a quarter of them, and
    the first page is there sooner.
    `wanted` are arguments of `pip install`, relative to the project's folder. Raise CalledProcessError if
    neither uv nor pip could do it; LookupError if this Python has no pip and PATH has no uv.
    """
    python, pip = str(folder / "bin" / "python"), own_pip()
    quiet = {
        "PIP_ROOT_USER_ACTION": "ignore",  # the warning is meant for the system's Python
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
    env = {**os.environ, **quiet}
    # venv would install pip through ensurepip, which Debian's Python lacks. Instead the environment's Python
    # runs the pip of this Python by its path. (`pip --python` would do, but pip has it only since 22.3.)
    # --ignore-installed: it also sees this Python's packages, and would call pip installed.
    borrowed = [python, *pip, "install", "--no-compile", "--ignore-installed"]
    try:
        uv = _working_uv(shutil.which("uv")) or _working_uv(str(folder / "bin" / "uv"))
        if not uv:
            if not pip:
                raise LookupError
            progress.step("getting uv, a fast installer")
            run([*borrowed, "uv"], log, progress, env)
            uv = str(folder / "bin" / "uv")
        own = {name: value for name, value in env.items() if name.startswith("UV_")}
        settings = {**env, **(uv_settings(pip) if pip else {}), **own}  # the user's own settings for uv win
        progress.step("looking up packages")
        run([uv, "pip", "install", "--python", python, "pip", *wanted], log, progress, settings)
        return "uv"
    except subprocess.CalledProcessError as error:
        if not pip:
            raise
        log.write(f"{error}: pip installs instead.\n")
    progress.step("uv failed; installing with pip")
    if not (folder / "bin" / "pip").exists():
        run([*borrowed, "pip"], log, progress, env)
    run([python, "-m", "pip", "install", "--no-compile", *wanted], log, progress, env)
    return "pip"


def _working_uv(path: str | None) -> str | None:
    """Return the path if it is uv and runs here; pyenv has stand-ins that do not."""
    if not path or not Path(path).exists():
        return None
    return (
        path
        if subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0
        else None
    )
