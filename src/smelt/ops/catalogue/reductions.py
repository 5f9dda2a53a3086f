"""Many elements to one: sums, means, extremes, norms, softmax, scans and sorts."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import torch

from smelt.ir import Arg, DType
from smelt.ops.record import (
    Call,
    Emitter,
    OpRecord,
    Sample,
    Samples,
    Trait,
    as_torch_does,
    library,
    sample,
    tensor_type,
)
from smelt.ops.samples import all_operands, bools, each, fixed, float_operands, floats, ints, special, strided


def _whole(floating: bool = False) -> Samples:
    def made() -> Iterator[Sample]:
        yield from each(x for x in (float_operands() if floating else all_operands()) if x.numel())

    return made


def _dims(*more: Sample, floating: bool = True, one: bool = False) -> Samples:
    """Along dims; `one`: the op takes a single dim."""

    def made() -> Iterator[Sample]:
        operands = [floats(3, 4), strided(3, 4), floats(2, 3, 4).permute(2, 0, 1), floats(3, 4, dtype=torch.bfloat16)]
        if not floating:
            operands += [ints(3, 4), bools(3, 4)]
        for x in operands:
            yield sample(x, -1 if one else [-1])
            yield sample(x, 0 if one else [0], True)
            if not one:
                yield sample(x, [0, 1])
        yield from more

    return made


def _softmaxes() -> Iterator[Sample]:
    yield sample(floats(3, 4), -1)
    yield sample(strided(3, 4), 0)
    yield sample(floats(2, 3, 4), 1)
    yield sample(torch.tensor([[1.0, float("-inf")], [float("-inf"), float("-inf")]]), -1)
    yield sample(floats(3, 4, dtype=torch.bfloat16), -1)
    yield sample(floats(3, 4, dtype=torch.bfloat16), -1, torch.float32)
    yield sample(torch.empty(0, 3), -1)
    yield sample(torch.tensor(2.0), 0)


def _lower_softmax(b: Emitter, call: Call) -> Arg:
    """exp(x - max) / sum, the maximum taken off so that no exponential overflows."""
    x = call["self"]
    if call["dtype"] is not None:
        x = b.call("aten.to.dtype", x, call["dtype"])
    if tensor_type(x).rank == 0 or tensor_type(x).numel == 0:
        return b.call("aten._softmax.default", x, call["dim"], False)
    shifted = b.call("aten.sub.Tensor", x, b.call("aten.amax.default", x, (call["dim"],), True))
    powers = b.call("aten.exp.default", shifted)
    return b.call("aten.div.Tensor", powers, b.call("aten.sum.dim_IntList", powers, (call["dim"],), True))


def _lower_mean(b: Emitter, call: Call) -> Arg | None:
    x, dims = call["self"], call["dim"]
    kind = tensor_type(x)
    if not dims or call["dtype"] is not None or kind.rank == 0:
        return None
    count = 1
    for dim in dims:
        count *= kind.sizes[dim]
    return b.call("aten.div.Tensor", b.call("aten.sum.dim_IntList", x, dims, call["keepdim"]), count)


def _scan() -> Iterator[Sample]:
    yield sample(floats(3, 4), -1)
    yield sample(strided(3, 4), 0)
    yield sample(ints(3, 4), 1)
    yield sample(torch.empty(0, 3), 0)


def _lower_diff(b: Emitter, call: Call) -> Arg | None:
    """x[1:] - x[:-1]; of booleans, whether they differ."""
    x, dim = call["self"], call["dim"]
    if call["n"] != 1 or not tensor_type(x).rank:
        return None
    joined = tuple(each for each in (call["prepend"], x, call["append"]) if each is not None)
    if len(joined) > 1:
        x = b.call("aten.cat.default", joined, dim)
    length = tensor_type(x).sizes[dim]
    if length < 2:
        return None
    later = b.call("aten.slice.Tensor", x, dim, 1, length)
    earlier = b.call("aten.slice.Tensor", x, dim, 0, length - 1)
    is_bool = tensor_type(x).dtype is DType.BOOL
    return b.call("aten.logical_xor.default" if is_bool else "aten.sub.Tensor", later, earlier)


def _differences() -> Iterator[Sample]:
    yield sample(floats(3, 4))
    yield sample(strided(3, 4), 1, 0)
    yield sample(ints(3, 4), 1, -1, ints(3, 1))
    yield sample(floats(3, 4), 1, 1, floats(3, 2), floats(3, 1))
    yield sample(bools(3, 4), 1, 0)
    yield sample(floats(3, 4), 2, 0)
    yield sample(floats(1, 4), 1, 0)


REDUCTIONS: tuple[OpRecord, ...] = (
    OpRecord(
        "aten.sum.default",
        "torch.sum",
        _whole(),
        traits=Trait.ANY_RANK | Trait.ANY_SHAPE | Trait.KEPT_IN_F32 | Trait.READS_ALL | Trait.SHRINKS,
        neutral=0,
    ),
    OpRecord(
        "aten.sum.dim_IntList",
        "torch.sum",
        _dims(sample(torch.empty(0, 3), [0]), floating=False),
        traits=Trait.ANY_RANK | Trait.KEPT_IN_F32 | Trait.READS_ALL | Trait.SHRINKS,
        neutral=0,
    ),
    OpRecord(
        "aten.mean.default",
        "torch.mean",
        _whole(floating=True),
        traits=Trait.ANY_RANK | Trait.ANY_SHAPE | Trait.KEPT_IN_F32 | Trait.READS_ALL | Trait.SHRINKS,
    ),
    OpRecord(
        "aten.mean.dim",
        "torch.mean",
        _dims(),
        lower=_lower_mean,
        traits=Trait.ANY_LAYOUT | Trait.ANY_RANK | Trait.KEPT_IN_F32 | Trait.READS_ALL | Trait.SHRINKS,
    ),
    OpRecord(
        "aten.prod.default",
        "torch.prod",
        _whole(),
        traits=Trait.ANY_RANK | Trait.KEPT_IN_F32 | Trait.READS_ALL,
        neutral=1,
    ),
    OpRecord(
        "aten.amax.default",
        "torch.amax",
        _dims(sample(special(), [0]), floating=False),
        traits=Trait.ANY_LAYOUT | Trait.READS_ALL | Trait.SHRINKS,
        neutral=-inf,
    ),
    OpRecord(
        "aten.amin.default",
        "torch.amin",
        _dims(sample(special(), [0]), floating=False),
        traits=Trait.READS_ALL | Trait.SHRINKS,
        neutral=inf,
    ),
    OpRecord("aten.max.default", "torch.max", _whole(), traits=Trait.READS_ALL, neutral=-inf),
    OpRecord("aten.min.default", "torch.min", _whole(), traits=Trait.READS_ALL, neutral=inf),
    OpRecord("aten.max.dim", "torch.max", _dims(one=True), traits=Trait.READS_ALL, neutral=-inf),
    OpRecord("aten.min.dim", "torch.min", _dims(one=True), traits=Trait.READS_ALL, neutral=inf),
    OpRecord(
        "aten.argmax.default",
        "torch.argmax",
        fixed(lambda: [sample(floats(3, 4)), sample(floats(3, 4), -1), sample(strided(3, 4), 0, True)]),
        traits=Trait.READS_ALL,
    ),
    OpRecord(
        "aten.argmin.default",
        "torch.argmin",
        fixed(lambda: [sample(floats(3, 4)), sample(floats(3, 4), -1)]),
        traits=Trait.READS_ALL,
    ),
    OpRecord("aten.any.default", "torch.any", _whole(), traits=Trait.ANY_RANK | Trait.ANY_SHAPE, neutral=False),
    OpRecord("aten.any.dim", "torch.any", _dims(floating=False, one=True), traits=Trait.ANY_RANK, neutral=False),
    OpRecord("aten.all.default", "torch.all", _whole(), traits=Trait.ANY_RANK | Trait.ANY_SHAPE, neutral=True),
    OpRecord("aten.all.dim", "torch.all", _dims(floating=False, one=True), traits=Trait.ANY_RANK, neutral=True),
    OpRecord(
        "aten.var.correction",
        "torch.var",
        fixed(
            lambda: [sample(floats(3, 4), [-1], correction=1), sample(strided(3, 4), [0], correction=0, keepdim=True)]
        ),
        traits=Trait.KEPT_IN_F32 | Trait.ANY_RANK | Trait.READS_ALL,
    ),
    OpRecord(
        "aten.std.correction",
        "torch.std",
        fixed(lambda: [sample(floats(3, 4), [-1], correction=1)]),
        traits=Trait.KEPT_IN_F32 | Trait.ANY_RANK | Trait.READS_ALL,
    ),
    OpRecord(
        "aten.logsumexp.default",
        "torch.logsumexp",
        _dims(sample(special()[3:8], [0])),
        traits=Trait.ANY_RANK | Trait.KEPT_IN_F32 | Trait.READS_ALL,
    ),
    OpRecord(
        "aten.linalg_vector_norm.default",
        "torch.linalg.vector_norm",
        fixed(lambda: [sample(floats(3, 4)), sample(floats(3, 4), 2, [-1], True), sample(floats(3, 4), 1.0, [0])]),
        traits=Trait.ANY_RANK | Trait.READS_ALL,
    ),
    OpRecord(
        "aten.linalg_norm.default",
        "torch.linalg.norm",
        fixed(
            lambda: [
                sample(floats(3, 4)),
                sample(floats(3, 4), 2, [-1], True),
                sample(strided(3, 4), None, [0]),
                sample(floats(3, 4), 1, [0, 1]),
            ]
        ),
        lower=as_torch_does("aten.linalg_norm.default"),
        exact=True,
    ),
    OpRecord(
        "aten.softmax.int",
        "torch.softmax",
        _softmaxes,
        lower=_lower_softmax,
        traits=Trait.ANY_RANK
        | Trait.COSTLY
        | Trait.IGNORES_AUTOCAST
        | Trait.KEPT_IN_F32
        | Trait.READS_ALL
        | Trait.SHRINKS,
    ),
    OpRecord(
        "aten._softmax.default",
        "torch._softmax",
        fixed(lambda: [sample(floats(3, 4), -1, False)]),
        traits=Trait.ANY_RANK | Trait.READS_ALL | Trait.SHRINKS,
    ),
    OpRecord(
        "aten.log_softmax.int",
        "torch.log_softmax",
        _softmaxes,
        traits=Trait.ANY_RANK | Trait.IGNORES_AUTOCAST | Trait.KEPT_IN_F32 | Trait.READS_ALL,
    ),
    OpRecord(
        "aten.cumsum.default",
        "torch.cumsum",
        _scan,
        traits=Trait.KEPT_IN_F32 | Trait.ANY_RANK | Trait.COSTLY | Trait.READS_ALL | Trait.SHRINKS | Trait.ONE_BY_ONE,
    ),
    OpRecord("aten.diff.default", "torch.diff", _differences, lower=_lower_diff, exact=True),
    OpRecord(
        "aten.sort.default",
        "torch.sort",
        fixed(lambda: [sample(floats(3, 4)), sample(ints(7), 0, True), sample(strided(3, 4), 0)]),
        traits=Trait.ANY_RANK | Trait.COSTLY,
        why_not=library("rows are compared as a whole: the loop-nest language has no sort"),
    ),
    OpRecord(
        "aten.argsort.default",
        "torch.argsort",
        fixed(lambda: [sample(floats(9)), sample(floats(3, 4), 0)]),
        traits=Trait.ANY_RANK | Trait.COSTLY,
        why_not=library("rows are compared as a whole: the loop-nest language has no sort"),
    ),
    OpRecord(
        "aten.topk.default",
        "torch.topk",
        fixed(lambda: [sample(floats(3, 4), 2), sample(floats(3, 4), 1, 0)]),
        traits=Trait.COSTLY,
        why_not=library("rows are compared as a whole: the loop-nest language has no sort"),
    ),
)
