"""The structure of labkit and mpiwatch: who may import whom."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import labkit
import mpiwatch

ROOT = Path(labkit.__file__).parent.parent
TOPS = Path(mpiwatch.__file__).parent, ROOT / "labkit"

# From the bottom to the top. Modules beside the packages (labkit/files.py …) import mpiwatch alone.
TOP_PACKAGES = [
    "mpiwatch",
    "labkit",
    "labkit.nn",
    "labkit.data",
    "labkit.reports",
    "labkit.schedules",
    "labkit.replay",
    "labkit.hosts",
    "labkit.comm",
    "labkit.train",
    "labkit.torch",
    "labkit.cluster",
    "labkit.doctor",
    "labkit.bench",
    "labkit.checks",
    "labkit.exercises",
    "labkit.plots",
    "labkit.cli",
]
WITHOUT_MPI = ["nn", "data", "reports", "schedules", "replay", "hosts"]

MODULES = {
    ".".join(path.relative_to(top.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for top in TOPS
    for path in top.rglob("*.py")
}
LAB = sorted(path for name, path in MODULES.items() if name.startswith("labkit"))
FILES = {path: name for name, path in MODULES.items()}
PACKAGES = sorted(name for name, path in MODULES.items() if path.name == "__init__.py")


def imported(path: Path) -> set[str]:
    """Return every module of ours or mpi4py that the file imports, at the top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name for name in inner if name in MODULES}
            if not inner <= MODULES.keys():
                names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name for name in names if name.split(".")[0] in ("labkit", "mpiwatch", "mpi4py")}


def test_the_lab_does_not_need_the_benchmarks() -> None:
    """They are not in the wheel."""
    importing = re.compile(r"^\s*(from|import) benchmarks\b", re.MULTILINE)
    assert [name for name, path in MODULES.items() if importing.search(path.read_text())] == []


def top_package_of(module: str) -> str:
    """Return the name of the top package that a module is in."""
    first_two = ".".join(module.split(".")[:2])
    return first_two if first_two in TOP_PACKAGES else module.split(".", maxsplit=1)[0]


def package_of(module: str) -> str:
    return module if module in PACKAGES or module in TOP_PACKAGES else module.rpartition(".")[0]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_package_reaches_up(module: str) -> None:
    if module == "labkit.__main__":
        return
    own = top_package_of(module)
    names = {name for name in imported(MODULES[module]) if not name.startswith("mpi4py")}
    above = {name for name in names if TOP_PACKAGES.index(top_package_of(name)) > TOP_PACKAGES.index(own)}
    assert above == set()


# The public modules of mpiwatch: README.md there describes them. Everything else in it may change.
PUBLIC = {
    "mpiwatch",
    "mpiwatch.launch",
    "mpiwatch.layers",
    "mpiwatch.processes",
    "mpiwatch.program",
    "mpiwatch.report",
    "mpiwatch.sessions",
    "mpiwatch.strict",
    "mpiwatch.trace",
}


USERS = [*LAB, *ROOT.glob("cluster_profiles/*/*.py"), *ROOT.glob("benchmarks/*.py")]


