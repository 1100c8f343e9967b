"""The digits, which labkit contains, are those of scikit-learn, and a damaged file is not trained on."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from labkit.data import datasets, load

# Of the table in uint8: 64 pixels and the digit per row. From scikit-learn 1.9.1:
# x, y = load_digits(return_X_y=True); np.column_stack([x, y]).astype(np.uint8)
TABLE_SHA256 = "68aea062d35a127749050fa0e52dca09d6569ac08092c925610e0954e172dde2"


def test_digits_equal_those_of_scikit_learn() -> None:
    ours = load("digits")
    table = np.empty((1797, 65), np.uint8)
    test = np.arange(len(table)) % 5 == 4
    for rows, x, y in ((~test, ours.x_train, ours.y_train), (test, ours.x_test, ours.y_test)):
        table[rows, :64], table[rows, 64] = x * 16, y
    assert hashlib.sha256(table.tobytes()).hexdigest() == TABLE_SHA256


def test_a_damaged_table_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = bytearray(datasets.DIGITS.read_bytes())
    damaged[-1] ^= 1
    monkeypatch.setattr(datasets, "DIGITS", tmp_path / "digits.csv.gz")
    datasets.DIGITS.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"digits\.csv\.gz is damaged"):
        load("digits")


def test_the_source_and_the_licence_stand_beside_the_table() -> None:
    text = datasets.DIGITS.with_name("digits.txt").read_text()
    assert "10.24432/C50P49" in text and "CC BY 4.0" in text
