"""Start a student's JupyterLab in a third of the processor time. Students see no difference.

    python -P -m labkit.jupyter_server MODULE [OPTION …]

calls `main` of MODULE: jupyterlab.labapp, or jupyterhub.singleuser, the server of a student on a JupyterHub.
On a machine with Node.js, JupyterLab computes for 2.8 seconds before it serves its first page, and thirty
students who come in at once wait for that. This module skips three parts that no student's server uses, which
leaves 0.8 seconds:

- a grammar of international addresses, which jsonschema compiles when imported (1.5 s). jsonschema works
  without it, and no notebook holds such an address;
- the settings of yarn, which JupyterLab needs only to build itself from source, and reads by starting Node.js
  (0.3 s);
- the search for language servers, which starts npm (0.3 s). It serves only the extension jupyterlab-lsp.

It also keeps the port that the server finds. JupyterLab looks for a free port and listens on it half a second
later. Of twenty servers that started at once on one machine, four found the same port as another one, and
ended.
"""

from __future__ import annotations

import errno
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

GRAMMAR = "rfc3987_syntax"
NO_LANGUAGE_SERVERS = "--LanguageServerManager.autodetect=False"


def command(module: str) -> list[str]:
    """Return the command line that starts the server of a module; append its options."""
    # -P: a file random.py in the student's folder must not take the place of Python's own.
    return [sys.executable, "-P", "-m", __name__, module]


def leave_grammar_out() -> None:
    """Make imports of the grammar fail from now on. jsonschema then works without it."""
    sys.modules[GRAMMAR] = None  # type: ignore[assignment]


def leave_yarn_out() -> None:
    """Make JupyterLab use the yarn settings that it uses where Node.js is not installed.

    `_yarn_config` is not documented.
    """
    from jupyterlab import commands  # noqa: PLC0415  (after `leave_grammar_out`)

    commands._yarn_config = lambda logger: {"yarn config": {}, "npm config": {}}


def hold_port() -> None:
    """Make a server listen on a port as soon as it has found it. The methods are not documented."""
    from jupyter_server.serverapp import ServerApp  # noqa: PLC0415  (after `leave_grammar_out`)
    from tornado.netutil import bind_sockets  # noqa: PLC0415

    server_class: Any = ServerApp
    find = server_class._find_http_port

    def find_and_hold(server: Any) -> None:
        while True:
            find(server)  # ends the process if no port is free
            try:
                server.held_sockets = bind_sockets(server.port, server.ip)
                return
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                # Another server has just taken it: look again.

    def listen(server: Any) -> bool:
        server.http_server.add_sockets(server.held_sockets)
        return True

    server_class._find_http_port = find_and_hold
    server_class._bind_http_server_tcp = listen


def main() -> None:
    """Start the server that the command line names."""
    module, *options = sys.argv[1:]
    leave_grammar_out()
    leave_yarn_out()
    hold_port()
    if find_spec("jupyterlab_lsp") is None:
        options.append(NO_LANGUAGE_SERVERS)
    sys.argv[:] = [module, *options]
    import_module(module).main()


if __name__ == "__main__":
    main()
