"""Gradients of branches and loops: a branch for a branch, a loop in reverse for a loop.

    %h = for %i in (0, n, 1) with (%c = %h0) { ...; yield %d }
        ==>   %h, %s = for %i in (0, n, 1) with (%c = %h0, %t = empty(n, ...)) { ...;
                  yield %d, select_scatter(%t, %c, i) }
              %g0, %gw = for %k in (0, n, 1) with (%g = grad of %h, %a = zeros) {
                  %c = select(%s, n - 1 - k); ...the body once more, and its gradients...; yield %gc, %a + %gw_k }

What an iteration began with is saved, and its body is computed again where the gradient needs it. Gradients of what all
iterations use are summed last iteration first, as autograd sums them. Invariant: nothing that draws random numbers, or
acts on the world, is computed twice; what ranks exchange in a body, they exchange once more in its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from smelt.analysis import taken_by_regions
from smelt.analysis.cost import cost
from smelt.autodiff.activity import may_depend
from smelt.autodiff.loops import carry, count_of, divided, is_sized, minus, number_at, yield_also
from smelt.autodiff.shapes import laid_as
from smelt.diag import SmeltError
from smelt.ir import BOOL, INT, STATE_OPS, Arg, ListType, Node, Region, TensorType, Value
from smelt.ops.catalogue import record_of
from smelt.ops.effects import effects
from smelt.ops.lowering import GraphEmitter
from smelt.ops.ranks.collectives import COLLECTIVES
from smelt.rewrite import Rewriter, add_result, copy_nodes, first_carried

if TYPE_CHECKING:
    from smelt.autodiff.reverse import Reverse

_Own = Callable[[Arg], dict[Value, Arg]]
"""A loop's counter in the iteration of a number."""


def reverse_control(reverse: Reverse, node: Node) -> None:
    """Hand the gradients of a branch's or a loop's results to what it uses. Raises: SmeltError (S0303)."""
    for inner in (inner for region in node.regions for inner in region.walk()):
        found = effects(inner)
        if inner.op in COLLECTIVES:
            continue  # all ranks come to it once more, in the same order
        if not inner.regions and (found.io or (found.rng and not _is_in_branches(inner, node))):
            raise _cannot(inner, "it would be done twice in the gradient of a branch or a loop")
    {"if": _branch, "for": _for, "while": _while}[node.op](reverse, node)


def _is_in_branches(inner: Node, node: Node) -> bool:
    """Whether a node stands in a branch, and in nothing but branches below it."""
    while inner is not node:
        assert inner.parent is not None and isinstance(inner.parent.owner, Node)
        inner = inner.parent.owner
        if inner.op != "if":
            return False
    return True


def _cannot(node: Node, why: str) -> SmeltError:
    return SmeltError(f"{node.op} cannot be differentiated", node.span, why=why, code="S0303")


# --- branches


def _branch(reverse: Reverse, node: Node) -> None:
    b = reverse.emitter
    outer = _free(reverse, node)
    drawn = _drawn(reverse, node)
    types = [_row_major(value) for value in outer]
    flags = [BOOL for _ in outer] if reverse.tells else []
    made = b.builder.add("if", (node.args[0],), [*types, *flags])
    told: list[list[Arg]] = []
    reached: set[Value] = set()
    for region in node.regions:
        arm = b.builder.add_region(made)
        with b.builder.inside(arm):
            inner, mapping = _again(reverse, region, {})
            _take_drawn(reverse, mapping, drawn)
            for result, arg in zip(node.results, region.yields, strict=True):
                inner.give(_mapped(arg, mapping), reverse.grads.get(result), reverse.present(result))
            inner.region(arm)
            told.append([inner.present(value) for value in outer] if flags else [])
            _check_tuples(reverse, node, inner)
            reached.update(value for value in outer if inner.gradient(value) is not None)
            reverse.rewriter.set_yields(arm, (*(_gradient(inner, value, value) for value in outer), *told[-1]))
        drop_unused(reverse.rewriter, arm, is_copy=True)
    for i, value in enumerate(outer):
        if value not in reached:  # its number is all that the arms read: it has no gradient, which is not one of zeros
            continue
        reverse.add(value, made.results[i], present=_one_of(told, i, made.results[len(outer) + i]) if flags else None)


