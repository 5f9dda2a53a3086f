"""Typed SSA with structured regions: `Region` > `Node` > `Value`; `smelt.ir.graph.Graph` is the whole.

Invariant: every value has one definition (a node's result or a region's parameter) and knows its users; a node's
arguments are immutable and change only through `Node.set_arguments`, which keeps the users in step. Code outside
`ir` edits a body only through `smelt.rewrite.Rewriter`; construction goes through `smelt.ir.Builder`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from smelt.diag import Span
from smelt.diag.records import record
from smelt.ir.dtypes import DType
from smelt.ir.types import Type

if TYPE_CHECKING:
    from smelt.ir.graph import Graph

# Nodes that stand for tensors which were there before the program.
STATE_OPS = ("param", "buffer", "captured")


@record
class Device:
    """A device literal, e.g. `device("cpu")`."""

    name: str


@record
class Layout:
    """A layout literal, e.g. `layout(strided)`."""

    name: str


@record
class MemoryFormat:
    """A memory-format literal, e.g. `memory_format(channels_last)`."""

    name: str


def is_under(path: str, root: str) -> bool:
    """Whether a module's path, as of `Node.scope`, is another one or lies below it; all are below the empty one."""
    return not root or path == root or path.startswith(root + ".")


Literal: TypeAlias = int | float | bool | complex | str | DType | Device | Layout | MemoryFormat | None


class Value:
    """One SSA value: its name (without the `%`), its type, where it is defined, and who uses it."""

    __slots__ = ("name", "owner", "type", "users")

    def __init__(self, name: str, type_: Type, owner: Node | Region) -> None:
        self.name = name
        self.type = type_
        self.owner = owner
        # A user stands once for each place it uses the value in, so that removing one use keeps the others.
        self.users: dict[Node | Region, int] = {}

    @property
    def node(self) -> Node | None:
        """The node that defines the value, or None for a region's parameter."""
        return self.owner if isinstance(self.owner, Node) else None

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


Arg: TypeAlias = "Value | Literal | tuple[Arg, ...]"


def values_in(arg: Arg) -> Iterator[Value]:
    """All values in an argument, nested ones too, in order."""
    if isinstance(arg, Value):
        yield arg
    elif isinstance(arg, tuple):
        for item in arg:
            yield from values_in(item)


def map_values(arg: Arg, f: Callable[[Value], Arg]) -> Arg:
    """The argument with every value replaced by `f(value)`."""
    if isinstance(arg, Value):
        return f(arg)
    if isinstance(arg, tuple):
        return tuple(map_values(item, f) for item in arg)
    return arg


def fill_leaves(arg: Any, f: Callable[[Any], object]) -> Any:
    """An argument as operators take it: `f` of what stands in it, and lists for tuples."""
    return [fill_leaves(item, f) for item in arg] if isinstance(arg, tuple) else f(arg)


class Node:
    """One operation: `op` is its full name (`aten.add.Tensor`, `if`, `param`), the rest is data.

    scope: path of the module whose forward was running, e.g. `encoder.layer.0.attention`.
    mode: what was switched on around the node and differs from the caller's state, e.g. `no_grad`, `autocast(bf16)`.
    memo: cached results of analyses of the operator and its arguments, until these are replaced.
    """

    __slots__ = (
        "_operands", "args", "kwargs", "memo", "mode", "next", "op", "parent", "prev", "regions", "results", "scope",
        "span",
    )  # fmt: skip

    def __init__(
        self,
        op: str,
        args: tuple[Arg, ...],
        kwargs: Mapping[str, Arg],
        span: Span | None = None,
        scope: str = "",
        mode: str = "",
    ) -> None:
        self.op = op
        self.args: tuple[Arg, ...] = ()
        self.kwargs: dict[str, Arg] = {}
        self._operands: tuple[Value, ...] = ()
        self.results: list[Value] = []
        self.regions: list[Region] = []
        self.span = span
        self.scope = scope
        self.mode = mode
        self.parent: Region | None = None
        self.prev: Node | None = None
        self.next: Node | None = None
        self.set_arguments(args, kwargs)

    @property
    def result(self) -> Value:
        """The only result. Raises: ValueError where the node has none or several."""
        if len(self.results) != 1:
            raise ValueError(f"{self.op} has {len(self.results)} results, not one")
        return self.results[0]

    def operands(self) -> Iterator[Value]:
        """All values that the node's arguments hold, in order, repeats included (not those used in its regions)."""
        return iter(self._operands)

    def set_arguments(self, args: tuple[Arg, ...], kwargs: Mapping[str, Arg] | None = None) -> None:
        """Replace the arguments and keep the users of the old and new values in step."""
        for value in self._operands:
            _drop_user(value, self)
        self.memo: dict[str, Any] = {}
        self.args = args
        if kwargs is not None:
            self.kwargs = dict(kwargs)
        found: list[Value] = []
        for arg in (*args, *self.kwargs.values()):
            if isinstance(arg, Value):
                found.append(arg)
            elif isinstance(arg, tuple):
                found.extend(values_in(arg))
        self._operands = tuple(found)
        for value in found:
            value.users[self] = value.users.get(self, 0) + 1

    def drop_arguments(self) -> None:
        """Forget all operands; what is done before a node is thrown away."""
        self.set_arguments((), {})

    def __repr__(self) -> str:
        names = ", ".join(f"%{r.name}" for r in self.results)
        return f"<{names + ' = ' if names else ''}{self.op}>"


