"""What stands in containers that leave the program: the caller sees which tensors share memory, and which are one.

    out.append(y[i])        ==>        y lies in memory of its own, made by each run; the elements are views of it

Invariant: what a branch or a loop gives is a copy of one of its sources, and what is baked is copied for each element;
so no such tensor may stand in two places.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.analysis.region_aliases import RegionAliases, is_inside, region_aliases
from smelt.diag.records import record
from smelt.ir import Graph, Node, TensorType, Value, may_hold_tensor, values_in


@record
class Elements:
    """put: each tensor that a container which leaves may hold, by its root, with the container that it is put into."""

    found: RegionAliases
    put: tuple[tuple[Value, Value], ...]

    @staticmethod
    def of(graph: Graph) -> Elements:
        """The elements of all containers that a graph gives."""
        leaving = [v for arg in graph.outputs for v in values_in(arg) if not isinstance(v.type, TensorType)]
        leaving = [v for v in leaving if may_hold_tensor(v.type)]
        if not leaving:
            return Elements(RegionAliases(), ())
        found = region_aliases(graph)
        reached = found.reach({found.local[v] for v in leaving}, lambda v: not isinstance(v.type, TensorType))
        containers = [c for c in reached if not isinstance(c.type, TensorType)]
        put = [(v, c) for c in containers for v, _ in found.sources.get(c, ()) if isinstance(v.type, TensorType)]
        return Elements(found, tuple(put))

    @property
    def roots(self) -> set[Value]:
        """All tensors that may be elements, or have views that are."""
        return self.found.reach(element for element, _ in self.put)

    def torn(self, is_baked: Callable[[Value], bool]) -> Value | None:
        """A tensor that may stand in two places although each of them gets a copy; None if there is none."""
        elements_of: dict[Value, set[Value]] = {}
        for element, container in self.put:
            ends = {v for v in self.found.reach((element,)) if v not in self.found.sources}
            for end in ends:
                elements_of.setdefault(end, set()).add(element)
            is_copied = _is_copy(element) or any(map(is_baked, ends))
            if is_copied and any(self._lasts(element, loop) for loop in _loops_around(container)):
                return element
        for end, elements in elements_of.items():
            if len(elements) > 1 and (is_baked(end) or any(map(_is_copy, elements))):
                return end
        return None

    def _lasts(self, root: Value, loop: Node) -> bool:
        """Whether a root may be one tensor in two turns of a loop: made before it, or carried on as it is."""
        carried_by: dict[Value | None, set[Value]] = {}
        pending: list[tuple[Value | None, set[Value]]] = [(None, {root})]
        while pending:
            param, feeding = pending.pop()
            turn = self.found.reach(feeding, lambda v: v.owner not in loop.regions)
            if any(not is_inside(v, loop) for v in turn):
                return True
            carried_by[param] = {v for v in turn if v.owner in loop.regions}
            for other in carried_by[param] - carried_by.keys():
                pending.append((other, {v for v, by in self.found.sources.get(other, ()) if by is loop}))
        return _has_cycle(carried_by)


def _is_copy(value: Value) -> bool:
    """Whether a value is what a branch or a loop gives or carries, which has memory of its own."""
    return not isinstance(value.owner, Node) or bool(value.owner.regions)


def _loops_around(container: Value) -> list[Node]:
    """The loops in whose turns something is put into a container."""
    found = []
    region = container.owner.parent if isinstance(container.owner, Node) else container.owner
    while region is not None:
        node = region.owner
        if not isinstance(node, Node):
            break
        if node.op in ("for", "while"):
            found.append(node)
        region = node.parent
    return found


def _has_cycle(edges: dict[Value | None, set[Value]]) -> bool:
    left = dict(edges)
    while left:
        ends = [value for value, targets in left.items() if targets.isdisjoint(left)]
        if not ends:
            return True
        for value in ends:
            del left[value]
    return False


def maker(value: Value) -> Node:
    """The node that a value comes from, or whose region it belongs to."""
    owner = value.owner if isinstance(value.owner, Node) else value.owner.owner
    assert isinstance(owner, Node)
    return owner
