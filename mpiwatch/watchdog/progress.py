"""Find out from another thread whether the main thread executes Python code."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_UTSNAME_BYTES = 4096  # more than any system's `struct utsname` takes


class Progress:
    """Detects whether the main thread has executed any bytecode.

    Python lets C code ask the main thread to call a C function `int f(void *)` before one of its next
    instructions (Py_AddPendingCall). While the main thread is inside one call of C code, the function is not
    called. It must not be a Python function, or an interrupt that arrives during the call would be lost. This
    class uses the C library's `uname`, which fills the memory at its argument.
    """

    def __init__(self) -> None:
        self._answer = (ctypes.c_char * _UTSNAME_BYTES)()
        self._function = ctypes.cast(ctypes.CDLL(None).uname, ctypes.c_void_p)
        self._ask: Callable[..., int] = ctypes.pythonapi.Py_AddPendingCall
        ctypes.pythonapi.Py_AddPendingCall.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._is_asked = False
        _kept.append(self._answer)

    def has_moved(self) -> bool:
        """Return whether the main thread has executed bytecode since the last call that returned True."""
        if self._is_asked and self._answer[0] == b"\0":
            return False
        self._answer[0] = b"\0"
        self._is_asked = self._ask(self._function, ctypes.addressof(self._answer)) == 0
        return True


_kept: list[object] = []  # a pending call may still write to this memory after its owner is gone
