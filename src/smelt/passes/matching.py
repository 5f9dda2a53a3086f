"""What the pattern passes ask of nodes: single use, literal scalars, plain modes, nothing written in between."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.ir import Arg, DType, Graph, Node, TensorType, Value
from smelt.ir.sizes import equals, is_symbolic
from smelt.ops.effects import effects
from smelt.rewrite import Rewriter

FLOATS = (DType.F32, DType.F64, DType.BF16, DType.F16)
_ZEROS = {"aten.zeros.default": 0.0, "aten.ones.default": 1.0}


def static_tensor(arg: Arg) -> TensorType | None:
    """The type of an argument that is a strided tensor of known sizes, else None."""
    type_ = arg.type if isinstance(arg, Value) else None
    if isinstance(type_, TensorType) and type_.is_static and type_.layout == "strided":
        return type_
    return None


def same_sizes(a: Sequence[int], b: Sequence[int]) -> bool:
    """Whether sizes are the same; of some that are known at run time only, whether they are whatever they are."""
    return len(a) == len(b) and all(map(equals, a, b))


def is_used_once(value: Value) -> bool:
    """Whether a value has one use in all, by a node of the region that it is made in."""
    if sum(value.users.values()) != 1 or value.node is None:
        return False
    (user,) = value.users
    return isinstance(user, Node) and user.parent is value.node.parent


def sole_node(arg: Arg, op: str) -> Node | None:
    """The node of an operator whose result is used here only, else None."""
    if not isinstance(arg, Value) or arg.node is None or arg.node.op != op or not is_used_once(arg):
        return None
    return arg.node


def is_autocast(node: Node) -> bool:
    """Whether a node computes in another dtype than its operands say."""
    return "autocast" in node.mode


def scalar_of(arg: Arg) -> float | None:
    """The number that an argument is: a literal, or a 0-d tensor that holds one; None for any other."""
    if is_symbolic(arg):
        return None
    if isinstance(arg, (int, float)) and not isinstance(arg, bool):
        return float(arg)
    node = arg.node if isinstance(arg, Value) else None
    if node is None or not isinstance(arg, Value) or not isinstance(arg.type, TensorType) or arg.type.shape != ():
        return None
    if any(isinstance(user, Node) and arg in effects(user).writes for user in arg.users):
        return None
    if node.op in _ZEROS:
        return _ZEROS[node.op]
    literal: Arg = None
    if node.op == "const":
        literal = node.args[0]
    elif node.op == "aten.full.default":
        literal = node.args[1]
    elif node.op == "aten.scalar_tensor.default":
        literal = node.args[0]
    is_number = isinstance(literal, (int, float)) and not isinstance(literal, bool) and not is_symbolic(literal)
    return float(literal) if is_number else None  # type: ignore[arg-type]


class Disturbances:
    """The nodes that write memory or act on what cannot be seen; nothing may be moved across them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._nodes: list[Node] | None = None

    def between(self, rewriter: Rewriter, first: Node, last: Node) -> bool:
        """Whether one stands between two nodes of a region (a region that holds one counts as one)."""
        if self._nodes is None:
            self._nodes = [n for n in self.graph.walk() if effects(n).writes or effects(n).io]
        return any(
            n.parent is first.parent and rewriter.is_before(first, n) and rewriter.is_before(n, last)
            for n in self._nodes
        )
