"""Tensors out of numbers; random ones draw from the generator as eager does."""

from __future__ import annotations

import torch

from smelt.ir import Arg, TensorType, Value
from smelt.ops.record import Call, Emitter, Lowering, OpRecord, Slot, Trait, library, sample, tensor_type
from smelt.ops.samples import fixed, floats, ints, strided


def _always(call: Call) -> bool:
    return True


def _lower_like(value: int | None) -> Lowering:
    """`zeros_like` and the like as `full`, where the operand is row-major and nothing else is asked for."""

    def lower(b: Emitter, call: Call) -> Arg | None:
        kind = tensor_type(call["self"])
        if kind.strides is not None or not kind.is_static or call.get("memory_format") is not None:
            return None
        return _full(b, call, kind, kind.sizes, value)

    return lower


def _lower_new(value: int | None) -> Lowering:
    def lower(b: Emitter, call: Call) -> Arg | None:
        return _full(b, call, tensor_type(call["self"]), call["size"], value)

    return lower


def _lower_fill(b: Emitter, call: Call) -> Arg | None:
    kind = tensor_type(call["self"])
    if kind.device != "cpu" or kind.strides is not None or not kind.is_static or isinstance(call["value"], Value):
        return None
    return b.call("aten.full.default", kind.sizes, call["value"], dtype=kind.dtype)


def _lower_zero(b: Emitter, call: Call) -> Arg | None:
    return _lower_fill(b, {**call, "value": 0})


def _full(b: Emitter, call: Call, kind: TensorType, sizes: Arg, value: int | None) -> Arg | None:
    if kind.device != "cpu" or call["device"] is not None or call["layout"] is not None or call["pin_memory"]:
        return None
    filler = call["fill_value"] if value is None else value
    return b.call("aten.full.default", sizes, filler, dtype=call["dtype"] or kind.dtype)


_LIKES = fixed(lambda: [sample(floats(3, 4)), sample(strided(3, 4)), sample(ints(3), dtype=torch.float64)])
_NEW = fixed(lambda: [sample(floats(3), [2, 3]), sample(ints(3), [2], dtype=torch.bool)])

_DRAWS = library("it draws from torch's generator, whose stream is the library's")
_DRAWS_ON_CPU = library("it draws from torch's generator, whose stream is the library's", Slot.KERNEL)
_NO_CONTENT = library("there is nothing to compute")

