"""Save models to files and load them: parameters and buffers by name, in NumPy's .npz format."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np

from labkit.nn.model import Model


def save_model(model: Model, file: str | Path | BinaryIO) -> None:
    """Write the model's parameters and buffers; np.load reads them by name, such as "conv1.W".

    `file` is a path that ends in .npz, or a file opened for writing bytes.
    """
    np.savez(file, **_arrays(model))  # type: ignore[arg-type]


def load_model(model: Model, file: str | Path | BinaryIO) -> None:
    """Read parameters and buffers into the model, in place, converted to its dtype.

    Raise ValueError if the file belongs to another model: the message names the layer, both shapes and what
    is missing or superfluous. The model is then unchanged.
    """
    stored = read_arrays(file)
    arrays = _arrays(model)
    for name, array in arrays.items():
        layer = name.rpartition(".")[0] or model.name
        if name not in stored:
            raise ValueError(f"layer {layer!r}: {file} holds no {name}, expected shape {array.shape}")
        shape, dtype = stored[name].shape, stored[name].dtype
        if shape != array.shape or not np.issubdtype(dtype, np.floating):
            raise ValueError(
                f"layer {layer!r}: {name} in {file} has shape {shape} and dtype {dtype}, expected "
                f"{array.shape} and floats"
            )
    others = [name for name in stored if name not in arrays]
    if others:
        layer = others[0].rpartition(".")[0] or others[0]
        raise ValueError(
            f"layer {layer!r}: {file} holds {others[0]} of shape {stored[others[0]].shape}, but the model "
            f"{model.name!r} has no such layer"
        )
    for name, array in arrays.items():
        array[...] = stored[name]


def read_arrays(file: str | Path | BinaryIO) -> dict[str, np.ndarray]:
    """Return all arrays of an .npz file by name. Raise OSError or ValueError if there is none."""
    try:
        with np.load(file, allow_pickle=False) as stored:
            name = stored.zip.testzip()
            if name:
                raise ValueError(f"{name} has another checksum")
            return {name: stored[name] for name in stored.files}
    except OSError:
        raise
    # A bit that has flipped can raise almost anything: zlib.error, NotImplementedError (another compression),
    # RuntimeError (an encrypted file), MemoryError (an array of many terabytes), TypeError (a single array) …
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{file} is damaged, or not an .npz file: {why}") from None


def _arrays(model: Model) -> dict[str, np.ndarray]:
    return {**model.named_parameters(), **model.named_buffers()}
