"""What can be known of an object of this process without running any code of its class.

Attributes are looked up in the dicts of the object and of its classes, as `inspect.getattr_static` does. Only
what C code of NumPy's arrays and of Python's own types computes is read: `x.shape`, a slot, a docstring.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import io
import linecache
import re
import sys
import textwrap
import types
from collections.abc import Iterable
from typing import Any

from labkit.cluster.completion import syntax
from labkit.cluster.completion.things import Page, Thing
from mpiwatch.sessions import own_folders

MOST_ITEMS = 1000  # keys of a dict that are offered, and looked at
VALUE_CHARACTERS = 200
HEAP_TYPE = 1 << 9  # the flag of a class that is made while Python runs
DATA = types.GetSetDescriptorType, types.MemberDescriptorType
FUNCTIONS_IN_C = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.WrapperDescriptorType,
    types.MethodWrapperType,
)
PLAIN = str, bytes, int, float, complex, bool, type(None)  # whose repr() runs no other code
# The classes that stand around mpi4py's communicators: help shows mpi4py's methods.
WRAPPERS = "mpiwatch", "labkit"
# What functions of NumPy's return, apart from arrays.
NOT_ARRAYS = {
    "default_rng",
    "dtype",
    "tolist",
    "tobytes",
    "item",
    "save",
    "savez",
    "printoptions",
    "shape",
    "ndim",
}
RESULTS = {"open": io.TextIOWrapper, "len": int, "sorted": list, "input": str, "repr": str, "round": float}
SIGNATURE_LINE = re.compile(r"[\w.]*(\(.*\)(?: -> .+)?)\s*(?:\n|\Z)")


def mro_of(cls: type) -> tuple[type, ...]:
    classes: tuple[type, ...] = type.__dict__["__mro__"].__get__(cls)
    return classes


def dict_of_class(cls: type) -> Any:
    return type.__dict__["__dict__"].__get__(cls)


def in_classes(cls: type, name: str) -> tuple[type | None, Any]:
    """Return what a class or one of its bases has in its dict by a name, and which of them."""
    for base in mro_of(cls):
        members = dict_of_class(base)
        if name in members:
            return base, members[name]
    return None, None


def is_class(thing: object) -> bool:
    return issubclass(type(thing), type)  # isinstance() would ask the object for its `__class__`


def module_of(cls: type) -> str:
    module = type.__dict__["__module__"].__get__(cls)
    return module if type(module) is str else "builtins"


def name_of(cls: type) -> str:
    name: str = type.__dict__["__qualname__"].__get__(cls)
    return name


def dict_of(thing: object) -> dict[str, Any]:
    """Return a copy of an object's own attributes; empty if its class has replaced `__dict__`."""
    _, descriptor = in_classes(type(thing), "__dict__")
    if type(descriptor) not in DATA:
        return {}
    try:
        attributes = descriptor.__get__(thing, type(thing))
    except AttributeError:
        return {}
    if not issubclass(type(attributes), dict):
        return dict(attributes) if type(attributes) is types.MappingProxyType else {}
    return {name: value for name, value in dict.items(attributes) if type(name) is str}


def text_of(thing: object, name: str) -> str:
    """Return a text that C code has stored with an object, such as its `__doc__`; empty if there is none."""
    stored = dict_of(thing).get(name)
    if type(stored) is str:
        return stored
    _, descriptor = in_classes(type(thing), name)
    if type(descriptor) in DATA:
        try:
            descriptor = descriptor.__get__(thing, type(thing))
        except Exception:
            return ""
    return descriptor if type(descriptor) is str else ""


@functools.cache
def types_of_numpy() -> dict[str, type]:
    """Return the types of NumPy, which has been imported, that are treated in a way of their own."""
    numpy = sys.modules["numpy"]
    names = dict_of(numpy)
    return {
        **{name: names[name] for name in ("ndarray", "generic", "ufunc")},
        "dispatcher": type(names["sum"]),
    }


def type_of_numpy(name: str) -> type | None:
    is_imported = "ufunc" in vars(sys.modules.get("numpy", builtins))  # and not still being imported
    return types_of_numpy()[name] if is_imported else None


