"""The one place where a graph's body is edited after construction.

Invariant: after every edit each value is defined before its uses, in the same region or one around it, and users are
in step with arguments; an edit that would break this raises InternalError (S0901). Every edit is told to the listeners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from smelt.diag import InternalError, Span
from smelt.diag.records import record
from smelt.ir import Arg, Builder, Graph, Node, Region, Type, Value, map_values, values_in

Kind = Literal["insert", "erase", "replace", "arguments", "yields", "move"]
_GAP = 1 << 200  # as often can a node be put between two others before all are numbered again


@record
class Event:
    """One edit: what happened to which node (None: to a region's yields), and the value put in place of another."""

    kind: Kind
    node: Node | None
    old: Value | None = None
    new: Arg = None


Listener = Callable[[Event], None]


class Rewriter:
    """Edits one graph. `builder` stands where the last `at` put it and makes the names."""

    def __init__(self, graph: Graph, listeners: Sequence[Listener] = ()) -> None:
        self.graph = graph
        self.builder = Builder(graph)
        self.listeners = tuple(listeners)
        self.edits = 0
        self._positions: dict[Node, int] = {}

    # --- edits

    def insert(
        self,
        op: str,
        args: Sequence[Arg],
        types: Sequence[Type],
        kwargs: Mapping[str, Arg] | None = None,
        *,
        before: Node | None = None,
        end_of: Region | None = None,
        names: Sequence[str] = (),
    ) -> Node:
        """Add a node before another, with its span, scope and mode, or at the end of a region (the body's if none)."""
        if before is not None:
            with self.builder.at(before):
                node = self.builder.add(op, args, types, kwargs, names=names)
        else:
            region = end_of or self.graph.body
            with self.builder.inside(region):
                node = self.builder.add(op, args, types, kwargs, names=names)
        self._check_operands(node)
        self.tell(Event("insert", node))
        return node

    def adopt(self, node: Node) -> None:
        """Check and tell of a node that was added through `builder`."""
        self._check_operands(node)
        self.tell(Event("insert", node))

    def erase(self, node: Node) -> None:
        """Remove a node whose results nobody uses."""
        used = next((r for r in node.results if r.users), None)
        if used is not None:
            raise _broken(node, f"%{used.name} is still used", "only a node without users can be erased")
        self.builder.keep_names()
        for region in node.regions:
            _drop_region(region)
        node.drop_arguments()
        if node.parent is not None:
            node.parent.remove(node)
        self._positions.pop(node, None)
        self.tell(Event("erase", node))

    def replace_all_uses(self, old: Value, new: Arg) -> None:
        """Use another value, or a literal, wherever `old` is used."""
        if new is old:
            return
        if any(v is old for v in values_in(new)):
            raise _broken(old.node, f"%{old.name} cannot be replaced by something that holds it", "that has no end")
        for user in list(old.users):
            for value in values_in(new):
                self._check_use(value, user)

            def swap(value: Value) -> Arg:
                return new if value is old else value

            if isinstance(user, Region):
                user.set_yields(tuple(map_values(a, swap) for a in user.yields))
            else:
                user.set_arguments(
                    tuple(map_values(a, swap) for a in user.args),
                    {k: map_values(a, swap) for k, a in user.kwargs.items()},
                )
        self.tell(Event("replace", old.node, old, new))

    def replace_node(self, node: Node, new: Sequence[Arg], *, absorbed: Iterable[Node] = ()) -> None:
        """Put values in the place of a node's results and erase it.

        absorbed: other nodes whose work the new ones do; where the new ones have no source line or module of their
        own, they get what all the replaced nodes have in common.
        """
        if len(new) != len(node.results):
            raise _broken(node, f"{len(new)} values cannot replace {len(node.results)} results", "they pair up")
        self._merge_origins([node, *absorbed], new)
        for old, value in zip(list(node.results), new, strict=True):
            self.replace_all_uses(old, value)
        self.erase(node)

    def set_arguments(self, node: Node, args: tuple[Arg, ...], kwargs: Mapping[str, Arg] | None = None) -> None:
        """Change what a node is applied to."""
        node.set_arguments(args, kwargs)
        self._check_operands(node)
        self.tell(Event("arguments", node))

    def set_yields(self, region: Region, yields: tuple[Arg, ...]) -> None:
        """Change what a region yields (the graph's outputs, for its body)."""
        for arg in yields:
            for value in values_in(arg):
                self._check_use(value, region)
        region.set_yields(yields)
        self.tell(Event("yields", region.owner if isinstance(region.owner, Node) else None))

    def move(self, node: Node, before: Node | None) -> None:
        """Put a node before another of its region, or at the region's end."""
        region = node.parent
        if region is None or (before is not None and before.parent is not region):
            raise _broken(node, "a node moves within its region", f"{before} stands elsewhere")
        if before is node or before is node.next is not None:
            return
        region.remove(node)
        region.insert(node, before)
        self._positions.pop(node, None)
        self._check_operands(node)
        for result in node.results:
            for user in result.users:
                self._check_use(result, user)
        self.tell(Event("move", node))

    # --- dominance

    def is_before(self, first: Node, second: Node) -> bool:
        """Whether a node stands before another of the same region."""
        self._position(first)
        self._position(second)
        # Read only now: numbering the second may have renumbered the first.
        return self._positions[first] < self._positions[second]

    def is_visible(self, value: Value, at: Node | Region) -> bool:
        """Whether a value may be used by a node, or be yielded by a region."""
        home = value.owner if isinstance(value.owner, Region) else value.owner.parent
        if isinstance(at, Region):
            return _encloses(home, at)
        here: Node | None = at
        while here is not None and here.parent is not home:
            owner = here.parent.owner if here.parent is not None else None
            here = owner if isinstance(owner, Node) else None
        if here is None:
            return False
        return isinstance(value.owner, Region) or (value.owner is not here and self.is_before(value.owner, here))

    def _check_operands(self, node: Node) -> None:
        for value in node.operands():
            self._check_use(value, node)

    def _check_use(self, value: Value, user: Node | Region) -> None:
        if not self.is_visible(value, user):
            node = user if isinstance(user, Node) else None
            raise _broken(node, f"%{value.name} is not defined before its use in {user}", "values dominate their uses")

    def _position(self, node: Node) -> int:
        """A number that grows along the region; midpoints for inserted nodes, renumbered when they run out."""
        known = self._positions.get(node)
        if known is not None:
            return known
        before = self._positions.get(node.prev) if node.prev is not None else 0
        after = self._positions.get(node.next) if node.next is not None else (before or 0) + 2 * _GAP
        if before is None or after is None or after - before < 2:
            self._renumber(node.parent)
            return self._positions[node]
        self._positions[node] = (before + after) // 2
        return self._positions[node]

    def _renumber(self, region: Region | None) -> None:
        for i, node in enumerate(region or ()):
            self._positions[node] = (i + 1) * _GAP

    # --- origins

    def _merge_origins(self, replaced: Sequence[Node], new: Sequence[Arg]) -> None:
        span = next((n.span for n in replaced if n.span is not None), None)
        scope = common_scope([n.scope for n in replaced])
        for arg in new:
            for value in values_in(arg):
                node = value.node
                if node is not None and node.span is None:
                    _set_origin(node, span, scope)

    def tell(self, event: Event) -> None:
        """Count an edit and let the listeners know."""
        self.edits += 1
        for listener in self.listeners:
            listener(event)


def common_scope(scopes: Sequence[str]) -> str:
    """The longest module path that all lie in."""
    if not scopes:
        return ""
    parts = [s.split(".") for s in scopes]
    shared: list[str] = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def _set_origin(node: Node, span: Span | None, scope: str) -> None:
    node.span = span
    node.scope = node.scope or scope


def _encloses(outer: Region | None, inner: Region) -> bool:
    region: Region | None = inner
    while region is not None:
        if region is outer:
            return True
        owner = region.owner
        region = owner.parent if isinstance(owner, Node) else None
    return False


def _drop_region(region: Region) -> None:
    region.set_yields(())
    for node in region.walk():
        node.drop_arguments()
        for inner in node.regions:
            inner.set_yields(())


def _broken(node: Node | None, what: str, why: str) -> InternalError:
    return InternalError(what, node.span if node is not None else None, why=why, code="S0901")
