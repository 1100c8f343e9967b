"""Two copies of the lab in one account keep their answers apart; what the account held is copied once."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from platformdirs import user_state_path

from labkit.checks.exercise import ORIGINALS
from labkit.cli.exercises import collect, progress
from labkit.exercises import catalogue, record, record_place
from tests.conftest import run_python

FIRST, SECOND = "my_items", "shift_right"
TEXT = catalogue.find(FIRST).text


@pytest.fixture(autouse=True)
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of an account that holds no answers yet."""
    monkeypatch.delenv(record.FILE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    if sys.platform == "darwin":
        monkeypatch.setenv("HOME", str(tmp_path))
    return user_state_path("allreduce-lab") / "progress.json"


def lab(folder: Path) -> Path:
    """Return the folder of a lab with a student's copies of two notebooks."""
    (folder / "my-notebooks").mkdir(parents=True)
    for name in ("00_meet_the_cluster", "01_backprop_by_hand"):
        shutil.copy(ORIGINALS / f"{name}.ipynb", folder / "my-notebooks")
    return folder


def test_two_folders_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = lab(tmp_path / "first"), lab(tmp_path / "second")
    monkeypatch.chdir(first / "my-notebooks")  # as a notebook's kernel
    record.note(FIRST, True, TEXT)
    monkeypatch.chdir(second / "my-notebooks")
    record.note(SECOND, True, catalogue.find(SECOND).text)
    assert set(record.load()) == {SECOND}
    monkeypatch.chdir(first)  # as the commands of the lab
    assert set(record.load()) == {FIRST}
    assert f"1 of {len(catalogue.exercises())} exercises" in CliRunner().invoke(progress).output
    CliRunner().invoke(collect)
    assert f"# Yours: {FIRST}, notebook 00" in (first / "my-notebooks/my_ddp.py").read_text()
    monkeypatch.chdir(second)
    CliRunner().invoke(collect)
    assert "# Yours:" not in (second / "my-notebooks/my_ddp.py").read_text()


def test_a_process_in_each_folder_writes_to_its_own(tmp_path: Path) -> None:
    program = "import sys; from labkit.exercises import record; record.note(sys.argv[1], True)"
    folders = [lab(tmp_path / name) / "my-notebooks" for name in ("first", "second")]
    for folder, name in zip(folders, (FIRST, SECOND), strict=True):
        run_python("-c", program, name, cwd=folder)
    written = [set(json.loads((folder / "progress.json").read_text())["exercises"]) for folder in folders]
    assert written == [{FIRST}, {SECOND}]


def test_what_the_account_held_is_copied_once_and_named(
    account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    account.parent.mkdir(parents=True)
    account.write_text(json.dumps({"exercises": {FIRST: {"state": "done"}}}))
    first, second = lab(tmp_path / "first"), lab(tmp_path / "second")
    for folder in (first, first, second):
        monkeypatch.chdir(folder / "my-notebooks")
        record.load()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"was copied to {first}/my-notebooks/progress.json." in said
    assert record.load() == {}
    monkeypatch.chdir(first)
    record.note(SECOND, True)
    assert set(record.load()) == {FIRST, SECOND}
    assert set(json.loads(account.read_text())["exercises"]) == {FIRST}  # for older versions


def test_assignments_of_one_notebook_each_share_the_file_of_the_folder_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("00_meet_the_cluster", "01_backprop_by_hand"):
        (tmp_path / "course" / name).mkdir(parents=True)
        shutil.copy(ORIGINALS / f"{name}.ipynb", tmp_path / "course" / name)
        monkeypatch.chdir(tmp_path / "course" / name)
        assert record.path() == tmp_path / "course/progress.json"
    mine = lab(tmp_path / "lab")
    shutil.copytree(tmp_path / "course/01_backprop_by_hand", mine / "01_backprop_by_hand")
    monkeypatch.chdir(mine / "01_backprop_by_hand")
    assert record.path() == mine / "my-notebooks/progress.json"


def test_elsewhere_and_where_nobody_may_write_it_is_the_accounts(
    account: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert record.path() == account
    folder = lab(tmp_path / "lab") / "my-notebooks"
    monkeypatch.setattr(record_place.os, "access", lambda path, mode: Path(path) != folder)  # root may write
    assert record.path(folder) == account