class Region:
    """A list of nodes with parameters, ended by the values it yields."""

    __slots__ = ("first", "last", "owner", "params", "size", "yields")

    def __init__(self, owner: Node | Graph | None = None) -> None:
        self.owner = owner
        self.params: list[Value] = []
        self.first: Node | None = None
        self.last: Node | None = None
        self.size = 0
        self.yields: tuple[Arg, ...] = ()

    def __iter__(self) -> Iterator[Node]:
        """The nodes in order. The current node may be erased, and nodes may be inserted, while iterating."""
        node = self.first
        while node is not None:
            following = node.next
            yield node
            # A node put right after the current one is visited; one that was erased does not end the walk.
            node = node.next if node.parent is self else following

    def __reversed__(self) -> Iterator[Node]:
        node = self.last
        while node is not None:
            preceding = node.prev
            yield node
            node = node.prev if node.parent is self else preceding

    def __len__(self) -> int:
        return self.size

    def insert(self, node: Node, before: Node | None = None) -> None:
        """Put a node before another of this region, or at the end."""
        if node.parent is not None:
            raise ValueError(f"{node} already stands in a region")
        if before is not None and before.parent is not self:
            raise ValueError(f"{before} does not stand in this region")
        after = before.prev if before is not None else self.last
        node.parent, node.prev, node.next = self, after, before
        if after is None:
            self.first = node
        else:
            after.next = node
        if before is None:
            self.last = node
        else:
            before.prev = node
        self.size += 1

    def remove(self, node: Node) -> None:
        """Take a node out; its arguments, results and users stay as they are."""
        if node.parent is not self:
            raise ValueError(f"{node} does not stand in this region")
        if node.prev is None:
            self.first = node.next
        else:
            node.prev.next = node.next
        if node.next is None:
            self.last = node.prev
        else:
            node.next.prev = node.prev
        node.parent = None
        self.size -= 1

    def set_yields(self, yields: tuple[Arg, ...]) -> None:
        """Replace what the region yields, and keep the users in step."""
        for arg in self.yields:
            for value in values_in(arg):
                _drop_user(value, self)
        self.yields = yields
        for arg in yields:
            for value in values_in(arg):
                value.users[self] = value.users.get(self, 0) + 1

    def walk(self) -> Iterator[Node]:
        """All nodes, those of inner regions after the node that holds them; to be edited as while iterating."""
        node = self.first
        while node is not None:
            following = node.next
            yield node
            for region in node.regions:
                yield from region.walk()
            node = node.next if node.parent is self else following


def clone_region(source: Region, target: Region, mapping: dict[Value, Arg]) -> None:
    """Copy parameters, nodes and yields of one region into an empty other; `mapping` grows as values are copied."""
    for param in source.params:
        copied = Value(param.name, param.type, target)
        target.params.append(copied)
        mapping[param] = copied
    for node in source:
        target.insert(clone_node(node, mapping))
    target.set_yields(tuple(map_values(arg, lambda v: mapping.get(v, v)) for arg in source.yields))


def clone_node(node: Node, mapping: dict[Value, Arg]) -> Node:
    """A copy of a node with its operands mapped; its results enter the mapping."""

    def swap(value: Value) -> Arg:
        return mapping.get(value, value)

    copy = Node(
        node.op,
        tuple(map_values(arg, swap) for arg in node.args),
        {k: map_values(arg, swap) for k, arg in node.kwargs.items()},
        node.span,
        node.scope,
        node.mode,
    )
    for region in node.regions:
        inner = Region(copy)
        copy.regions.append(inner)
        clone_region(region, inner, mapping)
    for result in node.results:
        value = Value(result.name, result.type, copy)
        copy.results.append(value)
        mapping[result] = value
    return copy


def _drop_user(value: Value, user: Node | Region) -> None:
    count = value.users[user]
    if count == 1:
        del value.users[user]
    else:
        value.users[user] = count - 1


def _arg_key(arg: Arg) -> Hashable:
    # Written out by kind because Python says 1 == 1.0 == True, 0.0 == -0.0 and nan != nan.
    if isinstance(arg, Value):
        return ("%", arg.name)
    if isinstance(arg, tuple):
        return ("(", *(_arg_key(a) for a in arg))
    if isinstance(arg, float):
        return ("float", "nan" if arg != arg else struct.pack("<d", arg))
    if isinstance(arg, complex):
        return ("complex", _arg_key(arg.real), _arg_key(arg.imag))
    return (type(arg).__name__, arg)


def region_key(region: Region) -> Hashable:
    params = tuple((p.name, p.type) for p in region.params)
    return (params, tuple(map(_node_key, region)), tuple(map(_arg_key, region.yields)))


def _node_key(node: Node) -> Hashable:
    return (
        node.op,
        tuple(map(_arg_key, node.args)),
        tuple((k, _arg_key(v)) for k, v in node.kwargs.items()),
        tuple((r.name, r.type) for r in node.results),
        tuple(map(region_key, node.regions)),
        node.span,
        node.scope,
        node.mode,
    )


def users_of(values: Iterable[Value]) -> set[Node | Region]:
    """All nodes and regions that use any of the values."""
    return {user for value in values for user in value.users}
