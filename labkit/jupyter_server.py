"""Start a student's JupyterLab with a third of the computing, and with nothing less to see in it.

    python -P -m labkit.jupyter_server MODULE [OPTION …]

calls `main` of MODULE: jupyterlab.labapp, or jupyterhub.singleuser, which is the server of a JupyterHub's
student. On a machine with Node.js, JupyterLab computes for 2.8 seconds until it serves; thirty students who
come in at once wait for that. It takes 0.8 seconds without three things that no student's server uses:

- a grammar of international addresses, which jsonschema compiles when it is imported: 1.5 s. jsonschema does
  without, and no notebook holds such an address;
- the settings of yarn, which builds JupyterLab from its source; Node.js starts to read them: 0.3 s;
- the search for language servers, which starts npm: 0.3 s. Only the extension jupyterlab-lsp shows them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

GRAMMAR = "rfc3987_syntax"
NO_LANGUAGE_SERVERS = "--LanguageServerManager.autodetect=False"


def command(module: str) -> list[str]:
    """Return the first words of a command line that starts a server; options follow."""
    # -P: a file random.py in the student's folder must not take the place of Python's own.
    return [sys.executable, "-P", "-m", __name__, module]


def leave_grammar_out() -> None:
    """Let the import of the grammar fail, from now on; jsonschema expects that."""
    sys.modules[GRAMMAR] = None  # type: ignore[assignment]


def leave_yarn_out() -> None:
    """Let JupyterLab take the settings of yarn that it has where Node.js is not installed.

    `_yarn_config` is not documented.
    """
    from jupyterlab import commands  # noqa: PLC0415  (without the grammar)

    commands._yarn_config = lambda logger: {"yarn config": {}, "npm config": {}}


def main() -> None:
    """Start the server that the command line names."""
    module, *options = sys.argv[1:]
    leave_grammar_out()
    leave_yarn_out()
    if find_spec("jupyterlab_lsp") is None:
        options.append(NO_LANGUAGE_SERVERS)
    sys.argv[:] = [module, *options]
    import_module(module).main()


if __name__ == "__main__":
    main()
