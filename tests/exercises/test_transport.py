"""What a job sends is read without running any code, and records that it did not write are refused."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.exercises.compare import difference
from labkit.exercises.trial.transport import Foreign, Unreadable, Writer, pack, read, unpack
from labkit.schedules import ring_allreduce

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6).reshape(2, 3).T,
        np.float16(1.5),
        np.array(["a", None], object),
        (1, 2.5, "three", None, True, 1j, range(3), slice(1, 2), {1, 2}, [b"x"], {"a": (1,)}),
        list(ring_allreduce(4)),
    ],
)
def test_values_arrive_as_they_were(value: Any) -> None:
    assert difference(unpack(pack(value)), value, 0.0) is None


@pytest.mark.parametrize(
    ("value", "name"), [(len, "len"), ((x for x in [1]), "generator"), (Evil(), "Evil"), (Path("x"), "Path")]
)
def test_other_values_arrive_as_the_name_of_their_type(value: Any, name: str) -> None:
    found = unpack(pack(value))
    assert isinstance(found, Foreign)
    assert name in found.type_name or found.type_name


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"no pickle",
        pickle.dumps(Evil()),
        pickle.dumps({"value": pickle.dumps(Evil())}),
        pickle.dumps(5),
        pickle.dumps({"value": pickle.dumps(np.load)}),
    ],
)
def test_bytes_that_pack_did_not_make_are_refused(
    packed: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unreadable):
        unpack(packed)
    assert list(tmp_path.iterdir()) == []


def written(path: Path, *numbers: int, key: bytes = KEY) -> bytes:
    writer = Writer(path, key)
    for number in numbers:
        writer.write(case=number)
    return path.read_bytes()


def test_records_are_read_in_order(tmp_path: Path) -> None:
    written(tmp_path / "rank-0", 3, 4)
    assert read(tmp_path / "rank-0", KEY) == [{"case": 3}, {"case": 4}]
    assert read(tmp_path / "rank-1", KEY) == []


def test_records_of_another_hand_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank-0"
    content = written(path, 3, 4)
    one = len(content) // 2
    forged = written(tmp_path / "forged", 3, key=OTHER_KEY)
    for bad in content[:-1], content + b"x", forged, content[one:], content[:one] * 2, content + forged:
        path.write_bytes(bad)
        with pytest.raises(Unreadable):
            read(path, KEY)