def is_array(thing: object) -> bool:
    return type(thing) is type_of_numpy("ndarray")


def is_number_of_numpy(thing: object) -> bool:
    cls = type(thing)
    is_made_in_c = not cls.__flags__ & HEAP_TYPE
    return is_made_in_c and type_of_numpy("generic") in mro_of(cls)


def is_function_in_c(value: object) -> bool:
    """Return whether a thing is a function of C, Cython or NumPy, or one of mpi4py's that is watched."""
    cls = type(value)
    if cls in FUNCTIONS_IN_C or name_of(cls) == "cython_function_or_method":
        return True
    return cls in (type_of_numpy("dispatcher"), type_of_numpy("ufunc")) or is_watched(value)


def is_watched(value: object) -> bool:
    """Return whether a thing is the function that mpiwatch has put in the place of one of mpi4py's."""
    if type(value) is not types.FunctionType or not value.__code__.co_filename.startswith(own_folders()):
        return False
    return type(value.__doc__) is str and SIGNATURE_LINE.match(value.__doc__) is not None


class Live(Thing):
    """An object. `owner` is the object or class that it was found in, if it is a method of that."""

    def __init__(self, value: Any, owner: Thing | None = None) -> None:
        self.value = value
        self.owner = owner

    @property
    def kind(self) -> str:  # type: ignore[override]
        return kind_of(self.value)

    @property
    def is_callable(self) -> bool:  # type: ignore[override]
        return kind_of(self.value) in ("function", "class")

    def names(self) -> dict[str, str]:
        value = self.value
        kinds = names_in_classes(value if is_class(value) else type(value))
        attributes = {} if is_class(value) or is_wrapped_comm(type(value)) else dict_of(value)
        if issubclass(type(value), types.ModuleType):
            public = attributes.get("__all__")
            names = public if type(public) is list else []
            kinds = {name: "instance" for name in names if type(name) is str}
        return kinds | {name: kind_of(thing) for name, thing in attributes.items()}

    def attribute(self, name: str) -> Thing | None:
        if is_class(self.value):
            return member_of(self.value, name, None)
        if issubclass(type(self.value), types.ModuleType):
            return self.attribute_of_module(name)
        attributes = dict_of(self.value)
        owner, raw = in_classes(type(self.value), name)
        if owner is not None and type(raw) in (*DATA, property):
            return self.value_from(raw) or member_of(type(self.value), name, self)
        return Live(attributes[name]) if name in attributes else member_of(type(self.value), name, self)

    def attribute_of_module(self, name: str) -> Thing | None:
        attributes = dict_of(self.value)
        inner = attributes.get(name, sys.modules.get(f"{attributes.get('__name__')}.{name}"))
        return Live(inner) if name in attributes or inner is not None else None

    def value_from(self, descriptor: Any) -> Thing | None:
        """Return the value of an attribute that C code computes: a slot, an array's shape; else None."""
        is_slot = type(descriptor) is types.MemberDescriptorType
        if not is_slot and not (is_array(self.value) or is_number_of_numpy(self.value)):
            return None
        try:
            return Live(descriptor.__get__(self.value, type(self.value)))
        except Exception:
            return None

    def item(self, key: object) -> Thing | None:
        value = self.value
        try:
            if type(value) in (list, tuple, str):
                index = key if type(key) is int else 0
                return Live(value[index])
            if type(value) is dict:
                for name, inner in list(dict.items(value))[:MOST_ITEMS]:
                    if key is None or (type(name) is type(key) and type(key) in PLAIN and name == key):
                        return Live(inner)
        except IndexError:
            return None
        return Live(value) if is_array(value) else None

    def keys(self) -> Iterable[str]:
        if type(self.value) is not dict:
            return ()
        return [key for key in list(dict.keys(self.value))[:MOST_ITEMS] if type(key) is str]

    @property
    def signature(self) -> str:  # type: ignore[override]
        return signature_of(self.value, is_bound=self.owner is not None)

    def instance(self) -> Thing | None:
        if self.value is None:
            return None
        return InstanceOf(self.value) if is_class(self.value) else None

    def result(self) -> Thing | None:
        value = self.value
        if is_class(value):
            return InstanceOf(value)
        function = function_of(value)
        if function is not None:
            return result_of(function, self.owner)
        return result_in_c(value, self.owner)

    def page(self) -> Page:
        return page_of(self.value, is_bound=self.owner is not None)


