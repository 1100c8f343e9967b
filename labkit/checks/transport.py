"""Values and records that go from the job, which runs a student's code, to the process that judges them.

Nothing that the job sends is trusted: records are JSON, and values are rebuilt from a short list of types. A
pickle would not do, even with a list of allowed classes: it can set attributes of those classes.
"""

from __future__ import annotations

import base64
import dataclasses
import importlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from labkit.checks.limits import RECORD_BYTES

CELL = "<ipython-input-exercise>"  # the name of the student's cell as a file; hang reports take it for a cell
SCHEDULES = "labkit.schedules"  # its records may be sent, too
MAX_PRINTED = 4000  # characters that each stream of a rank records
ARRAYS = "biufcSUmM"  # kinds of dtype whose values are bytes


class Unreadable(Exception):
    """Records that are damaged, or values that cannot be packed or that `pack` did not make."""


class Foreign(NamedTuple):
    """Stands for a value that cannot be sent: `type_name` is the name of its type, or of one inside it."""

    type_name: str


def pack(value: Any) -> Any:
    """Return a value as JSON can hold it; if it cannot be sent, the name of its type or of one inside it."""
    try:
        packed = _pack(value)
        json.dumps(packed)
        return packed
    except Unreadable as error:
        return {"foreign": str(error)}
    except Exception:  # code of the value's own, or a list that contains itself
        return {"foreign": type(value).__name__}


def _pack(value: Any) -> Any:  # noqa: PLR0911 (a return for each kind)
    kind = type(value)
    name = kind.__name__
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_pack(item) for item in value]
    if kind in (tuple, dict):
        return {name: [_pack(item) for item in (value.items() if kind is dict else value)]}
    if kind in (range, slice):
        return {name: [_pack(bound) for bound in (value.start, value.stop, value.step)]}
    if isinstance(value, (tuple, dict)) and not kind.__module__.startswith(SCHEDULES):  # a named tuple, say
        return _pack(tuple(value) if isinstance(value, tuple) else dict(value))
    if (kind is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in ARRAYS:
        shape = list(value.shape) if kind is np.ndarray else None
        return {"array": [value.dtype.str, shape, base64.b64encode(value.tobytes()).decode()]}
    parts = _parts(kind) if kind.__module__.startswith(SCHEDULES) else ()
    if parts:
        return {"record": [kind.__module__, name, [_pack(getattr(value, part)) for part in parts]]}
    raise Unreadable(f"{name} of {value.dtype}" if kind is np.ndarray else name)


def unpack(packed: Any) -> Any:
    """Return the value that `pack` was given, or a `Foreign`. Raise Unreadable for anything else."""
    try:
        return _unpack(packed)
    except Exception as error:
        raise Unreadable(f"{type(error).__name__} in a value") from None


def _unpack(packed: Any) -> Any:
    if packed is None or type(packed) in (bool, int, float, str):
        return packed
    if type(packed) is list:
        return [_unpack(item) for item in packed]
    ((name, content),) = packed.items()
    return _MAKERS[name](content)


def _array(content: Any) -> Any:
    text, shape, values = content
    dtype = np.dtype(str(text))
    if dtype.kind not in ARRAYS:
        raise ValueError
    array = np.frombuffer(bytearray(base64.b64decode(values, validate=True)), dtype)
    return array.reshape(())[()] if shape is None else array.reshape(shape)


def _record(content: Any) -> Any:
    module, name, values = content
    if module != SCHEDULES and not module.startswith(f"{SCHEDULES}."):
        raise ValueError
    kind = vars(importlib.import_module(module))[name]
    if kind.__module__ != module or not values or len(_parts(kind)) != len(values):
        raise ValueError
    return kind(*map(_unpack, values))


_MAKERS: dict[str, Callable[[Any], Any]] = {
    "foreign": lambda content: Foreign(str(content)[:80]),
    "tuple": lambda content: tuple(map(_unpack, content)),
    "dict": lambda content: dict(map(_unpack, content)),
    "range": lambda content: range(*content),
    "slice": lambda content: slice(*map(_unpack, content)),
    "array": _array,
    "record": _record,
}


def _parts(kind: type) -> list[str]:
    """Return the names of what a record holds; none for any other class."""
    if issubclass(kind, tuple):
        return list(getattr(kind, "_fields", ()))
    return [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []


class Writer:
    """Writes a rank's records, dicts of what JSON can hold, one to a line: a file for each request."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self.start_request(0)

    def start_request(self, number: int) -> None:
        """Begin the records of the request of this number."""
        self._file = (self._folder / f"rank-{self._rank}-{number}").open("ab", buffering=0)

    def write(self, **record: Any) -> None:
        """Append a record; it is in the file when the method returns, even if the process is killed then."""
        self._file.write(json.dumps(record).encode() + b"\n")


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file; none if it does not exist. Raise Unreadable if it is damaged.

    The last one is left out if it is incomplete: its writer was killed.
    """
    lines = read_bytes(path, RECORD_BYTES).split(b"\n")[:-1]
    try:
        records = [json.loads(line) for line in lines]
    except (ValueError, RecursionError):
        raise Unreadable(f"{path.name} is no JSON") from None
    if not all(type(record) is dict for record in records):
        raise Unreadable(f"{path.name} holds no records")
    return records


def read_bytes(path: Path, most: int) -> bytes:
    """Return the beginning of a file that a job has written: none if there is none, `most` bytes at most.

    A student's code can have put something else in its place. Raise Unreadable if it is not a regular file
    of its own: a link, which may lead out of the job's folder, or a pipe, at which the reader would wait.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise Unreadable(f"{path.name}: {error.strerror}") from None
    try:
        about = os.fstat(descriptor)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
            raise Unreadable(f"{path.name} is not a file of its own")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)