def _drawn(reverse: Reverse, node: Node) -> dict[Value, Value]:
    """What is drawn in the arms of a branch, handed out of it, so that the gradient draws nothing anew.

    The other arm hands out anything. Raises: SmeltError (S0303) where its size is not known.
    """
    b, found = reverse.emitter, dict[Value, Value]()
    for region, other in zip(node.regions, reversed(node.regions), strict=True):
        inside: dict[Value, Value] = {}
        for inner in list(region):
            if inner.op == "if":
                inside.update(_drawn(reverse, inner))
            elif effects(inner).rng:
                inside.update((result, result) for result in inner.results)
        for drawn, value in inside.items():
            type_ = value.type
            if not isinstance(type_, TensorType) or not type_.is_static:
                raise _cannot(node, "what is drawn in it has no known size")
            found[drawn] = add_result(reverse.rewriter, node, type_)
            yield_also(reverse.rewriter, region, value)
            with b.builder.inside(other):
                nothing = b.call("aten.empty_strided.default", type_.sizes, type_.steps, dtype=type_.dtype)
            yield_also(reverse.rewriter, other, nothing if nothing.type == type_ else _as(b, nothing, type_))
    return found


def _take_drawn(reverse: Reverse, mapping: dict[Value, Arg], drawn: dict[Value, Value]) -> None:
    """Have copies take what was drawn."""
    for value, given in drawn.items():
        copy = mapping.get(value)
        if isinstance(copy, Value) and copy.node is not None:
            reverse.rewriter.replace_node(copy.node, (given,))
            mapping[value] = given


def _one_of(told: Sequence[Sequence[Arg]], i: int, merged: Value) -> Arg:
    """Whether a gradient is there, of what two arms tell."""
    first, other = (found[i] for found in told)
    return first if type(first) is bool and first is other else merged


# --- loops


def _for(reverse: Reverse, node: Node) -> None:
    b, (start, stop, step) = reverse.emitter, node.args[:3]
    (body,) = node.regions
    with b.builder.at(node):
        count = count_of(b, start, stop, step)
    with b.builder.inside(body):
        at = divided(b, minus(b, body.params[0], start), step)
    saved = _Saved(reverse, node, body.params[1:], count, at)
    _in_reverse(
        reverse, node, body.params[1:], body, count, saved, lambda j: {body.params[0]: number_at(b, j, start, step)}
    )


def _while(reverse: Reverse, node: Node) -> None:
    b = reverse.emitter
    body = node.regions[1]
    number = len(node.results)
    counted = carry(reverse.rewriter, node, 0, INT)
    with b.builder.inside(body):
        more = b.call("py.add", counted, 1)
    yield_also(reverse.rewriter, body, more)
    saved = _Saved(reverse, node, body.params[:number], None, None)
    _in_reverse(reverse, node, body.params[:number], body, node.results[number], saved, lambda j: {})


