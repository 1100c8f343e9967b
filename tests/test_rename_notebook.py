"""A notebook is renamed by one command; the folder `notebooks` is the only list of their names."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import labkit

ROOT = Path(labkit.__file__).parent.parent
if not (ROOT / "tools").is_dir():
    pytest.skip("the tools are in the repository alone", allow_module_level=True)

from tools.rename_notebook import rename  # noqa: E402

OLD, NEW = "05_ring_reduce", "05_around_the_ring"
MENTION = re.compile(r"(?<![a-zA-Z0-9])(\d\d[a-z]?_[a-z0-9_]+)\.ipynb")
MADE_UP = "tests/"  # tests make notebooks of their own


def tracked(root: Path) -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
    return [name for name in listed.decode().split("\0") if name and (root / name).is_file()]


def texts(root: Path) -> dict[str, str]:
    """Return the files of a repository that are text."""
    found = {}
    for name in tracked(root):
        try:
            found[name] = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a repository with copies of this one's files."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    for name in tracked(ROOT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A", "-f"], cwd=tmp_path, check=True)
    return tmp_path


def test_each_notebook_that_a_file_names_is_there() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    there = {path.stem for path in ROOT.glob("notebooks/*.ipynb")}
    assert there
    wrong = [
        (name, mention)
        for name, text in texts(ROOT).items()
        for mention in MENTION.findall(text)
        if mention not in there and not name.startswith(MADE_UP)
    ]
    assert wrong == []


def test_a_notebook_is_renamed_wherever_it_is_named(copy: Path) -> None:
    before = texts(copy)
    changed = rename(copy, OLD, NEW)
    subprocess.run(["git", "add", "-A"], cwd=copy, check=True)
    after = texts(copy)
    assert (copy / f"notebooks/{NEW}.ipynb").exists() and f"notebooks/{OLD}.ipynb" not in after
    assert [name for name, text in after.items() if re.search(rf"\b{OLD}\b", text)] == []
    assert {name for name, text in before.items() if after.get(name) != text} == {
        name for name, text in before.items() if OLD in text or name == f"notebooks/{OLD}.ipynb"
    }
    assert changed


@pytest.mark.parametrize(
    ("old", "new"),
    [(OLD, "06_ring"), (OLD, "ring"), ("05_nothing", "05_ring"), (OLD, OLD), ("../x", "05_ring")],
)
def test_a_name_that_cannot_be_is_refused(old: str, new: str, tmp_path: Path) -> None:
    notebook = tmp_path / f"notebooks/{OLD}.ipynb"
    notebook.parent.mkdir()
    notebook.write_text("{}")
    with pytest.raises(ValueError):
        rename(tmp_path, old, new)
    assert notebook.exists()
