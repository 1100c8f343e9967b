"""labkit.jupyter_server: a student's JupyterLab starts without Node.js, npm and an unused grammar."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jupyterlab import commands

from labkit import jupyter_server
from labkit.jupyter_server import NO_LANGUAGE_SERVERS

# This server prints its options, and reads the yarn setting that JupyterLab reads when it starts.
SERVER = """
import sys
from jupyterlab.commands import AppOptions

def main():
    print(sys.argv[1:])
    print(AppOptions().registry)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a server in which Node.js and npm write down that they were called."""
    for name in "node", "npm":
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho {name} >> "{tmp_path}/called"\n')
        program.chmod(0o755)
    (tmp_path / "a_server.py").write_text(SERVER)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": str(tmp_path)}


def start(environment: dict[str, str], *python: str) -> subprocess.CompletedProcess[str]:
    """Run the server above with one option."""
    before, *words = jupyter_server.command("a_server")
    command = [before, *python, *words, "--an-option"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True)


def test_jupyterlab_starts_without_node(environment: dict[str, str], tmp_path: Path) -> None:
    """JupyterLab asks yarn for its settings, and uses npm to find language servers."""
    options, registry = start(environment).stdout.splitlines()
    assert options == str(["--an-option", NO_LANGUAGE_SERVERS])
    assert registry == commands.YARN_DEFAULT_REGISTRY
    assert not (tmp_path / "called").exists()


def test_jupyterlab_starts_without_the_grammar_of_international_addresses(
    environment: dict[str, str],
) -> None:
    imported = start(environment, "-X", "importtime").stderr
    assert "jsonschema" in imported
    assert f"{jupyter_server.GRAMMAR}." not in imported


def test_language_servers_are_looked_for_if_their_extension_is_installed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "jupyterlab_lsp.py").touch()
    assert start(environment).stdout.splitlines()[0] == str(["--an-option"])


def test_the_option_that_turns_the_search_off_is_one_of_jupyter_lsps() -> None:
    code = "import sys; from jupyter_lsp.manager import LanguageServerManager as M; print(M.class_traits())"
    option = NO_LANGUAGE_SERVERS.removeprefix("--").partition("=")[0]
    name, trait = option.split(".")
    assert name == "LanguageServerManager"
    shown = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert f"'{trait}': " in shown.stdout


FIND_A_PORT = """
import errno, socket
from labkit import jupyter_server
from jupyter_server.serverapp import ServerApp

first = socket.create_server(("127.0.0.1", 0))
jupyter_server.hold_port()
server = ServerApp(ip="127.0.0.1", port=first.getsockname()[1])
server._find_http_port()
try:
    socket.create_server(("127.0.0.1", server.port))
except OSError as error:
    print(server.port != first.getsockname()[1], error.errno == errno.EADDRINUSE)
"""


def test_a_server_keeps_the_port_that_it_finds() -> None:
    """Else another server may find the same port before the first listens on it."""
    done = subprocess.run([sys.executable, "-c", FIND_A_PORT], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n", done