def _in_reverse(
    reverse: Reverse,
    node: Node,
    params: Sequence[Value],
    body: Region,
    count: Arg,
    saved: _Saved,
    own: _Own,
) -> None:
    """The loop that goes through the iterations backwards."""
    b = reverse.emitter
    firsts = node.args[first_carried(node) :]
    outer = _free(reverse, node)
    carried = [i for i, param in enumerate(params) if param in reverse.active and isinstance(param.type, TensorType)]
    start = [_start(reverse, node.results[i]) for i in carried]
    start += [b.call("aten.zeros_like.default", value) for value in outer]
    types = [*(_row_major(params[i]) for i in carried), *map(_row_major, outer)]
    start = [_as(b, value, type_) for value, type_ in zip(start, types, strict=True)]
    there: list[Arg] = [reverse.present(node.results[i]) for i in carried] + [False for _ in outer]
    flags = [BOOL for _ in there] if reverse.tells else []
    made = b.builder.add("for", (0, count, 1, *start, *(there if flags else ())), [*types, *flags])
    back = b.builder.add_region(made)
    at = b.builder.add_param(back, "k", INT)
    grads = [b.builder.add_param(back, "", type_) for type_ in types]
    told: list[Arg] = [b.builder.add_param(back, "", type_) for type_ in flags] or [True for _ in types]
    with b.builder.inside(back):
        j = minus(b, minus(b, count, 1), at)
        loaded = saved.load(j)
        inner, mapping = _again(reverse, body, {**loaded, **own(j)})
        for i, grad, present in zip(carried, grads, told, strict=False):
            inner.give(_mapped(body.yields[i], mapping), grad, present)
        inner.region(back)
        _check_tuples(reverse, node, inner)
        befores = [mapping.get(params[i], params[i]) for i in carried]
        after = [inner.present(v) if isinstance(v, Value) else False for v in befores]
        after += [reverse.either(a, inner.present(v)) for a, v in zip(told[len(carried) :], outer, strict=True)]
        found = [_gradient(inner, value, grad) for value, grad in zip(befores, grads, strict=False)]
        unreached = set()  # what only its number is read of has no gradient, which is not one of zeros
        for value, total in zip(outer, grads[len(carried) :], strict=True):
            more = inner.gradient(value)
            if more is None:
                unreached.add(value)
            found.append(total if more is None else b.call("aten.add.Tensor", total, more))
        yields = tuple(_as(b, value, type_) for value, type_ in zip(found, types, strict=True))
        reverse.rewriter.set_yields(back, (*yields, *(after if flags else ())))
    for value in saved.results:  # what was put aside stands for the copies, whose gradients are written by now
        copy, instead = mapping[value], loaded[value]
        if isinstance(copy, Value) and isinstance(instead, Value) and copy.type == instead.type:
            reverse.rewriter.replace_all_uses(copy, instead)
    drop_unused(reverse.rewriter, back, is_copy=True)
    presents: Sequence[Arg] = made.results[len(types) :] or [None for _ in types]
    into: list[Arg] = [*(firsts[i] for i in carried), *(None if value in unreached else value for value in outer)]
    for arg, result, present in zip(into, made.results, presents, strict=False):
        if isinstance(arg, Value):
            reverse.add(arg, result, present=present)


class _Saved:
    """What each iteration begins with, put aside: tensors of known sizes in one tensor, all else in a list.

    results: what is put aside besides, since computing it again would take longer.
    """

    def __init__(self, reverse: Reverse, node: Node, params: Sequence[Value], count: Arg, at: Arg) -> None:
        self.b = b = reverse.emitter
        self.stacks: dict[Value, tuple[Value, bool]] = {}
        body = node.regions[-1]
        self.results = [] if count is None else _dear(node, body)
        for param in [*(param for param in params if param.users), *self.results]:
            type_ = param.type
            is_stacked = count is not None and is_sized(type_)
            with b.builder.at(node):
                if is_stacked:
                    assert isinstance(type_, TensorType)
                    first = b.call("aten.empty.memory_format", (count, *type_.sizes), dtype=type_.dtype)
                else:
                    first = b.builder.add("py.list", (), [ListType(type_)]).result
            last = carry(reverse.rewriter, node, first, first.type)
            with b.builder.inside(body):
                if is_stacked:
                    after = b.call("aten.select_scatter.default", last, param, 0, at)
                else:
                    after = b.builder.add("py.append", (last, param), [ListType(type_)]).result
            yield_also(reverse.rewriter, body, after)
            self.stacks[param] = node.results[-1], is_stacked

    def load(self, number: Arg) -> dict[Value, Arg]:
        """Each of them in the iteration of this number."""
        found: dict[Value, Arg] = {}
        for param, (stack, is_stacked) in self.stacks.items():
            if is_stacked:
                found[param] = self.b.call("aten.select.int", stack, 0, number)
            else:
                found[param] = self.b.builder.add("py.getitem", (stack, number), [param.type]).result
        return found


