"""What `import tqdm.notebook` finds where no widgets can be shown: tqdm's bars as text. See text_bars.py."""

from tqdm.std import tqdm, trange

__all__ = ["WARN_NOIPYW", "IProgress", "tnrange", "tqdm", "tqdm_notebook", "trange"]

# For `tqdm.auto`, which looks for widgets here, and warns with this text that there are none.
IProgress = None
WARN_NOIPYW = "IProgress not found"

tqdm_notebook, tnrange = tqdm, trange
