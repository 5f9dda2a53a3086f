"""Patterns over dataflow: operators by name, literals by predicate, commutative operands in either order.

    op("aten.mul.Tensor", anything("x"), literal(is_number, "scale"), commutes=True, name="product")

Invariant: matching reads the graph and changes nothing; a name that stands twice must match the same thing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TypeAlias

from smelt.diag.records import record
from smelt.ir import Arg, Node, Value


@record
class Anything:
    """Any argument; `when` narrows it."""

    name: str = ""
    when: Callable[[Arg], bool] | None = None


@record
class Literal:
    """An argument that holds no value and satisfies a predicate."""

    when: Callable[[Arg], bool]
    name: str = ""


@record
class Op:
    """The result of an operator, one of several names, whose arguments match.

    open_ended: further positional arguments and keywords may stand there. once: the result has no other use.
    """

    names: tuple[str, ...]
    args: tuple[Pattern, ...]
    kwargs: Mapping[str, Pattern] = field(default_factory=dict)
    name: str = ""
    commutes: bool = False
    open_ended: bool = False
    once: bool = False


@record
class Either:
    """The first of several patterns that matches."""

    patterns: tuple[Pattern, ...]


Pattern: TypeAlias = Anything | Literal | Op | Either


@record
class Match:
    """What a pattern's names stand for, and the nodes it covers, the root first."""

    root: Node
    bound: Mapping[str, Arg]
    nodes: tuple[Node, ...]

    def __getitem__(self, name: str) -> Arg:
        return self.bound[name]

    def value(self, name: str) -> Value:
        """What a name stands for, which must be a value. Raises: TypeError where it is a literal."""
        found = self.bound[name]
        if not isinstance(found, Value):
            raise TypeError(f"{name} is the literal {found!r}")
        return found

    def node(self, name: str) -> Node:
        """The node of a named operator. Raises: TypeError where the name is no node's result."""
        node = self.value(name).node
        if node is None:
            raise TypeError(f"{name} is no node's result")
        return node


def anything(name: str = "", when: Callable[[Arg], bool] | None = None) -> Anything:
    """Any argument."""
    return Anything(name, when)


def literal(when: Callable[[Arg], bool], name: str = "") -> Literal:
    """A literal that satisfies a predicate."""
    return Literal(when, name)


def any_of(*patterns: Pattern) -> Either:
    """The first that matches."""
    return Either(patterns)


def op(
    names: str | tuple[str, ...],
    *args: Pattern,
    name: str = "",
    commutes: bool = False,
    open_ended: bool = False,
    once: bool = False,
    **kwargs: Pattern,
) -> Op:
    """An operator's result."""
    return Op((names,) if isinstance(names, str) else names, args, kwargs, name, commutes, open_ended, once)


def match(pattern: Op, node: Node) -> Match | None:
    """Match a pattern with its root at a node, or None."""
    if node.op not in pattern.names:
        return None
    found = _match_node(pattern, node, _Found({}, ()))
    return None if found is None else Match(node, found.bound, found.nodes)


@record
class _Found:
    bound: dict[str, Arg]
    nodes: tuple[Node, ...]

    def bind(self, name: str, arg: Arg) -> _Found | None:
        if not name:
            return self
        if name in self.bound:
            seen = self.bound[name]
            same = seen is arg if isinstance(arg, Value) else type(seen) is type(arg) and seen == arg
            return self if same else None
        return _Found({**self.bound, name: arg}, self.nodes)


def _match(pattern: Pattern, arg: Arg, found: _Found) -> _Found | None:
    match pattern:
        case Anything(name, when):
            return found.bind(name, arg) if when is None or when(arg) else None
        case Literal(when_literal, name):
            is_literal = not isinstance(arg, Value)
            return found.bind(name, arg) if is_literal and when_literal(arg) else None
        case Either(patterns):
            for one in patterns:
                result = _match(one, arg, found)
                if result is not None:
                    return result
            return None
        case Op():
            node = arg.node if isinstance(arg, Value) else None
            if node is None or node.op not in pattern.names or len(node.results) != 1:
                return None
            if pattern.once and sum(node.result.users.values()) != 1:
                return None
            return _match_node(pattern, node, found)


def _match_node(pattern: Op, node: Node, found: _Found) -> _Found | None:
    if len(node.args) < len(pattern.args) or (len(node.args) > len(pattern.args) and not pattern.open_ended):
        return None
    extra = set(node.kwargs) - set(pattern.kwargs)
    if (extra and not pattern.open_ended) or not set(pattern.kwargs) <= set(node.kwargs):
        return None
    if len(node.results) == 1:
        named = found.bind(pattern.name, node.result)
        if named is None:
            return None
        found = named
    found = _Found(found.bound, (*found.nodes, node))
    orders = [node.args]
    if pattern.commutes and len(node.args) >= 2:
        orders.append((node.args[1], node.args[0], *node.args[2:]))
    for args in orders:
        result = _match_arguments(pattern, args, node.kwargs, found)
        if result is not None:
            return result
    return None


def _match_arguments(pattern: Op, args: tuple[Arg, ...], kwargs: Mapping[str, Arg], found: _Found) -> _Found | None:
    pairs = [*zip(pattern.args, args, strict=False), *((p, kwargs[k]) for k, p in pattern.kwargs.items())]
    current: _Found | None = found
    for one, arg in pairs:
        current = _match(one, arg, current) if current is not None else None
    return current
