"""The lock by which a kernel holds a cluster's engines. One kernel has it: the collectives of two would mix.

It is a record lock of POSIX (`fcntl.lockf`), which belongs to a process and not to an open file. So it ends
with the process, however that ends, and no child has it, whichever way it was forked. The lock of `flock`,
which filelock uses, belongs to the open file: a forked child keeps it until the file is closed there, too.

A process loses a record lock when it closes the file through any descriptor: nothing else here opens it.
"""

from __future__ import annotations

import fcntl
import os


class EngineLock:
    """The lock of one cluster, which this process may hold."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: int | None = None

    def acquire(self) -> bool:
        """Take the lock, and return whether this process holds it now.

        Raise OSError if the file cannot be opened, or if its file system has no locks.
        """
        if self._file is not None:
            return True
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows either for a lock that another process has
            os.close(file)
            return False
        except BaseException:
            os.close(file)
            raise
        self._file = file
        return True

    def release(self) -> None:
        """Give the lock up, if this process has it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
