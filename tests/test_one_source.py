"""What must stand in two places stands there alike."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from labkit import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ON_CONDA_FORGE = {"matplotlib": "matplotlib-base"}  # conda-forge's name, where it is another


def wanted() -> dict[str, str]:
    """What pyproject.toml asks for, with the default MPI."""
    extras = PROJECT["optional-dependencies"]
    lines = [*PROJECT["dependencies"], *extras["mpich"], *extras["dev"]]
    return {requirement.name: str(requirement.specifier) for requirement in map(Requirement, lines)}


def test_environment_yml_names_what_pyproject_names() -> None:
    text = (ROOT / "environment.yml").read_text().partition("dependencies:")[2]
    lines = re.findall(r"^  - ([a-z0-9-]+)([><=]\S*)?$", text, re.MULTILINE)
    conda = {name: specifier for name, specifier in lines}
    assert conda.pop("python") == PROJECT["requires-python"]
    assert conda.pop("pip") == ""
    assert conda == {ON_CONDA_FORGE.get(name, name): specifier for name, specifier in wanted().items()}


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
    for line in [*PROJECT["dependencies"], *(line for lines in locked_extras for line in lines)]:
        requirement = Requirement(line)
        assert locked[requirement.name], line
        assert all(requirement.specifier.contains(version) for version in locked[requirement.name]), line


def test_changelog_and_citation_state_the_version_of_the_package() -> None:
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest and newest[1] == __version__
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited and cited[1] == __version__
