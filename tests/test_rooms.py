"""The structure of labkit: no room reaches up, no circles, rooms and files small enough to survey."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import labkit

TOP = Path(labkit.__file__).parent
TESTS = Path(__file__).parent

# From the bottom to the top. Modules beside the rooms (labkit/files.py …) import no room at all.
ROOMS = [
    "nn",
    "data",
    "reports",
    "schedules",
    "hosts",
    "comm",
    "train",
    "watch",
    "cluster",
    "doctor",
    "bench",
    "exercises",
    "plots",
    "cli",
]
WITHOUT_MPI = ["nn", "data", "reports", "schedules", "hosts", "watch/flight_recorder"]
MOST_FILES, MOST_LINES = 13, 300
LONGER = {  # one idea each
    TESTS / "cluster_fixtures.py": 320,
    TOP / "watch/flight_recorder/layout.py": 310,
    TESTS / "test_make_env.py": 330,
    TESTS / "exercises/hostile.py": 350,
    TESTS / "train/checks/resuming.py": 310,
    TOP / "train/experiment/running.py": 340,
    TOP / "watch/flight_recorder/text.py": 320,
    TOP / "watch/wait.py": 400,
    TOP / "watch/strict/windows.py": 360,
    TESTS / "corpus/after_corrbench.py": 330,
}

MODULES = {
    ".".join(("labkit", *path.relative_to(TOP).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in TOP.rglob("*.py")
}
FILES = {path: name for name, path in MODULES.items()}
FOLDERS = sorted({path.parent for path in MODULES.values()})
PACKAGES = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")


def imported(path: Path) -> set[str]:
    """Return every labkit or mpi4py module that the file imports, at the top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name for name in inner if name in MODULES} or {node.module}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.split(".")[0] in ("labkit", "mpi4py")}


def room_of(module: str) -> str:
    """Return the module's room; an empty text for a module beside the rooms."""
    _, *parts = module.split(".")
    return parts[0] if parts and parts[0] in ROOMS else ""


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_room_reaches_up(module: str) -> None:
    if module.startswith("labkit.__main__"):
        return
    height = ROOMS.index(room_of(module)) if room_of(module) else -1
    above = [
        name for name in imported(MODULES[module]) if room_of(name) and ROOMS.index(room_of(name)) > height
    ]
    assert above == []


@pytest.mark.parametrize("room", WITHOUT_MPI)
def test_rooms_without_mpi_do_not_import_it(room: str) -> None:
    files = list((TOP / room).rglob("*.py"))
    assert files
    assert [path for path in files if any(name.startswith("mpi4py") for name in imported(path))] == []


def test_no_import_circles() -> None:
    """Peel off modules that import only peeled ones: the rest is in a circle or above one."""
    # A package's face imports its modules, so these do not count as importing their own package.
    left = {
        module: {
            name for name in imported(path) if name in MODULES and not f"{module}.".startswith(f"{name}.")
        }
        for module, path in MODULES.items()
    }
    while free := [module for module, names in left.items() if not names & left.keys()]:
        for module in free:
            del left[module]
    assert left == {}


@pytest.mark.parametrize(
    "folder",
    FOLDERS,
    ids=lambda path: str(path.relative_to(TOP.parent)),
)
def test_a_room_has_few_files(folder: Path) -> None:
    limit = MOST_FILES + (folder in (TOP, TOP / "watch", TOP / "cli"))  # with __main__.py
    assert len(list(folder.glob("*.py"))) <= limit


def test_files_are_short() -> None:
    def too_long(path: Path) -> bool:
        return len(path.read_text().splitlines()) > LONGER.get(path, MOST_LINES)

    files = [*TOP.rglob("*.py"), *TESTS.rglob("*.py")]
    assert [path for path in files if too_long(path)] == []


def test_something_other_than_a_test_uses_every_module() -> None:
    """Another module imports it or names it (`python -m …`), or a notebook, an example or a setting does."""
    root = TOP.parent
    outside = [
        *root.glob("cluster_profiles/*/*.py"),
        *root.glob("notebooks/*.ipynb"),
        *root.glob("examples/*"),
    ]
    names: Counter[str] = Counter()  # in how many files each module is named
    for path in [*MODULES.values(), root / "pyproject.toml", *outside]:
        text = path.read_text()
        named = set(re.findall(r"\blabkit(?:\.\w+)+", text)) | (imported(path) if path in FILES else set())
        for package, listed in re.findall(r"\bfrom (labkit[\w.]*) import ([\w, ]+)", text):
            named |= {f"{package}.{name.split()[0]}" for name in listed.split(",") if name.strip()}
        names.update(named - {FILES.get(path)})
    modules = [name for name, path in MODULES.items() if not path.name.startswith("__")]
    assert [name for name in modules if not names[name]] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_hides_a_submodule(package: str) -> None:
    face = importlib.import_module(package)
    hidden = [
        info.name
        for info in pkgutil.iter_modules(face.__path__)
        if not isinstance(vars(face).get(info.name, face), ModuleType)
    ]
    assert hidden == []


def test_a_notebooks_kernel_is_no_mpi_process() -> None:
    """A kernel that loads Open MPI leaves shared memory behind when it ends."""
    program = (
        "import sys; import labkit.cluster.connection, labkit.cluster.cells.magics, labkit.plots.hang; "
        "print('mpi4py.MPI' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
