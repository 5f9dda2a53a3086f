"""What fusion asks of regions: which values a node uses from outside, and which node of a body a use belongs to.

%2 = if %c { %1 = add(%x, %y); yield %1 } else { yield %z }        uses %c, %x, %y and %z where it stands
"""

from __future__ import annotations

from collections.abc import Iterator

from smelt.ir import Node, Region, Value, values_in


def used_values(node: Node) -> Iterator[Value]:
    """The operands of a node, and what its regions use from outside, repeats included."""
    yield from node.operands()
    if not node.regions:
        return
    inside: set[Value] = set()
    found: list[Value] = []
    for region in node.regions:
        inside.update(region.params)
        for inner in region.walk():
            found.extend(inner.operands())
            inside.update(inner.results)
            for nested in inner.regions:
                inside.update(nested.params)
                found.extend(v for arg in nested.yields for v in values_in(arg))
        found.extend(v for arg in region.yields for v in values_in(arg))
    yield from (value for value in found if value not in inside)


def user_in(body: Region, user: Node | Region) -> Node | None:
    """The node of a body in which a use stands, in one of its regions or itself; None for what the body yields."""
    current: Node | Region = user
    while True:
        if isinstance(current, Region):
            if current is body or not isinstance(current.owner, Node):
                return None
            current = current.owner
        if current.parent is body or current.parent is None:
            return current
        current = current.parent
