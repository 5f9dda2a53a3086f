"""Attention of a graph, forward and gradients, as launches of its own kernels.

    %4 = scaled_dot_product_attention %q, %k, %v, %mask                      ==>   one launch
    %4, %5 = flash_attention %q, %k, %v                                      ==>   one launch, which keeps logarithms
    %6, %7, %8 = flash_attention_backward %g, %q, %k, %v, %4, %5             ==>   two: queries, then keys and values

Invariant: a node is refused unless its kernels compute what eager does for these operands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from smelt.codegen.attention.problem import Attention, Backward
from smelt.codegen.fusion.index import Unfusible
from smelt.codegen.lower.images.own_attention import are_fit, eager_place, operand_of, spread
from smelt.codegen.lower.images.trained_attention import FLASH, FLASH_BACKWARD, column_of
from smelt.codegen.lower.memory.geometry import Geometry
from smelt.codegen.triton.attention import attention_kernel, gradient_kernels, unsupported
from smelt.codegen.triton.kernel import TritonKernel
from smelt.diag.records import record
from smelt.ir import Arg, Node, Value
from smelt.ops.registry import arguments_of, schema_of

ATTENTIONS = ("aten.scaled_dot_product_attention.default", FLASH, FLASH_BACKWARD)
"""Operators that these kernels compute."""

_OPERANDS = ("query", "key", "value")


@record
class Launch:
    """A kernel with the values of its buffers, those at `writes` stored."""

    kernel: TritonKernel
    values: tuple[Value, ...]
    writes: tuple[int, ...]


def attention_launches(
    node: Node,
    geometry: Callable[[Value], Geometry],
    is_aligned: bool,
    has_tf32: bool,
    blocks: tuple[int, int, int, int] | None = None,
) -> list[Launch]:
    """The launches that compute a node of `ATTENTIONS`.

    geometry: how an operand lies in its memory. blocks: as of `attention_kernel`. Raises: Unfusible with the
    reason where no kernel takes it.
    """
    schema = schema_of(node.op)
    assert schema is not None
    call = arguments_of(schema, node.args, node.kwargs)
    operands = [_value(call[name]) for name in _OPERANDS]
    scale, mask = call["scale"], call["attn_mask"]
    if call["dropout_p"] != 0 or "autocast" in node.mode:
        raise Unfusible("attention that drops weights, or under autocast")
    if not (scale is None or isinstance(scale, int | float)):
        raise Unfusible("its scale is no number")
    if any(not 2 <= len(geometry(value).sizes) <= 4 for value in operands):
        raise Unfusible("its operands have other than two to four dimensions")
    q, k, v = (operand_of(value, geometry) for value in operands)
    out_value = node.results[0] if node.op != FLASH_BACKWARD else _value(call["out"])
    out = operand_of(out_value, geometry if node.op == FLASH_BACKWARD else eager_place)
    if not are_fit(q, k, v, out, bool(call.get("enable_gqa", node.op != ATTENTIONS[0]))):
        raise Unfusible("its operands do not fit one another")
    masks = None
    if isinstance(mask, Value):
        masks = spread(operand_of(mask, geometry), (*q.sizes[:3], k.sizes[2]))
        if masks is None:
            raise Unfusible("its mask does not fit the scores")
    factor = q.sizes[3] ** -0.5 if scale is None else float(scale)
    is_causal = bool(call["is_causal"])
    behind = (mask,) if isinstance(mask, Value) else ()
    if node.op != FLASH_BACKWARD:
        problem = Attention(q, k, v, out, masks, scale_after=factor, is_causal=is_causal)
        results = [r for r in node.results if r.users or r is node.results[0]]
        if len(results) > 1:
            problem = replace(problem, logarithms=column_of(operand_of(results[1], eager_place)))
        _check(unsupported(problem))
        values = (*operands, *results, *behind)
        begins = [0 if v in results else geometry(v).offset for v in values]
        kernel = attention_kernel(problem, begins, is_aligned, has_tf32, blocks)
        return [Launch(kernel, values, tuple(range(3, 3 + len(results))))]
    grad, sums = _value(call["grad_out"]), _value(call["logsumexp"])
    of_q, of_k, of_v = (operand_of(r, eager_place) for r in node.results)
    column = column_of(operand_of(sums, geometry))
    backward = Backward(
        operand_of(grad, geometry), q, k, v, out, column, of_q, of_k, of_v, masks, factor, is_causal
    )  # fmt: skip
    _check(unsupported(backward))
    given = (*operands, out_value, sums, grad)
    begins = [geometry(v).offset for v in (*given, *behind)]
    first, second = gradient_kernels(backward, begins, is_aligned, has_tf32, blocks)
    return [
        Launch(first, (*given, node.results[0], *behind), (6,)),
        Launch(second, (*given, *node.results[1:], *behind), (6, 7)),
    ]


def _check(why: str | None) -> None:
    if why is not None:
        raise Unfusible(why)


def _value(arg: Arg) -> Value:
    if not isinstance(arg, Value):
        raise Unfusible("an operand is no tensor")
    return arg
