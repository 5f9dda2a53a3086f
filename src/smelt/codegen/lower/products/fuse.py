"""Which operators behind a product its library call can do as well: an activation, or a residual sum.

    %1 = linear(%x, %w, %b); %2 = gelu(%1)            ==>   one call with post = gelu
    %1 = linear(%x, %w, %b); %2 = add(%1, %r)         ==>   one call that adds %r

Invariant: only what keeps NaN, inf and the sign of zero as eager does is fused by default. oneDNN's relu and hardtanh
turn NaN into a number, so they are fused with numerics="fast" only (docs/decisions/0004-numerics.md).
"""

from __future__ import annotations

from smelt._torch.library import mkldnn
from smelt.codegen.lower.context import Context
from smelt.diag.records import record
from smelt.ir import Node, TensorType, Value


@record
class Post:
    """A fused activation by oneDNN's name."""

    name: str = "none"
    scalars: tuple[float, ...] = ()
    algorithm: str | None = None


@record
class Epilogue:
    """Nodes that one call does after a product, in order; `result` is what the last of them (or the product) gives."""

    nodes: tuple[Node, ...]
    result: Value
    residual: Value | None = None
    post: Post = Post()


# Those that compute what eager computes, and take no numbers.
_SIMPLE = {post.op: post.name for post in mkldnn.POST_OPS if post.name in ("swish", "sigmoid", "tanh", "hardswish")}


def post_of(ctx: Context, node: Node) -> Post | None:
    """The activation that a node is, if oneDNN has it and it may be fused."""
    if node.op in _SIMPLE:
        return Post(_SIMPLE[node.op])
    if node.op == "aten.gelu.default":
        return Post("gelu", (), str(ctx.call_arguments(node)["approximate"]))
    if node.op == "aten.leaky_relu.default":
        slope = ctx.call_arguments(node)["negative_slope"]
        return Post("leaky_relu", (float(slope),)) if isinstance(slope, (int, float)) and slope > 0 else None
    if ctx.options.numerics != "fast":
        return None
    if node.op == "aten.relu.default":
        return Post("relu")
    if node.op == "aten.relu6.default":
        return Post("hardtanh", (0.0, 6.0))
    if node.op == "aten.hardtanh.default":
        call = ctx.call_arguments(node)
        low, high = call["min_val"], call["max_val"]
        if isinstance(low, (int, float)) and isinstance(high, (int, float)):
            return Post("hardtanh", (float(low), float(high)))
    return None


def sole_user(value: Value) -> Node | None:
    """The node that uses a value, if it is used once in all, by a node of the same region."""
    if len(value.users) != 1:
        return None
    ((user, count),) = value.users.items()
    return user if count == 1 and isinstance(user, Node) and value.node and user.parent is value.node.parent else None


def residual_of(node: Node, value: Value) -> Value | None:
    """The other summand where a node adds a tensor of equal type to `value`."""
    if node.op != "aten.add.Tensor" or node.kwargs.get("alpha", 1) != 1 or len(node.args) != 2:
        return None
    left, right = node.args
    other = right if left is value else left
    if not isinstance(other, Value) or other is value:
        return None
    if other.type != value.type or node.result.type != value.type:
        return None
    return other


def epilogue_of(ctx: Context, node: Node, claimed: set[Node], *, sum_then_post: bool) -> Epilogue:
    """What can be fused behind a product; `sum_then_post`: an activation may follow a residual sum."""
    value = node.result
    residual: Value | None = None
    post = Post()
    nodes: list[Node] = []
    while True:
        user = sole_user(value)
        if user is None or user in claimed or user.mode or not isinstance(value.type, TensorType):
            break
        if post.name == "none" and (residual is None or sum_then_post):
            found = post_of(ctx, user)
            if found is not None and user.result.type == value.type:
                post, value = found, user.result
                nodes.append(user)
                continue
        if residual is None and post.name == "none":
            residual = residual_of(user, value)
            if residual is not None:
                value = user.result
                nodes.append(user)
                continue
        break
    return Epilogue(tuple(nodes), value, residual, post)
