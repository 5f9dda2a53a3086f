"""A simple cost of each node: floating-point operations and bytes read and written.

A product of M x K by K x N counts 2 M N K operations, a convolution likewise, attention its two products, its gradient
five; anything else counts one for each element of its largest tensor. Views cost nothing.
"""

from __future__ import annotations

from math import prod

from smelt.analysis.liveness import nbytes
from smelt.diag.records import record
from smelt.ir import Arg, Graph, Node, TensorType, Value
from smelt.ops.effects import alias_of

_STRUCTURAL = ("param", "buffer", "captured", "const", "unpack", "write", "if", "for", "while")


@record
class Cost:
    """flops: floating-point operations. nbytes: bytes of all tensor operands and results."""

    flops: int = 0
    nbytes: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.nbytes + other.nbytes)


def cost(node: Node) -> Cost:
    """The cost of running one node once; a node of unknown sizes, and one that runs nothing, costs nothing."""
    if node.op in _STRUCTURAL or alias_of(node) is not None:
        return Cost()
    values = [*dict.fromkeys(node.operands()), *node.results]
    return Cost(_flops(node), sum(map(nbytes, values)))


def total_cost(graph: Graph) -> Cost:
    """The cost of all nodes, each counted once."""
    return sum(map(cost, graph.walk()), Cost())


def _sizes(arg: Arg) -> tuple[int, ...] | None:
    if isinstance(arg, Value) and isinstance(arg.type, TensorType) and arg.type.is_static:
        return arg.type.sizes
    return None


def _flops(node: Node) -> int:
    sizes = [s for s in map(_sizes, node.args) if s is not None]
    out = _sizes(node.results[0]) if node.results else None
    if out is None:
        return 0
    match node.op.split(".")[1]:
        case "linear" | "mm" | "bmm" | "matmul" | "mv" | "dot" if sizes and sizes[0]:
            return 2 * prod(out) * sizes[0][-1]
        case "addmm" | "baddbmm" if len(sizes) == 3:
            return 2 * prod(out) * sizes[1][-1]
        case "conv1d" | "conv2d" | "conv3d" | "convolution" if len(sizes) >= 2:
            return 2 * prod(out) * prod(sizes[1][1:])
        case "scaled_dot_product_attention" | "_scaled_dot_product_flash_attention_for_cpu" if len(sizes) >= 3:
            return 2 * prod(sizes[0]) * sizes[1][-2] + 2 * prod(out) * sizes[1][-2]
        case "_scaled_dot_product_flash_attention_for_cpu_backward" if len(sizes) >= 4:
            # The scores again, and two products for each of the two forward.
            return 2 * prod(sizes[0]) * sizes[2][-2] * 5
    return max([prod(out), *map(prod, sizes)])
