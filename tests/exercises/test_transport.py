"""What a job sends is read without running any code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.checks.compare import difference
from labkit.checks.transport import Foreign, Unreadable, Writer, pack, read, read_bytes, unpack
from labkit.schedules import ring_allreduce


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, ("evil",)


class Same(float):
    __hash__ = float.__hash__

    def __eq__(self, other: object) -> bool:
        return True


class SameArray(np.ndarray):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> Any:
        return np.ones(self.shape, bool)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.arange(6).reshape(2, 3).T,
        np.float16(1.5),
        (1, 2.5, "three", None, True, range(3), slice(1, 2), {"a": (1,)}),
        list(ring_allreduce(4)),
    ],
)
def test_values_arrive_as_they_were(value: Any) -> None:
    assert difference(unpack(pack(value)), value, 0.0) is None


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (len, "builtin"),
        ((x for x in [1]), "generator"),
        ([Evil()], "Evil"),
        (np.array(["a", None], object), "ndarray of object"),
        (Path("x"), "Path"),
        (Same(1), "Same"),
        (np.ones(3).view(SameArray), "SameArray"),
    ],
)
def test_other_values_arrive_as_the_name_of_their_type(value: Any, name: str) -> None:
    found = unpack(pack(value))
    assert isinstance(found, Foreign)
    assert name in found.type_name


@pytest.mark.parametrize(
    "packed",
    [
        {},
        {"tuple": 5},
        {"tuple": [], "list": []},
        {"array": ["O", [1], ""]},
        {"array": ["<f8", [10**12], ""]},
        {"array": [{"names": ["a"]}, [1], ""]},
        {"array": ["<f8", [1], "no base64"]},
        {"record": ["os", "system", ["true"]]},
        {"record": ["labkit.schedules", "ALLREDUCE", []]},
        {"record": ["labkit.schedules.schedule", "Schedule", []]},
        {"record": ["labkit.schedules.verifier", "verify", [1]]},
        json.loads("[" * 900 + "{}" + "]" * 900),
    ],
)
def test_what_pack_did_not_make_is_refused(packed: Any) -> None:
    with pytest.raises(Unreadable):
        unpack(packed)


def test_records_are_read_in_order_and_others_are_refused(tmp_path: Path) -> None:
    writer, path = Writer(tmp_path, 0), tmp_path / "rank-0-0"
    writer.write(case=3)
    writer.write(case=4)
    writer.start_request(1)
    writer.write(case=5)
    assert read(path) == [{"case": 3}, {"case": 4}]
    assert read(tmp_path / "rank-0-1") == [{"case": 5}]
    assert read(tmp_path / "rank-1-0") == []
    good = path.read_bytes()
    path.write_bytes(good[:-1])  # the rank was killed while it wrote
    assert read(path) == [{"case": 3}]
    for bad in b"passed\n", b"[]\n", b"\xff\n", b"[" * 10**6 + b"\n", b"9" * 5000 + b"\n":
        path.write_bytes(good + bad)
        with pytest.raises(Unreadable):
            read(path)


def test_only_regular_files_are_read_and_no_more_than_asked_for(tmp_path: Path) -> None:
    path, other = tmp_path / "printed", tmp_path / "other"
    other.write_text("secret")
    path.write_text("x" * 100)
    assert read_bytes(path, 10) == b"x" * 10
    for replace in (
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(other),
        lambda: path.hardlink_to(other),
        lambda: os.mkfifo(path),
        path.mkdir,
    ):
        path.unlink()
        replace()
        with pytest.raises(Unreadable):
            read_bytes(path, 10)
