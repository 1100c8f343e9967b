"""The wheels and the source archives: built here, complete, and usable where there is no clone."""

from __future__ import annotations

import email
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pexpect
import pytest

import mpiwatch
from labkit import __version__
from labkit.checks.exercise import ORIGINALS
from labkit.cli.course import folders
from labkit.cli.lab import FIRST
from tests.cluster.lab_session import Server
from tests.cluster_fixtures import DEADLINE_S, World
from tests.conftest import run_notebook, run_python

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


def build(root: Path, *options: str | Path) -> None:
    run_python("-m", "hatchling", "build", *options, cwd=root)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheels and the source archives."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, "-d", folder)
    build(ROOT / "mpiwatch", "-d", folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("labkit-*.whl")
    return wheel


@pytest.fixture(scope="module")
def mpiwatch_wheel(dist: Path) -> Path:
    (wheel,) = dist.glob("mpiwatch-*.whl")
    return wheel


def contents(wheel: Path) -> dict[str, int]:
    """Return the files of a wheel, each with its checksum, without what JupyterLab leaves in a clone."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            entry.filename: entry.CRC
            for entry in archive.infolist()
            if ".ipynb_checkpoints" not in entry.filename
        }


def test_copies_made_from_the_wheel_are_those_made_from_the_clone(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    carried = sorted((tmp_path / "labkit" / "originals" / "notebooks").glob("*.ipynb"))
    assert [path.name for path in carried] == NOTEBOOKS
    copies = [
        folders.contents(originals, lambda notebook: None)
        for originals in (carried, sorted(ORIGINALS.glob("*.ipynb")))
    ]
    assert copies[0].keys() == copies[1].keys()
    assert [str(place) for place in copies[0] if copies[0][place] != copies[1][place]] == []


def test_the_wheel_has_the_version_of_the_package_but_no_tests_and_no_runs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        about = archive.read(f"labkit-{__version__}.dist-info/METADATA").decode()
    assert email.message_from_string(about)["Version"] == __version__
    assert not [name for name in contents(wheel) if {"tests", "runs"} & {*Path(name).parts}]


def test_the_source_archive_builds_the_same_wheel(dist: Path, wheel: Path, tmp_path: Path) -> None:
    (archive,) = dist.glob("labkit-*.tar.gz")
    assert archive.name == f"labkit-{__version__}.tar.gz"
    shutil.unpack_archive(archive, tmp_path)
    build(tmp_path / f"labkit-{__version__}", "-t", "wheel", "-d", tmp_path)
    assert contents(tmp_path / wheel.name) == contents(wheel)


def test_the_wheel_of_mpiwatch_holds_it_alone_and_its_archive_builds_the_same(
    dist: Path, wheel: Path, mpiwatch_wheel: Path, tmp_path: Path
) -> None:
    name = f"mpiwatch-{mpiwatch.__version__}"
    assert {file.partition("/")[0] for file in contents(mpiwatch_wheel)} == {"mpiwatch", f"{name}.dist-info"}
    assert not [file for file in contents(wheel) if file.startswith("mpiwatch/")]
    shutil.unpack_archive(dist / f"{name}.tar.gz", tmp_path)
    assert (tmp_path / name / "tests/corpus/run_corpus.py").exists()
    build(tmp_path / name, "-t", "wheel", "-d", tmp_path)
    assert contents(tmp_path / mpiwatch_wheel.name) == contents(mpiwatch_wheel)


def environment(folder: Path, *wheels: Path) -> Path:
    """Make an environment with the packages of this one, but ours from the wheels; return its Python.

    The packages are links to those of this environment, so nothing needs a connection.
    """
    packages = Path(str(metadata.distribution("labkit").locate_file("")))
    files = [*(metadata.files("labkit") or []), *(metadata.files("mpiwatch") or [])]
    ours = {Path(os.path.normpath(str(path.locate()))) for path in files}

    def left_out(parent: str, names: list[str]) -> list[str]:
        here = Path(parent)
        return names if here == packages else [name for name in names if here / name in ours]

    shutil.copytree(sys.prefix, folder, symlinks=True, ignore=left_out, copy_function=link)
    new = folder / packages.relative_to(sys.prefix)
    for path in packages.iterdir():
        if path != packages / "labkit" and not any(path in (file, *file.parents) for file in ours):
            (new / path.name).symlink_to(path)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(new)
    data = new / f"labkit-{__version__}.data"
    shutil.copytree(data / "data", folder, dirs_exist_ok=True)
    shutil.rmtree(data)
    return folder / "bin" / "python"


def link(source: str, target: str) -> None:
    """Link to a file; copy a link as it is."""
    os.symlink(os.readlink(source) if os.path.islink(source) else source, target)


@pytest.fixture(scope="module")
def python(wheel: Path, mpiwatch_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the Python of an environment that has the wheels and not this clone."""
    folder = tmp_path_factory.mktemp("wheel") / "an environment"
    yield environment(folder, wheel, mpiwatch_wheel)
    shutil.rmtree(folder)


def labkit(python: Path, folder: Path, *words: str) -> str:
    """Run a `labkit` command of the wheel in a folder; return what it prints."""
    return run_python("-m", "labkit", *words, python=python, cwd=folder).stdout


@pytest.mark.clusters
def test_commands_for_courses_need_no_clone(python: Path, tmp_path: Path) -> None:
    said = labkit(python, tmp_path, "release", "students")
    assert said == f"students: {len(NOTEBOOKS)} notebooks for students\n"
    assert sorted(path.name for path in (tmp_path / "students").glob("*.ipynb")) == NOTEBOOKS
    labkit(python, tmp_path, "solutions", "instructors")
    labkit(python, tmp_path, "export", f"students/{FIRST}", "--out", "first.py")
    assert (tmp_path / "instructors" / "exercises.md").exists() and (tmp_path / "first.py").exists()


@pytest.mark.clusters
def test_without_a_clone_the_lab_starts_and_its_copies_run(
    python: Path, world: World, tmp_path: Path
) -> None:
    """`labkit lab` copies the notebooks to an empty folder and serves them; one of them runs on engines."""
    folder = tmp_path / "an empty folder"
    folder.mkdir()
    terminal = pexpect.spawn(
        str(python),
        ["-m", "labkit", "lab", "-n", "2"],
        cwd=folder,
        env=world.env,
        timeout=DEADLINE_S,
        encoding="utf-8",
        dimensions=(40, 300),
    )
    try:
        terminal.expect_exact("my-notebooks: your own copies of the notebooks\r\n")
        terminal.expect(r"JupyterLab: (http://\S+/)lab/tree/my-notebooks/(\S+)\?token=(\w+)\r\n")
        url, opened, token = terminal.match.groups()
        assert opened == "START.md"
        listed = Server(url, token).call("GET", "api/contents/my-notebooks")["content"]
        assert sorted(each["name"] for each in listed if each["type"] == "notebook") == NOTEBOOKS
    finally:
        terminal.sendintr()
        terminal.expect(pexpect.EOF)
        terminal.close(force=True)
    assert terminal.exitstatus == 0
    world.wait_until_empty()
    run_notebook(folder / "my-notebooks" / FIRST, python=python)
