"""*Save and Export Notebook As > Program* in JupyterLab: what `labkit export` writes.

JupyterLab's own *Executable Script* holds `%%px` cells as calls of IPython, so no `mpiexec` can run it.
"""

from __future__ import annotations

from typing import Any

from nbconvert.exporters.exporter import Exporter
from traitlets import default

from labkit.cli.export import as_program


class ProgramExporter(Exporter):
    """Exports the `%%px` cells of a notebook as a program for mpiexec."""

    output_mimetype = "text/x-python"

    @default("file_extension")
    def _file_extension_default(self) -> str:
        return ".py"

    def from_notebook_node(
        self, nb: Any, resources: Any = None, **options: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Return the program; raise InputError for a notebook without `%%px` cells."""
        nb, resources = super().from_notebook_node(nb, resources, **options)
        name = resources.get("metadata", {}).get("name", "notebook")
        return as_program(nb, f"{name}.ipynb", f"{name}.py"), resources
