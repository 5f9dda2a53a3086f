"""What fusion asks of regions: which node of a body a use belongs to."""

from __future__ import annotations

from smelt.ir import Node, Region


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
