"""Matplotlib's list of fonts, made with the environment and handed to each user: python -m labkit.fonts.

On a user's first import, matplotlib opens every font of the system: a second, or many on a busy machine with
many fonts. It keeps the list in the user's own cache folder and looks for it nowhere else. `MPLCONFIGDIR`
does not help: in a folder that the user may not write to, matplotlib makes the list anew each time. So the
environment keeps a copy of the list, also one that root owns, and `labkit lab` gives it to each user who has
none. If a font has been removed since, matplotlib makes its list anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from platformdirs import user_cache_path

from labkit.files import atomic_write

FOLDER = Path(sys.prefix, "share", "labkit")
LISTS = "fontlist-v*.json"  # with the version of the list's format


def cache_folder() -> Path:
    """Return matplotlib's cache folder of this user, without importing matplotlib."""
    chosen = os.environ.get("MPLCONFIGDIR")
    if chosen:
        return Path(chosen)
    return Path.home() / ".matplotlib" if sys.platform == "darwin" else user_cache_path("matplotlib")


def keep() -> None:
    """Make the list of this machine's fonts, and keep it in the environment. Raise OSError if that fails."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "MPLCONFIGDIR": folder}
        words = [sys.executable, "-c", "import matplotlib.font_manager"]
        subprocess.run(words, env=environment, check=False)
        for list_ in Path(folder).glob(LISTS):
            with atomic_write(FOLDER / list_.name) as file:
                file.write(list_.read_bytes())


def hand_out() -> None:
    """Give this user the environment's list, unless there is one already or it cannot be written."""
    for stored in FOLDER.glob(LISTS):
        target = cache_folder() / stored.name
        with suppress(OSError):
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                with atomic_write(target) as file:
                    file.write(stored.read_bytes())


if __name__ == "__main__":
    keep()
