"""Transformations of calls of MPI that keep what the function does: other calls with the same effect."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import NamedTuple

from labkit.checks.exercise import Exercise
from tests.exercises.rewriting import (
    Transformation,
    expression,
    functions,
    matched,
    new_names,
    replace_expressions,
    replace_statements,
    rewrite,
    statements,
)

ARGUMENTS = {
    "Send": ("buf", "dest", "tag"),
    "Isend": ("buf", "dest", "tag"),
    "Recv": ("buf", "source", "tag", "status"),
    "Irecv": ("buf", "source", "tag"),
    "Sendrecv": ("sendbuf", "dest", "sendtag", "recvbuf", "source", "recvtag", "status"),
    "Allreduce": ("sendbuf", "recvbuf", "op"),
    "allreduce": ("sendobj", "op"),
    "allgather": ("sendobj",),
    "Allgather": ("sendbuf", "recvbuf"),
    "Allgatherv": ("sendbuf", "recvbuf"),
    "Reduce_scatter": ("sendbuf", "recvbuf", "recvcounts", "op"),
    "Ireduce_scatter": ("sendbuf", "recvbuf", "recvcounts", "op"),
    "Iallgatherv": ("sendbuf", "recvbuf"),
    "Iallreduce": ("sendbuf", "recvbuf", "op"),
    "Reduce": ("sendbuf", "recvbuf", "op", "root"),
    "Bcast": ("buf", "root"),
    "Gather": ("sendbuf", "recvbuf", "root"),
    "Scatter": ("sendbuf", "recvbuf", "root"),
}
COMMUNICATORS = "comm", "inside", "across"  # the names that the references give them
TEST_LOOP = "while not REQUEST.Test():\n    time.sleep(1e-4)"
PERSISTENT = "{request} = {call}\n{request}.Start()\n{request}.Wait()\n{request}.Free()"


class _MPICall(NamedTuple):
    """A call of a communicator's method, with the expressions of its arguments by name."""

    comm: str
    method: str
    arguments: dict[str, ast.expr]

    def text(self, method: str) -> str:
        """Return a call of another method with the same arguments."""
        arguments = ", ".join(f"{name}={ast.unparse(part)}" for name, part in self.arguments.items())
        return f"{self.comm}.{method}({arguments})"

    def get(self, name: str, otherwise: str = "None") -> str:
        """Return the text of an argument."""
        return ast.unparse(self.arguments[name]) if name in self.arguments else otherwise


