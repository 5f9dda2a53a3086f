"""Other sizes and strides over the same memory, and the operators that are views only where strides allow."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from smelt.ir import UNKNOWN_DIM, Arg, MemoryFormat, TensorType, Type, Value
from smelt.ir.sizes import value
from smelt.ops.record import (
    Alias,
    Call,
    Emitter,
    Lowering,
    OpRecord,
    Sample,
    Samples,
    Trait,
    library,
    sample,
    tensor_type,
)
from smelt.ops.samples import fixed, floats, ints, strided
from smelt.ops.shapes.results import broadcast
from smelt.ops.shapes.views import Layout, is_row_major, resolved, seen_as


def _view(name: str, samples: Samples, oracle: str = "", alias: Alias = "view", **more: object) -> OpRecord:
    short = name.partition(".")[0]
    return OpRecord(f"aten.{name}", oracle or f"torch.{short}", samples, alias=alias, **more)  # type: ignore[arg-type]


def _calls(*calls: tuple[object, ...]) -> Samples:
    """Each call on a contiguous, a strided and an integer tensor of sizes 2, 3, 4."""

    def made() -> Iterator[Sample]:
        for call in calls:
            yield sample(floats(2, 3, 4), *call)
            yield sample(strided(2, 3, 4), *call)
            yield sample(ints(2, 3, 4), *call)

    return made


def _said_sizes(call: Call) -> tuple[Type, ...] | None:
    """The type that a reshape to sizes that are all numbers has, whatever sizes its operand has."""
    x, sizes = call["self"].type, call.get("size", call.get("shape"))
    if not isinstance(x, TensorType) or not all(type(n) is int and n >= 0 for n in sizes):
        return None
    is_row_major = x.shape is not None and x.strides is None
    strides = None if is_row_major else (UNKNOWN_DIM,) * len(sizes)
    return (TensorType(x.dtype, tuple(sizes), strides, x.device, x.layout),)


def _lower_reshape(b: Emitter, call: Call) -> Arg:
    """A view where strides allow, else a contiguous copy seen in the new sizes."""
    x, sizes = call["self"], call["shape"]
    kind = tensor_type(x)
    wanted = resolved(sizes, kind.numel) or sizes
    if seen_as(Layout.of(kind), wanted) is not None:
        return b.call("aten.view.default", x, wanted)
    copied = b.call("aten.clone.default", x, memory_format=MemoryFormat("contiguous_format"))
    return b.call("aten.view.default", copied, wanted)


def _lower_flatten(b: Emitter, call: Call) -> Arg:
    x, kind = call["self"], tensor_type(call["self"])
    rank = len(kind.sizes)
    if rank == 0:
        return b.call("aten.reshape.default", x, (1,))
    start, end = call["start_dim"] % rank, call["end_dim"] % rank
    if start == end:
        return x
    merged = 1
    for size in kind.sizes[start : end + 1]:
        merged *= size
    return b.call("aten.reshape.default", x, (*kind.sizes[:start], merged, *kind.sizes[end + 1 :]))


def _lower_unflatten(b: Emitter, call: Call) -> Arg:
    kind = tensor_type(call["self"])
    dim = call["dim"] % len(kind.sizes)
    sizes = resolved(call["sizes"], kind.sizes[dim]) or call["sizes"]
    return b.call("aten.view.default", call["self"], (*kind.sizes[:dim], *sizes, *kind.sizes[dim + 1 :]))


def _like(op: str) -> Lowering:
    def lower(b: Emitter, call: Call) -> Arg:
        return b.call(op, call["self"], tensor_type(call["other"]).sizes)

    return lower


def _lower_t(b: Emitter, call: Call) -> Arg | None:
    return b.call("aten.transpose.int", call["self"], 0, 1) if tensor_type(call["self"]).rank == 2 else None


def _lower_matrix_transpose(b: Emitter, call: Call) -> Arg | None:
    if tensor_type(call["self"]).rank == 0:
        return None
    return b.call("aten.transpose.int", call["self"], -2, -1)


def _lower_reversed(b: Emitter, call: Call) -> Arg:
    rank = tensor_type(call["self"]).rank or 0
    return b.call("aten.permute.default", call["self"], tuple(range(rank - 1, -1, -1)))


def _lower_movedim(b: Emitter, call: Call) -> Arg | None:
    rank = tensor_type(call["self"]).rank or 0
    if rank == 0:
        return None
    sources = [d % rank for d in call["source"]]
    targets = [d % rank for d in call["destination"]]
    order = [-1] * rank
    for source, target in zip(sources, targets, strict=True):
        order[target] = source
    rest = iter(d for d in range(rank) if d not in sources)
    return b.call("aten.permute.default", call["self"], tuple(next(rest) if d == -1 else d for d in order))


def _lower_movedim_one(b: Emitter, call: Call) -> Arg | None:
    return _lower_movedim(b, {**call, "source": (call["source"],), "destination": (call["destination"],)})


def _lower_narrow(b: Emitter, call: Call) -> Arg:
    start, sizes = call["start"], tensor_type(call["self"]).sizes
    if start < 0:
        # Counted from the end, where the end of the slice may be 0.
        start += sizes[call["dim"]]
    return b.call("aten.slice.Tensor", call["self"], call["dim"], start, start + call["length"])


def _slices(b: Emitter, x: Value, dim: int, sizes: tuple[int, ...]) -> tuple[Value, ...]:
    found, start = [], 0
    for size in sizes:
        found.append(b.call("aten.slice.Tensor", x, dim, start, start + size))
        start += size
    return tuple(found)


def _lower_split(b: Emitter, call: Call) -> tuple[Value, ...] | None:
    size, total = call["split_size"], tensor_type(call["self"]).sizes[call["dim"]]
    if size == 0 or total == 0:
        return None
    # How many there are stands in the node's type, so it is the same at all sizes.
    before = -(-value(total) // value(size)) - 1
    return _slices(b, call["self"], call["dim"], (*(size,) * before, total - size * before))


def _lower_split_sizes(b: Emitter, call: Call) -> tuple[Value, ...]:
    return _slices(b, call["self"], call["dim"], call["split_sizes"])


def _lower_chunk(b: Emitter, call: Call) -> tuple[Value, ...] | None:
    total = tensor_type(call["self"]).sizes[call["dim"]]
    return _lower_split(b, {**call, "split_size": (total + call["chunks"] - 1) // call["chunks"]}) if total else None


def _lower_unbind(b: Emitter, call: Call) -> tuple[Value, ...]:
    count = tensor_type(call["self"]).sizes[call["dim"]]
    return tuple(b.call("aten.select.int", call["self"], call["dim"], i) for i in range(count))


def _lower_broadcast(b: Emitter, call: Call) -> tuple[Value, ...] | None:
    sizes = broadcast(*(tensor_type(x).sizes for x in call["tensors"]))
    if sizes is None:
        return None
    return tuple(
        x if tensor_type(x).sizes == sizes else b.call("aten.expand.default", x, sizes) for x in call["tensors"]
    )


def _lower_meshgrid(b: Emitter, call: Call) -> tuple[Value, ...] | None:
    """Each vector seen along its own dimension, the first one along the first."""
    if call.get("indexing", "ij") != "ij":
        return None
    counts = tuple(tensor_type(x).numel for x in call["tensors"])
    found = []
    for i, x in enumerate(call["tensors"]):
        along = b.call("aten.view.default", x, tuple(n if i == at else 1 for at, n in enumerate(counts)))
        found.append(b.call("aten.expand.default", along, counts))
    return tuple(found)


def _lower_contiguous(b: Emitter, call: Call) -> Arg | None:
    kind = tensor_type(call["self"])
    is_plain = kind.strides is None or (kind.is_static and is_row_major(Layout.of(kind)))
    if call["memory_format"] != MemoryFormat("contiguous_format") or is_plain:
        return None
    return b.call("aten.clone.default", call["self"], memory_format=call["memory_format"])


def _tos(*calls: tuple[object, ...]) -> Samples:
    def made() -> Iterator[Sample]:
        for call in calls:
            yield sample(floats(3, 4), *call)
            yield sample(strided(3, 4), *call)
            yield sample(ints(3), *call)

    return made


_ONE_DIM = ((0,), (-1,))
_TO_DTYPES = ((torch.float32,), (torch.float64,), (torch.bfloat16,), (torch.int64,), (torch.bool,))

VIEWS: tuple[OpRecord, ...] = (
    _view(
        "view.default",
        fixed(
            lambda: [
                sample(floats(2, 3, 4), [6, 4]),
                sample(floats(2, 3, 4), [-1]),
                sample(strided(2, 3, 4), [2, 1, 3, 4]),
                sample(torch.empty(0, 3), [3, 0]),
                sample(torch.tensor(1.0), [1, 1]),
            ]
        ),
        "torch.Tensor.view",
        result_of_unknown=_said_sizes,
        traits=Trait.AT_START
        | Trait.CARRIES_STRIDES
        | Trait.ITEM_OF
        | Trait.RESHAPES
        | Trait.TO_SIZES
        | Trait.WHOLE_VIEW,
    ),
    _view(
        "reshape.default",
        _calls(([6, 4],), ([-1],), ([4, 6],)),
        alias="maybe",
        lower=_lower_reshape,
        result_of_unknown=_said_sizes,
        exact=True,
        traits=Trait.AT_START
        | Trait.CARRIES_STRIDES
        | Trait.IGNORES_AUTOCAST
        | Trait.ITEM_OF
        | Trait.RESHAPES
        | Trait.TO_SIZES
        | Trait.WHOLE_VIEW,
    ),
    _view(
        "flatten.using_ints",
        _calls((), (1,), (0, 1), (1, 1)),
        alias="maybe",
        lower=_lower_flatten,
        exact=True,
        traits=Trait.ANY_RANK
        | Trait.AT_START
        | Trait.IGNORES_AUTOCAST
        | Trait.RESHAPES
        | Trait.RETURNS_ITSELF
        | Trait.WHOLE_VIEW,
    ),
    _view(
        "unflatten.int",
        _calls((2, [2, 2]), (-1, [-1, 4])),
        lower=_lower_unflatten,
        exact=True,
        alias="maybe",
        traits=Trait.AT_START | Trait.IGNORES_AUTOCAST | Trait.RESHAPES,
    ),
    _view(
        "view_as.default",
        fixed(lambda: [sample(floats(2, 6), floats(3, 4))]),
        "torch.Tensor.view_as",
        lower=_like("aten.view.default"),
        exact=True,
        traits=Trait.AT_START | Trait.IGNORES_AUTOCAST | Trait.WHOLE_VIEW,
    ),
    _view(
        "reshape_as.default",
        fixed(lambda: [sample(strided(2, 6), floats(3, 4))]),
        "torch.Tensor.reshape_as",
        alias="maybe",
        lower=_like("aten.reshape.default"),
        exact=True,
        traits=Trait.AT_START | Trait.WHOLE_VIEW,
    ),
    _view(
        "expand_as.default",
        fixed(lambda: [sample(floats(1, 4), floats(3, 4))]),
        "torch.Tensor.expand_as",
        lower=_like("aten.expand.default"),
        exact=True,
        traits=Trait.AT_START | Trait.IGNORES_AUTOCAST | Trait.WHOLE_VIEW,
    ),
    _view(
        "transpose.int",
        _calls((0, 1), (-1, -2), (1, 1)),
        traits=Trait.ANY_RANK
        | Trait.AT_START
        | Trait.CARRIES_STRIDES
        | Trait.PERMUTES
        | Trait.STRIDED_PART
        | Trait.WHOLE_VIEW,
    ),
    _view(
        "permute.default",
        _calls(([2, 0, 1],), ([0, 1, 2],), ([-1, 1, 0],)),
        traits=Trait.ANY_RANK
        | Trait.AT_START
        | Trait.CARRIES_STRIDES
        | Trait.PERMUTES
        | Trait.STRIDED_PART
        | Trait.WHOLE_VIEW,
    ),
    _view(
        "t.default",
        fixed(lambda: [sample(floats(3, 4)), sample(strided(3, 4)), sample(floats(3))]),
        lower=_lower_t,
        exact=True,
        traits=Trait.ANY_RANK
        | Trait.AT_START
        | Trait.CARRIES_STRIDES
        | Trait.PERMUTES
        | Trait.STRIDED_PART
        | Trait.WHOLE_VIEW,
    ),
    _view(
        "mT.default",
        _calls(()),
        "torch.adjoint",
        lower=_lower_matrix_transpose,
        exact=True,
        traits=Trait.ANY_RANK | Trait.AT_START | Trait.IGNORES_AUTOCAST | Trait.PERMUTES,
    ),
    _view(
        "numpy_T.default",
        fixed(lambda: [sample(floats(3, 4))]),
        "torch.t",
        lower=_lower_reversed,
        exact=True,
        traits=Trait.ANY_RANK | Trait.AT_START | Trait.IGNORES_AUTOCAST | Trait.PERMUTES,
    ),
    _view(
        "movedim.int",
        _calls((0, 2), (-1, 0)),
        lower=_lower_movedim_one,
        exact=True,
        traits=Trait.ANY_RANK | Trait.AT_START | Trait.IGNORES_AUTOCAST,
    ),
    _view(
        "movedim.intlist",
        _calls(([0, 1], [1, 2])),
        lower=_lower_movedim,
        exact=True,
        traits=Trait.ANY_RANK | Trait.AT_START,
    ),
    _view(
        "expand.default",
        fixed(
            lambda: [
                sample(floats(3, 1), [3, 4]),
                sample(floats(3, 1), [2, -1, 5]),
                sample(torch.tensor(1.0), [2, 3]),
                sample(floats(3, 4), [3, 4]),
            ]
        ),
        "torch.Tensor.expand",
        traits=Trait.AT_START | Trait.CARRIES_STRIDES | Trait.SAME_VALUES | Trait.WHOLE_VIEW,
    ),
    _view(
        "unsqueeze.default",
        _calls((0,), (-1,), (2,)),
        traits=Trait.ANY_RANK | Trait.AT_START | Trait.CARRIES_STRIDES | Trait.RESHAPES,
    ),
    _view(
        "squeeze.default",
        fixed(lambda: [sample(floats(1, 3, 1)), sample(floats(3))]),
        traits=Trait.ANY_RANK | Trait.AT_START | Trait.CARRIES_STRIDES | Trait.ITEM_OF | Trait.WHOLE_VIEW,
    ),
    _view(
        "squeeze.dim",
        fixed(lambda: [sample(floats(1, 3, 1), 0), sample(floats(1, 3, 1), 1)]),
        traits=Trait.ANY_RANK | Trait.AT_START | Trait.CARRIES_STRIDES | Trait.RESHAPES | Trait.WHOLE_VIEW,
    ),
    _view(
        "squeeze.dims",
        fixed(lambda: [sample(floats(1, 3, 1), [0, 2])]),
        traits=Trait.ANY_RANK | Trait.AT_START | Trait.CARRIES_STRIDES | Trait.WHOLE_VIEW,
    ),
    _view(
        "slice.Tensor",
        _calls((0, 0, 1), (1, 1, None), (2, -3, 9, 2), (1, 0, 9223372036854775807)),
        "torch.ops.aten.slice",
        traits=Trait.CARRIES_STRIDES
        | Trait.SIZED_BY_RUN
        | Trait.STRIDED_PART
        | Trait.TAKES_RUN_NUMBERS
        | Trait.WHOLE_VIEW,
    ),
    _view(
        "select.int",
        _calls((0, 1), (-1, -2)),
        traits=Trait.CARRIES_STRIDES | Trait.ITEM_OF | Trait.STRIDED_PART | Trait.TAKES_RUN_NUMBERS,
    ),
    _view(
        "narrow.default",
        _calls((2, 1, 2)),
        lower=_lower_narrow,
        exact=True,
        traits=Trait.IGNORES_AUTOCAST | Trait.WHOLE_VIEW,
    ),
    _view("diagonal.default", _calls((), (1, 0, 2))),
    _view("unfold.default", _calls((2, 2, 1)), "torch.Tensor.unfold"),
    _view(
        "as_strided.default",
        fixed(lambda: [sample(floats(3, 4), [2, 2], [1, 2]), sample(floats(3, 4), [2, 3], [3, 1], 1)]),
        why_not=library("its elements are addressed in memory, not by indices"),
    ),
    _view(
        "detach.default",
        _calls(()),
        "torch.Tensor.detach",
        traits=Trait.ANY_SHAPE
        | Trait.ANY_TENSOR
        | Trait.AT_START
        | Trait.CARRIES_STRIDES
        | Trait.ITEM_OF
        | Trait.SAME_SHAPE
        | Trait.SAME_VALUES
        | Trait.WHOLE_VIEW
        | Trait.NO_GRADIENT,
    ),
    _view(
        "alias.default",
        _calls(()),
        "torch.ops.aten.alias",
        traits=Trait.ANY_SHAPE
        | Trait.ANY_TENSOR
        | Trait.AT_START
        | Trait.CARRIES_STRIDES
        | Trait.SAME_SHAPE
        | Trait.SAME_VALUES
        | Trait.WHOLE_VIEW,
    ),
    _view(
        "split.Tensor",
        _calls((2, 2), (3, 1), (2, 0)),
        lower=_lower_split,
        exact=True,
        traits=Trait.LIST_OF_VIEWS,
    ),
    _view(
        "split_with_sizes.default",
        _calls(([1, 3], -1)),
        lower=_lower_split_sizes,
        exact=True,
        traits=Trait.LIST_OF_VIEWS | Trait.SIZED_BY_RUN,
    ),
    _view(
        "split.sizes",
        _calls(([1, 2], 1)),
        lower=lambda b, c: _lower_split_sizes(b, {**c, "split_sizes": c["split_size"]}),
        exact=True,
        traits=Trait.IGNORES_AUTOCAST | Trait.LIST_OF_VIEWS,
    ),
    _view(
        "chunk.default",
        _calls((2, -1), (3, 2), (2, 1)),
        lower=_lower_chunk,
        exact=True,
        traits=Trait.IGNORES_AUTOCAST | Trait.LIST_OF_VIEWS,
    ),
    _view(
        "unbind.int", _calls((0,), (-1,)), lower=_lower_unbind, exact=True, traits=Trait.ITEM_OF | Trait.LIST_OF_VIEWS
    ),
    _view(
        "broadcast_tensors.default",
        fixed(lambda: [sample([floats(3, 1), floats(4)]), sample([floats(2), strided(2, 2), torch.tensor(1.0)])]),
        "torch.functional.broadcast_tensors",
        alias="maybe",
        lower=_lower_broadcast,
        exact=True,
    ),
    _view(
        "meshgrid.default",
        fixed(lambda: [sample([floats(3), ints(2)[:1].float(), torch.tensor(1.0)])]),
        "torch.functional.meshgrid",
        alias="maybe",
        lower=_lower_meshgrid,
        exact=True,
    ),
    _view(
        "meshgrid.indexing",
        fixed(lambda: [sample([floats(3), floats(2)], indexing="ij"), sample([floats(3), floats(2)], indexing="xy")]),
        "torch.functional.meshgrid",
        alias="maybe",
        lower=_lower_meshgrid,
        exact=True,
    ),
    OpRecord(
        "aten.contiguous.default",
        "torch.Tensor.contiguous",
        _calls(()),
        alias="maybe",
        lower=_lower_contiguous,
        exact=True,
        traits=Trait.ANY_TENSOR
        | Trait.AT_START
        | Trait.IGNORES_AUTOCAST
        | Trait.READS_ALL
        | Trait.RETURNS_ITSELF
        | Trait.SAME_SHAPE
        | Trait.SAME_VALUES,
    ),
    OpRecord(
        "aten.clone.default",
        "torch.clone",
        _calls(()),
        traits=Trait.ANY_SHAPE
        | Trait.ANY_TENSOR
        | Trait.CARRIES_STRIDES
        | Trait.FILLS
        | Trait.NOT_ITERATED
        | Trait.OWN_STRIDES
        | Trait.READS_ALL
        | Trait.SAME_SHAPE
        | Trait.SAME_VALUES,
    ),
    OpRecord(
        "aten.lift_fresh.default",
        "torch.ops.aten.lift_fresh",
        fixed(lambda: [sample(floats(3))]),
        alias="view",
        traits=Trait.ANY_TENSOR | Trait.AT_START | Trait.RETURNS_ITSELF | Trait.SAME_SHAPE | Trait.WHOLE_VIEW,
    ),
    OpRecord(
        "aten.to.dtype",
        "torch.Tensor.to",
        _tos(*_TO_DTYPES),
        alias="maybe",
        traits=Trait.ANY_TENSOR
        | Trait.AT_START
        | Trait.IGNORES_AUTOCAST
        | Trait.READS_ALL
        | Trait.RETURNS_ITSELF
        | Trait.SAME_SHAPE
        | Trait.SAME_VALUES,
    ),
    OpRecord(
        "aten.to.dtype_layout",
        "torch.Tensor.to",
        fixed(lambda: [sample(floats(3), dtype=torch.float64), sample(floats(3), dtype=torch.float32)]),
        alias="maybe",
        traits=Trait.ANY_TENSOR | Trait.AT_START | Trait.READS_ALL | Trait.RETURNS_ITSELF | Trait.SAME_VALUES,
    ),
    OpRecord(
        "aten.to.device",
        "torch.Tensor.to",
        fixed(lambda: [sample(floats(3), torch.device("cpu"), torch.float64)]),
        alias="maybe",
        traits=Trait.ANY_TENSOR
        | Trait.AT_START
        | Trait.IGNORES_AUTOCAST
        | Trait.READS_ALL
        | Trait.RETURNS_ITSELF
        | Trait.SAME_VALUES,
    ),
    OpRecord(
        "aten.to.other",
        "torch.Tensor.to",
        fixed(lambda: [sample(floats(3), ints(1)), sample(floats(3), floats(2))]),
        alias="maybe",
        traits=Trait.ANY_TENSOR
        | Trait.AT_START
        | Trait.IGNORES_AUTOCAST
        | Trait.READS_ALL
        | Trait.RETURNS_ITSELF
        | Trait.SAME_VALUES,
    ),
    OpRecord(
        "aten.type_as.default",
        "torch.Tensor.type_as",
        fixed(lambda: [sample(floats(3), ints(1)), sample(floats(3), floats(2))]),
        alias="maybe",
        traits=Trait.ANY_TENSOR
        | Trait.IGNORES_AUTOCAST
        | Trait.READS_ALL
        | Trait.RETURNS_ITSELF
        | Trait.SAME_SHAPE
        | Trait.SAME_VALUES,
    ),
    OpRecord(
        "aten._to_copy.default",
        "torch.ops.aten._to_copy",
        fixed(lambda: [sample(floats(3, 4), dtype=torch.float64), sample(strided(3, 4), dtype=torch.int32)]),
        traits=Trait.ANY_TENSOR
        | Trait.CARRIES_STRIDES
        | Trait.OWN_STRIDES
        | Trait.READS_ALL
        | Trait.SAME_SHAPE
        | Trait.SAME_VALUES,
    ),
)
