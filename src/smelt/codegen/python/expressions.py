"""The operators `py.*` as Python: each one expression or statement, as a person would write it.

What has no expression of its own (a container with one element otherwise) calls a small helper of the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent

from smelt.ir import Arg, Node
from smelt.ir.python_operators import BINARY, COMPARISONS, UNARY
from smelt.ops.python.python_ops import BUILTIN_NAMES

ArgText = Callable[[Arg], str]


@dataclass(frozen=True)
class Called:
    """A call of an operator that is no node of its own: what `py.attempt` and `py.raised` try."""

    op: str
    args: tuple[Arg, ...]
    kwargs: Mapping[str, Arg]


Call = Node | Called
ATTEMPTS = ("py.attempt", "py.raised")

_INFIX = {**{o.name: o.symbol for o in (*BINARY, *COMPARISONS)}, "concat": "+", "in_": "in"}
_PREFIX = {**{o.name: o.symbol for o in UNARY}, "not_": "not "}
_AS_LISTS = (
    "builtins.range", "builtins.zip", "builtins.enumerate", "builtins.reversed", "dict.keys", "dict.values",
    "dict.items",
)  # fmt: skip
_MODULES = ("math", "cmath", "operator")

_HELPERS = {
    "py.setitem": ("with_item", """
        def with_item(container, index, value):
            container = container.copy()
            container[index] = value
            return container
        """),
    "py.delitem": ("without_item", """
        def without_item(container, index):
            container = container.copy()
            del container[index]
            return container
        """),
    "py.insert": ("with_inserted", """
        def with_inserted(items, index, value):
            items = items.copy()
            items.insert(index, value)
            return items
        """),
    "py.pop": ("popped", """
        def popped(container, index=-1):
            container = container.copy()
            return container, container.pop(index)
        """),
    "list.sorted_by": ("sorted_by", """
        def sorted_by(values, keys, reverse=False):
            order = sorted(range(len(values)), key=keys.__getitem__, reverse=reverse)
            return [values[i] for i in order]
        """),
    "list.remove": ("without", """
        def without(items, value):
            items = items.copy()
            items.remove(value)
            return items
        """),
    "torch.int": ("as_int", """
        def as_int(value):
            if type(value) is bool:
                raise TypeError("must be int, not bool")
            return value.__index__()
        """),
    "dtype": ("limits", """
        def limits(dtype):
            return torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
        """),
    "enum.member": ("member", """
        def member(cls, name):
            module, _, owner = cls.partition(".")
            found = importlib.import_module(module)
            for part in owner.split("."):
                if not hasattr(found, part):
                    importlib.import_module(f"{found.__name__}.{part}")
                found = getattr(found, part)
            return found[name]
        """),
    "py.warn": ("warned", """
        def warned(category, file, line, module, *args):
            owner, _, name = category.rpartition(".")
            category = getattr(importlib.import_module(owner), name)
            registry = vars(sys.modules.get(module, warnings)).setdefault("__warningregistry__", {})
            warnings.warn_explicit(category(*args), category, file, line, module, registry)
        """),
    "py.attempt": ("attempt", """
        def attempt(run, source=None):
            try:
                run()
            except Exception as error:
                name = f"{type(error).__module__}.{type(error).__qualname__}"
                if source is None or not isinstance(error, IndexError):
                    return [name, str(error.args[0]) if error.args else ""]
                x, dim, index, indexed = source
                if x.dim():
                    size = x.shape[dim]
                    dim = indexed + dim % x.dim()
                    return [name, f"index {index} is out of bounds for dimension {dim} with size {size}"]
                if indexed:
                    return [name, f"too many indices for tensor of dimension {indexed}"]
                use = "Use `tensor.item()` in Python or `tensor.item<T>()` in C++ to convert a 0-dim tensor to a number"
                return [name, f"invalid index of a 0-dim tensor. {use}"]
            return []
        """),
    "py.raise": ("exception", """
        def exception(name):
            module, _, owner = name.partition(".")
            found = importlib.import_module(module)
            for part in owner.split("."):
                if not hasattr(found, part):
                    importlib.import_module(f"{found.__name__}.{part}")
                found = getattr(found, part)
            return found

        def rebuilt(cls, args, fields):
            base = next(b for b in cls.__mro__ if b.__module__ == "builtins")
            error = base.__new__(cls, *args)
            base.__init__(error, *args)
            error.__dict__.update(fields)
            return error
        """),
}  # fmt: skip


def calls(nodes: Iterable[Node]) -> Iterator[Call]:
    """The nodes, each that tries an operator followed by the call of it."""
    for node in nodes:
        yield node
        if node.op in ATTEMPTS:
            yield tried(node)


def tried(node: Call) -> Called:
    """The call that `py.attempt` or `py.raised` tries."""
    return Called(str(node.args[0]), node.args[1:], {k: v for k, v in node.kwargs.items() if k != "indexed"})


def modules(nodes: Iterable[Call]) -> list[str]:
    """The modules of Python that the operators call."""
    found: set[str] = set()
    for node in nodes:
        name = node.args[0] if node.op in ("py.call", "py.draw") else ""
        if node.op == "py.draw":
            found.add(str(name).rpartition(".")[0])
        elif isinstance(name, str) and name.partition(".")[0] in _MODULES:
            found.add(name.partition(".")[0])
        if node.op == "py.print" and "stream" in node.kwargs:
            found.add("sys")
        if node.op == "py.warn":
            found.update(("importlib", "sys", "warnings"))
        if _helper(node) in ("py.raise", "enum.member"):
            found.add("importlib")
    return sorted(found)


def helpers(nodes: Iterable[Call]) -> dict[str, str]:
    """The helper functions that the operators call, by name."""
    needed = (_HELPERS[key] for key in map(_helper, nodes) if key is not None)
    return {name: dedent(text).strip() for name, text in needed}


def _helper(node: Call) -> str | None:
    """The key of the helper that a node calls."""
    if node.op == "py.raise":
        names = [name for name in (node.args[0], node.kwargs.get("cause")) if name is not None]
        return node.op if "fields" in node.kwargs or not all(map(_is_builtin, names)) else None
    if node.op in ATTEMPTS:
        return "py.attempt"
    key = str(node.args[0]) if node.op == "py.call" else node.op
    if key.startswith("dtype."):
        key = "dtype"
    return key if key in _HELPERS else None


def expression(node: Call, text: ArgText) -> str:
    """A call of an operator; `text` writes an argument."""
    if node.op.startswith("py."):
        return _python(node, text)
    return f"{node.op}({', '.join([*map(text, node.args), *(f'{k}={text(v)}' for k, v in node.kwargs.items())])})"


def _attempt(node: Call, text: ArgText) -> str:
    call, place = tried(node), ""
    if "indexed" in node.kwargs:
        place = f", ({', '.join(map(text, (*call.args[:3], node.kwargs['indexed'])))})"
    made = f"attempt(lambda: {expression(call, text)}{place})"
    return made if node.op == "py.attempt" else f"': '.join({made})"


def _python(node: Call, text: ArgText) -> str:
    name = node.op.removeprefix("py.")
    if node.op in ATTEMPTS:
        return _attempt(node, text)
    args = [_atom(text(a)) for a in node.args]
    plain = [text(a) for a in node.args]
    if name in _INFIX:
        return f"{args[0]} {_INFIX[name]} {args[1]}"
    if name in _PREFIX:
        return f"{_PREFIX[name]}{args[0]}"
    if name in BUILTIN_NAMES:
        return f"{name}({', '.join(plain)})"
    if node.op in _HELPERS and name != "raise":
        return f"{_HELPERS[node.op][0]}({', '.join(plain)})"
    match name:
        case "is_none":
            return f"{args[0]} is None"
        case "getattr":
            return f"{args[0]}.{node.args[1]}"
        case "list":
            return f"[{', '.join(plain)}]"
        case "tuple":
            return f"({', '.join(plain)}{',' if len(plain) == 1 else ''})"
        case "dict":
            return "{" + ", ".join(f"{k}: {v}" for k, v in zip(plain[::2], plain[1::2], strict=True)) + "}"
        case "append":
            return f"[*{args[0]}, {plain[1]}]"
        case "getitem":
            return f"{args[0]}[{plain[1]}]"
        case "slice":
            bounds = ["" if p == "None" else p for p in (*plain[1:], "None", "None")[:2]]
            return f"{args[0]}[{':'.join([*bounds, *plain[3:]])}]"
        case "join":
            return f"''.join([{', '.join(plain)}])"
        case "format":
            return _format(node, plain)
        case "call" | "draw":
            return _call(node, plain[1:], text)
        case "print":
            return _print(node, plain, text)
        case "raise":
            return _raise(node, plain[1:], text)
        case "assert":
            return f"assert {', '.join(args)}"
    raise ValueError(f"{node.op} has no form in Python")


def _atom(text: str) -> str:
    """Negative numbers in parentheses, so that no operator takes them apart."""
    return f"({text})" if text.startswith("-") else text


def _format(node: Call, plain: list[str]) -> str:
    convert = {"s": "str", "r": "repr", "a": "ascii"}.get(str(node.args[2]), "") if len(node.args) > 2 else ""
    value = f"{convert}({plain[0]})" if convert else plain[0]
    return f"format({', '.join([value, *plain[1:2]])})"


def _call(node: Call, rest: list[str], text: ArgText) -> str:
    name = str(node.args[0])
    inner = ", ".join([*rest, *(f"{k}={text(v)}" for k, v in node.kwargs.items())])
    if name.startswith("dtype."):
        return f"limits({inner}).{name.removeprefix('dtype.')}"
    if name.startswith("Tensor."):
        name = f"torch.{name}"
    call = f"{_HELPERS[name][0] if name in _HELPERS else name.removeprefix('builtins.')}({inner})"
    return f"list({call})" if name in _AS_LISTS else call


def _print(node: Call, plain: list[str], text: ArgText) -> str:
    named = [f"{k}={text(v)}" for k, v in node.kwargs.items() if k != "stream"]
    if "stream" in node.kwargs:
        named.append(f"file=sys.{node.kwargs['stream']}")
    return f"print({', '.join([*plain, *named])})"


def _raise(node: Call, plain: list[str], text: ArgText) -> str:
    cause, given = node.kwargs.get("cause"), node.kwargs.get("cause_args", ())
    said = f"raise {_rebuilt(node.args[0], plain, node.kwargs.get('fields'))}"
    if cause is None:
        return said
    if cause == "None":
        return f"{said} from None"
    inner = list(map(text, given)) if isinstance(given, tuple) else [f"*{text(given)}"]
    return f"{said} from {_rebuilt(cause, inner, None if _is_builtin(cause) else '')}"


def _rebuilt(name: Arg, plain: Sequence[str], fields: Arg) -> str:
    """An exception of a class. fields: names of attributes, the last values; then no constructor runs again."""
    if fields is None:
        return f"{_exception(name)}({', '.join(plain)})"
    names = str(fields).split()
    count = len(plain) - len(names)
    held = ", ".join(f"{field!r}: {value}" for field, value in zip(names, plain[count:], strict=True))
    return f"rebuilt({_exception(name)}, ({''.join(f'{arg}, ' for arg in plain[:count]).strip()}), {{{held}}})"


def _is_builtin(name: Arg) -> bool:
    return name == "None" or (isinstance(name, str) and name.startswith("builtins.") and name.count(".") == 1)


def _exception(name: Arg) -> str:
    return str(name).removeprefix("builtins.") if _is_builtin(name) else f"exception({str(name)!r})"
