"""The solutions in the notebooks do what labkit does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labkit.train import Buckets

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def names_of(notebook: str, cell_id: str, **given: Any) -> dict[str, Any]:
    """Return the names that a `%%px` cell defines, with the names that it is given."""
    (source,) = (
        cell.source for cell in nbformat.read(NOTEBOOKS / notebook, as_version=4).cells if cell.id == cell_id
    )
    names = dict(given)
    exec(source.partition("\n")[2], names)
    return names


CELL = names_of("07_buckets_and_overlap.ipynb", "exercise-1-solution", np=np)


@given(n=st.integers(1, 300), bucket_bytes=st.integers(1, 500), small_bytes=st.integers(1, 500))
def test_bucket_plan(n: int, bucket_bytes: int, small_bytes: int) -> None:
    ours = Buckets(bucket_bytes, small_bytes).plan(n)
    theirs = CELL["bucket_plan_solution"](n, bucket_bytes, small_bytes)
    assert [(bucket.start, bucket.stop) for bucket in theirs] == list(ours.bounds)
