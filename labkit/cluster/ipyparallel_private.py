"""What the notebook's side uses of ipyparallel beyond its documented interface, in one place.

tests/cluster/test_ipyparallel_private.py checks each of these against the installed version. The programs
labkit.cluster.engine and labkit.cluster.controller replace parts of ipyparallel's; each says which.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import ipyparallel as ipp
import psutil
from ipyparallel import util
from ipyparallel.error import RemoteError

# Methods of a client that make its views. `rc[:]` calls the first, which fails if there are no engines.
VIEWS = "direct_view", "load_balanced_view", "broadcast_view"
USES_OF_VIEWS = "execute", "_really_apply"  # the first is for cells, the second for apply, map, push and pull
SENDS = "send_apply_request", "send_execute_request"  # of a client, by which its views send


def profile_dirs() -> list[Path]:
    """Return all of this user's IPython profile folders."""
    # ipyparallel.util has no public function for it; `ipcluster list` uses this one.
    return [Path(folder) for folder in util._all_profile_dirs()]


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


def process_of(launcher: Any) -> psutil.Process | None:
    """Return the process on this machine that a launcher of a controller or of engines has started."""
    # LocalProcessLauncher, the base of the local and the MPI launchers, sets .process when it starts one or
    # is restored from a cluster file. Launchers for batch systems and ssh have none.
    process = getattr(launcher, "process", None)
    return process if isinstance(process, psutil.Process) else None


def controller_pid(state: dict[str, Any]) -> int | None:
    """Return the process id of the controller that a cluster file describes, None if it has none."""
    # Cluster.to_dict() writes the file; a local launcher's state holds a pid, a batch system's a job id.
    # labkit.cluster.supervisor reads the same entry.
    pid = ((state.get("controller") or {}).get("state") or {}).get("pid")
    return pid if isinstance(pid, int) else None


def size_of(state: dict[str, Any]) -> int | None:
    """Return the number of engines that the cluster of a cluster file was started with, None if unknown."""
    sets = (state.get("engines") or {}).get("sets") or {}
    return sum(engines["n"] for engines in sets.values()) or (state.get("cluster") or {}).get("n")


def call_before_use(client: ipp.Client, before: Callable[[], None], sent: Callable[[Any], None]) -> None:
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


def render_errors_with(render: Callable[[RemoteError], list[str] | None]) -> None:
    """Let IPython show an error of engines as the text from `render`, or as before if that is None."""
    # IPython calls this method for an error's text. CompositeError inherits it from RemoteError.
    RemoteError._render_traceback_ = lambda error: render(error) or error.render_traceback()
