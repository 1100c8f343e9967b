"""tqdm's bars as text, where no widgets can be shown: on the ranks, and without the package ipywidgets.

`from tqdm.notebook import tqdm` would raise an error without that package. With it, a rank would make a
widget that no page shows.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_file_location
from types import ModuleType

REPLACED = "tqdm.notebook"
SUBSTITUTE = "labkit.cluster.tqdm_notebook"


class TextBars(MetaPathFinder):
    """Finds the substitute for `tqdm.notebook`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        substitute = find_spec(SUBSTITUTE) if name == REPLACED else None
        return spec_from_file_location(name, substitute.origin) if substitute is not None else None


def draw_bars_as_text() -> None:
    """Let this process draw bars as text from now on; `tqdm.auto` no longer warns that it does so."""
    if not any(isinstance(finder, TextBars) for finder in sys.meta_path):
        sys.meta_path.insert(0, TextBars())
    warnings.filterwarnings("ignore", message="IProgress not found")


def has_widgets() -> bool:
    """Return whether this environment can show widgets in a notebook."""
    return find_spec("ipywidgets") is not None
