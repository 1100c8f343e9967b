"""Rename a notebook, and correct its name in every file of the repository that names it.

python tools/rename_notebook.py 05_ring_reduce 05_ring_allreduce

The folder `notebooks` is the only list of notebooks. Links, tests and settings name some of them; this
command corrects these names. The number stays: exercises, plans and `labkit/exercises/nbNN.py` go by it.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = re.compile(r"(\d\d[a-z]?)_[a-z][a-z0-9_]*")


def rename(root: Path, old: str, new: str) -> list[Path]:
    """Rename a notebook, given without `.ipynb`; return the files that have changed."""
    names = NAME.fullmatch(old), NAME.fullmatch(new)
    if None in names:
        raise ValueError(f"expected names such as 05_ring_reduce, got {old!r} and {new!r}")
    if old[: old.index("_")] != new[: new.index("_")]:
        raise ValueError(f"expected the number to stay, got {old!r} and {new!r}")
    source, target = (root / "notebooks" / f"{name}.ipynb" for name in (old, new))
    if not source.exists():
        raise ValueError(f"expected a notebook in {root / 'notebooks'}, got {old!r}")
    if target.exists():
        raise ValueError(f"{target} exists")
    word = re.compile(rf"(?<![a-zA-Z0-9]){old}(?![a-zA-Z0-9_])")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True).stdout
    paths = [root / name for name in listed.decode().split("\0") if name]
    changed = [source]
    for path in paths:
        if not path.is_file() or path.is_symlink():
            continue
        content = path.read_bytes()
        if old.encode() not in content:
            continue
        corrected = word.sub(new, content.decode())
        if corrected != content.decode():
            path.write_bytes(corrected.encode())
            changed.append(path)
    source.rename(target)
    return [target if path == source else path for path in dict.fromkeys(changed)]


def main() -> None:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    try:
        changed = rename(ROOT, *sys.argv[1:])
    except ValueError as error:
        raise SystemExit(f"rename_notebook: {error}") from None
    for path in changed:
        print(path.relative_to(ROOT))
    print("Now commit: git add -A notebooks, and the files above.")


if __name__ == "__main__":
    main()
