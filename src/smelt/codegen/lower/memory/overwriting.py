"""Where a tensor may be written over: nothing reads it, or a view of it, behind that point of the run.

    %t2 = index_put(%t, [%i], %row)        writes into %t's memory, if this is the last use of %t
    %r = for ... with (%p = %t) { ... }     begins with %t's memory as its own, if this is

Invariant: what a loop reads in its next turn counts as read behind; the other arm of a branch does not.
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.analysis.region_aliases import is_inside
from smelt.codegen.fusion.rules.indexed_writes import part_of
from smelt.codegen.lower.memory.sharing import feared_sources, view_source
from smelt.codegen.lower.python.plain import is_number
from smelt.ir import Arg, Node, Region, Value


class Overwriting:
    """Questions about the nodes of one graph, which stays as it is."""

    def __init__(self) -> None:
        self._orders: dict[Region, dict[Node, int]] = {}

    def is_last(self, value: Value, node: Node) -> bool:
        """Whether a node is the last to read a tensor, as an operand or, of a branch, in its arms."""
        way = _way(node, _home(value))
        if way is None:
            return False
        taken = 0
        for other in views_of(value):
            for user, count in other.users.items():
                if user is node:
                    taken += count
                elif not self._is_before(user, way) or _may_keep(user, way):
                    return False
        # A loop must not begin with it twice.
        return taken <= 1 or not node.regions

    def _is_before(self, user: Node | Region, way: list[Node]) -> bool:
        """Whether a use comes before the last node of a way, or stands in it where that is a branch."""
        for at in way:
            region = at.parent
            assert region is not None
            seen = _in_region(user, region)
            if seen is None:
                return True  # in the other arm of the branch at hand
            if seen is not at:
                return isinstance(seen, Node) and self._place(region, seen) < self._place(region, at)
        return way[-1].op == "if"

    def _place(self, region: Region, node: Node) -> int:
        order = self._orders.get(region)
        if order is None:
            order = self._orders[region] = {each: i for i, each in enumerate(region)}
        return order[node]


def _home(value: Value) -> Region:
    if isinstance(value.owner, Region):
        return value.owner
    assert value.owner.parent is not None
    return value.owner.parent


def _way(node: Node, home: Region) -> list[Node] | None:
    """The nodes from a region down to one, each in a region of the one before; None if a loop is among them."""
    way = [node]
    while way[0].parent is not home:
        owner = way[0].parent.owner if way[0].parent is not None else None
        if not isinstance(owner, Node) or owner.op != "if":
            return None
        way.insert(0, owner)
    return way


def _in_region(user: Node | Region, region: Region) -> Node | Region | None:
    """The node of a region in which a use stands, or the region itself for what it yields; None if it is elsewhere."""
    at: Node | Region | None = user
    while at is not None:
        if at is region or (isinstance(at, Node) and at.parent is region):
            return at
        owner = at.parent if isinstance(at, Node) else at.owner
        at = owner if isinstance(owner, Node | Region) else None
    return None


def views_of(value: Value) -> Iterator[Value]:
    """A value, what it is a view of, and all that may be views of that."""
    root = value
    while root.node is not None and not root.node.regions and (source := view_source(root.node)) is not None:
        root = source
    seen, pending = {root}, [root]
    while pending:
        current = pending.pop()
        yield current
        for user in current.users:
            if isinstance(user, Node) and (view_source(user) is current or current in feared_sources(user)):
                pending.extend(r for r in user.results if r not in seen)
                seen.update(user.results)


def _may_keep(user: Node | Region, way: list[Node]) -> bool:
    """Whether a use may hand the memory on, or read it later (a list that grows); what is lowered at hand copies."""
    if isinstance(user, Region):
        return user.owner not in way
    if user.regions:
        return True
    return user.op.startswith("py.") and not all(is_number(r.type) for r in user.results)


def origin(branch: Node, index: int) -> Value | None:
    """The tensor from outside of a branch that both arms yield, as it is or with parts written into it."""
    found = {_written(region.yields[index], branch) for region in branch.regions}
    return found.pop() if len(found) == 1 else None


def _written(arg: Arg, branch: Node) -> Value | None:
    """What a value inside of a branch is, but for parts that were written."""
    while isinstance(arg, Value) and is_inside(arg, branch):
        node = arg.node
        part = None if node is None else part_of(node)
        if part is not None:
            arg = part.base
        elif node is not None and node.op == "if":
            arg = origin(node, node.results.index(arg))
        elif node is not None and node.op in ("for", "while"):
            arg = node.args[node.results.index(arg) + (3 if node.op == "for" else 0)]
        else:
            return None
    return arg if isinstance(arg, Value) else None
