"""Reads the graph's text back; the grammar is what `smelt.ir.printer` writes (docs/graph.md)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from smelt.diag import Span
from smelt.ir.dims import UNKNOWN_DIM, Dim, Sym, SymExpr, SymOp
from smelt.ir.dtypes import BY_LABEL
from smelt.ir.lexer import TextError, Token, text_error, tokenize
from smelt.ir.nodes import Arg, Device, Layout, MemoryFormat, Node, Region, Value
from smelt.ir.printer import returns_text
from smelt.ir.types import (
    SCALAR_NAMES,
    DictType,
    ListType,
    OptionalType,
    ScalarType,
    TensorType,
    TupleType,
    Type,
)

if TYPE_CHECKING:
    from smelt.ir.graph import Graph

T = TypeVar("T")
_SCALARS = {name: ScalarType(name) for name in SCALAR_NAMES}
_SYM_OPS: dict[str, SymOp] = {"+": "+", "-": "-", "*": "*", "//": "//", "%": "%"}


def read_graph(text: str, make: Callable[[str], Graph]) -> Graph:
    """The graph that a text describes, built into what `make(name)` gives. Raises: TextError (S0201)."""
    parser = _Parser(text)
    try:
        return parser.graph(make)
    except RecursionError:
        raise parser.fail("what stands here is nested too deeply") from None
    except (ValueError, OverflowError) as error:
        # A string that is no string of JSON, a number with more digits than Python reads.
        raise parser.fail(f"this cannot be read: {error}", parser.last) from None


class _Scope:
    """Names that are visible: those of this region and of the regions around it."""

    def __init__(self, outer: _Scope | None = None) -> None:
        self.outer = outer
        self.values: dict[str, Value] = {}

    def find(self, name: str) -> Value | None:
        if name in self.values:
            return self.values[name]
        return self.outer.find(name) if self.outer is not None else None


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = list(tokenize(text))
        self.position = 0
        self.scope = _Scope()

    # --- tokens

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    @property
    def last(self) -> Token:
        """The token that was taken last."""
        return self.tokens[max(self.position - 1, 0)]

    def fail(self, what: str, token: Token | None = None) -> TextError:
        at = token or self.token
        return text_error(self.text, at.line, at.column, what)

    def take(self) -> Token:
        token = self.token
        self.position += 1
        return token

    def at(self, text: str) -> bool:
        return self.token.text == text and self.token.kind not in ("string", "end")

    def accept(self, text: str) -> bool:
        if self.at(text):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.at(text):
            raise self.fail(f"expected {text!r}, found {self.token.text or 'the end'!r}")
        return self.take()

    def adjacent(self) -> bool:
        """Whether the current token follows the last one without a blank."""
        last = self.tokens[self.position - 1]
        return last.line == self.token.line and last.column + len(last.text) == self.token.column

    def kind(self, kind: str) -> Token:
        if self.token.kind != kind:
            raise self.fail(f"expected a {kind}, found {self.token.text or 'the end'!r}")
        return self.take()

    def listed(self, end: str, item: Callable[[], T]) -> list[T]:
        items: list[T] = []
        while not self.at(end):
            if items:
                self.expect(",")
                if self.at(end):  # a one-element tuple's trailing comma
                    break
            items.append(item())
        self.expect(end)
        return items

    def name(self) -> str:
        if self.token.kind == "string":
            return str(json.loads(self.take().text))
        return self.kind("name").text

    def value_name(self) -> str:
        text = self.kind("value").text[1:]
        return str(json.loads(text)) if text.startswith('"') else text

    # --- types

    def type(self) -> Type:
        if self.accept("("):
            return TupleType(tuple(self.listed(")", self.type)))
        token = self.kind("name")
        if token.text in BY_LABEL and self.at("["):
            return self.tensor_type(token.text)
        if token.text in ("list", "optional"):
            self.expect("[")
            inner = self.type()
            self.expect("]")
            return ListType(inner) if token.text == "list" else OptionalType(inner)
        if token.text == "dict":
            self.expect("[")
            key = self.type()
            self.expect(",")
            value = self.type()
            self.expect("]")
            return DictType(key, value)
        if token.text in _SCALARS:
            return _SCALARS[token.text]
        raise self.fail(f"there is no type {token.text!r}", token)

    def tensor_type(self, label: str) -> TensorType:
        self.expect("[")
        shape: tuple[Dim, ...] | None = None
        if self.accept("?"):
            self.expect("]")
        else:
            shape = tuple(self.listed("]", self.dim))
        # Strides follow without a blank, so that the brace of a body is never taken for theirs.
        strides = tuple(self.listed("}", self.dim)) if self.adjacent() and self.accept("{") else None
        layout = self.kind("name").text if self.accept(":") else "strided"
        device = "cpu"
        if self.adjacent() and self.accept("@"):
            device = str(json.loads(self.kind("string").text))
        return TensorType(BY_LABEL[label], shape, strides, device, layout)

    def dim(self) -> Dim:
        if self.token.kind == "number":
            return self.integer()
        if self.accept("("):
            left = self.dim()
            operator = self.take()
            if operator.text not in _SYM_OPS:
                raise self.fail(f"{operator.text!r} is no operation on sizes", operator)
            right = self.dim()
            self.expect(")")
            return SymExpr(_SYM_OPS[operator.text], left, right)
        name = self.kind("name").text
        if name in ("max", "min") and self.accept("("):
            left = self.dim()
            self.expect(",")
            right = self.dim()
            self.expect(")")
            return SymExpr("max" if name == "max" else "min", left, right)
        return UNKNOWN_DIM if name == "_" else Sym(name)

    def integer(self) -> int:
        token = self.kind("number")
        try:
            return int(token.text)
        except ValueError:
            raise self.fail(f"expected an integer, found {token.text!r}", token) from None

    # --- arguments

    def arg(self) -> Arg:
        token = self.token
        if token.kind == "value":
            return self.value()
        if token.kind == "string":
            return str(json.loads(self.take().text))
        if token.kind == "number":
            return self.number()
        if self.accept("["):
            return tuple(self.listed("]", self.arg))
        name = self.kind("name").text
        if name in ("True", "False", "None"):
            return {"True": True, "False": False, "None": None}[name]
        if name in ("inf", "nan"):
            return float(name)
        if name in BY_LABEL:
            return BY_LABEL[name]
        if name in ("device", "layout", "memory_format", "complex"):
            return self.literal(name)
        raise self.fail(f"{name!r} is no value or literal", token)

    def number(self) -> int | float:
        text = self.take().text
        return float(text) if any(c in text for c in ".einf") else int(text)

    def real(self) -> float:
        if self.token.kind == "name" and self.token.text in ("inf", "nan"):
            return float(self.take().text)
        return float(self.kind("number").text)

    def literal(self, name: str) -> Arg:
        self.expect("(")
        result: Arg
        if name == "complex":
            real = self.real()
            self.expect(",")
            result = complex(real, self.real())
        elif name == "device":
            result = Device(str(json.loads(self.kind("string").text)))
        else:
            inner = self.kind("name").text
            result = Layout(inner) if name == "layout" else MemoryFormat(inner)
        self.expect(")")
        return result

    def value(self) -> Value:
        token = self.token
        name = self.value_name()
        found = self.scope.find(name)
        if found is None:
            raise self.fail(f"%{name} is used before it is defined", token)
        return found

    # --- structure

    def graph(self, make: Callable[[str], Graph]) -> Graph:
        self.expect("graph")
        graph = make(self.name())
        self.expect("(")
        self.listed(")", lambda: self.param(graph.body))
        self.expect("->")
        start = self.token
        returns = self.returns()
        self.expect("{")
        self.nodes(graph.body, "return")
        self.expect("}")
        if self.token.kind != "end":
            raise self.fail(f"unexpected {self.token.text!r} after the graph")
        actual = returns_text(graph.outputs)
        if returns != actual:
            raise self.fail(f"the header says that {returns} is returned, the body returns {actual}", start)
        return graph

    def returns(self) -> str:
        """The header's list of returned types, as normal text."""
        items: list[str] = []
        while not self.at("{"):
            if items:
                self.expect(",")
            items.append(self.return_type())
        return ", ".join(items)

    def return_type(self) -> str:
        if self.accept("["):
            return "[" + ", ".join(self.listed("]", self.return_type)) + "]"
        return str(self.type())

    def define(self, name: str, token: Token, value: Value) -> Value:
        if self.scope.find(name) is not None:
            raise self.fail(f"%{name} is defined twice", token)
        self.scope.values[name] = value
        return value

    def param(self, region: Region) -> Value:
        token = self.token
        name = self.value_name()
        self.expect(":")
        value = self.define(name, token, Value(name, self.type(), region))
        region.params.append(value)
        return value

    def nodes(self, region: Region, end: str) -> None:
        while not self.at(end):
            if self.token.kind == "end" or self.at("}"):
                raise self.fail(f"expected {end!r}")
            region.insert(self.node())
        self.expect(end)
        yields: list[Arg] = []
        while not self.at("}"):
            if yields:
                self.expect(",")
            yields.append(self.arg())
        region.set_yields(tuple(yields))

    def region(self, region: Region, outer: _Scope) -> None:
        """The rest of a region after its parameters, closing brace included; back to the outer scope."""
        self.nodes(region, "yield")
        self.expect("}")
        self.scope = outer

    def results(self) -> list[tuple[str, Token, Type]]:
        found: list[tuple[str, Token, Type]] = []
        while self.token.kind == "value":
            token = self.token
            name = self.value_name()
            self.expect(":")
            found.append((name, token, self.type()))
            if not self.accept(","):
                break
        if found:
            self.expect("=")
        return found

    def node(self) -> Node:
        results = self.results()
        token = self.token
        op = self.name()
        if op == "if" and token.kind == "name":
            node = self.if_node()
        elif op == "for" and token.kind == "name":
            node = self.for_node()
        elif op == "while" and token.kind == "name":
            node = self.while_node()
        else:
            node = self.plain_node(op)
        self.suffix(node)
        for name, where, type_ in results:
            value = Value(name, type_, node)
            node.results.append(self.define(name, where, value))
        return node

    def plain_node(self, op: str) -> Node:
        self.expect("(")
        args: list[Arg] = []
        kwargs: dict[str, Arg] = {}
        while not self.at(")"):
            if args or kwargs:
                self.expect(",")
            keyword = self.token.kind in ("name", "string") and self.tokens[self.position + 1].text == "="
            if keyword:
                key = self.name()
                self.expect("=")
                kwargs[key] = self.arg()
            elif kwargs:
                raise self.fail("a positional argument stands after a keyword argument")
            else:
                args.append(self.arg())
        self.expect(")")
        node = Node(op, tuple(args), kwargs)
        while self.accept("{"):
            region, outer = self.open_region(node)
            self.expect("(")
            self.listed(")", lambda r=region: self.param(r))  # type: ignore[misc]
            self.region(region, outer)
        return node

    def open_region(self, node: Node) -> tuple[Region, _Scope]:
        region = Region(node)
        node.regions.append(region)
        outer, self.scope = self.scope, _Scope(self.scope)
        return region, outer

    def if_node(self) -> Node:
        node = Node("if", (self.arg(),), {})
        for i in range(2):
            if i:
                self.expect("else")
            self.expect("{")
            region, outer = self.open_region(node)
            self.region(region, outer)
        return node

    def carried(self, region: Region, outer: _Scope) -> list[Arg]:
        """`(%p: T = init, ...)`: parameters of a loop's region with their first values, read in the outer scope."""
        inits: list[Arg] = []

        def one() -> None:
            self.param(region)
            self.expect("=")
            inner, self.scope = self.scope, outer
            inits.append(self.arg())
            self.scope = inner

        self.expect("(")
        self.listed(")", one)
        return inits

    def for_node(self) -> Node:
        node = Node("for", (), {})
        region, outer = self.open_region(node)
        self.param(region)
        self.expect("in")
        self.expect("(")
        inner, self.scope = self.scope, outer
        bounds = self.listed(")", self.arg)
        self.scope = inner
        self.expect("with")
        inits = self.carried(region, outer)
        node.set_arguments((*bounds, *inits))
        self.expect("{")
        self.region(region, outer)
        return node

    def while_node(self) -> Node:
        node = Node("while", (), {})
        self.expect("with")
        test, outer = self.open_region(node)
        node.set_arguments(tuple(self.carried(test, outer)))
        self.expect("{")
        self.region(test, outer)
        self.expect("do")
        body, outer = self.open_region(node)
        self.expect("(")
        self.listed(")", lambda: self.param(body))
        self.expect("{")
        self.region(body, outer)
        return node

    def suffix(self, node: Node) -> None:
        if self.accept("["):
            node.mode = str(json.loads(self.kind("string").text))
            self.expect("]")
        if self.accept("@"):
            file = str(json.loads(self.kind("string").text))
            self.expect(":")
            line = self.integer()
            node.span = Span(file, line, self.name() if self.accept("in") else "")
        if self.accept("of"):
            node.scope = self.name()
