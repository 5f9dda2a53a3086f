"""The graph's text. What is printed here is read back by `smelt.ir.parser`: parse(str(g)) == g.

    graph f1(%x: f32[8, 16], %y: f32[16, 4]) -> f32[16, 4] {
      %0: f32[8, 16] = aten.sin.default(%x)  @ "model.py":3 in f1
      return %0
    }

After the operation stand, in this order and each only where there is one: the mode in square brackets, `@` and the
source line, `of` and the module path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from smelt.diag import Span
from smelt.ir.dtypes import DType
from smelt.ir.nodes import Arg, Device, Layout, MemoryFormat, Node, Region, Value

if TYPE_CHECKING:
    from smelt.ir.graph import Graph

# What may stand unquoted after `in` and `of`: dotted Python names, `<locals>`, `<lambda>`, indices.
_PLAIN = re.compile(r"[A-Za-z_<][A-Za-z0-9_<>]*(\.[A-Za-z0-9_<>]+)*\Z")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_VALUE_NAME = re.compile(r"[A-Za-z0-9_.]+\Z")
_INDENT = "  "
_LITERAL_TYPES = {"DType": "dtype", "Device": "device", "Layout": "layout", "MemoryFormat": "memory_format"}


def print_graph(graph: Graph) -> str:
    """The graph as text."""
    params = ", ".join(_typed(p) for p in graph.body.params)
    lines = [f"graph {name_text(graph.name)}({params}) -> {returns_text(graph.outputs)} {{"]
    _print_body(graph.body, lines, 1)
    lines.append(_INDENT + _join("return", ", ".join(arg_text(a) for a in graph.outputs)))
    lines.append("}")
    return "\n".join(lines)


def returns_text(outputs: Sequence[Arg]) -> str:
    """The types of what a graph returns, as its header lists them."""
    return ", ".join(map(_type_of_arg, outputs)) or "()"


def print_node(node: Node) -> str:
    """One node as text, its regions included."""
    lines: list[str] = []
    _print_node(node, lines, 0)
    return "\n".join(lines)


def name_text(name: str) -> str:
    """A dotted name as it stands in the text: plain where it can be, quoted where it must be."""
    return name if _PLAIN.match(name) else json.dumps(name)


def value_text(value: Value) -> str:
    """`%name`, quoted where the name holds characters that a token may not."""
    return f"%{value.name}" if _VALUE_NAME.match(value.name) else f"%{json.dumps(value.name)}"


def arg_text(arg: Arg) -> str:
    """An argument: a value, a literal, or a list of these."""
    match arg:
        case Value():
            return value_text(arg)
        case tuple():
            return "[" + ", ".join(map(arg_text, arg)) + "]"
        case str():
            return json.dumps(arg)
        case DType():
            return arg.label
        case Device():
            return f"device({json.dumps(arg.name)})"
        case Layout():
            return f"layout({arg.name})"
        case MemoryFormat():
            return f"memory_format({arg.name})"
        case complex():
            return f"complex({arg.real!r}, {arg.imag!r})"
        case bool() | int() | float() | None:
            return repr(arg)
    raise TypeError(f"{arg!r} cannot stand in a graph")


def _join(*parts: str) -> str:
    return " ".join(p for p in parts if p)


def _typed(value: Value) -> str:
    return f"{value_text(value)}: {value.type}"


def _type_of_arg(arg: Arg) -> str:
    if isinstance(arg, Value):
        return str(arg.type)
    if isinstance(arg, tuple):
        return "[" + ", ".join(map(_type_of_arg, arg)) + "]"
    return "none" if arg is None else _LITERAL_TYPES.get(type(arg).__name__, type(arg).__name__)


def span_text(span: Span) -> str:
    """`@ "file":line in function`."""
    text = f"@ {json.dumps(span.file)}:{span.line}"
    return f"{text} in {name_text(span.function)}" if span.function else text


def _suffix(node: Node) -> str:
    parts = []
    if node.mode:
        parts.append(f"[{json.dumps(node.mode)}]")
    if node.span is not None:
        parts.append(span_text(node.span))
    if node.scope:
        parts.append(f"of {name_text(node.scope)}")
    return "  " + " ".join(parts) if parts else ""


def _call(node: Node) -> str:
    parts = [arg_text(a) for a in node.args]
    parts += [f"{_key(k)}={arg_text(v)}" for k, v in node.kwargs.items()]
    return f"{name_text(node.op)}({', '.join(parts)})"


def _key(name: str) -> str:
    return name if _IDENTIFIER.match(name) else json.dumps(name)


def _print_body(region: Region, lines: list[str], depth: int) -> None:
    for node in region:
        _print_node(node, lines, depth)


def _yield(region: Region, lines: list[str], depth: int) -> None:
    lines.append(_INDENT * depth + _join("yield", ", ".join(map(arg_text, region.yields))))


def _inits(region: Region, inits: tuple[Arg, ...], skip: int = 0) -> str:
    pairs = zip(region.params[skip:], inits, strict=True)
    return ", ".join(f"{_typed(p)} = {arg_text(a)}" for p, a in pairs)


def _print_node(node: Node, lines: list[str], depth: int) -> None:
    pad = _INDENT * depth
    head = ", ".join(_typed(r) for r in node.results)
    head = f"{pad}{head} = " if head else pad
    match node.op, node.regions:
        case "if", [then, other] if len(node.args) == 1 and not node.kwargs:
            lines.append(f"{head}if {arg_text(node.args[0])} {{")
            _print_region(then, lines, depth)
            lines.append(f"{pad}}} else {{")
            _print_region(other, lines, depth)
        case "for", [body] if len(node.args) == 2 + len(body.params) and body.params and not node.kwargs:
            bounds = ", ".join(arg_text(a) for a in node.args[:3])
            carried = _inits(body, node.args[3:], skip=1)
            lines.append(_join(f"{head}for {_typed(body.params[0])} in ({bounds})", f"with ({carried}) {{"))
            _print_region(body, lines, depth)
        case "while", [test, body] if len(node.args) == len(test.params) and not node.kwargs:
            lines.append(f"{head}while with ({_inits(test, node.args)}) {{")
            _print_region(test, lines, depth)
            lines.append(f"{pad}}} do ({', '.join(map(_typed, body.params))}) {{")
            _print_region(body, lines, depth)
        case _:
            _print_generic(node, head, lines, depth)
            return
    lines.append(f"{pad}}}{_suffix(node)}")


def _print_region(region: Region, lines: list[str], depth: int) -> None:
    _print_body(region, lines, depth + 1)
    _yield(region, lines, depth + 1)


def _print_generic(node: Node, head: str, lines: list[str], depth: int) -> None:
    """`op(args)`, and for any other node with regions `op(args) { (%p: T) ... yield ... } { ... }`."""
    text = head + _call(node)
    if not node.regions:
        lines.append(text + _suffix(node))
        return
    pad = _INDENT * depth
    for region in node.regions:
        lines.append(f"{text} {{ ({', '.join(map(_typed, region.params))})")
        _print_region(region, lines, depth)
        text = pad + "}"
    lines.append(text + _suffix(node))
