"""What follows a product as an expression over its element: pointwise nodes behind a linear, matmul or convolution.

    %1 = linear(%x, %w); %2 = add(%1, %b); %3 = gelu(%2)      ==>      gelu(add(acc, b[column]))

Invariant: the same roundings as the nodes one by one: the product's element is rounded to its dtype first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence

from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.fusion.pull import Memory, Pull, Where
from smelt.codegen.fusion.rules.rules import RULES
from smelt.codegen.fusion.tidy import mapped, mapped_index
from smelt.codegen.kernels.nest import ACC, Buffer, Expr, Index, Let, Load, Op, Ref, walk
from smelt.codegen.kernels.sizes import same_sizes
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.diag.records import record
from smelt.ir import DType, Node, TensorType, Value
from smelt.ir.sizes import equals
from smelt.ops.record import Trait
from smelt.ops.sets import where

_NEAR = 48
"""Nodes behind a value among which those are looked for that use it together."""
_LARGEST = 64
"""Parts that an epilogue may have; what is longer is a kernel of its own."""


@record
class EpilogueExpr:
    """The element that is stored, over `Ref(ACC, F32)` (F64 for products of that dtype) and loads with two loops, row
    and column. `buffers` are what the loads number, `keys` what `where` called them.
    """

    expr: Expr
    buffers: tuple[Buffer, ...]
    keys: tuple[Hashable, ...]


def epilogue_expr(nodes: Sequence[Node], product: Value, where: Where, *, column: int = -1) -> EpilogueExpr:
    """The last node's element at (row, column), where `nodes` follow one another from `product`.

    product: its dimension `column` is the column, all others together, in row-major order, the row.
    where: where an operand lies. Raises: Unfusible, where a node is none of a nest, is needed at another element, or an
    operand's rows do not lie as one dimension (a copy of the product in between does not help: it is a nest then).
    """
    type_ = product.type
    assert isinstance(type_, TensorType)
    if not nodes:
        return EpilogueExpr(rounded(type_.dtype), (), ())
    result = nodes[-1].result
    inside = frozenset(r for node in nodes for r in node.results)
    if not isinstance(result.type, TensorType) or not same_sizes(result.type.sizes, type_.sizes):
        raise Unfusible("the epilogue changes the product's sizes")
    pull = Pull(inside, RULES, where, {}, {product: rounded(type_.dtype)})
    idx = tuple(pull.dimension(size) for size in type_.sizes)
    found = pull.element(result, idx)
    if pull.inner:
        raise Unfusible("the epilogue reduces")
    lets = {s.name: s.expr for s in pull.statements if isinstance(s, Let)}
    if len(lets) > _LARGEST:
        raise Unfusible("the epilogue is long")
    rank = len(type_.sizes)
    loops = [next(iter(ix.loops), None) for ix in idx]
    last = loops[column % rank]
    rows = [(loop, size) for d, (loop, size) in enumerate(zip(loops, type_.sizes, strict=True)) if d != column % rank]
    expr = _in_two_loops(found, lets, [(loop, size) for loop, size in rows if loop is not None], last)
    if sum(1 for _ in walk(expr)) > _LARGEST:
        raise Unfusible("the epilogue is long")
    return EpilogueExpr(expr, tuple(pull.kinds), tuple(pull.buffers))


def rounded(dtype: DType) -> Expr:
    """The product's element in its own dtype."""
    if dtype in (DType.F32, DType.F64):
        return Ref(ACC, dtype)
    return Op("cast", (Ref(ACC, DType.F32),), dtype)


def _in_two_loops(expr: Expr, lets: dict[str, Expr], rows: Sequence[tuple[int, int]], column: int | None) -> Expr:
    """The expression written out, its indices over the loops row and column."""

    def at(index: Index) -> Index:
        strides = dict(enumerate(index.strides))
        step = strides.get(rows[-1][0], 0) if rows else 0
        reach = step
        for loop, size in reversed(rows):
            if not equals(strides.get(loop, 0), reach):
                raise Unfusible("an operand's rows do not form one dimension in memory")
            reach *= size
        return Index(index.offset, (step, strides.get(column, 0) if column is not None else 0), index.gathers)

    def written(part: Expr) -> Expr | None:
        match part:
            case Ref(name=name) if name in lets:
                return mapped(lets[name], written, at)
            case Load(buffer=buffer, index=index, dtype=dtype, where=None):
                return Load(buffer, mapped_index(index, written, at), dtype)
            case Load():
                raise Unfusible("an operand is read under a mask")
            case _:
                return None

    return mapped(expr, written, at)


def epilogue_nodes(
    product: Value,
    limit: Callable[[Node], bool] = lambda node: True,
    most: int = 12,
    also: Collection[str] = (),
    *,
    meeting: bool = False,
) -> list[Node]:
    """The chain of nodes behind a product of which each is the only user of the one before, and pointwise on it.

    limit: whether a node may be taken (not claimed by others, no write in between). also: operators beside
    `EPILOGUE_OPS`. meeting: in place of an only user there may be several that meet in one, as in x * sigmoid(x).
    """
    found: list[Node] = []
    value = product

    def is_taken(node: Node) -> bool:
        result = node.results[0] if len(node.results) == 1 else None
        if result is None or node.mode or not (node.op in EPILOGUE_OPS or node.op in also) or not limit(node):
            return False
        if not all(isinstance(v.type, TensorType) for v in node.operands()):
            return False
        if not isinstance(result.type, TensorType) or not isinstance(product.type, TensorType):
            return False
        return same_sizes(result.type.sizes, product.type.sizes) and node.parent is (value.node and value.node.parent)

    while len(found) < most:
        users = list(value.users)
        if len(users) == 1:
            more = [user for user in users if isinstance(user, Node) and is_taken(user)]
        else:
            more = _meeting(value, is_taken, most - len(found)) if meeting else []
        if not more:
            break
        found += more
        value = more[-1].result
    return found


def _meeting(value: Value, is_taken: Callable[[Node], bool], most: int) -> list[Node]:
    """What uses a value, up to a node that alone is used behind it; nothing if some use is none of an epilogue."""
    found: list[Node] = []
    waiting = set(value.users)
    node = None if value.node is None else value.node.next
    for _ in range(_NEAR):
        if node is None:
            break
        if node in waiting:
            if len(found) == most or not is_taken(node):
                break
            found.append(node)
            waiting.remove(node)
            if not waiting:
                return found
            waiting.update(node.result.users)
        node = node.next
    return []


def leave_last_out(nodes: list[Node], product: Value) -> None:
    """Shorten an epilogue: without its last node, and without those whose results others would then need, too."""
    nodes.pop()
    while nodes:
        inner = (product, *(node.result for node in nodes[:-1]))
        if all(set(value.users) <= set(nodes) for value in inner):
            return
        nodes.pop()


EPILOGUE_OPS = where(Trait.FOLLOWS_PRODUCT)
"""Operators worth computing on the product while it is in registers."""


def in_eager_layout(value: Value) -> Memory:
    """A value in a buffer of its own as eager lays it, for trials and tests."""
    assert isinstance(value.type, TensorType)
    return Memory(value, f"%{value.name}", Geometry.of(value.type))
