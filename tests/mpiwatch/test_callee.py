"""Which function a frame is calling, found from the bytecode's positions."""

from __future__ import annotations

import linecache
import sys
from typing import Any

import pytest

from mpiwatch.watchdog import callee


class Looking:
    """Has a method that inspects its caller, whose variables still exist, as in a call of MPI."""

    def method(self, *arguments: Any) -> bool:
        return callee(sys._getframe(1)) is Looking.method


IN_COMPREHENSIONS = (
    "all([c.method(a) for c in objects])",
    "all({c.method(b) for c in objects})",
    "all(c.method(a, b) for c in objects)",
    "all(c.method(a, b) for c in [objects[0]] for d in objects)",
    "all({1: c.method() for c in objects}.values())",
    "all(map(lambda c: c.method(a), objects))",
    "all([objects[i].method([b for b in (1, 2)]) for i in range(2)])",
)


@pytest.mark.parametrize("code", IN_COMPREHENSIONS)
@pytest.mark.parametrize(
    "text", ["result = {}", "def f(objects, a, b):\n    return {}\nresult = f(objects, a, b)"]
)
def test_a_call_in_a_comprehension(code: str, text: str) -> None:
    namespace: dict[str, Any] = {"objects": [Looking(), Looking()], "a": 1, "b": 2}
    source = text.format(code)
    linecache.cache["<called>"] = len(source), None, source.splitlines(keepends=True), "<called>"
    exec(compile(source, "<called>", "exec"), namespace)
    assert namespace["result"]


@pytest.mark.parametrize(
    "call",
    ["c.method()", "box.item.method(a, [b])", "box.item.method(a,\n        *objects)", "method(c, a, key=b)"],
)
def test_a_call_of_a_function_that_came_without_its_source(call: str) -> None:
    """As with `apply` in a notebook."""

    class Box:
        item = Looking()

    text = f"def f(box, objects, a, b):\n    c = objects[0]\n    return [{call}][0]"
    namespace: dict[str, Any] = {}
    namespace["method"] = method = lambda *given, key=0: callee(sys._getframe(1)) is method
    exec(compile(text, "<no source>", "exec"), namespace)
    assert namespace["f"](Box(), [Looking()], 1, 2)
