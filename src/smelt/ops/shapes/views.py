"""Sizes, strides and offsets of views, in plain Python.

Invariant: for integers the same as torch's, where this tells anything; for sizes of a trace every comparison that
matters is a comparison, so that it is decided, or kept as a guard. None where strides do not tell the view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

from smelt.diag.records import record
from smelt.ir import MemoryFormat, TensorType
from smelt.ir.sizes import equals

# What is longer than any tensor: the end that torch writes where none is given.
_FAR = 1 << 62


@record
class Layout:
    """How a tensor lies in its storage: sizes, strides and offset in elements."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @staticmethod
    def of(type_: TensorType) -> Layout:
        """How a tensor of a static type lies."""
        return Layout(type_.sizes, type_.steps)

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.sizes)


Call: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[Layout, Call], "list[Layout] | None"]


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor; sizes of 0 count as 1."""
    strides = [1] * len(sizes)
    for i in range(len(sizes) - 2, -1, -1):
        size = sizes[i + 1]
        strides[i] = strides[i + 1] * (1 if size == 0 else size)
    return tuple(strides)


def is_row_major(at: Layout) -> bool:
    """Whether elements lie one behind the other; dimensions of size 1 do not tell."""
    expected = 1
    for size, step in zip(reversed(at.sizes), reversed(at.strides), strict=True):
        if not equals(step, expected) and size != 1 and step != expected and 0 not in at.sizes:
            return False
        expected *= size
    return True


def seen_as(at: Layout, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of `view(sizes)`, None where it cannot be had without a copy.

    Source: computeStride of torch's TensorUtils.cpp: each run of dimensions that lie one behind the other is regrouped.
    """
    if 0 in at.sizes:
        return at.strides if tuple(sizes) == at.sizes else row_major(sizes)
    if not at.sizes:
        return (1,) * len(sizes)
    steps = [0] * len(sizes)
    position = len(sizes) - 1
    base, chunk, done = at.strides[-1], 1, 1
    for d in range(at.rank - 1, -1, -1):
        chunk *= at.sizes[d]
        if d > 0 and (at.sizes[d - 1] == 1 or at.strides[d - 1] == chunk * base):
            continue
        while position >= 0 and (done < chunk or sizes[position] == 1):
            steps[position] = done * base
            done *= sizes[position]
            position -= 1
        if done != chunk:
            return None
        if d > 0:
            base, chunk, done = at.strides[d - 1], 1, 1
    return tuple(steps) if position < 0 else None