_FLOPS_A_BYTE = 10
"""Operations in the time of putting a byte aside and reading it again."""


def _dear(loop: Node, body: Region) -> list[Value]:
    """Products in a loop that take longer to compute again than to read, and that each iteration computes anew: not
    those of what comes from outside, which a pass computes for all iterations at once."""
    anew = set(body.params[1:] if loop.op == "for" else body.params)
    found = []
    for node in body:
        if not any(operand in anew for operand in node.operands()):
            continue
        anew.update(node.results)
        record = record_of(node.op)
        if record is None or record.product is None or len(node.results) != 1:
            continue
        type_ = node.result.type
        if is_sized(type_) and isinstance(type_, TensorType) and type_.strides is None:
            dear = cost(node).flops > _FLOPS_A_BYTE * type_.numel * type_.dtype.itemsize
            found += [node.result] if dear else []
    return found


# --- regions, once more


def _again(reverse: Reverse, region: Region, known: dict[Value, Arg]) -> tuple[Reverse, dict[Value, Arg]]:
    """Copy a region's nodes to where the builder stands; gradients of the copies, and the copy of each value."""
    mapping: dict[Value, Arg] = dict(known)
    copy_nodes(reverse.emitter.builder, region, mapping)
    active = reverse.active | {new for old, new in mapping.items() if isinstance(new, Value) and old in reverse.active}
    return reverse.fork(active), mapping


def _mapped(arg: Arg, mapping: dict[Value, Arg]) -> Arg:
    return mapping.get(arg, arg) if isinstance(arg, Value) else arg


def _free(reverse: Reverse, node: Node) -> list[Value]:
    """Tensors from outside that a node's regions use and that need a gradient."""
    used = dict.fromkeys(taken_by_regions(node))
    return [v for v in used if v in reverse.active and isinstance(v.type, TensorType)]


def _check_tuples(reverse: Reverse, node: Node, inner: Reverse) -> None:
    """Raises: SmeltError (S0303) where a gradient leads to a tuple from outside a region, which has no sum here."""
    for value in taken_by_regions(node):
        if not isinstance(value.type, TensorType) and value in inner.grads:
            raise _cannot(node, f"a gradient leads to %{value.name}, which is {value.type}")


def drop_unused(rewriter: Rewriter, region: Region, *, is_copy: bool = False) -> None:
    """Take out what nobody needs. is_copy: of nodes that run elsewhere, too, which raise there if they do."""
    for node in reversed(region):
        if any(r.users for r in node.results) or not node.results or not effects(node).is_pure:
            continue
        if is_copy or not (node.regions or node.op in STATE_OPS or effects(node).may_throw):
            rewriter.erase(node)


# --- values


def _row_major(value: Value) -> TensorType:
    type_ = value.type
    assert isinstance(type_, TensorType)
    return TensorType(type_.dtype, type_.shape, None, type_.device)


def _gradient(inner: Reverse, value: Arg, like: Value) -> Value:
    """A gradient in row-major order, zeros where there is none. like: a value of its sizes that stands here; what no
    iteration reads is not put aside."""
    assert isinstance(value, Value)
    found = inner.gradient(value) if may_depend(value.type) else None
    b = inner.emitter
    return _as(b, b.call("aten.zeros_like.default", like) if found is None else found, _row_major(value))


def _start(reverse: Reverse, result: Value) -> Value:
    found = reverse.gradient(result)
    return reverse.emitter.call("aten.zeros_like.default", result) if found is None else found


def _as(b: GraphEmitter, value: Value, type_: TensorType) -> Value:
    if value.type == type_:
        return value
    found = value.type
    if isinstance(found, TensorType) and found.shape == type_.shape:
        if not found.is_static:
            return b.call("aten.contiguous.default", value)
        made = laid_as(b, value, type_)
        assert isinstance(made, Value)
        return made
    raise SmeltError(f"a gradient {found} does not fit {type_} in a branch or a loop", code="S0303")
