"""A module beside the notebook is loaded again when its file changes, on the ranks and in the kernel."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.cluster.reloading import Reloader
from tests.cluster_fixtures import Kernel, a_world

FIRST = "def f():\n    return 1\n\n\nclass Layer:\n    def g(self):\n        return 1\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder from which this process imports modules; none of them stays imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def test_a_function_that_was_imported_by_name_and_an_object_follow_the_file(folder: Path) -> None:
    (folder / "changing.py").write_text(FIRST)
    reloader = Reloader(str(folder))
    from changing import Layer, f  # noqa: PLC0415

    layer = Layer()
    reloader.end_cell()
    for number in 2, 3:  # within a second, and of the same size
        (folder / "changing.py").write_text(FIRST.replace("1", str(number)))
        reloader.begin_cell()
        assert (f(), layer.g(), sys.modules["changing"].f()) == (number,) * 3


def test_a_change_between_the_import_and_the_end_of_its_cell_is_seen(folder: Path) -> None:
    (folder / "early.py").write_text("value = 1\n")
    reloader = Reloader(str(folder))
    reloader.begin_cell()
    import early  # noqa: PLC0415

    time.sleep(0.01)
    (folder / "early.py").write_text("value = 2\n")
    reloader.end_cell()
    reloader.begin_cell()
    assert early.value == 2


@pytest.mark.parametrize("fault", ["def f(:\n", "1 / 0\n", "raise SystemExit(3)\n"])
def test_a_file_that_cannot_be_loaded_leaves_the_module(
    folder: Path, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.py").write_text(FIRST)
    reloader = Reloader(str(folder))
    import broken  # noqa: PLC0415

    reloader.end_cell()
    (folder / "broken.py").write_text(fault)
    for _ in range(2):
        reloader.begin_cell()
    said = capsys.readouterr().out
    assert said.count("broken.py has changed and cannot be loaded: ") == 1, said
    assert said.endswith("Its earlier version stays in use.\n") and broken.f() == 1
    (folder / "broken.py").write_text("def f():\n    return 22\n")
    reloader.begin_cell()
    assert broken.f() == 22


def test_a_file_that_an_editor_is_replacing_is_loaded_when_it_is_there(folder: Path) -> None:
    (folder / "replaced.py").write_text("value = 1\n")
    reloader = Reloader(str(folder))
    import replaced  # noqa: PLC0415

    reloader.end_cell()
    (folder / "replaced.py").unlink()
    reloader.begin_cell()
    (folder / "replaced.py").write_text("value = 2\n")
    reloader.begin_cell()
    assert replaced.value == 2


def test_modules_of_other_folders_stay_as_they_are(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder / "elsewhere.py").write_text("value = 1\n")
    reloader = Reloader(str(tmp_path_factory.mktemp("notebooks")))
    import elsewhere  # noqa: PLC0415

    reloader.end_cell()
    (folder / "elsewhere.py").write_text("value = 22\n")
    reloader.begin_cell()
    assert elsewhere.value == 1 and reloader.stamps == {}


@pytest.mark.clusters
def test_ranks_and_kernel_run_the_text_of_the_file(tmp_path: Path) -> None:
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    for world in a_world(tmp_path / "ipython"):
        kernel = Kernel(world, notebooks)
        (notebooks / "helper.py").write_text(FIRST)
        kernel.run("from labkit.cluster import connect\nrc = connect(2)")
        kernel.run("from helper import f\n%px from helper import f")
        (notebooks / "helper.py").write_text(FIRST.replace("1", "2"))
        assert kernel.run("print(f())\n%px print(f())") == "2\n[ranks 0, 1] 2\n"
        (notebooks / "helper.py").write_text("def f(:\n")
        assert kernel.run("%px print(f())").count("cannot be loaded: SyntaxError") == 2  # kernel and ranks
        kernel.end()


def test_an_object_in_the_place_of_a_module_is_not_asked_for_its_file(tmp_path: Path) -> None:
    class Asks:
        asked = 0

        def __getattr__(self, name: str) -> str:
            type(self).asked += 1
            return str(tmp_path / "x.py")

    reloader = Reloader(str(tmp_path))
    sys.modules["placed_by_a_student"] = Asks()  # type: ignore[assignment]
    try:
        reloader.begin_cell()
    finally:
        del sys.modules["placed_by_a_student"]
    assert Asks.asked == 0 and "placed_by_a_student" not in reloader.stamps
