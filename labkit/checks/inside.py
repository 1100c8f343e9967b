"""The first program of a sandbox: hand the job's folder to the judge, then become the job's command.

    python -I -S inside.py FOLDER LIMITS COMMAND …

The folder exists only inside the sandbox, in memory. The standard input is a socket: the judge gets an open
descriptor of the folder through it, writes the job's files there, and answers with one byte. LIMITS is
JSON: resources and how much the command, and what it starts, may use of each.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys


def main(folder: str, limits: dict[str, int], command: list[str]) -> None:
    """Hand the folder over, and run the command in its subfolder `work`."""
    work = os.path.join(folder, "work")
    os.makedirs(work)
    connection = socket.socket(fileno=0)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    socket.send_fds(connection, [b"folder"], [descriptor])
    os.close(descriptor)
    if not connection.recv(1):  # the judge has ended
        return
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, connection.detach())
    os.close(empty)
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    os.chdir(work)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3:])
