"""Gathering, scattering, joining, padding, and operators whose result sizes depend on data."""

from __future__ import annotations

import torch

from smelt.ir import UNKNOWN_DIM, Arg, Device, DType, TensorType, Type, Value
from smelt.ops.record import Call, Emitter, OpRecord, Samples, Slot, Trait, library, sample, tensor_type
from smelt.ops.samples import bools, fixed, floats, ints, strided

BY_INDEX = "aten.index_select.default"
"""What passes write to take slices of a tensor by their numbers."""

_INDEX = torch.tensor([2, 0, 2])
_GRID = torch.tensor([[0, 1, 2, 0], [2, 0, 1, 1]])


def _lower_diag_embed(b: Emitter, call: Call) -> Arg | None:
    x, offset = tensor_type(call["self"]), call["offset"]
    if not isinstance(offset, int):
        return None
    first, second = (call[name] % (len(x.sizes) + 1) for name in ("dim1", "dim2"))
    side, sizes = x.sizes[-1] + abs(offset), list(x.sizes[:-1])
    for dim in sorted((first, second)):
        sizes.insert(dim, side)
    zeros = b.call("aten.new_zeros.default", call["self"], tuple(sizes))
    return b.call("aten.diagonal_scatter.default", zeros, call["self"], offset, first, second)


def _lower_stack(b: Emitter, call: Call) -> Arg:
    rank = (tensor_type(call["tensors"][0]).rank or 0) + 1
    dim = call["dim"] % rank
    return b.call("aten.cat.default", tuple(b.call("aten.unsqueeze.default", t, dim) for t in call["tensors"]), dim)


def _lower_copy(b: Emitter, call: Call) -> Arg | None:
    """A copy of the source in the type of the first operand: the source itself, cloned, where types agree."""
    target, source = call["self"], call["src"]
    if not isinstance(source, Value) or tensor_type(target) != tensor_type(source):
        return None
    kind = tensor_type(source)
    return b.call("aten.clone.default", source) if kind.strides is None and kind.is_static else None


def _lower_scatter_value(b: Emitter, call: Call) -> Arg | None:
    """Of a tensor full of the number."""
    x, index = tensor_type(call["self"]), tensor_type(call["index"])
    if isinstance(call["value"], Value) or not x.sizes or not index.sizes:
        return None
    full = b.call("aten.full.default", index.sizes, call["value"], dtype=x.dtype, device=Device(x.device))
    return b.call("aten.scatter.src", call["self"], call["dim"], call["index"], full)


# Of these a sum has the same bits however its terms are gathered in order; shorter floats are rounded at other times.
_SUMMED_ALIKE = (DType.F32, DType.F64, DType.I8, DType.I16, DType.I32, DType.I64, DType.U8)


def _lower_index_add(b: Emitter, call: Call) -> Arg | None:
    """Each row's index for each of its elements."""
    x, index, source = (tensor_type(call[n]) for n in ("self", "index", "source"))
    alpha = call["alpha"]
    if type(alpha) is not int or alpha != 1 or x.dtype not in _SUMMED_ALIKE or index.dtype is not DType.I64:
        return None
    if not x.sizes or not source.sizes or index.rank != 1 or x.dtype is not source.dtype or 0 in source.sizes:
        return None
    dim = call["dim"] % len(x.sizes)
    wide = [index.sizes[0] if d == dim else 1 for d in range(len(x.sizes))]
    places = b.call("aten.expand.default", b.call("aten.view.default", call["index"], tuple(wide)), source.sizes)
    return b.call("aten.scatter_add.default", call["self"], dim, places, call["source"])


def _nonzero_type(call: Call) -> tuple[Type, ...]:
    kind = tensor_type(call["self"])
    return (TensorType(DType.I64, (UNKNOWN_DIM, kind.rank or 0), (1, UNKNOWN_DIM), kind.device),)


def _masked_type(call: Call) -> tuple[Type, ...]:
    kind = tensor_type(call["self"])
    return (TensorType(kind.dtype, (UNKNOWN_DIM,), None, kind.device),)


def _pads() -> Samples:
    return fixed(
        lambda: [
            sample(floats(2, 3), [1, 2]),
            sample(floats(2, 3), [0, 1, 1, 0], 2.0),
            sample(strided(2, 3), [-1, 1]),
            sample(floats(2, 3), [0, 0]),
            sample(ints(3), [1, 1], 7),
        ]
    )


