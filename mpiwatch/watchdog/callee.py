"""Find which function a frame is calling, from its bytecode and without running the program's code.

Python keeps the called function on a frame's stack, which cannot be read. This module finds the instructions
that pushed it and evaluates them again: names, attributes and items, but nothing that could run code. The
result is UNKNOWN if it is not certain.
"""

from __future__ import annotations

import ctypes
import dis
import inspect
import sys
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType, MemberDescriptorType, ModuleType
from typing import Any, NamedTuple

UNKNOWN = object()
_NULL = object()  # Python pushes it beside a function that is not a method
_VERSION = sys.version_info[:2]
_NULL_FIRST = _VERSION <= (3, 12)  # before the function rather than after it
_CALLS = (
    *("CALL", "PRECALL", "CALL_KW", "CALL_FUNCTION_EX"),
    *("CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_METHOD"),  # Python 3.10
)
_ENDS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_ABSOLUTE", "RAISE_VARARGS")
_LEAVES = ("RETURN_VALUE", "RETURN_CONST", "RERAISE", "RETURN_GENERATOR")
_LOCALS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF", "LOAD_CLASSDEREF")
_PAIRS = ("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")
_POPS = ("POP_", "JUMP", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
_NEUTRAL = (
    *("NOP", "CACHE", "RESUME", "EXTENDED_ARG", "KW_NAMES", "NOT_TAKEN", "COPY_FREE_VARS", "MAKE_CELL"),
    *("PRECALL", "STORE_FAST", "END_FOR"),
)
_ROTATED = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}

_FOREIGN = ctypes.CFUNCTYPE(None).__mro__[1]  # the base class of ctypes' functions

Results = Callable[[object], object]


class Named(NamedTuple):
    """An attribute that could not be looked up; only its name is known."""

    name: str


class _Site(NamedTuple):
    """The instructions from the one that pushes the function to the call, and the stack depth before each."""

    instructions: list[dis.Instruction]
    depths: list[int]


def callee(frame: FrameType, result_of: Results = lambda function: UNKNOWN) -> object:
    """Return the function or method (as its class stores it) that a frame is calling, or UNKNOWN.

    `result_of`: returns an object with the attributes that the result of calling a function has.
    """
    site = _site(frame.f_code, frame.f_lasti)
    return UNKNOWN if site is None else _evaluate(site, frame, result_of)


@lru_cache(maxsize=64)
def _site(code: CodeType, last: int) -> _Site | None:
    instructions = list(dis.get_instructions(code))
    depths = _depths(code, instructions)
    call = max((i for i, each in enumerate(instructions) if each.offset <= last), default=-1)
    if call < 0 or depths[call] is None or instructions[call].opname not in _CALLS:
        return None
    base = depths[call] - _items(instructions[call])
    first = call
    while first >= 0 and (depths[first] is None or depths[first] > base):
        first -= 1
    if first < 0 or depths[first] != base:
        return None
    # If the program can jump between these instructions, the function depends on the path it took.
    low, high = instructions[first].offset, instructions[call].offset
    for instruction in instructions:
        is_inside = low <= instruction.offset <= high
        if _jumps(instruction) and low < instruction.argval <= high and not is_inside:
            return None
    shown = [i for i in range(first, call + 1) if depths[i] is not None]
    return _Site([instructions[i] for i in shown], [depths[i] - base for i in shown])


def _jumps(instruction: dis.Instruction) -> bool:
    return instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs


def _items(instruction: dis.Instruction) -> int:
    """Return how many items on the stack belong to a call: the function, its neighbour, the arguments."""
    name, n = instruction.opname, instruction.arg or 0
    if name == "CALL_FUNCTION_EX":
        return 4 if _VERSION >= (3, 14) else (2 if _VERSION == (3, 10) else 3) + (n & 1)
    if name == "CALL" and _VERSION == (3, 11):
        return 2  # dis.stack_effect counts the arguments as taken by PRECALL
    return n + {"CALL_FUNCTION": 1, "CALL_KW": 3}.get(name, 2)


def _depths(code: CodeType, instructions: list[dis.Instruction]) -> list[Any]:
    """Return the depth of the stack before each instruction; None where it is never reached."""
    index = {each.offset: i for i, each in enumerate(instructions)}
    found: list[int | None] = [None] * len(instructions)
    todo = [(0, 0)]
    for entry in getattr(dis.Bytecode(code), "exception_entries", ()):
        if entry.target in index:
            todo.append((index[entry.target], entry.depth + 1 + entry.lasti))
    while todo:
        i, depth = todo.pop()
        while i < len(instructions) and found[i] is None:
            found[i] = depth
            each = instructions[i]
            if _jumps(each) and each.argval in index:
                todo.append((index[each.argval], depth + dis.stack_effect(each.opcode, each.arg, jump=True)))
            if each.opname in _ENDS or (each.opname in _LEAVES and each.opname != "RETURN_GENERATOR"):
                break
            depth += _effect(each)
            i += 1
    return found


