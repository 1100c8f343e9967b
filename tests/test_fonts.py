"""Matplotlib's list of fonts: kept in the environment, handed to a user who has none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from labkit import fonts
from tests.conftest import run_python

SAY = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
import matplotlib.font_manager
"""


def test_a_user_gets_the_environments_list_and_keeps_an_own_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "FOLDER", tmp_path / "share")
    own = tmp_path / "home" / "cache"
    monkeypatch.setenv("MPLCONFIGDIR", str(own))
    fonts.hand_out()
    assert not own.exists()
    fonts.keep()
    (kept,) = fonts.FOLDER.iterdir()
    fonts.hand_out()
    assert (own / kept.name).read_bytes() == kept.read_bytes()
    said = run_python("-c", SAY).stdout
    assert "Using fontManager instance" in said and "generated new fontManager" not in said
    (own / kept.name).write_text("the user's")
    fonts.hand_out()
    assert (own / kept.name).read_text() == "the user's"


def test_a_cache_folder_that_cannot_be_made_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "FOLDER", tmp_path)
    (tmp_path / "fontlist-v1.json").touch()
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path / "fontlist-v1.json" / "x"))
    fonts.hand_out()


@pytest.mark.parametrize("name", ["MPLCONFIGDIR", "XDG_CACHE_HOME", "HOME"])
def test_the_cache_folder_is_matplotlibs(name: str, tmp_path: Path) -> None:
    environment = {
        key: value for key, value in os.environ.items() if key not in ("MPLCONFIGDIR", "XDG_CACHE_HOME")
    }
    program = "from labkit.fonts import cache_folder; import matplotlib; print(cache_folder()); "
    program += "print(matplotlib.get_cachedir())"
    said = run_python("-c", program, env={**environment, "HOME": str(tmp_path), name: str(tmp_path)}).stdout
    ours, theirs = map(Path, said.splitlines())
    assert ours.resolve() == theirs.resolve()
