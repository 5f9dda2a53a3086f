"""A graph as a person reads it on a terminal: places once for each stretch of lines that share them, colours, a width.

    graph Block(%x: f32[8, 128]) -> f32[8, 128] {
      # norm, model.py in Block.forward
      %0: f32[8, 128] = aten.layer_norm.default(%x, [128], %norm_weight, %norm_bias)  # 12

Invariant: it parses back (`smelt.parse`) to the graph without its places; the graph's own text (`str(graph)`) has them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from rich.text import Text

from smelt.diag import Span
from smelt.inspect.places import short_file
from smelt.ir import Graph, Node
from smelt.ir.printer import value_text

_STYLES: Mapping[str, tuple[str, str]] = {
    "word": (r"\b(?:graph|return|yield|if|else|for|while|do|write)\b", "magenta"),
    "op": (r"\b(?:aten|prims|py|torchvision|quantized)\.[\w.]+", "bold"),
    "type": (r"\b(?:bf16|[fiuc]\d{1,3}|bool)\[[^\]]*\]", "green"),
    "value": (r"%(?:\"[^\"]*\"|[A-Za-z0-9_.]+)", "cyan"),
    "comment": (r"#[^\n]*", "dim"),
}
"""What is coloured how; a later one covers an earlier one."""
_HANGING = 6  # characters that a line which goes on is indented further


def compact(graph: Graph, *, where: bool = True, width: int | None = None) -> str:
    """The graph's text with short places. where: name places at all. width: break lines at commas to fit."""
    shown: list[str] = []
    for line in _lines(graph, where):
        shown += _wrapped(line, width) if width is not None else [line]
    return "\n".join(shown)


def coloured(text: str) -> Text:
    """A graph's text in colours."""
    out = Text(text)
    for pattern, style in _STYLES.values():
        out.highlight_regex(pattern, style)
    return out


def _lines(graph: Graph, where: bool) -> Iterator[str]:
    """The lines of the text without places, each said once before the stretch of lines that share it."""
    nodes = {value_text(node.results[0]): node for node in graph.walk() if node.results and not node.regions}
    bare = graph.clone()
    for node in bare.walk():
        node.span, node.scope = None, ""
    scope, number = "", 0
    for line in str(bare).splitlines():
        origin = nodes.get(line.lstrip().partition(":")[0]) if where else None
        found = "" if origin is None else scope_of(origin)
        if found and found != scope:
            yield f"{' ' * (len(line) - len(line.lstrip()))}# {found}"
            scope, number = found, 0
        span = None if origin is None else origin.span
        if span is not None and span.line != number:
            number = span.line
            line = f"{line}  # {number}"
        yield line


def scope_of(node: Node) -> str:
    """The module and function that a node came from, and the user's own line where that is in a library."""
    if node.span is None:
        return node.scope or ""
    place = short_file(node.span.file) + (f" in {node.span.function}" if node.span.function else "")
    caller = f"called at {_short(node.span.caller)}" if node.span.caller is not None else ""
    return ", ".join(filter(None, (node.scope, place, caller)))


def _short(span: Span) -> str:
    return f"{short_file(span.file)}:{span.line}" + (f" in {span.function}" if span.function else "")


def _wrapped(line: str, width: int) -> list[str]:
    """A line broken behind commas so that each part fits, if it can; what goes on is indented further."""
    if len(line) <= width:
        return [line]
    if line.lstrip().startswith("#"):
        goes_on = line[: line.index("#")] + "#   "
        return textwrap.wrap(line, width, subsequent_indent=goes_on, break_long_words=False, break_on_hyphens=False)
    indent = " " * (len(line) - len(line.lstrip()) + _HANGING)
    parts, now = [], ""
    for piece in _pieces(line):
        if now.strip() and len(now) + len(piece.rstrip()) > width:
            parts.append(now.rstrip())
            now = indent
        now += piece
    return [*parts, now]


def _pieces(line: str) -> Iterator[str]:
    """A line cut behind the commas that stand outside of types and lists, and behind `=`, or before its comment."""
    depth, start = 0, 0
    for at, sign in enumerate(line):
        depth += (sign in "[{") - (sign in "]}")
        if depth == 0 and (line.startswith((", ", "= "), at) or line.startswith("  #", at)):
            end = at + (0 if sign == " " else 2)
            yield line[start:end]
            start = end
    yield line[start:]