CREATION: tuple[OpRecord, ...] = (
    OpRecord(
        "aten.zeros.default",
        "torch.zeros",
        fixed(lambda: [sample([2, 3]), sample([0]), sample([], dtype=torch.int64)]),
        traits=Trait.CONSTANT_FILL,
    ),
    OpRecord(
        "aten.ones.default",
        "torch.ones",
        fixed(lambda: [sample([2, 3]), sample([2], dtype=torch.bool)]),
        traits=Trait.CONSTANT_FILL,
    ),
    OpRecord(
        "aten.full.default",
        "torch.full",
        fixed(
            lambda: [
                sample([2, 3], 1.5),
                sample([2], 3),
                sample([], True),
                sample([2], float("-inf"), dtype=torch.float64),
            ]
        ),
        traits=Trait.CONSTANT_FILL | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.scalar_tensor.default",
        "torch.scalar_tensor",
        fixed(lambda: [sample(1.5), sample(2, dtype=torch.int64)]),
        traits=Trait.CONSTANT_FILL | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.zeros_like.default",
        "torch.zeros_like",
        _LIKES,
        lower=_lower_like(0),
        exact=True,
        traits=Trait.ANY_TENSOR
        | Trait.CONSTANT_FILL
        | Trait.FILLS
        | Trait.OWN_STRIDES
        | Trait.SAME_SHAPE
        | Trait.TYPE_ONLY
        | Trait.NO_GRADIENT,
    ),
    OpRecord(
        "aten.ones_like.default",
        "torch.ones_like",
        _LIKES,
        lower=_lower_like(1),
        exact=True,
        traits=Trait.ANY_TENSOR
        | Trait.CONSTANT_FILL
        | Trait.FILLS
        | Trait.OWN_STRIDES
        | Trait.SAME_SHAPE
        | Trait.TYPE_ONLY
        | Trait.NO_GRADIENT,
    ),
    OpRecord(
        "aten.full_like.default",
        "torch.full_like",
        fixed(lambda: [sample(floats(3, 4), 2), sample(strided(3, 4), 1.5), sample(ints(2), 3)]),
        lower=_lower_like(None),
        exact=True,
        traits=Trait.ANY_TENSOR
        | Trait.CONSTANT_FILL
        | Trait.FILLS
        | Trait.OWN_STRIDES
        | Trait.SAME_SHAPE
        | Trait.TAKES_RUN_NUMBERS
        | Trait.TYPE_ONLY
        | Trait.NO_GRADIENT,
    ),
    OpRecord(
        "aten.new_zeros.default",
        "torch.Tensor.new_zeros",
        _NEW,
        lower=_lower_new(0),
        exact=True,
        traits=Trait.CONSTANT_FILL | Trait.TYPE_ONLY | Trait.NO_GRADIENT,
    ),
    OpRecord(
        "aten.new_ones.default",
        "torch.Tensor.new_ones",
        _NEW,
        lower=_lower_new(1),
        exact=True,
        traits=Trait.CONSTANT_FILL | Trait.TYPE_ONLY | Trait.NO_GRADIENT,
    ),
    OpRecord(
        "aten.new_full.default",
        "torch.Tensor.new_full",
        fixed(lambda: [sample(floats(3), [2, 3], 2.5), sample(ints(3), [2], 1)]),
        lower=_lower_new(None),
        exact=True,
        traits=Trait.CONSTANT_FILL | Trait.TAKES_RUN_NUMBERS | Trait.TYPE_ONLY | Trait.NO_GRADIENT,
    ),
    OpRecord(
        "aten.fill.Scalar",
        "torch.ops.aten.fill",
        fixed(lambda: [sample(floats(3, 4), 2), sample(strided(3, 4), 1.5), sample(ints(2), 3)]),
        lower=_lower_fill,
        exact=True,
        traits=Trait.CONSTANT_FILL | Trait.SAME_SHAPE | Trait.TAKES_RUN_NUMBERS,
    ),
    OpRecord(
        "aten.zero.default",
        "torch.ops.aten.zero",
        fixed(lambda: [sample(floats(3, 4)), sample(strided(3, 4)), sample(ints(2))]),
        lower=_lower_zero,
        exact=True,
        traits=Trait.ANY_TENSOR,
    ),
    OpRecord(
        "aten.arange.default", "torch.arange", fixed(lambda: [sample(5), sample(2.5), sample(4, dtype=torch.float32)])
    ),
    OpRecord("aten.arange.start", "torch.arange", fixed(lambda: [sample(1, 5), sample(0.0, 2.0)])),
    OpRecord("aten.arange.start_step", "torch.arange", fixed(lambda: [sample(1, 9, 2), sample(0, 1, 0.25)])),
    OpRecord(
        "aten.linspace.default",
        "torch.linspace",
        fixed(lambda: [sample(0, 1, 5)]),
        why_not=library("each half counts from its own end, with the library's rounding"),
    ),
    OpRecord("aten.eye.default", "torch.eye", fixed(lambda: [sample(3)])),
    OpRecord(
        "aten.empty.memory_format",
        "torch.empty",
        fixed(lambda: [sample([2, 3])]),
        uninitialised=True,
        why_not=_NO_CONTENT,
    ),
    OpRecord(
        "aten.empty_like.default",
        "torch.empty_like",
        fixed(lambda: [sample(floats(2, 3))]),
        uninitialised=True,
        traits=Trait.ANY_TENSOR | Trait.FILLS | Trait.NO_GRADIENT,
        why_not=_NO_CONTENT,
    ),
    OpRecord(
        "aten.empty_strided.default",
        "torch.empty_strided",
        fixed(lambda: [sample([2, 3], [1, 2])]),
        uninitialised=True,
        why_not=library("its elements are addressed in memory, not by indices"),
    ),
    OpRecord(
        "aten.new_empty.default",
        "torch.Tensor.new_empty",
        fixed(lambda: [sample(floats(2, 3), [2])]),
        uninitialised=True,
        traits=Trait.NO_GRADIENT,
        why_not=_NO_CONTENT,
    ),
    OpRecord("aten.rand.default", "torch.rand", fixed(lambda: [sample([2, 3])]), rng=_always, why_not=_DRAWS_ON_CPU),
    OpRecord("aten.randn.default", "torch.randn", fixed(lambda: [sample([2, 3])]), rng=_always, why_not=_DRAWS_ON_CPU),
    OpRecord("aten.randint.low", "torch.randint", fixed(lambda: [sample(0, 5, [3])]), rng=_always, why_not=_DRAWS),
    OpRecord(
        "aten.randn_like.default",
        "torch.randn_like",
        fixed(lambda: [sample(floats(2, 3))]),
        rng=_always,
        traits=Trait.ANY_TENSOR | Trait.NO_GRADIENT,
        why_not=_DRAWS_ON_CPU,
    ),
    OpRecord(
        "aten.rand_like.default",
        "torch.rand_like",
        fixed(lambda: [sample(floats(2, 3))]),
        rng=_always,
        traits=Trait.ANY_TENSOR | Trait.NO_GRADIENT,
        why_not=_DRAWS_ON_CPU,
    ),
    OpRecord(
        "aten.bernoulli.default",
        "torch.bernoulli",
        fixed(lambda: [sample(torch.full((3,), 0.5))]),
        rng=_always,
        why_not=_DRAWS,
    ),
    OpRecord(
        "aten.multinomial.default",
        "torch.multinomial",
        fixed(lambda: [sample(torch.ones(4), 2)]),
        rng=_always,
        may_throw=True,
        why_not=_DRAWS,
    ),
)
