"""The `labkit` command without ranks."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import click
import pytest
from click.testing import CliRunner

from labkit import cli


def test_every_command_exists_and_is_listed() -> None:
    listed = CliRunner().invoke(cli.main, ["--help"]).output
    for name, (module, line) in cli.COMMANDS.items():
        assert isinstance(import_module(module).command, click.Command)
        assert f"  {name} " in listed and line.split(":")[0] in " ".join(listed.split())


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["nonsense"], ["train", "--lr", "0"]])
def test_help_and_wrong_options_load_neither_numpy_nor_mpi(arguments: list[str]) -> None:
    program = (
        "import sys; from labkit.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: assert not {'numpy', 'mpi4py', 'matplotlib'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if "--help" in arguments else 2), done.stderr
    assert "AssertionError" not in done.stderr