@pytest.mark.parametrize("path", USERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_lab_uses_the_public_modules_of_mpiwatch_alone(path: Path) -> None:
    """Each name that it imports, or looks up in a module, is in the `__all__` of a public module."""
    wrong = []
    modules: dict[str, str] = {}  # of mpiwatch, by the name that the file gives them
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "mpiwatch"]
            wrong += [name for name in names if name != "mpiwatch"]
            modules |= {name: name for name in names}
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mpiwatch":
            for alias in node.names:
                if f"{node.module}.{alias.name}" in PUBLIC:
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                elif node.module not in PUBLIC or alias.name not in public_names(node.module):
                    wrong.append(f"{node.module}.{alias.name}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            if node.attr not in (*public_names(module), "__file__"):
                wrong.append(f"{module}.{node.attr}")
    assert wrong == []


@cache
def public_names(module: str) -> tuple[str, ...]:
    """Return the names in a module's `__all__`, without importing it, as it may load MPI."""
    for node in ast.parse(MODULES[module].read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return tuple(ast.literal_eval(node.value))
    return ()


def test_mpiwatch_knows_nothing_of_the_lab() -> None:
    files = [path for name, path in MODULES.items() if name.startswith("mpiwatch")]
    assert [path for path in files if re.search(r"labkit|the lab\b|LABKIT", path.read_text())] == []
    assert [path for path in files if any(name.startswith("labkit") for name in imported(path))] == []


def test_strict_mode_hooks_into_mpiwatch_at_one_place() -> None:
    """It registers itself. Nothing else in mpiwatch imports it, and it sets no name of another module."""
    strict = {name: path for name, path in MODULES.items() if f"{name}.".startswith("mpiwatch.strict.")}
    others = {
        name: path for name, path in MODULES.items() if name.startswith("mpiwatch") and name not in strict
    }
    assert [name for name, path in others.items() if imported(path) & strict.keys()] == []
    registrations = [path.read_text().count("register_mode(") for path in strict.values()]
    assert sum(registrations) == 1
    for path in strict.values():
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else []
            assert not [target for target in targets if ast.unparse(target).startswith(("MPI.", "modes."))]


@pytest.mark.parametrize("module", sorted(PUBLIC - {"mpiwatch.layers", "mpiwatch.strict"}))
def test_public_modules_load_no_mpi_before_they_are_used(module: str) -> None:
    program = f"import sys, {module}; print([name for name in sys.modules if name in ('mpi4py', 'numpy')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("package", WITHOUT_MPI)
def test_packages_without_mpi_do_not_import_it(package: str) -> None:
    files = list((ROOT / "labkit" / package).rglob("*.py"))
    assert files
    assert [path for path in files if any(name.startswith("mpi4py") for name in imported(path))] == []


def test_no_two_packages_import_each_other() -> None:
    """At any depth. That a package's `__init__` hands on the names of its own modules does not count.

    Nor does `__main__`, which nothing imports: it stands above all packages.
    """
    edges = {
        (package_of(module), package_of(name))
        for module, path in MODULES.items()
        for name in imported(path) & MODULES.keys()
        if not module.endswith("__main__") and not (module in PACKAGES and name.startswith(f"{module}."))
    }
    mutual = {tuple(sorted(edge)) for edge in edges if edge[0] != edge[1] and edge[::-1] in edges}
    assert mutual == set(), "packages that import each other"


def test_no_import_circles() -> None:
    """Peel off modules that import only peeled ones: the rest is in a circle or above one."""
    # A package's `__init__` imports its modules, so these do not count as importing their own package.
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


def test_something_other_than_a_test_uses_every_module() -> None:
    """Another module imports it or names it (`python -m …`), or a notebook, an example or a setting does."""
    outside = [
        *ROOT.glob("cluster_profiles/*/*.py"),
        *ROOT.glob("notebooks/*.ipynb"),
        *ROOT.glob("examples/*"),
    ]
    names: Counter[str] = Counter()  # in how many files each module is named
    for path in [*MODULES.values(), ROOT / "pyproject.toml", ROOT / "mpiwatch/pyproject.toml", *outside]:
        text = path.read_text()
        named = set(re.findall(r"\b(?:labkit|mpiwatch)(?:\.\w+)+", text))
        named |= imported(path) if path in FILES else set()
        for package, listed in re.findall(r"\bfrom ((?:labkit|mpiwatch)[\w.]*) import ([\w, ]+)", text):
            named |= {f"{package}.{name.split()[0]}" for name in listed.split(",") if name.strip()}
        names.update(named - {FILES.get(path)})
    by_name = "labkit.exercises.nb", "labkit.cluster.places."  # check and connect() find these by their names
    modules = [name for name, path in MODULES.items() if not path.name.startswith("__")]
    assert [name for name in modules if not names[name] and not name.startswith(by_name)] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_hides_a_submodule(package: str) -> None:
    interface = importlib.import_module(package)
    hidden = [
        info.name
        for info in pkgutil.iter_modules(interface.__path__)
        if not isinstance(vars(interface).get(info.name, interface), ModuleType)
    ]
    assert hidden == []


def test_a_notebooks_kernel_is_no_mpi_process() -> None:
    """A kernel that loads Open MPI leaves shared memory behind when it ends."""
    program = (
        "import sys; import labkit.cluster.connection, labkit.cluster.magics, labkit.plots.hang; "
        "from labkit.exercises import check, hint, progress; progress(); "
        "print('', 'mpi4py.MPI' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith(" False\n")