class InstanceOf(Thing):
    """Some object of a class that is in this process."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def names(self) -> dict[str, str]:
        return names_in_classes(self.cls) | dict.fromkeys(self.stored(), "instance")

    def attribute(self, name: str) -> Thing | None:
        thing = member_of(self.cls, name, self)
        return Thing() if thing is None and name in self.stored() else thing

    def stored(self) -> set[str]:
        """Return the names of attributes that its `__init__` assigns."""
        _, init = in_classes(self.cls, "__init__")
        function = function_of(init)
        return set(function.__code__.co_names) if function is not None else set()

    def item(self, key: object) -> Thing | None:
        return self if self.cls is type_of_numpy("ndarray") else None

    def page(self) -> Page:
        return Page(name_of(self.cls), "", documentation_of(self.cls))


class Described(Thing):
    """A property, or another attribute that only code of its class could compute."""

    kind = "property"

    def __init__(self, raw: Any, owner: Thing | None) -> None:
        self.raw = raw
        self.owner = owner

    def value(self) -> Thing | None:
        """Return what is known of its value."""
        getter = self.raw.fget if type(self.raw) is property else dict_of(self.raw).get("func")
        function = function_of(getter)
        if function is not None:
            return result_of(function, self.owner)
        match = re.match(r"\w+: (\w+)", documentation_of(self.raw))
        return result_named(match[1], self.owner) if match else None

    def names(self) -> dict[str, str]:
        value = self.value()
        return value.names() if value is not None else {}

    def attribute(self, name: str) -> Thing | None:
        value = self.value()
        return value.attribute(name) if value is not None else None

    def page(self) -> Page:
        getter = function_of(self.raw.fget) if type(self.raw) is property else None
        source = source_of(getter) if getter is not None else ""
        return Page("property", "", documentation_of(self.raw), source=source)


def member_of(cls: type, name: str, owner: Thing | None) -> Thing | None:
    """Return an attribute that a class has, for itself or for `owner`, an object of it."""
    owning_class, raw = in_classes(cls, name)
    if owning_class is None:
        return None
    if is_wrapped_comm(cls):
        raw = beyond_wrappers(cls, name, raw)
    member: Thing = Live(raw)
    if type(raw) is staticmethod:
        member = Live(raw.__func__)
    elif type(raw) is classmethod:
        member = Live(raw.__func__, owner or InstanceOf(cls))
    elif function_of(raw) is not None or is_function_in_c(raw):
        member = Live(raw, owner)
    elif type(raw) in (*DATA, property, functools.cached_property):
        member = Described(raw, owner) if owner is not None else member
    elif in_classes(type(raw), "__get__")[0] is not None and not is_class(raw):
        member = Described(raw, owner)  # a descriptor of a kind that only its own code knows
    return member


def names_in_classes(cls: type) -> dict[str, str]:
    """Return the names that a class and its bases define, without those of the lab's wrappers of mpi4py."""
    is_comm = is_wrapped_comm(cls)
    kinds: dict[str, str] = {}
    for base in reversed(mro_of(cls)):
        if is_comm and module_of(base).partition(".")[0] in WRAPPERS:
            continue
        for name, raw in dict(dict_of_class(base)).items():
            if type(name) is str:
                kinds[name] = kind_of(raw)
    return kinds


def is_wrapped_comm(cls: type) -> bool:
    """Return whether a class is one of the lab's around one of mpi4py's."""
    modules = [module_of(base).partition(".")[0] for base in mro_of(cls)]
    return modules[0] in WRAPPERS and "mpi4py" in modules


