"""The `labkit` command without ranks."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from labkit import cli
from labkit.cli.course import folders
from tests.conftest import run_python


def test_every_command_exists_and_is_listed() -> None:
    listed = CliRunner().invoke(cli.main, ["--help"]).output
    for name, (_, line) in cli.COMMANDS.items():
        assert isinstance(cli.main.get_command(click.Context(cli.main), name), click.Command)
        assert f"  {name} " in listed and line.split(":")[0] in " ".join(listed.split())


@pytest.mark.parametrize("arguments", [["--help"], ["train", "--help"], ["nonsense"], ["train", "--lr", "0"]])
def test_help_and_wrong_options_load_neither_numpy_nor_mpi(arguments: list[str]) -> None:
    program = (
        "import sys; from labkit.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: assert not {'numpy', 'mpi4py', 'matplotlib'} & sys.modules.keys()"
    )
    done = run_python("-c", program, *arguments, code=0 if "--help" in arguments else 2)
    assert "AssertionError" not in done.stderr


@pytest.mark.parametrize(
    ("file", "number", "is_one_line"),
    [("course/docs", errno.EACCES, True), (3, errno.EBADF, False), (None, errno.ENOMEM, False)],
)
def test_only_an_error_that_names_a_file_is_one_line(
    file: str | int | None, number: int, is_one_line: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def contents(*_: object, **__: object) -> None:
        raise OSError(number, "no", str(tmp_path / file) if isinstance(file, str) else file)

    monkeypatch.setattr(folders, "contents", contents)
    done = CliRunner().invoke(cli.main, ["release", str(tmp_path / "course")])
    assert isinstance(done.exception, SystemExit if is_one_line else OSError)
    assert not is_one_line or (done.exit_code == 2 and done.output.startswith("Error: "))


def test_a_profile_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    environment = {**os.environ, "LABKIT_PROFILE": "nonsense"}
    done = run_python("-m", "labkit", "lab", code=2, cwd=tmp_path, env=environment)
    assert "there is no profile 'nonsense'" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and list(tmp_path.iterdir()) == []
