"""Run notebooks and save their outputs. A second run changes only measured values.

python tools/run_notebooks.py notebooks/00_meet_the_cluster.ipynb …
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

CELL_LIMIT_S = 90


def normalise(notebook: nbformat.NotebookNode) -> None:
    """Remove when, where and by which version the notebook was run."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for cell in notebook.cells:
        # `jupyter` records which cells the author has collapsed.
        kept = {key: cell.metadata[key] for key in ("tags", "jupyter") if cell.metadata.get(key)}
        cell.metadata = nbformat.from_dict(kept)
        for output in cell.get("outputs", []):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count


def run(path: Path) -> None:
    start = time.monotonic()
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook,
        timeout=CELL_LIMIT_S,
        kernel_name="python3",
        resources={"metadata": {"path": path.parent}},
        coalesce_streams=True,  # output arrives in pieces that differ from run to run
    ).execute()
    normalise(notebook)
    nbformat.validate(notebook)
    whole = path.with_suffix(".part")
    nbformat.write(notebook, whole)
    whole.replace(path)
    print(f"{path}: {time.monotonic() - start:.1f} s", flush=True)


if __name__ == "__main__":
    os.environ["IPP_NONINTERACTIVE"] = "1"  # `%%px` output by rank, in order
    with tempfile.TemporaryDirectory() as folder:
        os.environ["IPYTHONDIR"] = folder  # do not use the user's clusters
        for name in sys.argv[1:]:
            run(Path(name))
