"""Checkpoint files that are damaged, and other files."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from labkit.train.checkpoints import read_checkpoint, write_checkpoint
from tests.conftest import thorough

REACHED = {"done": 1, "epoch": 1, "step": 1, "rows": [{"epoch": 1, "rank": 0}]}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    arrays = {"parameters": np.arange(11, dtype=np.float32), "rank 0/buffers": np.ones((2, 1))}
    about = {"run": {"model": "linear"}, "settings": {}, "samples": [3], "progress": [REACHED]}
    write_checkpoint(tmp_path / "checkpoint.npz", about, arrays)
    return tmp_path / "checkpoint.npz"


@pytest.mark.parametrize("every", [thorough(1), 7])
def test_no_flipped_bit_of_a_checkpoint_goes_unnoticed(every: int, checkpoint: Path) -> None:
    """A flip in what nothing depends on, such as a file's date in the archive, may change nothing."""
    about, arrays = read_checkpoint(checkpoint)
    content, refused = checkpoint.read_bytes(), 0
    for bit in range(0, 8 * len(content), every):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        checkpoint.write_bytes(flipped)
        try:
            found = read_checkpoint(checkpoint)
        except ValueError as error:
            refused += 1
            assert str(checkpoint) in str(error) and "\n" not in str(error), (bit, error)
        else:
            assert found[0] == about and found[1].keys() == arrays.keys(), bit
            assert all(np.array_equal(found[1][name], arrays[name]) for name in arrays), bit
    assert refused > 8 * len(content) / every / 2


@pytest.mark.parametrize("kind", ["a single array", "80 TB", "a directory", "text", "nothing"])
def test_other_files_are_no_checkpoints(kind: str, checkpoint: Path) -> None:
    checkpoint.unlink()
    if kind == "a single array":
        with checkpoint.open("wb") as file:
            np.save(file, np.ones(3))
    elif kind == "80 TB":
        array = io.BytesIO()
        np.save(array, np.ones(10))
        claim = array.getvalue().replace(b"(10,), }" + b" " * 12, b"(10000000000000,), }")
        with zipfile.ZipFile(checkpoint, "w") as archive:
            archive.writestr("parameters.npy", claim)
    elif kind == "a directory":
        checkpoint.mkdir()
    else:
        checkpoint.write_bytes(b"weights" if kind == "text" else b"")
    with pytest.raises(ValueError, match=r"^expected (a whole|the) checkpoint[^\n]*$"):
        read_checkpoint(checkpoint)
