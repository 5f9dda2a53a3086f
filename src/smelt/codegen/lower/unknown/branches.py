"""Branches whose arms give tensors of different sizes, or lists with buffers: one place for both, and counts.

%r: f32[_] = if %c { yield %a: f32[4] } else { yield %b: f32[8] }
    ==>   %r: f32[8], %n: int = if %c { %p = pad %a; yield %p, 4 } else { yield %b, 8 }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from smelt.codegen.lower.unknown.cost import copy_ns, work_ns
from smelt.codegen.lower.unknown.outside_memory import lies_unseen
from smelt.codegen.lower.unknown.values import Buffer, Held, Padded, padded_or_value
from smelt.codegen.lower.unknown.well_formed import has_unknown, tensor_type
from smelt.ir import INT, Arg, ListType, MemoryFormat, Node, Region, TensorType, Type, Value

if TYPE_CHECKING:
    from smelt.codegen.lower.unknown.rewriting import Rewriting


def rewrite_branch(r: Rewriting, node: Node) -> None:
    """Add the branch. Raises: Exact."""
    test = r.exactly(node.args[0])
    if isinstance(test, bool):
        arm = node.regions[0 if test else 1]
        r.visit(arm)
        for result, arg in zip(node.results, arm.yields, strict=True):
            r.held[result] = r.held[arg] if isinstance(arg, Value) else arg
        return
    made = r.builder.add("if", (test,), [])
    regions = [r.builder.add_region(made) for _ in node.regions]
    arms: list[list[Held]] = []
    for which, (old, new) in enumerate(zip(node.regions, regions, strict=True)):
        with r.builder.inside(new), r.emit.scope(), r.facts.under(test, which == 0):
            r.visit(old)
            arms.append([r.held[a] if isinstance(a, Value) else a for a in old.yields])
    yields: list[list[Arg]] = [[], []]
    for number, result in enumerate(node.results):
        olds = [region.yields[number] for region in node.regions]
        forms = [arm[number] for arm in arms]
        joined = None if node in r.exact else _joined(r, forms, olds, result.type, lies_unseen(result))
        if joined is None:
            for out, region, form, given in zip(yields, regions, forms, olds, strict=True):
                with r.builder.inside(region):
                    value = given if isinstance(given, Value) else None
                    out.append(r.exact_value(form, result.type if value is None else value.type, value))
            r.held[result] = r.result(made, result.name, result.type)
        else:
            first = len(r.emit.added)
            _join(r, made, regions, result, forms, joined, yields)
            r.padded.append((node, sum(map(work_ns, r.emit.added[first:])) + copy_ns(joined[0])))
    for new, outs in zip(regions, yields, strict=True):
        new.set_yields(tuple(outs))


def _joined(
    r: Rewriting, forms: Sequence[Held], olds: Sequence[Arg], type_: Type, is_free: bool
) -> tuple[TensorType, list[bool]] | None:
    """The type of what both arms give, and which dimensions are counted; None where they have no such form.

    is_free: nobody sees how it lies.
    """
    if isinstance(type_, ListType):
        both = [f for f in forms if isinstance(f, Buffer)]
        if not both:
            return None
        if len(both) < len(forms) or both[0].rows.type != both[-1].rows.type:
            raise r.refusal(both[0].start)
        assert isinstance(both[0].rows.type, TensorType)
        return both[0].rows.type, [True]
    if not has_unknown(type_) or not isinstance(type_, TensorType):
        return None
    types = [tensor_type(form) for form in forms]
    if any(t is None for t in types) or any(isinstance(o, Value) and r.sharing.is_told_apart(o) for o in olds):
        return None
    first, *others = [t for t in types if t is not None]
    if any(len(t.sizes) != len(first.sizes) or t.dtype is not first.dtype for t in others):
        return None
    counted = [
        any(isinstance(f, Padded) and f.counts[d] is not None for f in forms)
        or any(t.sizes[d] != first.sizes[d] for t in others)
        for d in range(len(first.sizes))
    ]
    sizes = [max(t.sizes[d] for t in (first, *others)) for d in range(len(first.sizes))]
    joined = first if all(t == first for t in others) else TensorType.of(first.dtype, sizes)
    return (joined, counted) if type_.strides is None or joined.steps == type_.steps or is_free else None


def _join(
    r: Rewriting,
    made: Node,
    regions: Sequence[Region],
    result: Value,
    forms: Sequence[Held],
    joined: tuple[TensorType, list[bool]],
    yields: Sequence[list[Arg]],
) -> None:
    type_, counted = joined
    for out, region, form in zip(yields, regions, forms, strict=True):
        with r.builder.inside(region), r.emit.scope():
            tensor, *sizes = r.flat(form, type_, counted)
            if isinstance(tensor, Value) and isinstance(tensor.type, TensorType) and tensor.type.steps != type_.steps:
                tensor = r.emit("aten.clone.default", tensor, memory_format=MemoryFormat("contiguous_format"))
            out.extend((tensor, *sizes))
    whole = r.result(made, result.name, type_)
    counts = [r.result(made, "", INT) if c else None for c in counted]
    first = forms[0]
    if isinstance(first, Buffer):
        assert counts[0] is not None
        r.held[result] = Buffer(whole, counts[0], first.start)
        return
    r.held[result] = padded_or_value(whole, counts)
    r.note_bounds(r.held[result])
