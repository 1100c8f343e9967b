"""The README, typed line by line in an environment of mpi4py, NumPy, an MPI and mpiwatch's wheel alone."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

import mpiwatch
from jobs import DEADLINE_S
from mpiwatch import launch
from mpiwatch.launch import HANG_EXIT_CODE

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FOUND = ("mpi4py", "numpy")
MPIS = ("mpich", "openmpi")
# The commands that report something; all others end with 0.
CODES = {
    "mpiwatch -n 4 --deadline 5 hang.py": HANG_EXIT_CODE,
    "mpiexec -n 4 python -m mpiwatch --deadline 5 --json report.json hang.py": None,  # the launcher's own
    "mpiwatch -n 4 --strict ring.py": HANG_EXIT_CODE,
}


def commands() -> Iterator[tuple[str, str]]:
    """Yield each command line of the README, and the text that it has to print."""
    blocks = BLOCK.findall(README)
    for number, (kind, text) in enumerate(blocks):
        if kind == "sh":
            after_kind, after = blocks[number + 1] if number + 1 < len(blocks) else ("", "")
            *first, last = text.splitlines()
            yield from ((line, "") for line in first)
            yield last, after if after_kind == "text" else ""


def link_package(name: str, site: Path, folder: Path) -> None:
    """Link the files of an installed package into another environment."""
    for file in metadata.files(name) or []:
        source = Path(os.path.normpath(str(file.locate())))
        top = Path(file.parts[0])
        if top == Path(".."):  # below the environment's prefix: a program, a library
            target = folder / source.relative_to(sys.prefix)
        else:
            source, target = source.parents[len(file.parts) - 1] / top, site / top
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_symlink() and not target.exists():
            target.symlink_to(source)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with links to mpi4py, NumPy and MPI, and with mpiwatch from its wheel."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("readme") / "an environment"
    dist = folder.parent / "dist"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)]
    subprocess.run(build, cwd=PROJECT, check=True, capture_output=True)
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    installed = {distribution.name for distribution in metadata.distributions()}
    for name in (*FOUND, *(mpi for mpi in MPIS if mpi in installed)):
        link_package(name, site, folder)
    (wheel,) = dist.glob("*.whl")
    assert f"pip install {wheel.name}" in README
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (point,) = [
        point
        for distribution in metadata.distributions(path=[str(site)])
        for point in distribution.entry_points.select(group="console_scripts", name="mpiwatch")
    ]
    code = f"import sys; from {point.module} import {point.attr}; sys.exit({point.attr}())"
    words = shlex.join([str(folder / "bin/python"), "-c", code])
    program = folder / "bin" / "mpiwatch"
    program.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    program.chmod(0o755)
    return folder


def test_the_environment_has_nothing_else(environment: Path) -> None:
    code = (
        "import importlib.util, mpiwatch; "
        "print(mpiwatch.__file__, *map(importlib.util.find_spec, ('psutil', 'labkit')))"
    )
    words = [environment / "bin/python", "-I", "-c", code]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said.startswith(str(environment)) and said.endswith(" None None\n")


def test_each_line_of_the_readme_does_what_it_says(environment: Path, tmp_path: Path) -> None:
    for text in (text for kind, text in BLOCK.findall(README) if kind == "python"):
        name = text.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(text)
    variables = {**os.environ, **launch.settings(), "PATH": f"{environment}/bin:{os.environ['PATH']}"}
    variables.pop("PYTHONPATH", None)
    for command, expected in commands():
        if command.startswith("pip "):  # the environment has what it would install
            continue
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        code = CODES.get(command, 0)
        assert code in (None, done.returncode), f"{command}: {done.returncode}\n{done.stdout}"
        for line in expected.splitlines():
            assert line in done.stdout.splitlines(), f"{command}: {line!r} is not in\n{done.stdout}"


def test_the_readme_describes_each_public_name() -> None:
    table = README[README.index("| Name in") : README.index("Each further public")]
    described = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(described) == sorted(mpiwatch.__all__)
