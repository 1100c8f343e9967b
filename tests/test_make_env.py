"""tools/make_env.py makes an environment whose pip belongs to it."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "tools" / "make_env.py"


@pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="make_env needs pip")
def test_pip_in_the_activated_environment_installs_into_it(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("make_env", SCRIPT)
    assert spec and spec.loader
    make_env = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_env)
    folder = tmp_path / "environment"
    make_env.create(folder)
    script = f". {folder}/bin/activate && command -v pip && pip --version"
    output = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout
    path, version = output.splitlines()
    assert path == f"{folder}/bin/pip"
    assert f"from {folder}/lib/" in version