def resolved(sizes: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Sizes with the one that is -1 replaced by what is left; None where nothing whole is."""
    gaps = [i for i, size in enumerate(sizes) if size == -1]
    if len(gaps) > 1 or any(type(size) is int and size < -1 for size in sizes):
        return None
    if not gaps:
        return tuple(sizes)
    (gap,) = gaps
    known = prod(size for i, size in enumerate(sizes) if i != gap)
    if known == 0 or count % known != 0:
        return None
    return (*sizes[:gap], count // known, *sizes[gap + 1 :])


def _view(at: Layout, call: Call) -> list[Layout] | None:
    wanted = call.get("size", call.get("shape"))
    if wanted is None:
        # view.dtype
        return None
    return _regrouped(at, wanted)


def _regrouped(at: Layout, wanted: Sequence[int]) -> list[Layout] | None:
    sizes = resolved(wanted, prod(at.sizes))
    strides = None if sizes is None else seen_as(at, sizes)
    return None if sizes is None or strides is None else [Layout(sizes, strides, at.offset)]


def _view_as(at: Layout, call: Call) -> list[Layout] | None:
    return _regrouped(at, call["other"].type.sizes)


def _ravel(at: Layout, call: Call) -> list[Layout] | None:
    return _regrouped(at, (-1,)) if is_row_major(at) else None


def _flatten(at: Layout, call: Call) -> list[Layout] | None:
    if not at.rank:
        return [Layout((1,), (1,), at.offset)]
    start, end = call["start_dim"] % at.rank, call["end_dim"] % at.rank
    if start == end:
        return [at]
    return _regrouped(at, (*at.sizes[:start], prod(at.sizes[start : end + 1]), *at.sizes[end + 1 :]))


def _unflatten(at: Layout, call: Call) -> list[Layout] | None:
    dim = call["dim"] % at.rank
    inner = resolved(call["sizes"], at.sizes[dim])
    return None if inner is None else _regrouped(at, (*at.sizes[:dim], *inner, *at.sizes[dim + 1 :]))


def permuted(at: Layout, order: Sequence[int]) -> list[Layout]:
    """The dimensions in another order."""
    sizes, strides = (tuple(of[d] for d in order) for of in (at.sizes, at.strides))
    return [Layout(sizes, strides, at.offset)]


def _transpose(at: Layout, call: Call) -> list[Layout]:
    first, second = call.get("dim0", call.get("axis0")), call.get("dim1", call.get("axis1"))
    order = list(range(at.rank))
    if order:
        order[first], order[second] = order[second], order[first]
    return permuted(at, order)


def _permute(at: Layout, call: Call) -> list[Layout]:
    return permuted(at, [d % at.rank for d in call["dims"]])


def _reverse(at: Layout, call: Call) -> list[Layout]:
    return permuted(at, range(at.rank - 1, -1, -1))


def _matrix(at: Layout, call: Call) -> list[Layout]:
    order = list(range(at.rank))
    order[-2:] = order[-2:][::-1]
    return permuted(at, order)


def _movedim(at: Layout, call: Call) -> list[Layout]:
    def dims(given: Any) -> list[int]:
        return [d % at.rank for d in (given if isinstance(given, (tuple, list)) else (given,))]

    if not at.rank:
        return [at]
    sources, targets = dims(call["source"]), dims(call["destination"])
    order = [-1] * at.rank
    for source, target in zip(sources, targets, strict=True):
        order[target] = source
    rest = iter(d for d in range(at.rank) if d not in sources)
    return permuted(at, [next(rest) if d == -1 else d for d in order])


def _without(at: Layout, dim: int, offset: int) -> Layout:
    sizes, strides = ((*of[:dim], *of[dim + 1 :]) for of in (at.sizes, at.strides))
    return Layout(sizes, strides, offset)


def _with(at: Layout, dim: int, size: int, step: int, offset: int) -> Layout:
    return Layout(
        (*at.sizes[:dim], size, *at.sizes[dim + 1 :]), (*at.strides[:dim], step, *at.strides[dim + 1 :]), offset
    )


def _select(at: Layout, call: Call) -> list[Layout] | None:
    dim, index = call["dim"] % at.rank, call["index"]
    size = at.sizes[dim]
    index = index + size if index < 0 else index
    if index < 0 or index >= size:
        return None
    return [_without(at, dim, at.offset + index * at.strides[dim])]


def _bounded(place: int, least: int, size: int) -> int:
    """A bound of a slice, counted from the start and within the dimension."""
    place = place + size if place < 0 else place
    if place < least:
        return least
    return size if place > size else place


def _slice(at: Layout, call: Call) -> list[Layout]:
    dim, step = call["dim"] % at.rank, call["step"]
    size = at.sizes[dim]
    start, end = call["start"], call["end"]
    start = 0 if start is None else _bounded(start, 0, size)
    end = size if end is None or (type(end) is int and end >= _FAR) else _bounded(end, start, size)
    length = end - start if step == 1 else -(-(end - start) // step)
    return [_with(at, dim, length, at.strides[dim] * step, at.offset + start * at.strides[dim])]


def _narrow(at: Layout, call: Call) -> list[Layout] | None:
    dim, start, length = call["dim"] % at.rank, call["start"], call["length"]
    if not _is_number(start):
        # narrow.Tensor
        return None
    start = start + at.sizes[dim] if start < 0 else start
    return _parts(at, dim, (start,), (length,))


def _is_number(arg: Any) -> bool:
    return isinstance(arg, int)


def _parts(at: Layout, dim: int, starts: Iterable[int], lengths: Iterable[int]) -> list[Layout]:
    step = at.strides[dim]
    return [_with(at, dim, n, step, at.offset + s * step) for s, n in zip(starts, lengths, strict=True)]


def _cut(at: Layout, dim: int, lengths: Sequence[int]) -> list[Layout]:
    starts, start = [], 0
    for length in lengths:
        starts.append(start)
        start = start + length
    return _parts(at, dim, starts, lengths)


def _split(at: Layout, call: Call) -> list[Layout] | None:
    dim = call["dim"] % at.rank
    wanted = call.get("split_size", call.get("split_sizes"))
    if isinstance(wanted, (tuple, list)):
        return _cut(at, dim, wanted)
    return _evenly(at, dim, wanted)


def _evenly(at: Layout, dim: int, wanted: Any) -> list[Layout] | None:
    """Parts of one size, a shorter one last. None where it is not known how many."""
    size = at.sizes[dim]
    if wanted == 0:
        return [at] if size == 0 else None
    full, rest = divmod(size, wanted)
    if type(full) is not int:
        return None
    lengths = [wanted] * full
    if rest != 0:
        lengths.append(rest)
    # Of nothing there is one part, too.
    return _cut(at, dim, lengths or [0])


def _chunk(at: Layout, call: Call) -> list[Layout] | None:
    dim, chunks = call["dim"] % at.rank, call["chunks"]
    size = at.sizes[dim]
    wanted = -(-size // chunks)
    if wanted == 0:
        return [_with(at, dim, 0, at.strides[dim], at.offset)] * chunks
    if type(size) is int:
        return _evenly(at, dim, wanted)
    if size % chunks != 0:
        return None
    return _cut(at, dim, [wanted] * chunks)


def _tensor_split(at: Layout, call: Call) -> list[Layout] | None:
    dim, size = call["dim"] % at.rank, at.sizes[call["dim"]]
    if "indices" in call:
        starts = [0, *(_bounded(i, 0, size) for i in call["indices"])]
        ends = [*starts[1:], size]
        return _parts(at, dim, starts, [max(e - s, 0) for s, e in zip(starts, ends, strict=True)])
    count = call["sections"]
    if not _is_number(count):
        return None
    small, longer = divmod(size, count)
    return _cut(at, dim, [small + 1 if i < longer else small for i in range(count)])


def _unbind(at: Layout, call: Call) -> list[Layout] | None:
    dim = call["dim"] % at.rank
    if type(at.sizes[dim]) is not int:
        return None
    return [_without(at, dim, at.offset + i * at.strides[dim]) for i in range(at.sizes[dim])]


def _unsqueeze(at: Layout, call: Call) -> list[Layout]:
    dim = call["dim"] % (at.rank + 1)
    step = at.sizes[dim] * at.strides[dim] if dim < at.rank else 1
    return [Layout((*at.sizes[:dim], 1, *at.sizes[dim:]), (*at.strides[:dim], step, *at.strides[dim:]), at.offset)]


def _squeeze(at: Layout, call: Call) -> list[Layout]:
    dims = call.get("dim")
    if dims is None:
        chosen = set(range(at.rank))
    else:
        chosen = {d % at.rank for d in (dims if isinstance(dims, (tuple, list)) else (dims,))} if at.rank else set()
    kept = [d for d in range(at.rank) if d not in chosen or at.sizes[d] != 1]
    return permuted(at, kept)


def _expand(at: Layout, call: Call) -> list[Layout] | None:
    return _expanded(at, call["size"])


def _expand_as(at: Layout, call: Call) -> list[Layout] | None:
    return _expanded(at, call["other"].type.sizes)


def _expanded(at: Layout, wanted: Sequence[int]) -> list[Layout] | None:
    more = len(wanted) - at.rank
    if more < 0:
        return None
    if not at.rank:
        return [Layout(tuple(wanted), (0,) * len(wanted), at.offset)]
    sizes: list[int] = []
    strides: list[int] = []
    for i in range(len(wanted) - 1, -1, -1):
        size = at.sizes[i - more] if i >= more else 1
        if i >= more:
            step = at.strides[i - more]
        else:
            # A dimension that was not there lies as one of size 1 would, and has no stride where it is longer.
            step = sizes[0] * strides[0]
        target = wanted[i]
        if target == -1:
            target = size
        if not _is_same(size, target):
            step, size = 0, target
        sizes.insert(0, size)
        strides.insert(0, step)
    return [Layout(tuple(sizes), tuple(strides), at.offset)]


def _is_same(size: int, target: int) -> bool:
    """Whether expanding leaves a dimension; of a size that is not 1 it can only be left."""
    return size != 1 or target == 1


def _diagonal(at: Layout, call: Call) -> list[Layout]:
    offset, a, b = call["offset"], call["dim1"] % at.rank, call["dim2"] % at.rank
    rows, columns = at.sizes[a], at.sizes[b]
    if offset >= 0:
        columns = columns - offset
    else:
        rows = rows + offset
    length = rows if rows <= columns else columns
    length = 0 if length < 0 else length
    moved = 0 if length == 0 else offset * at.strides[b] if offset >= 0 else -offset * at.strides[a]
    rest = [d for d in range(at.rank) if d not in (a, b)]
    sizes, strides = tuple(at.sizes[d] for d in rest), tuple(at.strides[d] for d in rest)
    return [Layout((*sizes, length), (*strides, at.strides[a] + at.strides[b]), at.offset + moved)]


def _unfold(at: Layout, call: Call) -> list[Layout]:
    size, step = call["size"], call["step"]
    if not at.rank:
        return [Layout((size,), (1,), at.offset)]
    dim = call["dimension"] % at.rank
    inner = _with(at, dim, (at.sizes[dim] - size) // step + 1, at.strides[dim] * step, at.offset)
    return [Layout((*inner.sizes, size), (*inner.strides, at.strides[dim]), at.offset)]


def _same(at: Layout, call: Call) -> list[Layout]:
    return [at]


def _contiguous(at: Layout, call: Call) -> list[Layout] | None:
    is_it = call["memory_format"] == MemoryFormat("contiguous_format") and is_row_major(at)
    return [at] if is_it else None


def _t(at: Layout, call: Call) -> list[Layout]:
    return _reverse(at, call) if at.rank == 2 else [at]


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        f"aten.{name}": rule
        for names, rule in (
            (("view.default", "_unsafe_view.default", "reshape.default"), _view),
            (("view_as.default", "reshape_as.default"), _view_as),
            (("ravel.default",), _ravel),
            (("flatten.using_ints",), _flatten),
            (("unflatten.int",), _unflatten),
            (("transpose.int", "swapaxes.default", "swapdims.default"), _transpose),
            (("permute.default",), _permute),
            (("t.default",), _t),
            (("numpy_T.default",), _reverse),
            (("mT.default",), _matrix),
            (("movedim.int", "movedim.intlist"), _movedim),
            (("select.int",), _select),
            (("slice.Tensor",), _slice),
            (("narrow.default",), _narrow),
            (("split.Tensor", "split.sizes", "split_with_sizes.default"), _split),
            (("chunk.default",), _chunk),
            (("tensor_split.sections", "tensor_split.indices"), _tensor_split),
            (("unbind.int",), _unbind),
            (("unsqueeze.default",), _unsqueeze),
            (("squeeze.default", "squeeze.dim", "squeeze.dims"), _squeeze),
            (("expand.default",), _expand),
            (("expand_as.default",), _expand_as),
            (("diagonal.default",), _diagonal),
            (("unfold.default",), _unfold),
            (("alias.default", "detach.default", "lift_fresh.default", "positive.default"), _same),
            (("contiguous.default",), _contiguous),
        )
        for name in names
    }
)

VIEW_RULES = frozenset(_RULES)
"""The views that are told here."""


def view_layouts(op: str, at: Layout, call: Call) -> list[Layout] | None:
    """How the results of a view lie whose operand lies `at`; None where this does not tell, or it would copy.

    call: the arguments by name, defaults filled in; a tensor among them has its type as `type`.
    """
    rule = _RULES.get(op)
    return None if rule is None else rule(at, call)
