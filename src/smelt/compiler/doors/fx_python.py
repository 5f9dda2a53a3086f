"""Python's scalars and containers (`py.*`) as nodes of `torch.fx`: calls of builtins and `operator`, none of Smelt's.

Invariant: a container is never changed in place but where it was copied just before.
"""

from __future__ import annotations

import builtins
import copy
import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

from torch.fx import Graph, Node

from smelt._torch.library.fx import assert_that
from smelt.ir.python_operators import BINARY, COMPARISONS, UNARY
from smelt.ops.python.python_calls import FUNCTIONS
from smelt.ops.python.python_ops import BUILTIN_NAMES

_AS_LISTS = ("builtins.range", "builtins.zip", "builtins.enumerate", "builtins.reversed", "dict.keys", "dict.values",
             "dict.items")  # fmt: skip
_CONVERSIONS = {"r": repr, "s": str, "a": ascii}
_DIRECT: Mapping[str, Callable[..., Any]] = {
    **{f"py.{o.name}": o.function for o in (*BINARY, *COMPARISONS, *UNARY)},
    "py.abs": operator.abs,
    "py.not_": operator.not_,
    "py.getitem": operator.getitem,
    **{f"py.{name}": getattr(builtins, name) for name in (*BUILTIN_NAMES, "getattr")},
    "py.concat": operator.add,
}
Emit = Callable[..., Any]


def emit_python(graph: Graph, op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any] | None:
    """The results of an operator, its nodes appended to the graph; None where only Smelt can do it."""
    if op == "py.round" and args and isinstance(args[0], Node):  # `round` asks for the class of what it is given
        return [graph.call_method("__round__", tuple(args))]
    direct = _DIRECT.get(op)
    if direct is not None:
        return [graph.call_function(direct, tuple(args))]
    special = _SPECIAL.get(op)
    return None if special is None else special(partial(emit_call, graph), list(args), dict(kwargs))


def emit_call(graph: Graph, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> Any:
    """A call of a function, or of a method of a class of Python's, which no module has under a name."""
    if isinstance(target, MethodDescriptorType | WrapperDescriptorType):
        return graph.call_method(target.__name__, tuple(args), dict(kwargs or {}))
    return graph.call_function(target, tuple(args), dict(kwargs or {}))


def _is_none(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return [call(operator.is_, (args[0], None))]


def _in(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return [call(operator.contains, (args[1], args[0]))]


def _slice(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return [call(operator.getitem, (args[0], slice(*[*args[1:], None, None, None][:3])))]


def _list(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return [call(list, (args,))]


def _tuple(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return [call(tuple, (args,))]


def _dict(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return [call(dict, ([[key, value] for key, value in zip(args[::2], args[1::2], strict=True)],))]


def _append(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return [call(operator.add, (args[0], [args[1]]))]


def _changed(change: Any) -> Callable[[Emit, list[Any], dict[str, Any]], list[Any]]:
    def emit(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
        made = call(copy.copy, (args[0],))
        call(change, (made, *args[1:]))
        return [made]

    return emit


def _insert(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    made = call(copy.copy, (args[0],))
    call(list.insert, (made, args[1], args[2]))
    return [made]


def _format(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    value, spec, conversion = [*args, "", ""][:3] if len(args) < 3 else args
    if conversion:
        value = call(_CONVERSIONS[conversion.lstrip("!")], (value,))
    return [call(format, (value, spec or ""))]


def _join(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return [call(str.join, ("", args))]


def _call(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any] | None:
    name = args[0]
    if name not in FUNCTIONS:
        return None
    if name == "list.sorted_by":
        return [_sorted_by(call, *args[1:], **kwargs)]
    if name == "list.remove":
        return _changed(list.remove)(call, args[1:], kwargs)
    if name not in _AS_LISTS:
        is_own = str(getattr(FUNCTIONS[name], "__module__", "")).startswith("smelt.")
        return None if is_own else [call(FUNCTIONS[name], tuple(args[1:]), kwargs)]
    owner, _, method = name.partition(".")
    function = getattr(builtins, method) if owner == "builtins" else getattr(dict, method)
    return [call(list, (call(function, tuple(args[1:]), kwargs),))]


def _sorted_by(call: Emit, values: Any, keys: Any, reverse: Any = False) -> Any:
    places = call(range, (call(len, (values,)),))
    order = call(sorted, (places,), {"key": call(getattr, (keys, "__getitem__")), "reverse": reverse})
    return call(list, (call(map, (call(getattr, (values, "__getitem__")), order)),))


def _draw(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    module, _, name = str(args[0]).rpartition(".")
    return [call(getattr(importlib.import_module(module), name), tuple(args[1:]), kwargs)]


def _print(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any] | None:
    if kwargs.get("stream", "stdout") != "stdout":
        return None
    call(print, tuple(args), {k: v for k, v in kwargs.items() if k != "stream"})
    return []


def _warn(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    return []  # no part of what is computed


def _assert(call: Emit, args: list[Any], kwargs: dict[str, Any]) -> list[Any]:
    call(assert_that, (args[0], args[1] if len(args) > 1 else ""))
    return []


_SPECIAL: Mapping[str, Callable[[Emit, list[Any], dict[str, Any]], list[Any] | None]] = {
    "py.is_none": _is_none, "py.in_": _in, "py.slice": _slice, "py.list": _list, "py.tuple": _tuple, "py.dict": _dict,
    "py.append": _append, "py.setitem": _changed(operator.setitem), "py.delitem": _changed(operator.delitem),
    "py.insert": _insert, "py.format": _format, "py.join": _join, "py.call": _call, "py.print": _print,
    "py.draw": _draw, "py.assert": _assert, "py.warn": _warn,
}  # fmt: skip
