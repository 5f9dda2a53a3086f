"""The term that keeps NaN where spelled-out attention has it and the operator does not: built, and found again.

    %1 = sum (mul %q, 0), -1;  %2 = amin (nan_to_num (sum (mul %k, 0), -1), inf), -2;  %3 = amax %mask, -1
    guard = add (add %1, (mul %2, 0)), (mul %3, 0)           # 0, or NaN; %2: inf if no key is finite, for each q head

Invariant: what `guard_nodes` finds is what `guard` builds, whatever else the passes did around it.
"""

from __future__ import annotations

from math import inf

from smelt.ir import Arg, Node, Value
from smelt.ops.lowering import GraphEmitter
from smelt.passes.base import call_of
from smelt.passes.matching import scalar_of, static_tensor

ATTENTION = "aten.scaled_dot_product_attention.default"
_ADD, _MUL, _SUM = "aten.add.Tensor", "aten.mul.Tensor", "aten.sum.dim_IntList"
_LEAST, _MAX, _REPEAT = "aten.amin.default", "aten.amax.default", "aten.repeat_interleave.self_int"
_FILLED = "aten.nan_to_num.default"


def guard(emit: GraphEmitter, query: Value, key: Value, mask: Value | None) -> Value:
    """f32[batch, heads, queries, 1]: 0, and NaN where spelled-out attention gives NaN and the kernel may not."""
    # 0 times anything finite is 0, times inf or NaN it is NaN.
    per_query = emit.call(_SUM, emit.call(_MUL, query, 0.0), (-1,), True)
    per_key = emit.call(_SUM, emit.call(_MUL, key, 0.0), (-1,), True)
    least = emit.call(_LEAST, emit.call(_FILLED, per_key, inf), (-2,), True)
    all_keys = emit.call(_MUL, least, 0.0)
    heads, shared = (_heads(v) for v in (query, key))
    if heads != shared:
        all_keys = emit.call(_REPEAT, all_keys, heads // shared, 1)
    made = emit.call(_ADD, per_query, all_keys)
    if mask is None:
        return made
    largest = emit.call(_MAX, mask, (-1,), True)
    return emit.call(_ADD, made, emit.call(_MUL, largest, 0.0))


def _heads(value: Value) -> int:
    type_ = static_tensor(value)
    assert type_ is not None
    return type_.sizes[1]


def guard_nodes(attention: Node) -> tuple[Node, ...]:
    """The nodes that only add the guard to an attention, the addition last; empty where it has none of its own."""
    call = call_of(attention)
    users = [user for user in attention.result.users if isinstance(user, Node)]
    if len(attention.result.users) != 1 or len(users) != 1 or call["is_causal"] or users[0].op != _ADD:
        return ()
    addition = call_of(users[0])
    if addition["self"] is not attention.result or addition["alpha"] != 1:
        return ()
    found: list[Node] = []
    if not _is_guard(addition["other"], call["query"], call["key"], call["attn_mask"], found):
        return ()
    inside = set(found) | {users[0]}
    if any(user not in inside for node in found for user in node.result.users):
        return ()
    if any(node.parent is not attention.parent for node in inside):
        return ()  # a part of it is computed before the branch or loop
    order = {node: i for i, node in enumerate(attention.parent or ())}
    return (*sorted(found, key=order.__getitem__), users[0])


def _is_guard(value: Arg, query: Arg, key: Arg, mask: Arg, found: list[Node]) -> bool:
    total = _operands(value, _ADD, found)
    if total is not None and mask is not None:
        largest = _of(_scaled(total[1], found), _MAX, found)
        if largest is not mask:
            return False
        total = _operands(total[0], _ADD, found)
    if total is None:
        return False
    all_keys = total[1]
    repeated = _made_by(all_keys, _REPEAT, found)
    if repeated is not None:
        # Heads that share keys: sizes leave one number of repetitions.
        all_keys = call_of(repeated)["self"] if call_of(repeated)["dim"] == 1 else None
    per_key = _filled(_of(_scaled(all_keys, found), _LEAST, found), found)
    return (
        _scaled(_of(total[0], _SUM, found), found) is query
        and _scaled(_of(per_key, _SUM, found), found) is key
    )  # fmt: skip


def _made_by(value: Arg, op: str, found: list[Node]) -> Node | None:
    node = value.node if isinstance(value, Value) else None
    if node is None or node.op != op:
        return None
    found.append(node)
    return node


def _operands(value: Arg, op: str, found: list[Node]) -> tuple[Arg, Arg] | None:
    """Both operands of an addition."""
    node = _made_by(value, op, found)
    if node is None or call_of(node)["alpha"] != 1:
        return None
    return call_of(node)["self"], call_of(node)["other"]


def _of(value: Arg, op: str, found: list[Node]) -> Arg:
    """What a reduction that keeps its dimension is of; None for anything else."""
    node = _made_by(value, op, found)
    if node is None or call_of(node)["keepdim"] is not True:
        return None
    dims = (-2,) if op == _LEAST else (-1,)
    return call_of(node)["self"] if call_of(node)["dim"] == dims else None


def _filled(value: Arg, found: list[Node]) -> Arg:
    """What has infinities in place of NaN; None for anything else."""
    node = _made_by(value, _FILLED, found)
    if node is None or call_of(node)["nan"] != inf or call_of(node)["posinf"] is not None:
        return None
    return call_of(node)["self"]


def _scaled(value: Arg, found: list[Node]) -> Arg:
    """What is multiplied by 0; None for anything else."""
    node = _made_by(value, _MUL, found)
    if node is None or scalar_of(call_of(node)["other"]) != 0.0:
        return None
    return call_of(node)["self"]
