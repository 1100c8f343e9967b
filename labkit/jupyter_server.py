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
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

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
