"""The Dockerfile, which the dev container, Binder and JupyterHub on Kubernetes share.

No container can be built in the tests: hadolint parses the file and checks its commands, and
tests/test_make_env.py makes the environment in the same two layers.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
INSTRUCTIONS = DOCKERFILE.replace("\\\n", " ").splitlines()
DEV_CONTAINER = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HADOLINT = Path(sys.executable).parent / "hadolint"


def values(instruction: str) -> list[str]:
    """Return what follows an instruction, such as COPY, in each of its lines."""
    return [line.partition(" ")[2] for line in INSTRUCTIONS if line.startswith(f"{instruction} ")]


@pytest.mark.skipif(not HADOLINT.exists(), reason="there is no hadolint: `make test-env ADD=servers`")
def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run([HADOLINT, ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_what_it_copies_exists() -> None:
    for copied in values("COPY"):
        *sources, _ = [word for word in copied.split() if not word.startswith("--")]
        assert all((ROOT / source).exists() for source in sources), copied


def test_the_environment_is_a_layer_that_needs_the_lock_and_the_tool_alone() -> None:
    before, _, after = DOCKERFILE.partition("--packages-only")
    assert "COPY --chown=${NB_UID} . ." not in before and "COPY --chown=${NB_UID} . ." in after
    assert "tools/make_env.py ../environment\n" in after


def test_its_python_is_one_that_the_package_allows() -> None:
    (version,) = re.findall(r"^FROM python:([\d.]+)-", DOCKERFILE, re.MULTILINE)
    assert SpecifierSet(PROJECT["requires-python"]).contains(version)


def test_the_dev_container_uses_its_environment() -> None:
    build = DEV_CONTAINER["build"]
    assert (ROOT / ".devcontainer" / build["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert f" AS {build['target']}\n" in DOCKERFILE
    folder = DEV_CONTAINER["containerEnv"]["VENV"]
    assert f"ENV PATH={folder}/bin:" in DOCKERFILE
    python = DEV_CONTAINER["customizations"]["vscode"]["settings"]["python.defaultInterpreterPath"]
    assert python == f"{folder}/bin/python"
    make, target = DEV_CONTAINER["postCreateCommand"].split()
    assert make == "make" and re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert str(DEV_CONTAINER["forwardPorts"][0]) in values("EXPOSE")


def test_nothing_that_git_ignores_or_keeps_comes_into_the_image() -> None:
    kept_out = {*(ROOT / ".dockerignore").read_text().splitlines()}
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line[-1:] == "/"]
    patterns = {"**/__pycache__" if name == "__pycache__" else name for name in ignored}
    patterns = {"**/.ipynb_checkpoints" if name == ".ipynb_checkpoints" else name for name in patterns}
    assert patterns | {".git"} <= kept_out