def _mpi_call(node: ast.AST | None) -> _MPICall | None:
    """Return a call of `comm.Send(…)` or another method in ARGUMENTS; None for anything else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    comm = ast.unparse(node.func.value)
    if comm not in COMMUNICATORS or node.func.attr not in ARGUMENTS:
        return None
    given = dict(zip(ARGUMENTS[node.func.attr], node.args, strict=False))
    return _MPICall(comm, node.func.attr, given | {str(each.arg): each.value for each in node.keywords})


def _replace_calls(tree: ast.Module, exercise: Exercise, new: Callable[[_MPICall, str], str]) -> None:
    """Replace calls of MPI that are statements by the statements of a text; an empty text keeps the call.

    The text may use a name for a request, which is the second argument of `new`.
    """
    requests = new_names(tree, "request")

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        call = _mpi_call(node.value) if isinstance(node, ast.Expr) else None
        text = new(call, next(requests)) if call is not None else ""
        return ast.parse(text).body if text else [node]

    replace_statements(tree, replaced)
    if "time." in ast.unparse(tree):
        tree.body[:0] = ast.parse("import time").body


def isend(tree: ast.Module, exercise: Exercise) -> None:
    """Write Isend with Wait for Send, and Irecv with Wait for Recv."""
    methods = {
        "Send": "Isend",
        "Recv": "Irecv",
        "Allreduce": "Iallreduce",
        "Bcast": "Ibcast",
        "Reduce": "Ireduce",
    }
    methods |= {"Gather": "Igather", "Scatter": "Iscatter", "Reduce_scatter": "Ireduce_scatter"}
    methods |= {"Allgather": "Iallgather", "Allgatherv": "Iallgatherv"}

    def new(call: _MPICall, request: str) -> str:
        method = methods.get(call.method)
        return f"{request} = {call.text(method)}\n{request}.Wait()" if method else ""

    _replace_calls(tree, exercise, new)


def isend_with_tests(tree: ast.Module, exercise: Exercise) -> None:
    """Wait for the requests of Isend and Irecv in a loop over Test."""

    def new(call: _MPICall, request: str) -> str:
        if call.method not in ("Send", "Recv"):
            return ""
        return f"{request} = {call.text('I' + call.method.lower())}\n{TEST_LOOP.replace('REQUEST', request)}"

    _replace_calls(tree, exercise, new)


def persistent(tree: ast.Module, exercise: Exercise) -> None:
    """Use a persistent request for each message of Send, Recv, Sendrecv, Isend and Irecv."""

    def new(call: _MPICall, request: str) -> str:
        if call.method in ("Send", "Recv"):
            return PERSISTENT.format(request=request, call=call.text(f"{call.method}_init"))
        if call.method == "Sendrecv":
            lines = [
                f"into_{request} = comm.Recv_init({call.get('recvbuf')}, source={call.get('source')})",
                f"{request} = comm.Send_init({call.get('sendbuf')}, dest={call.get('dest')})",
                f"MPI.Prequest.Startall([into_{request}, {request}])",
                f"MPI.Request.Waitall([into_{request}, {request}])",
                f"into_{request}.Free()",
                f"{request}.Free()",
            ]
            return "\n".join(lines)
        return ""

    _replace_calls(tree, exercise, new)
    names: set[str] = set()

    def started(node: ast.stmt) -> list[ast.stmt]:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            call = _mpi_call(node.value)
            if call is not None and call.method in ("Isend", "Irecv"):
                name = node.targets[0].id
                names.add(name)
                return ast.parse(
                    f"{name} = {call.text(call.method[1:].title() + '_init')}\n{name}.Start()"
                ).body
        parts = (
            matched(ast.parse("A.Wait()", mode="eval").body, node.value)
            if isinstance(node, ast.Expr)
            else None
        )
        if parts and ast.unparse(parts["A"]) in names:
            return [node, *statements("A.Free()", parts)]
        return [node]

    for function in functions(tree):  # in order, so that a request is known before its Wait
        replace_statements(function, lambda node: [node])
        function.body = _in_order(function.body, started)


def _in_order(block: list[ast.stmt], replaced: Callable[[ast.stmt], list[ast.stmt]]) -> list[ast.stmt]:
    """Replace statements, first ones first, also in loops and branches."""
    new = []
    for node in block:
        for name in ("body", "orelse"):
            if isinstance(getattr(node, name, None), list):
                setattr(node, name, _in_order(getattr(node, name), replaced))
        new += replaced(node)
    return new


def synchronous(tree: ast.Module, exercise: Exercise) -> None:
    """Use Ssend and Issend, which wait for the receive."""
    rewrite(
        tree, [("comm.Send(*R, **K)", "comm.Ssend(*R, **K)"), ("comm.Isend(*R, **K)", "comm.Issend(*R, **K)")]
    )


def probed(tree: ast.Module, exercise: Exercise) -> None:
    """Look for a message before it is received."""

    def new(call: _MPICall, request: str) -> str:
        if call.method != "Recv":
            return ""
        return f"comm.Probe(source={call.get('source')})\n{call.text('Recv')}"

    _replace_calls(tree, exercise, new)


def matched_probe(tree: ast.Module, exercise: Exercise) -> None:
    """Receive a message that a matched probe has found."""

    def new(call: _MPICall, request: str) -> str:
        if call.method != "Recv":
            return ""
        return f"message = comm.Mprobe(source={call.get('source')})\nmessage.Recv({call.get('buf')})"

    _replace_calls(tree, exercise, new)


def _exchange(tree: ast.Module, exercise: Exercise, *lines: str) -> None:
    """Write these lines for Sendrecv."""

    def new(call: _MPICall, request: str) -> str:
        if call.method != "Sendrecv":
            return ""
        parts = {name: call.get(name) for name in ("sendbuf", "dest", "recvbuf", "source")}
        return "\n".join(lines).format(request=request, **parts)

    _replace_calls(tree, exercise, new)


def receive_under_way(tree: ast.Module, exercise: Exercise) -> None:
    """Write Irecv, Send and Wait for Sendrecv."""
    lines = "{request} = comm.Irecv({recvbuf}, source={source})", "comm.Send({sendbuf}, dest={dest})"
    _exchange(tree, exercise, *lines, "{request}.Wait()")


def send_under_way(tree: ast.Module, exercise: Exercise) -> None:
    """Write Isend, Recv and Wait for Sendrecv."""
    lines = "{request} = comm.Isend({sendbuf}, dest={dest})", "comm.Recv({recvbuf}, source={source})"
    _exchange(tree, exercise, *lines, "{request}.Wait()")


def both_under_way(tree: ast.Module, exercise: Exercise) -> None:
    """Write Isend, Irecv and Waitall for Sendrecv."""
    lines = (
        "requests_of_round = [comm.Isend({sendbuf}, dest={dest})]",
        "requests_of_round.append(comm.Irecv({recvbuf}, source={source}))",
    )
    _exchange(tree, exercise, *lines, "MPI.Request.Waitall(requests_of_round)")


def exchange_in_one_array(tree: ast.Module, exercise: Exercise) -> None:
    """Write Sendrecv_replace with a copy for Sendrecv, where both arrays have one shape."""
    lines = "travelling = {sendbuf}.copy()", "comm.Sendrecv_replace(travelling, dest={dest}, source={source})"
    _exchange(tree, exercise, *lines, "{recvbuf}[...] = travelling")


def waits_by_test(tree: ast.Module, exercise: Exercise) -> None:
    """Write a loop over Test for Wait."""
    _replace_waits(tree, TEST_LOOP)


def waits_by_waitall(tree: ast.Module, exercise: Exercise) -> None:
    """Write Waitall of one request for Wait."""
    _replace_waits(tree, "MPI.Request.Waitall([REQUEST])")


def waits_with_status(tree: ast.Module, exercise: Exercise) -> None:
    """Ask each Wait for the status."""
    _replace_waits(tree, "status_of_request = MPI.Status()\nREQUEST.Wait(status=status_of_request)")


def waits_in_lower_case(tree: ast.Module, exercise: Exercise) -> None:
    """Write wait for Wait."""
    _replace_waits(tree, "REQUEST.wait()")


def _replace_waits(tree: ast.Module, text: str) -> None:
    pattern = ast.parse("A.Wait()", mode="eval").body

    def replaced(node: ast.stmt) -> list[ast.stmt]:
        parts = matched(pattern, node.value) if isinstance(node, ast.Expr) else None
        return statements(text, {"REQUEST": parts["A"]}) if parts else [node]

    replace_statements(tree, replaced)
    if "time." in ast.unparse(tree):
        tree.body[:0] = ast.parse("import time").body


def pickled(tree: ast.Module, exercise: Exercise) -> None:
    """Use the methods in lower case, and copy what arrives into the arrays."""
    new_calls = {
        "Send": "comm.send({buf}, dest={dest})",
        "Recv": "{buf}[...] = comm.recv(source={source})",
        "Sendrecv": "{recvbuf}[...] = comm.sendrecv({sendbuf}, dest={dest}, source={source})",
        "Bcast": "{buf}[...] = comm.bcast({buf}, root={root})",
        "Gather": "gathered = comm.gather({sendbuf}, root={root})\n"
        "if comm.rank == 0:\n    rows[...] = np.concatenate(gathered)",
        "Allgather": "{recvbuf}[...] = comm.allgather({sendbuf})",
    }

    def new(call: _MPICall, request: str) -> str:
        if call.method == "Allreduce":
            source = call.get("sendbuf") if "IN_PLACE" not in call.get("sendbuf") else call.get("recvbuf")
            return f"{call.get('recvbuf')}[...] = {call.comm}.allreduce({source})"
        if call.method == "Reduce" and call.get("recvbuf") != "None":
            return f"{call.get('recvbuf')}[...] = comm.reduce({call.get('recvbuf')}, root=0)"
        if call.method == "Reduce":
            return f"comm.reduce({call.get('sendbuf')}, root=0)"
        if call.method not in new_calls or call.method.lower() in exercise.forbidden:
            return ""
        return new_calls[call.method].format(**{name: call.get(name) for name in call.arguments})

    _replace_calls(tree, exercise, new)


def named_arguments(tree: ast.Module, exercise: Exercise) -> None:
    """Name all arguments of calls of MPI."""

    def replaced(node: ast.expr) -> ast.expr:
        call = _mpi_call(node)
        return expression(call.text(call.method), {}) if call else node

    replace_expressions(tree, replaced)


def counted_arrays(tree: ast.Module, exercise: Exercise) -> None:
    """Give arrays of messages as [array, count]."""
    _replace_buffers(
        tree, exercise, "[A, A.size]", ("Send", "Recv", "Isend", "Irecv", "Sendrecv", "Bcast", "Allreduce")
    )


def memoryviews(tree: ast.Module, exercise: Exercise) -> None:
    """Give arrays of messages as memoryviews."""
    _replace_buffers(
        tree, exercise, "memoryview(A)", ("Send", "Recv", "Isend", "Irecv", "Sendrecv", "Bcast", "Allreduce")
    )


def typed_arrays(tree: ast.Module, exercise: Exercise) -> None:
    """Give arrays of messages as [array, datatype]."""
    text = "[A, MPI.Datatype.fromcode(A.dtype.char)]"
    _replace_buffers(
        tree, exercise, text, ("Send", "Recv", "Isend", "Irecv", "Sendrecv", "Bcast", "Allreduce")
    )


def _replace_buffers(tree: ast.Module, exercise: Exercise, text: str, methods: tuple[str, ...]) -> None:
    def replaced(node: ast.expr) -> ast.expr:
        call = _mpi_call(node)
        if call is None or call.method not in methods:
            return node
        for name, part in call.arguments.items():
            is_array = isinstance(part, ast.Name | ast.Subscript)
            if name.endswith("buf") and is_array:
                call.arguments[name] = expression(text, {"A": part})
        return expression(call.text(call.method), {})

    replace_expressions(tree, replaced)


def tagged(tree: ast.Module, exercise: Exercise) -> None:
    """Give all messages a tag."""
    _add_arguments(
        tree,
        {
            "Send": "tag=7",
            "Isend": "tag=7",
            "Recv": "tag=7",
            "Irecv": "tag=7",
            "Sendrecv": "sendtag=7, recvtag=7",
        },
    )


def with_status(tree: ast.Module, exercise: Exercise) -> None:
    """Ask each receive for its status."""
    _add_arguments(tree, {"Recv": "status=MPI.Status()", "Sendrecv": "status=MPI.Status()"})


def with_op(tree: ast.Module, exercise: Exercise) -> None:
    """Name the operation of each reduction."""
    methods = "Allreduce", "allreduce", "Reduce", "Iallreduce", "Reduce_scatter", "Ireduce_scatter"
    _add_arguments(tree, {name: "op=MPI.SUM" for name in methods})


def _add_arguments(tree: ast.Module, arguments: dict[str, str]) -> None:
    def replaced(node: ast.expr) -> ast.expr:
        call = _mpi_call(node)
        if call is None or call.method not in arguments:
            return node
        more = expression(f"f({arguments[call.method]})", {}).keywords  # type: ignore[attr-defined]
        assert isinstance(node, ast.Call)
        node.keywords += [each for each in more if each.arg not in call.arguments]
        return node

    replace_expressions(tree, replaced)


def copy_for_in_place(tree: ast.Module, exercise: Exercise) -> None:
    """Send a copy in place of MPI.IN_PLACE, on all ranks."""

    def new(call: _MPICall, request: str) -> str:
        if call.method == "Allreduce" and "IN_PLACE" in call.get("sendbuf"):
            return (
                f"before = {call.get('recvbuf')}.copy()\n{call.comm}.Allreduce(before, {call.get('recvbuf')})"
            )
        return ""

    _replace_calls(tree, exercise, new)


def in_place_for_copy(tree: ast.Module, exercise: Exercise) -> None:
    """Write the values into the array that gets the sum, and use MPI.IN_PLACE."""

    def new(call: _MPICall, request: str) -> str:
        if call.method == "Allreduce" and "IN_PLACE" not in call.get("sendbuf"):
            into = call.get("recvbuf")
            return f"{into}[...] = {call.get('sendbuf')}\n{call.comm}.Allreduce(MPI.IN_PLACE, {into})"
        return ""

    _replace_calls(tree, exercise, new)


def sum_of_gathered(tree: ast.Module, exercise: Exercise) -> None:
    """Gather numbers on all ranks and add them up."""
    rewrite(
        tree,
        [
            ("comm.allreduce(A)", "sum(comm.allgather(A))"),
            ("comm.allreduce(A, op=MPI.MAX)", "max(comm.allgather(A))"),
        ],
    )


def reduce_and_bcast(tree: ast.Module, exercise: Exercise) -> None:
    """Add up numbers on rank 0 and broadcast the sum."""
    rewrite(tree, [("comm.allreduce(*R, **K)", "comm.bcast(comm.reduce(*R, **K))")])


def reduce_and_bcast_arrays(tree: ast.Module, exercise: Exercise) -> None:
    """Add up arrays on rank 0 and broadcast the sum."""

    def new(call: _MPICall, request: str) -> str:
        if call.method != "Allreduce":
            return ""
        into = call.get("recvbuf")
        source = f"{into}.copy()" if "IN_PLACE" in call.get("sendbuf") else call.get("sendbuf")
        return (
            f"comm.Reduce({source}, {into} if comm.rank == 0 else None, root=0)\ncomm.Bcast({into}, root=0)"
        )

    _replace_calls(tree, exercise, new)


OF_CALLS: tuple[Transformation, ...] = (
    isend,
    isend_with_tests,
    persistent,
    synchronous,
    probed,
    matched_probe,
    receive_under_way,
    send_under_way,
    both_under_way,
    exchange_in_one_array,
    waits_by_test,
    waits_by_waitall,
    waits_with_status,
    waits_in_lower_case,
    pickled,
    named_arguments,
    counted_arrays,
    memoryviews,
    typed_arrays,
    tagged,
    with_status,
    with_op,
    copy_for_in_place,
    in_place_for_copy,
    sum_of_gathered,
    reduce_and_bcast,
    reduce_and_bcast_arrays,
)
