"""Which lists grow by one tensor in each turn of a counted loop, so that a buffer with a row for each can be planned.

    %xs = py.list()
    %ys = for %i in (0, 8, 1) with (%l = %xs, ...) { ...; %m = py.append(%l, %h); yield %m, ... }

Invariant: nothing else looks at the list inside the loop, and all its tensors have one type.
"""

from __future__ import annotations

from smelt.codegen.lower.memory.geometry import Geometry, row_major
from smelt.codegen.lower.python.plain import is_plain_type
from smelt.diag.records import record
from smelt.ir import Graph, Node, TensorType, Value

_MOST_NBYTES = 2**30


@record
class Growing:
    """A list that a loop carries: what each turn appends, how many tensors there are in the end, those at first."""

    append: Node
    element: TensorType
    length: int
    first: tuple[Value, ...]

    @property
    def added(self) -> Value:
        """What a turn appends."""
        value = self.append.args[1]
        assert isinstance(value, Value)
        return value

    @property
    def geometry(self) -> Geometry:
        """All tensors, one after the other."""
        return row_major((self.length, *self.element.sizes))

    def row(self, index: int) -> Geometry:
        """One of them."""
        step = self.element.numel
        return Geometry(self.element.sizes, row_major(self.element.sizes).strides, index * step)


@record
class Lists:
    """The growing lists of a graph by loop and number of what it carries, and nodes that are then not run."""

    growing: dict[Node, dict[int, Growing]]
    idle: frozenset[Node]

    @staticmethod
    def of(graph: Graph) -> Lists:
        growing: dict[Node, dict[int, Growing]] = {}
        for node in graph.walk():
            if node.op == "for":
                found = {k: g for k in range(len(node.results)) if (g := _growing(node, k)) is not None}
                if found:
                    growing[node] = found
        appends = {g.append for found in growing.values() for g in found.values()}
        carried = {node.args[3 + k]: 0 for node, found in growing.items() for k in found}
        starts = {
            v.node for v in carried if isinstance(v, Value) and v.node is not None and _is_only_carried(v, growing)
        }
        return Lists(growing, frozenset(appends | starts))


def _is_only_carried(value: Value, growing: dict[Node, dict[int, Growing]]) -> bool:
    return all(
        isinstance(user, Node) and user in growing and count == sum(user.args[3 + k] is value for k in growing[user])
        for user, count in value.users.items()
    )


def _growing(node: Node, k: int) -> Growing | None:
    """The growing list that a loop carries in this place."""
    (body,) = node.regions
    start, stop, step = node.args[:3]
    init, param, last = node.args[3 + k], body.params[1 + k], body.yields[k]
    if type(start) is not int or type(stop) is not int or type(step) is not int or step == 0:
        return None
    if not isinstance(init, Value) or init.node is None or init.node.op != "py.list" or not isinstance(last, Value):
        return None
    append = last.node
    if append is None or append.op != "py.append" or append.parent is not body or append.args[0] is not param:
        return None
    if _uses(param) != 1 or last.users != {body: 1} or not isinstance(append.args[1], Value):
        return None
    first = init.node.args
    types = [v.type if isinstance(v, Value) else None for v in (append.args[1], *first)]
    element = types[0]
    if not isinstance(element, TensorType) or not is_plain_type(element):
        return None
    if any(not isinstance(t, TensorType) or (t.dtype, t.shape) != (element.dtype, element.shape) for t in types):
        return None
    length = len(range(start, stop, step)) + len(first)
    if not 0 < length * element.nbytes <= _MOST_NBYTES:
        return None
    return Growing(append, element, length, tuple(v for v in first if isinstance(v, Value)))


def _uses(value: Value) -> int:
    return sum(value.users.values())