def class_of_mpi4py(cls: type) -> type:
    """Return mpi4py's own class that a class of the lab's wraps: the last with the name of the first."""
    classes = [base for base in mro_of(cls) if module_of(base).startswith("mpi4py")]
    return [base for base in classes if name_of(base) == name_of(classes[0])][-1]


def beyond_wrappers(cls: type, name: str, otherwise: Any) -> Any:
    """Return an attribute as mpi4py's own class has it; `otherwise` if it has none."""
    for base in mro_of(cls):
        if module_of(base).partition(".")[0] not in WRAPPERS and name in dict_of_class(base):
            return dict_of_class(base)[name]
    return otherwise


def kind_of(value: object) -> str:
    """Return what JupyterLab calls a thing of this kind."""
    if is_class(value):
        return "class"
    if issubclass(type(value), types.ModuleType):
        return "module"
    if type(value) is property or type(value) in DATA or type(value) is functools.cached_property:
        return "property"
    is_function = function_of(value) is not None or is_function_in_c(value)
    if is_function or type(value) in (classmethod, staticmethod, functools.partial):
        return "function"
    return "instance"


def function_of(value: object) -> types.FunctionType | None:
    """Return the Python function behind a function, a method or a decorated function; None if it is none."""
    candidate: Any = value
    for _ in range(10):
        if type(candidate) in (types.MethodType, staticmethod, classmethod):
            candidate = candidate.__func__
        elif type(candidate) is not types.FunctionType or is_watched(candidate):
            return None
        else:
            inner = dict_of(candidate).get("__wrapped__")
            if type(inner) is not types.FunctionType:
                return candidate
            candidate = inner
    return None


def source_of(function: types.FunctionType) -> str:
    """Return the text of a function, as its file or cell has it; empty if that is not known."""
    code = function.__code__
    lines = linecache.getlines(code.co_filename)
    if not 0 < code.co_firstlineno <= len(lines):
        return ""
    return "".join(inspect.getblock(lines[code.co_firstlineno - 1 :]))


def definition_of(function: types.FunctionType) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """Return the `def` of a function, None if its text is not known, or if it is a lambda."""
    try:
        node = _definition(source_of(function))
    except (SyntaxError, ValueError, IndexError, RecursionError):
        return None
    return node if node is not None and node.name == function.__name__ else None


