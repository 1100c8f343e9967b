"""The `labkit` command without ranks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from labkit import cli
from labkit.cli.course import folders
from tests.conftest import DEADLINE_S


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


@pytest.mark.parametrize(
    ("file", "number", "is_the_users"),
    [
        ("course/docs", errno.EACCES, True),
        (".", errno.EACCES, True),
        (".labkit-part-1", errno.EACCES, True),
        ("other", errno.EACCES, False),
        (str(folders.PACKAGE / "absent.json"), errno.ENOENT, False),
        ("/tmp/x", errno.ENOSPC, True),
        (3, errno.EBADF, False),
        (None, errno.ENOMEM, False),
    ],
)
def test_only_an_error_of_a_file_that_the_user_named_is_one_line(
    file: str | int | None, number: int, is_the_users: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other error is internal and keeps its traceback."""

    def contents(*_: object, **__: object) -> None:
        raise OSError(number, "no", str(tmp_path / file) if isinstance(file, str) else file)

    monkeypatch.setattr(folders, "contents", contents)
    done = CliRunner().invoke(cli.main, ["release", str(tmp_path / "course")])
    assert isinstance(done.exception, SystemExit if is_the_users else OSError)
    assert not is_the_users or (done.exit_code == 2 and done.output.startswith("Error: "))


def test_a_profile_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "labkit", "lab"],
        cwd=tmp_path,
        env={**os.environ, "LABKIT_PROFILE": "nonsense"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 2 and "there is no profile 'nonsense'" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and list(tmp_path.iterdir()) == []
