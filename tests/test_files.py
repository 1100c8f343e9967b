"""Files that are whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit.files import atomic_write
from labkit.train.experiment.run_record import prepare


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a.txt") as file:
        file.write(b"all of it")
        file.flush()
        assert not (tmp_path / "a.txt").exists()
    assert (tmp_path / "a.txt").read_bytes() == b"all of it"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_a_file_that_fails_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")

    def fail() -> None:
        with atomic_write(tmp_path / "a.txt") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "a.txt").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_prepare_makes_the_directory_and_removes_only_leftovers(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "er"
    prepare(directory)
    for name in (".weights.txt.labkit-part", ".hidden", "kept.txt"):
        (directory / name).touch()
    prepare(directory)
    assert {path.name for path in directory.iterdir()} == {".hidden", "kept.txt"}


def test_prepare_refuses_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(OSError):
            prepare(tmp_path / place)