@functools.lru_cache(maxsize=500)
def _definition(source: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    body = ast.parse(textwrap.dedent(source)).body
    first = body[0] if body else None
    return first if isinstance(first, ast.FunctionDef | ast.AsyncFunctionDef) else None


def signature_of(value: Any, *, is_bound: bool) -> str:
    """Return how a function or class is called, without `self` if it is bound; empty if that is not known."""
    if is_class(value):
        return signature_of_class(value)
    is_bound = is_bound or type(value) in (types.MethodType, classmethod)
    function = function_of(value)
    if function is None:
        return signature_in_c(value, is_bound=is_bound)
    node = definition_of(function)
    if node is not None:
        return syntax.signature_of(node, is_bound=is_bound)
    return signature_of_code(function, is_bound=is_bound)


def signature_of_code(function: types.FunctionType, *, is_bound: bool) -> str:
    """Return a function's parameters from its code, if its text is not known."""
    code = function.__code__
    names = list(code.co_varnames)
    positional = names[: code.co_argcount]
    keywords = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    rest = names[code.co_argcount + code.co_kwonlyargcount :]
    defaults = function.__defaults__ or ()
    parts = []
    for number, name in enumerate(positional):
        place = number - (len(positional) - len(defaults))
        parts.append(f"{name}={brief(defaults[place])}" if place >= 0 else name)
    if code.co_flags & inspect.CO_VARARGS:
        parts.append(f"*{rest.pop(0)}")
    elif keywords:
        parts.append("*")
    keyword_defaults = function.__kwdefaults__ or {}
    parts += [
        f"{name}={brief(keyword_defaults[name])}" if name in keyword_defaults else name for name in keywords
    ]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        parts.append(f"**{rest.pop(0)}")
    return f"({', '.join(parts[1:] if is_bound else parts)})"


def signature_of_class(cls: type) -> str:
    for name in "__init__", "__new__":
        _, raw = in_classes(cls, name)
        function = function_of(raw)
        if function is not None:
            return signature_of(function, is_bound=True).partition(" -> ")[0]
    match = SIGNATURE_LINE.match(documentation_of(cls))
    if match:
        return match[1]
    return text_of(cls, "__text_signature__") if module_of(cls) == "builtins" else ""


def signature_in_c(value: Any, *, is_bound: bool) -> str:
    """Return the signature of a function of C or Cython, from its documentation."""
    if not is_function_in_c(value) and type(value) not in DATA:
        return ""
    inner = function_of(dict_of(value).get("__wrapped__") or text_free(value, "__wrapped__"))
    if inner is not None:
        return signature_of(inner, is_bound=is_bound)
    match = SIGNATURE_LINE.match(text_of(value, "__doc__").lstrip())
    text = (
        match[1]
        if match
        else text_of(value, "__text_signature__").replace("$module, /, ", "").replace("$", "")
    )
    text = text.replace("(module, ", "(").replace("(module)", "()")
    if is_bound:
        text = re.sub(r"\((?:self|cls)(?:, /)?(?:, )?", "(", text, count=1)
    return text


def text_free(value: Any, name: str) -> Any:
    """Return what C code has stored with a function by a name, None without."""
    _, descriptor = in_classes(type(value), name)
    return descriptor.__get__(value, type(value)) if type(descriptor) in DATA else None


def documentation_of(value: Any) -> str:
    """Return a docstring without the signature that C code writes above it."""
    if is_class(value):
        docstring = dict_of_class(value).get("__doc__")
        text = docstring if type(docstring) is str else ""
        return inspect.cleandoc(text)
    function = function_of(value)
    if function is not None:
        return inspect.cleandoc(function.__doc__ or "") if type(function.__doc__) in PLAIN else ""
    if type(value) is property and type(value.__doc__) is str:
        return inspect.cleandoc(value.__doc__)
    text = inspect.cleandoc(text_of(value, "__doc__"))
    if is_function_in_c(value):
        match = SIGNATURE_LINE.match(text)
        text = text[match.end() :].lstrip("\n") if match else text
    return text


def result_of(function: types.FunctionType, owner: Thing | None) -> Thing | None:
    """Return what is known of the result of a Python function: from its annotation, or of NumPy's."""
    module = dict_of(function).get("__module__") or text_free(function, "__module__")
    if type(module) is str and module.partition(".")[0] == "numpy":
        return array_from(function.__name__)
    node = definition_of(function)
    names = function.__globals__

    def value_of(name: ast.expr) -> Thing | None:
        if isinstance(name, ast.Attribute):
            inner = value_of(name.value)
            return inner.attribute(name.attr) if inner is not None else None
        known = {**dict_of(builtins), **names}
        return Live(known[name.id]) if isinstance(name, ast.Name) and name.id in known else None

    return syntax.annotated(node.returns, value_of, owner) if node is not None else None


def result_in_c(value: Any, owner: Thing | None) -> Thing | None:
    """Return what is known of the result of a function of C or Cython."""
    name = text_of(value, "__name__")
    if value is dict_of(builtins).get(name):
        return InstanceOf(RESULTS[name]) if name in RESULTS else None
    match = re.search(r" -> (\w+)", signature_in_c(value, is_bound=False))
    if match:
        return result_named(match[1], owner)
    is_of_array = isinstance(owner, Live | InstanceOf) and is_numpys(owner)
    module = value.__module__ if is_function_in_c(value) else ""  # computed by C code
    if is_of_array or str(module).partition(".")[0] == "numpy":
        return array_from(name)
    return None


def is_numpys(thing: Thing) -> bool:
    cls = thing.cls if isinstance(thing, InstanceOf) else type(getattr(thing, "value", None))
    return module_of(cls).partition(".")[0] == "numpy"


def array_from(function: str) -> Thing | None:
    """Return what a function of NumPy's with this name returns: mostly an array."""
    if function == "default_rng":
        return InstanceOf(dict_of(sys.modules["numpy.random"])["Generator"])
    return None if function in NOT_ARRAYS else InstanceOf(types_of_numpy()["ndarray"])


def result_named(name: str, owner: Thing | None) -> Thing | None:
    """Return an object of mpi4py's or Python's class with this name."""
    if name == "Self":
        return owner
    mpi = sys.modules.get("mpi4py.MPI")
    for module in filter(None, (mpi, builtins)):
        cls = dict_of(module).get(name)
        if cls is not None and is_class(cls):
            return InstanceOf(cls)
    return None


def brief(value: object) -> str:
    """Return a value as text if its class has no code of its own for that, else its class."""
    if type(value) in PLAIN:
        return shortened(repr(value))
    if type(value) in (list, tuple) and all(type(part) in PLAIN for part in value[:100]):  # type: ignore[index]
        return shortened(repr(value[:100]))  # type: ignore[index]
    if is_class(value):
        return name_of(value)  # type: ignore[arg-type]
    function = function_of(value)
    return function.__name__ if function is not None else f"<{name_of(type(value))}>"


def shortened(text: str) -> str:
    return text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]} …"