def _effect(instruction: dis.Instruction) -> int:
    return dis.stack_effect(instruction.opcode, instruction.arg, jump=False)


def _evaluate(site: _Site, frame: FrameType, result_of: Results) -> object:
    stack: list[object] = []
    for instruction, depth in zip(site.instructions, site.depths, strict=True):
        del stack[depth:]
        stack += [UNKNOWN] * (depth - len(stack))
        if instruction is site.instructions[-1]:
            break
        _carry_out(instruction, stack, frame, result_of)
    return _called(stack, 0, site.instructions[-1])


def _called(stack: list[object], base: int, call: dis.Instruction) -> object:
    """Return the function of a call whose items begin at `base`."""
    if call.opname.startswith("CALL_FUNCTION") and _VERSION == (3, 10):
        return stack[base]
    return stack[base + 1] if stack[base] is _NULL else stack[base]


def _carry_out(  # noqa: PLR0912  (a branch for each kind of instruction)
    instruction: dis.Instruction, stack: list[object], frame: FrameType, result_of: Results
) -> None:
    """Apply an instruction to the stack; a result that is uncertain becomes UNKNOWN."""
    name, value = instruction.opname, instruction.argval
    in_pair = bool((instruction.arg or 0) & 1)
    if name in _NEUTRAL or name.startswith(_POPS):
        return  # the depth before the next instruction tells which items are gone
    if name == "PUSH_NULL":
        stack.append(_NULL)
    elif name in ("LOAD_CONST", "LOAD_SMALL_INT"):
        stack.append(value)
    elif name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
        stack.append(_look_up(value, frame.f_locals, frame.f_globals, frame.f_builtins))
    elif name == "LOAD_GLOBAL":
        found = _look_up(value, frame.f_globals, frame.f_builtins)
        _push(stack, found, null=in_pair and _VERSION >= (3, 11), null_first=_NULL_FIRST)
    elif name in _LOCALS:
        stack.append(_look_up(value, frame.f_locals))
    elif name in _PAIRS:
        stack += [_look_up(each, frame.f_locals) for each in value]
    elif name == "STORE_FAST_LOAD_FAST":
        stack[-1] = _look_up(value[1], frame.f_locals)
    elif name in ("LOAD_ATTR", "LOAD_METHOD"):
        is_method = name == "LOAD_METHOD" or (in_pair and _VERSION >= (3, 12))
        # Python pushes the method's object after it, which is not needed here.
        _push(stack, _attribute(stack.pop(), value), null=is_method, null_first=False)
    elif name == "BINARY_SUBSCR" or (name == "BINARY_OP" and instruction.argrepr == "[]"):
        key = stack.pop()
        stack.append(_item(stack.pop(), key))
    elif name in _CALLS:
        base = len(stack) - _items(instruction)
        called = _called(stack, base, instruction) if base >= 0 else UNKNOWN
        del stack[max(0, base) :]
        stack.append(result_of(called))
    elif name in ("COPY", "DUP_TOP"):
        copied = instruction.arg or 1
        stack.append(stack[-copied] if copied <= len(stack) else UNKNOWN)
    elif name in ("SWAP", "ROT_N") or name in _ROTATED:
        touched = min(_ROTATED.get(name, instruction.arg or 0), len(stack))
        stack[len(stack) - touched :] = [UNKNOWN] * touched
    elif (effect := _effect(instruction)) <= 0:
        del stack[max(0, len(stack) - 1 + effect) :]
        stack.append(UNKNOWN)


def _push(stack: list[object], value: object, *, null: bool, null_first: bool) -> None:
    stack += [_NULL, value] if null and null_first else [value, _NULL] if null else [value]


def _look_up(name: str, *scopes: Any) -> object:
    return next((scope[name] for scope in scopes if name in scope), UNKNOWN)


def _item(container: object, key: object) -> object:
    """Return an item of a list, tuple or dict; any item if the key is unknown and all are of one type."""
    if type(container) not in (list, tuple, dict):
        return UNKNOWN
    try:
        if key is not UNKNOWN and type(key) in (int, str, bool):
            return container[key]  # type: ignore[index]
    except LookupError:
        return UNKNOWN
    values = list(container.values() if isinstance(container, dict) else container)  # type: ignore[call-overload]
    return values[0] if len({type(value) for value in values}) == 1 else UNKNOWN


def _attribute(value: object, name: str) -> object:
    """Return an attribute as it is stored: a method as its class has it. Do not run properties."""
    found: object = UNKNOWN
    if value is not UNKNOWN and not isinstance(value, Named):
        if isinstance(value, ModuleType):
            found = vars(value).get(name, UNKNOWN)
        else:
            found = inspect.getattr_static(value, name, UNKNOWN)
        if isinstance(found, MemberDescriptorType):
            found = found.__get__(value)
    if found is UNKNOWN:
        return Named(name)
    return found


def is_foreign(function: object) -> bool:
    """Return whether this is a shared library's function that ctypes calls."""
    return isinstance(function, _FOREIGN)
