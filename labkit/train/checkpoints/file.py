"""The checkpoint file: arrays by name in NumPy's .npz format, a description in JSON, and a checksum of both.

The file is written atomically: whatever happens, there is a whole checkpoint, the new one or the one before.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from labkit.files import atomic_write
from labkit.nn.store import read_arrays

FORMAT = "labkit checkpoint 1"


def write(file: Path, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint. `about` is anything that JSON can hold. Raise OSError if that fails.

    An older checkpoint of that name stays whole until the new one is.
    """
    text = np.frombuffer(json.dumps({"format": FORMAT, **about}).encode(), np.uint8)
    content = {**arrays, "about": text}
    with atomic_write(file) as out:
        np.savez(out, **content, checksum=np.frombuffer(_checksum(content), np.uint8))  # type: ignore[arg-type]


def read(file: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what `write` was given. Raise ValueError if the file is missing, damaged or not a checkpoint."""
    try:
        content = read_arrays(file)
    except FileNotFoundError:
        raise ValueError(f"expected the checkpoint {file}, found no such file") from None
    except OSError as error:
        raise ValueError(
            f"expected the checkpoint {file}, which cannot be read: {error.strerror or error}"
        ) from None
    except ValueError as error:
        raise ValueError(f"expected a whole checkpoint, {error}") from None
    if not {"about", "checksum"} <= content.keys():
        raise ValueError(f"expected a checkpoint, found another kind of file: {file}")
    expected, found = content.pop("checksum").tobytes(), _checksum(content)
    if expected != found:
        raise ValueError(
            f"expected a whole checkpoint with the checksum {expected.hex()[:16]}, found {file} damaged: its "
            f"content has {found.hex()[:16]}"
        )
    about = json.loads(content.pop("about").tobytes())
    if about.pop("format") != FORMAT:
        raise ValueError(f"expected the format {FORMAT!r}, found another one in {file}")
    return about, content


def _checksum(content: Mapping[str, np.ndarray]) -> bytes:
    """Return a hash of all arrays with their names, dtypes and shapes."""
    total = blake2b(digest_size=16)
    for name in sorted(content):
        array = np.ascontiguousarray(content[name])
        total.update(f"{name} {array.dtype.str} {content[name].shape}\n".encode())
        total.update(array.data)
    return total.digest()
