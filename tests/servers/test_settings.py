"""The examples for JupyterHub: their settings are ones that JupyterHub and its spawners have.

tests/cluster/test_class_day.py starts a JupyterHub with jupyterhub_config.py, and
tests/slurm/test_jupyterhub.py one with jupyterhub_slurm.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from traitlets.config import Config
from traitlets.config.loader import PyFileConfigLoader

from tests.servers import missing_of_jupyterhub

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CLASSES = {
    "JupyterHub": "jupyterhub.app",
    "Authenticator": "jupyterhub.auth",
    "LocalAuthenticator": "jupyterhub.auth",
    "Spawner": "jupyterhub.spawner",
    "SystemdSpawner": "systemdspawner",
    "SlurmSpawner": "batchspawner",
}


def settings(name: str) -> Config:
    """Return the settings of an example."""
    return PyFileConfigLoader(name, str(EXAMPLES)).load_config()


@pytest.mark.skipif(missing_of_jupyterhub() != "", reason=missing_of_jupyterhub())
@pytest.mark.parametrize(
    ("example", "classes"),
    [
        ("jupyterhub_config.py", {"JupyterHub", "Authenticator", "Spawner", "SystemdSpawner"}),
        ("jupyterhub_slurm.py", {"JupyterHub", "Authenticator", "Spawner", "SystemdSpawner", "SlurmSpawner"}),
    ],
)
def test_every_setting_exists(example: str, classes: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", lambda folder: True)  # as if systemd ran here
        config = settings(example)
    assert {*config} == classes
    for name in classes:
        traits = getattr(import_module(CLASSES[name]), name).class_traits(config=True)
        assert {*config[name]} <= {*traits}, name


@pytest.mark.skipif(missing_of_jupyterhub() != "", reason=missing_of_jupyterhub())
@pytest.mark.parametrize("page", ["install.md", "server.md", "slurm.md"])
def test_every_setting_that_a_page_names_exists(page: str) -> None:
    named = re.findall(r"\bc\.(\w+)\.(\w+)", (ROOT / "docs" / page).read_text())
    assert named
    for name, setting in named:
        assert setting in getattr(import_module(CLASSES[name]), name).class_traits(config=True), (
            name,
            setting,
        )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("wrong", ["", "OOMPolicies"])
def test_systemd_knows_the_limits_of_a_students_unit(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", lambda folder: True)
        properties = settings("jupyterhub_config.py")["SystemdSpawner"]["unit_extra_properties"]
    lines = [
        f"{name}={value}" for name, value in {**properties, **({wrong: "continue"} if wrong else {})}.items()
    ]
    unit = tmp_path / "student.service"
    unit.write_text("\n".join(["[Service]", f"ExecStart={shutil.which('true')}", *lines, ""]))
    words = ["systemd-analyze", "verify", "--recursive-errors=no", str(unit)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ("student.service" in done.stderr) == bool(wrong), done.stderr


def test_the_unit_of_systemd_starts_what_the_page_installs(tmp_path: Path) -> None:
    unit = (EXAMPLES / "jupyterhub.service").read_text()
    page = (ROOT / "docs/install.md").read_text()
    (program,) = re.findall(r"^ExecStart=(\S+)", unit, re.MULTILINE)
    (folder,) = re.findall(r"^WorkingDirectory=(\S+)", unit, re.MULTILINE)
    environment = program.removesuffix("/bin/jupyterhub")
    assert f"-m venv {environment}\n" in page and f"mkdir -p {folder}" in page
    assert f"Environment=PATH={environment}/bin:" in unit
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze, which checks units")
    here = unit.replace(program, shutil.which("true") or "").replace(folder, str(tmp_path))
    (tmp_path / "jupyterhub.service").write_text(here)
    words = ["systemd-analyze", "verify", "--recursive-errors=no", str(tmp_path / "jupyterhub.service")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "jupyterhub.service" not in done.stderr and done.returncode == 0, done.stderr