INDEXING: tuple[OpRecord, ...] = (
    OpRecord(
        BY_INDEX,
        "torch.index_select",
        fixed(lambda: [sample(floats(3, 4), 0, _INDEX), sample(strided(4, 3), 1, _INDEX)]),
        may_throw=True,
    ),
    OpRecord(
        "aten.gather.default",
        "torch.gather",
        fixed(lambda: [sample(floats(3, 4), 0, _GRID), sample(strided(3, 4), 0, _GRID)]),
        may_throw=True,
    ),
    OpRecord(
        "aten.scatter.src",
        "torch.scatter",
        fixed(lambda: [sample(floats(3, 4), 0, _GRID, floats(2, 4, seed=1))]),
        may_throw=True,
        why_not=library("it writes at indices that are data, of which two may be equal"),
    ),
    OpRecord(
        "aten.scatter.value",
        "torch.scatter",
        fixed(
            lambda: [
                sample(floats(3, 4), 0, _GRID, 1.5),
                sample(strided(3, 4), -2, _GRID, -0.0),
                sample(ints(3, 4), 0, _GRID, 2),
                sample(floats(3, 4, dtype=torch.bfloat16), 1, _GRID, 1 / 3),
                sample(bools(3, 4), 0, _GRID, True),
                sample(floats(3, 4), 0, _GRID[:, :0], 1.5),
            ]
        ),
        lower=_lower_scatter_value,
        exact=True,
        may_throw=True,
        why_not=library("it writes at indices that are data, of which two may be equal", Slot.TRITON),
    ),
    OpRecord(
        "aten.index.Tensor",
        "torch.ops.aten.index",
        fixed(
            lambda: [
                sample(floats(3, 4), [_INDEX]),
                sample(floats(3, 4), [None, _INDEX]),
                sample(strided(3, 4), [_INDEX, _INDEX]),
            ]
        ),
        may_throw=True,
        traits=Trait.ONE_BY_ONE | Trait.SIZED_BY_RUN,
    ),
    OpRecord(
        "aten.index_put.default",
        "torch.index_put",
        fixed(
            lambda: [
                sample(floats(3, 4), [torch.tensor([2, 0])], floats(4)),
                sample(floats(3, 4), [_INDEX], floats(4), True),
            ]
        ),
        may_throw=True,
        why_not=library("it writes at indices that are data, of which two may be equal"),
    ),
    OpRecord(
        "aten.index_add.default",
        "torch.index_add",
        fixed(
            lambda: [
                sample(floats(3, 4), 0, _INDEX, floats(3, 4, seed=1)),
                sample(floats(3, 4), -1, _INDEX, strided(3, 3), alpha=1),
                sample(ints(3, 4), 0, _INDEX, ints(3, 4, seed=1)),
                sample(floats(4), 0, _INDEX, floats(3)),
                sample(floats(2, 3, 2), 1, _INDEX, floats(2, 3, 2, seed=1)),
                sample(floats(3, 4), 0, _INDEX, floats(3, 4, seed=1), alpha=2),
                sample(floats(3, 4, dtype=torch.bfloat16), 0, _INDEX, floats(3, 4, dtype=torch.bfloat16)),
            ]
        ),
        lower=_lower_index_add,
        exact=True,
        may_throw=True,
        why_not=library("it adds at indices that are data, of which two may be equal", Slot.TRITON),
        traits=Trait.ONE_BY_ONE,
    ),
    OpRecord(
        "aten.embedding.default",
        "torch.ops.aten.embedding",
        fixed(
            lambda: [
                sample(floats(5, 4), ints(2, 3, low=0, high=5)),
                sample(floats(5, 4), torch.tensor(3)),
                sample(floats(5, 4), ints(3, low=0, high=5, dtype=torch.int32), 0),
            ]
        ),
        may_throw=True,
    ),
    OpRecord(
        "aten.cat.default",
        "torch.cat",
        fixed(
            lambda: [
                sample([floats(2, 3), floats(1, 3)]),
                sample([floats(2, 3), strided(2, 2)], 1),
                sample([floats(2), ints(3)]),
                sample([torch.empty(0), floats(2, 3)]),
            ]
        ),
        traits=Trait.ANY_LAYOUT | Trait.LIES_AS_OPERAND | Trait.READS_ALL | Trait.SHRINKS,
    ),
    OpRecord(
        "aten.stack.default",
        "torch.stack",
        fixed(lambda: [sample([floats(2, 3), floats(2, 3, seed=1)]), sample([floats(2), ints(2)], -1)]),
        lower=_lower_stack,
        exact=True,
        traits=Trait.READS_ALL,
    ),
    OpRecord("aten.constant_pad_nd.default", "torch.constant_pad_nd", _pads(), traits=Trait.ANY_LAYOUT),
    OpRecord(
        "aten.repeat.default",
        "torch.Tensor.repeat",
        fixed(lambda: [sample(floats(2, 3), [2, 1]), sample(floats(3), [2, 2])]),
        traits=Trait.READS_ALL,
    ),
    OpRecord(
        "aten.flip.default",
        "torch.flip",
        fixed(lambda: [sample(floats(2, 3), [1]), sample(strided(2, 3), [0, 1])]),
        traits=Trait.ANY_RANK | Trait.OWN_STRIDES | Trait.READS_ALL,
    ),
    OpRecord(
        "aten.roll.default",
        "torch.roll",
        fixed(lambda: [sample(floats(2, 3), [1], [1]), sample(floats(4), [2])]),
        traits=Trait.READS_ALL,
    ),
    OpRecord("aten.repeat_interleave.self_int", "torch.repeat_interleave", fixed(lambda: [sample(floats(2, 3), 2, 1)])),
    OpRecord(
        "aten.select_scatter.default",
        "torch.select_scatter",
        fixed(lambda: [sample(floats(3, 4), floats(4), 0, 1), sample(strided(3, 4), floats(3), -1, -1)]),
        traits=Trait.FILLS,
    ),
    OpRecord(
        "aten.slice_scatter.default",
        "torch.slice_scatter",
        fixed(lambda: [sample(floats(3, 4), floats(2, 4), 0, 1), sample(strided(3, 4), floats(3, 2), 1, 0, 4, 2)]),
        traits=Trait.FILLS,
    ),
    OpRecord(
        "aten.diagonal_scatter.default",
        "torch.diagonal_scatter",
        fixed(lambda: [sample(floats(3, 4), floats(3))]),
        traits=Trait.FILLS,
    ),
    OpRecord(
        "aten.diag_embed.default",
        "torch.diag_embed",
        fixed(lambda: [sample(floats(4)), sample(floats(2, 3), 1), sample(floats(2, 3), -2, 0, 1)]),
        lower=_lower_diag_embed,
        exact=True,
    ),
    OpRecord(
        "aten.as_strided_scatter.default",
        "torch.as_strided_scatter",
        fixed(lambda: [sample(floats(3, 4), floats(2, 2), [2, 2], [4, 1], 1)]),
        why_not=library("its elements are addressed in memory, not by indices"),
    ),
    OpRecord(
        "aten.copy.default",
        "torch.ops.aten.copy",
        fixed(
            lambda: [
                sample(floats(3, 4), floats(3, 4, seed=1)),
                sample(strided(3, 4), floats(4)),
                sample(ints(3), floats(3)),
            ]
        ),
        lower=_lower_copy,
        exact=True,
        traits=Trait.SAME_SHAPE,
    ),
    OpRecord(
        "aten.tril.default",
        "torch.tril",
        fixed(lambda: [sample(floats(3, 4)), sample(floats(2, 3, 3)), sample(strided(3, 4), 1)]),
        traits=Trait.ANY_RANK,
    ),
    OpRecord(
        "aten.triu.default",
        "torch.triu",
        fixed(lambda: [sample(floats(3, 4)), sample(floats(2, 3, 3)), sample(strided(3, 4), -1)]),
        traits=Trait.ANY_RANK,
    ),
    OpRecord(
        "aten.nonzero.default",
        "torch.nonzero",
        fixed(lambda: [sample(ints(3, 4, low=0, high=2))]),
        result=_nonzero_type,
        traits=Trait.ANY_TENSOR | Trait.OWN_STRIDES | Trait.SIZED_BY_RUN,
        why_not=library("its result is as long as data say"),
    ),
    OpRecord(
        "aten.masked_select.default",
        "torch.masked_select",
        fixed(lambda: [sample(floats(3, 4), bools(3, 4))]),
        result=_masked_type,
        traits=Trait.SIZED_BY_RUN,
        why_not=library("its result is as long as data say"),
    ),
)