def details_of(value: Any) -> tuple[tuple[str, str], ...]:
    """Return what help says of a value: a number's value, an array's shape, a list's length."""
    if is_array(value):
        rows = [("Shape", str(value.shape)), ("Dtype", text_of(value.dtype, "name") or str(value.dtype))]
        if value.size <= 8 and value.dtype.kind in "biufc" and has_memory_of_numpy(value):
            rows.append(("Value", str(value.tolist())))
        return tuple(rows)
    if type(value) in PLAIN:
        return (("Value", shortened(repr(value[:1000]) if type(value) in (str, bytes) else repr(value))),)
    if type(value) in (list, tuple, dict, set):
        return (("Length", str(len(value))),)
    return ()


def has_memory_of_numpy(array: Any) -> bool:
    """Return whether NumPy holds the memory of an array: another's, such as a freed window's, may be gone."""
    while is_array(array.base):
        array = array.base
    return array.base is None and bool(array.flags.owndata)


def page_of(value: Any, *, is_bound: bool) -> Page:
    """Return the help of an object."""
    function = function_of(value)
    type_name = name_of(type(value))
    file = ""
    if issubclass(type(value), types.ModuleType):
        module_file = dict_of(value).get("__file__")
        file = module_file if type(module_file) is str else ""
        return Page("module", "", documentation_of(value), file=file)
    if is_class(value):
        return Page("type", signature_of_class(value), documentation_of(value), source=source_of_class(value))
    if function is not None:
        code = function.__code__
        is_cell = not code.co_filename.endswith(".py") or "ipykernel_" in code.co_filename
        file = "" if is_cell else code.co_filename
        source = source_of(function)
        type_name = "method" if is_bound or type(value) is types.MethodType else "function"
        signature = signature_of(value, is_bound=is_bound)
        return Page(type_name, signature, documentation_of(value), source=source, file=file)
    if kind_of(value) in ("function", "property"):
        return Page(type_name, signature_of(value, is_bound=is_bound), documentation_of(value))
    details = details_of(value)
    documentation = "" if details else documentation_of(value) or documentation_of(type(value))
    if is_wrapped_comm(type(value)):
        cls = class_of_mpi4py(type(value))
        type_name, documentation = name_of(cls), documentation_of(cls)
    return Page(type_name, "", documentation, details)


def source_of_class(cls: type) -> str:
    """Return the text of a class, which is in the file or cell of one of its methods; else nothing."""
    for raw in list(dict_of_class(cls).values()):
        function = function_of(raw)
        if function is None or not function.__qualname__.startswith(f"{name_of(cls)}."):
            continue
        lines = linecache.getlines(function.__code__.co_filename)
        pattern = re.compile(rf"\s*class {re.escape(name_of(cls).rpartition('.')[2])}\b")
        starts = [number for number, line in enumerate(lines) if pattern.match(line)]
        first = function.__code__.co_firstlineno
        start = max((number for number in starts if number < first), default=None)
        if start is not None:
            return "".join(inspect.getblock(lines[start:]))
    return ""
