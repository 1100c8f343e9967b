"""Requests of a notebook that its kernel answers beside the cell that runs.

ipykernel has a thread that receives all requests, and hands them over to the thread that runs cells. This
module answers some of them before that; `shell_channel_thread_main` is not documented.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple


class PendingAnswer(NamedTuple):
    """The content of an answer that is on its way; after `latest_s` seconds, `otherwise` is sent instead."""

    content: Future[dict[str, Any]]
    latest_s: float
    otherwise: dict[str, Any]


HEADER = 1  # the place of the header among the parts of a message, behind its signature
StartAnswer = Callable[[dict[str, Any]], PendingAnswer | None]


def answer_beside_cells(kernel: Any, answers: dict[str, StartAnswer]) -> None:
    """Let a kernel that has not started yet answer requests of some types in another way.

    `answers` has a function for each type of request: it takes the request's content, and returns the answer
    that it has begun, or None to leave the request to ipykernel. It must return at once.
    """
    receive = getattr(kernel, "shell_channel_thread_main", None)
    if receive is None or kernel.shell_channel_thread is None:  # a kernel without such a thread
        return

    cell = RunningCell(kernel)

    async def receive_or_answer(message: list[Any]) -> None:
        if not begin_answer(kernel, answers, message, cell):
            await receive(message)

    kernel.shell_channel_thread_main = receive_or_answer


class RunningCell:
    """The cell that the kernel runs, so that a notebook can be told that the kernel is still busy with it."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.request: dict[str, Any] | None = None
        self.lock = threading.Lock()
        kernel.shell.events.register("pre_execute", self.note_cell_begin)
        kernel.shell.events.register("post_execute", self.note_cell_end)

    def note_cell_begin(self) -> None:
        with self.lock:
            self.request = self.kernel.get_parent("shell")

    def note_cell_end(self) -> None:
        with self.lock:  # the kernel says that it is idle only after this
            self.request = None

    def say_busy(self, publish: Callable[[str, dict[str, Any]], None]) -> None:
        """Publish that the kernel is busy with the cell, if it runs one."""
        with self.lock:
            if self.request is not None:
                publish("busy", self.request)


def begin_answer(kernel: Any, answers: dict[str, StartAnswer], message: list[Any], cell: RunningCell) -> bool:
    """Begin to answer a message; return whether this has happened, and ipykernel has nothing to do."""
    try:
        idents, parts = kernel.session.feed_identities(message, copy=False)
        start_answer = answers.get(kernel.session.unpack(parts[HEADER].bytes)["msg_type"])
        if start_answer is None:
            return False
        # Only a look: a message that is unpacked completely could not be unpacked again.
        request = kernel.session.deserialize(parts, content=False, copy=False)
        request["content"] = kernel.session.unpack(request["content"])
        answer = start_answer(request["content"])
    except Exception:
        kernel.log.debug("a request was left to ipykernel", exc_info=True)
        return False
    if answer is None:
        return False
    Sending(kernel, idents, request, cell).arrange(answer)
    return True


class Sending:
    """Sends an answer once: when it is there, or at its deadline."""

    def __init__(self, kernel: Any, idents: Any, request: dict[str, Any], cell: RunningCell) -> None:
        self.kernel = kernel
        self.idents = idents
        self.request = request
        self.cell = cell
        self.is_sent = False

    def arrange(self, answer: PendingAnswer) -> None:
        """Arrange for the answer. All of it is sent by this thread: others must not use its stream."""
        loop = self.kernel.shell_channel_thread.io_loop
        loop.call_later(answer.latest_s, self.send, answer.otherwise)

        def finish(done: Future[dict[str, Any]]) -> None:
            content = answer.otherwise if done.exception() is not None else done.result()
            loop.add_callback(self.send, content)

        answer.content.add_done_callback(finish)

    def send(self, content: dict[str, Any]) -> None:
        """Send the answer, and that the kernel was busy with the request and is idle again.

        JupyterLab shows the last state that it has heard of, of whatever request: so a cell that runs is
        named once more.
        """
        if self.is_sent:
            return
        self.is_sent = True
        session, stream = self.kernel.session, self.kernel.shell_stream
        name = self.request["header"]["msg_type"].replace("_request", "_reply")
        self.publish("busy", self.request)
        session.send(stream, name, content, parent=self.request, ident=self.idents)
        self.publish("idle", self.request)
        self.cell.say_busy(self.publish)

    def publish(self, state: str, request: dict[str, Any]) -> None:
        topic = f"kernel.{self.kernel.ident}.status".encode()
        content = {"execution_state": state}
        self.kernel.session.send(self.kernel.iopub_socket, "status", content, parent=request, ident=topic)
