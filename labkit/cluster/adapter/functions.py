"""What ipyparallel does on an engine with functions that a client calls there: `apply`, `map`, `pull`."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from typing import Any

# The names that ipyparallel defines among those of the cells while it runs a function.
IN_USE = re.compile(r"_[0-9a-f]{8}_.*_(f|args|kwargs|result)$")


def is_in_use(name: str) -> bool:
    """Return whether ipyparallel has defined this name, and needs it until the running function returns."""
    return IN_USE.match(name) is not None


def is_own_file(file: str) -> bool:
    """Return whether a file belongs to ipyparallel, whose functions stand above those that a client calls."""
    package = sys.modules.get("ipyparallel")
    path = package.__file__ if package is not None else None
    return path is not None and file.startswith(os.path.dirname(path) + os.sep)


def is_own_object(thing: object) -> bool:
    """Return whether a function is ipyparallel's, or an object is of one of its classes."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return module.partition(".")[0] == "ipyparallel"


def call_around_functions(
    shell: Any, before: Callable[[], None], after: Callable[[BaseException | None], None]
) -> None:
    """Call `before` before each function on this engine, and `after` after it, with the error that it raised.

    IPython has events for cells, and none for functions. `do_apply` is not documented.
    """
    do_apply = shell.kernel.do_apply

    def recorded(*arguments: Any) -> Any:
        before()
        reply = do_apply(*arguments)
        after(None if reply[0]["status"] == "ok" else sys.last_value)
        return reply

    shell.kernel.do_apply = recorded


def answer_requests(shell: Any, name: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Let this engine answer messages of a type: call `answer` with the content, send what it returns.

    They arrive on the control channel, which has its own thread, even while the engine runs a cell.
    `control_handlers` is not documented.
    """
    kernel = shell.kernel

    def handle(stream: Any, ident: Any, message: dict[str, Any]) -> None:
        reply = name.replace("_request", "_reply")
        kernel.session.send(stream, reply, answer(message["content"]), parent=message, ident=ident)

    kernel.control_handlers[name] = handle
