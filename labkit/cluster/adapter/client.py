"""A client of ipyparallel's, its results and its errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import ipyparallel as ipp
from ipyparallel.error import NoEnginesRegistered, RemoteError

# Methods of a client that make its views. `rc[:]` calls the first, which fails if there are no engines.
VIEWS = "direct_view", "load_balanced_view", "broadcast_view"
USES_OF_VIEWS = "execute", "_really_apply"  # the first is for cells, the second for apply, map, push and pull
SENDS = "send_apply_request", "send_execute_request"  # of a client, by which its views send


def futures(result: ipp.AsyncResult) -> dict[int, Any]:
    """Return the future of each engine's part of a result, by engine id."""
    # AsyncResult keeps one future per message in _children and their engines in _targets, in the same order.
    return dict(zip(result._targets, result._children, strict=True))


def pending(result: ipp.AsyncResult) -> list[int]:
    """Return the engines that have not ended the cell."""
    return [engine for engine, future in futures(result).items() if not future.done()]


def outputs(result: ipp.AsyncResult) -> dict[int, Any]:
    """Return what each engine has printed, displayed and returned so far, by engine id."""
    # The client adds to this as messages arrive, in a thread of its own: "stdout" and "stderr" are texts,
    # "outputs" is a list of the contents of messages, and "execute_result" one such content or None.
    return {engine: future.output.metadata for engine, future in futures(result).items()}


def is_single(result: ipp.AsyncResult) -> bool:
    """Return whether a result is that of a view of one engine given by its number, and not as a list."""
    return bool(result._single_result)


class BeforeUse(threading.local):
    """Calls a function before engines are used, unless this thread is inside `done` or in the function."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function
        self.is_done = False

    def __call__(self) -> None:
        if not self.is_done:
            with self.done():
                self.function()

    @contextmanager
    def done(self) -> Iterator[None]:
        """Let uses of the engines inside this block go without the function: it has been called."""
        was_done = self.is_done
        self.is_done = True
        try:
            yield
        finally:
            self.is_done = was_done


def call_before_use(client: ipp.Client, before: BeforeUse, sent: Callable[[Any], None]) -> None:
    """Call `before` each time before a view sends a cell or the call of a function, or the engines are ended.

    Call `sent` with the future of each message that a view has sent.
    """

    def replace(owner: Any, name: str) -> None:
        method = getattr(owner, name)

        @wraps(method)
        def call(*arguments: Any, **options: Any) -> Any:
            if name not in SENDS:
                before()
            result = method(*arguments, **options)
            if name in SENDS:
                sent(result)
            for use in USES_OF_VIEWS if name in VIEWS else ():
                if hasattr(result, use):
                    replace(result, use)
            return result

        setattr(owner, name, call)

    # In the object: Cluster.connect_client() always makes a Client, never one of a subclass.
    for name in (*VIEWS, *SENDS, "clear", "abort", "shutdown"):
        replace(client, name)


def has_failed(future: Any) -> bool:
    """Return whether the work that a message's future stands for has ended in an error."""
    try:
        return isinstance(future.result(), Exception)  # ipyparallel returns an engine's exception as a result
    except Exception:
        return True


def ask(client: ipp.Client, engine: int, name: str, content: dict[str, Any]) -> Any | None:
    """Send a message to an engine's control channel; return the future of its answer, None without engine.

    The engine answers while it runs a cell, too: see `functions.answer_requests`. `_send` is private.
    """
    try:
        (identity,), _ = client._build_targets(engine)
    except (NoEnginesRegistered, IndexError, ValueError):
        return None
    return client._send(client._control_stream, name, content=content, ident=identity)


class ErrorOfAnEngine(NamedTuple):
    """An error as an engine has sent it. `engine` is the engine's id, -1 if it is not known."""

    engine: int
    name: str
    message: str
    traceback: str


def errors_in(error: RemoteError) -> list[ErrorOfAnEngine]:
    """Return what each engine raised, from the one error that ipyparallel makes of these."""
    # CompositeError has a list of them, and its own traceback is none of an engine's.
    parts = getattr(error, "elist", None) or [(error.ename, error.evalue, error.traceback, error.engine_info)]
    return [
        ErrorOfAnEngine((about or {}).get("engine_id", -1), name, str(message), traceback or "")
        for name, message, traceback, about in parts
    ]


def render_errors_with(render: Callable[[RemoteError], list[str] | None]) -> None:
    """Let IPython show an error of engines as the text from `render`, or as before if that is None."""
    # IPython calls this method for an error's text. CompositeError inherits it from RemoteError.
    RemoteError._render_traceback_ = lambda error: render(error) or error.render_traceback()
