"""Values and records that go from the job, which runs a student's code, to the process that judges them.

Nothing that the job sends is trusted: values are unpickled with a short list of harmless classes, and records
carry a code that only a holder of the job's key can compute.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import io
import pickle
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

CELL = "<ipython-input-exercise>"  # the name of the student's cell as a file; hang reports take it for a cell
CODE_BYTES, LENGTH_BYTES = 32, 8
SCHEDULES = "labkit.schedules"  # its classes may be sent, too
BUILTINS = {"bytearray", "complex", "dict", "frozenset", "range", "set", "slice"}
NUMPY = {"_frombuffer", "_reconstruct", "dtype", "ndarray", "scalar"}


class Unreadable(Exception):
    """Records that are damaged, or that the job has not written."""


class Foreign(NamedTuple):
    """Stands for a value that cannot be sent: `type_name` is the name of its type, or of one inside it."""

    type_name: str


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        in_numpy = module == "numpy" or module.startswith(("numpy.core.", "numpy._core."))
        if (module == "builtins" and name in BUILTINS) or (in_numpy and name in NUMPY):
            return super().find_class(module, name)
        if module == SCHEDULES or module.startswith(f"{SCHEDULES}."):
            found = getattr(importlib.import_module(module), name, None)
            if isinstance(found, type) and found.__module__.startswith(SCHEDULES):
                return found
        raise pickle.UnpicklingError(name)


def pack(value: Any) -> bytes:
    """Return a value as bytes; if it cannot be sent, the name of its type."""
    try:
        packed = pickle.dumps(value, protocol=4)
        _load(packed)
    except Exception as error:
        inner = str(error) if isinstance(error, pickle.UnpicklingError) else ""
        return pickle.dumps({"foreign": inner or type(value).__name__}, protocol=4)
    return pickle.dumps({"value": packed}, protocol=4)


def unpack(packed: bytes) -> Any:
    """Return the value that `pack` was given, or a `Foreign`. Raise Unreadable for other bytes."""
    try:
        content = _load(packed)
        if "foreign" in content:
            return Foreign(str(content["foreign"])[:80])
        return _load(content["value"])
    except Exception as error:
        raise Unreadable(f"{type(error).__name__} in a value") from None


def _load(packed: bytes) -> Any:
    return _Unpickler(io.BytesIO(packed)).load()


class Writer:
    """Appends records to a file. A record is a dict of numbers, texts, bytes, lists and dicts."""

    def __init__(self, path: Path, key: bytes) -> None:
        self._file: BinaryIO = path.open("ab", buffering=0)
        self._key, self._number = key, 0

    def write(self, **record: Any) -> None:
        """Append a record; it is in the file when the method returns, even if the process is killed then."""
        payload = pickle.dumps(record, protocol=4)
        code = _code(self._key, self._number, payload)
        self._number += 1
        self._file.write(len(payload).to_bytes(LENGTH_BYTES, "little") + code + payload)


def read(path: Path, key: bytes) -> list[dict[str, Any]]:
    """Return the records of a file; none if it does not exist. Raise Unreadable if one is not the job's."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    records: list[dict[str, Any]] = []
    while content:
        size = int.from_bytes(content[:LENGTH_BYTES], "little")
        code, rest = content[LENGTH_BYTES : LENGTH_BYTES + CODE_BYTES], content[LENGTH_BYTES + CODE_BYTES :]
        payload, content = rest[:size], rest[size:]
        if not hmac.compare_digest(code, _code(key, len(records), payload)):
            raise Unreadable(f"record {len(records)} of {path.name}")
        records.append(_load(payload))
    return records


def _code(key: bytes, number: int, payload: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "little") + payload, hashlib.sha256)
