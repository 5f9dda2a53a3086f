"""Views and other movements of elements: which dimension of the result a dimension of the operand becomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd, prod
from types import MappingProxyType

from smelt.ir import Arg, Node
from smelt.ops.catalogue.sharding.terms import dims_arg, is_known, numbered, results, said, sizes_of, tensors
from smelt.ops.ranks.placements import Correspondence, Dim, Dims, Rule

_ALL = (frozenset((0,)),)
"""What moves elements about takes sums as it takes tensors."""


def _reshaped(name: str | None) -> Rule:
    def rule(node: Node, call: Mapping[str, Arg]) -> tuple[Correspondence, ...]:
        if not is_known(node):
            return ()
        had, made = tensors(node)[0].sizes, results(node)[0].sizes
        local = said(name) if name else None
        pairs = (_groups(had, made), _inner_groups(had, made))
        return tuple(Correspondence((a,), (b,), linear=_ALL, local=local) for a, b in pairs)

    return rule


def _unflattened(node: Node, call: Mapping[str, Arg]) -> tuple[Correspondence, ...]:
    if not is_known(node):
        return ()
    had, made = tensors(node)[0].sizes, results(node)[0].sizes
    at = dims_arg(call["dim"], len(had))
    assert at is not None
    count = len(made) - len(had) + 1

    def local(operands: Sequence[tuple[int, ...]], sizes: Sequence[tuple[int, ...]]) -> Mapping[str, Arg]:
        return {"sizes": sizes[0][at[0] : at[0] + count]}

    pairs = (_groups(had, made), _inner_groups(had, made))
    return tuple(Correspondence((a,), (b,), linear=_ALL, local=local) for a, b in pairs)


def _groups(had: tuple[int, ...], made: tuple[int, ...]) -> tuple[Dims, Dims]:
    """Labels of a reshape: of each run of dimensions with one product, the outermost.

    [2, 8, 12] -> [2, 8, 3, 4]: 12 is split; the label counts the 3, each 4 elements long.
    """
    first: list[Dim | None] = [None] * len(had)
    second: list[Dim | None] = [None] * len(made)
    for number, (a, b) in enumerate(_long_runs(had, made)):
        count = gcd(had[a[0]], made[b[0]])
        if count > 1:
            first[a[0]] = Dim(f"d{number}", had[a[0]] // count)
            second[b[0]] = Dim(f"d{number}", made[b[0]] // count)
    return tuple(first), tuple(second)


def _inner_groups(had: tuple[int, ...], made: tuple[int, ...]) -> tuple[Dims, Dims]:
    """The same for the dimension below the outermost, which lies in as many blocks as that is long."""
    first: list[Dim | None] = [None] * len(had)
    second: list[Dim | None] = [None] * len(made)
    for number, (a, b) in enumerate(_long_runs(had, made)):
        if len(a) == 1 and len(b) > 1:
            rest = prod(made[i] for i in b[2:])
            first[a[0]], second[b[1]] = Dim(f"i{number}", rest, made[b[0]]), Dim(f"i{number}")
        elif len(b) == 1 and len(a) > 1:
            rest = prod(had[i] for i in a[2:])
            first[a[1]], second[b[0]] = Dim(f"i{number}"), Dim(f"i{number}", rest, had[a[0]])
    return tuple(first), tuple(second)


def _long_runs(had: tuple[int, ...], made: tuple[int, ...]) -> Iterator[tuple[list[int], list[int]]]:
    """The runs without dimensions of one element; none of a tensor without elements."""
    if 0 in had or 0 in made:
        return
    for a, b in _runs(had, made):
        long = [i for i in a if had[i] != 1], [i for i in b if made[i] != 1]
        if all(long):
            yield long


def _runs(had: Sequence[int], made: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest runs of dimensions with equal products."""
    i = j = 0
    while i < len(had) or j < len(made):
        a, b = list[int](), list[int]()
        left = right = 1
        while True:
            if left <= right and i < len(had) and (left < right or not a or not b or had[i] == 1):
                left *= had[i]
                a.append(i)
                i += 1
            elif j < len(made) and (right < left or not b):
                right *= made[j]
                b.append(j)
                j += 1
            elif i < len(had) and left < right:
                left *= had[i]
                a.append(i)
                i += 1
            else:
                break
            if left == right and a and b:
                break
        if not a and not b:
            break
        yield a, b


def _permuted(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    rank = len(tensors(node)[0].sizes)
    order = list(range(rank))
    if "dims" in call:
        found = dims_arg(call["dims"], rank)
        if found is None:
            return None
        order = list(found)
    else:
        pair = [call.get("dim0", 0), call.get("dim1", 1)]
        if node.op in ("aten.t.default", "aten.numpy_T.default") or not all(type(d) is int for d in pair):
            pair = [0, 1] if rank == 2 else [0, 0]
        a, b = (d % rank for d in pair if isinstance(d, int))
        order[a], order[b] = order[b], order[a]
    dims = numbered(rank)
    return Correspondence((dims,), (tuple(dims[i] for i in order),), linear=_ALL)


def _expanded(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    had, made = tensors(node)[0].sizes, results(node)[0].sizes
    shift = len(made) - len(had)
    operand = tuple(Dim(f"d{i + shift}") if size == made[i + shift] else None for i, size in enumerate(had))
    # Dimensions that it repeats may be divided all the same: each rank repeats fewer times.
    result = numbered(len(made))
    if node.op == "aten.expand_as.default":
        whole = numbered(len(made))
        return Correspondence((operand, whole), (whole,), linear=_ALL)
    others = tuple(numbered(len(t.sizes), range(len(t.sizes))) for t in tensors(node)[1:])
    name = "size" if "size" in call else None
    if name is None and "shape" in call:
        name = "shape"
    return Correspondence((operand, *others), (result,), linear=_ALL, local=said(name) if name else None)


def _repeated(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`repeat`: copies side by side, of each of which a rank has its part."""
    repeats = call.get("repeats")
    if not is_known(node) or not isinstance(repeats, tuple):
        return None
    shift = len(repeats) - len(tensors(node)[0].sizes)
    counts = [r if type(r) is int else 0 for r in repeats]
    if shift < 0 or 0 in counts:
        return None
    operand = tuple(Dim(f"d{i}") for i in range(shift, len(counts)))
    result = tuple(None if i < shift else Dim(f"d{i}", 1, count) for i, count in enumerate(counts))
    return Correspondence((operand,), (result,), linear=_ALL)


def _each_repeated(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`repeat_interleave` by a number: as many copies of each element, one behind the other."""
    count = call.get("repeats")
    if not is_known(node) or type(count) is not int or count < 1:
        return None
    rank = len(tensors(node)[0].sizes)
    at = dims_arg(call.get("dim"), rank)
    if at is None or len(at) != 1 or call.get("dim") is None:
        return None
    dims = numbered(rank)
    result = tuple(Dim(d.label, count) if i == at[0] and d is not None else d for i, d in enumerate(dims))

    def local(operands: Sequence[tuple[int, ...]], made: Sequence[tuple[int, ...]]) -> Mapping[str, Arg]:
        return {"output_size": made[0][at[0]]} if call.get("output_size") is not None else {}

    return Correspondence((dims,), (result,), linear=_ALL, local=local)


def _dropped(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Dimensions of one element come or go: `squeeze`, `unsqueeze`."""
    if not is_known(node):
        return None
    had, made = tensors(node)[0].sizes, results(node)[0].sizes
    big = max(had, made, key=len)
    small = min(had, made, key=len)
    given = dims_arg(call["dim"], len(big)) if "dim" in call else tuple(i for i, s in enumerate(big) if s == 1)
    if given is None:
        return None
    gone = [i for i in given if big[i] == 1][: len(big)] if len(big) != len(small) else []
    kept = [i for i in range(len(big)) if i not in gone]
    if len(kept) != len(small):
        return None
    # A dimension that is longer stays, and would not where a rank has one element of it.
    wide = numbered(len(big), [*gone, *(i for i in given if len(had) >= len(made))])
    narrow = tuple(wide[i] for i in kept)
    pair = (wide, narrow) if len(had) == len(big) else (narrow, wide)
    return Correspondence((pair[0],), (pair[1],), linear=_ALL)


def _selected(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    rank = len(tensors(node)[0].sizes)
    at = dims_arg(call["dim"], rank)
    if at is None or rank == 0:
        return None
    dims = numbered(rank, at)
    others = tuple(numbered(len(t.sizes), range(len(t.sizes))) for t in tensors(node)[1:])
    return Correspondence((dims, *others), (tuple(d for i, d in enumerate(dims) if i not in at),), linear=_ALL)


def _sliced(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """A slice: of another dimension than the divided one, or one of equal blocks of that."""
    if not is_known(node):
        return None
    had, made = tensors(node)[0].sizes, results(node)[0].sizes
    at = dims_arg(call["dim"], len(had))
    if at is None:
        return None
    dim, start, step = at[0], call.get("start"), call.get("step", 1)
    whole, length = had[dim], made[dim]
    dims = list(numbered(len(had)))
    if length == whole and step == 1:
        return Correspondence((tuple(dims),), (tuple(dims),), linear=_ALL)
    first = 0 if start is None else start
    if not isinstance(first, int) or step != 1 or not length or whole % length:
        dims[dim] = None
        return Correspondence((tuple(dims),), (tuple(dims),), linear=_ALL)
    first = min(first + whole if first < 0 else first, whole)
    if first % length:
        dims[dim] = None
        return Correspondence((tuple(dims),), (tuple(dims),), linear=_ALL)
    number = first // length
    operand = list(dims)
    operand[dim] = Dim(f"d{dim}", 1, whole // length)

    def local(operands: Sequence[tuple[int, ...]], sizes: Sequence[tuple[int, ...]]) -> Mapping[str, Arg]:
        if operands[0][dim] == whole:
            return {}
        return {"start": number * sizes[0][dim], "end": (number + 1) * sizes[0][dim]}

    return Correspondence((tuple(operand),), (tuple(dims),), linear=_ALL, local=local)


def _narrowed(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    at = dims_arg(call["dim"], len(tensors(node)[0].sizes))
    if at is None:
        return None
    dims = numbered(len(tensors(node)[0].sizes), at)
    return Correspondence((dims,), (dims,), linear=_ALL)


def _split(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Pieces side by side: a division of the dimension they are cut along divides each of them, if they are equal."""
    if not is_known(node):
        return None
    had, made = tensors(node)[0].sizes, [t.sizes for t in results(node)]
    at = dims_arg(call.get("dim", 0), len(had))
    if at is None:
        return None
    dim = at[0]
    if node.op == "aten.unbind.int":
        dims = numbered(len(had), [dim])
        return Correspondence((dims,), tuple(dims[:dim] + dims[dim + 1 :] for _ in made), linear=_ALL)
    equal = len({s[dim] for s in made}) == 1
    dims = numbered(len(had), () if equal else [dim])
    operand = list(dims)
    if equal:
        operand[dim] = Dim(f"d{dim}", 1, len(made))

    def local(operands: Sequence[tuple[int, ...]], sizes: Sequence[tuple[int, ...]]) -> Mapping[str, Arg]:
        for name in ("split_size", "split_sizes"):
            if equal and name in call:
                each = tuple(s[dim] for s in sizes)
                return {name: each if isinstance(call[name], tuple) else each[0]}
        return {}

    return Correspondence((tuple(operand),), tuple(dims for _ in made), linear=_ALL, local=local)


def _joined(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    had, made = [t.sizes for t in tensors(node)], results(node)[0].sizes
    at = dims_arg(call.get("dim", 0), len(made))
    if at is None or any(len(s) != len(made) for s in had):
        return None
    dim = at[0]
    equal = len({s[dim] for s in had}) == 1 and len(had) > 0
    dims = numbered(len(made), () if equal else [dim])
    result = list(dims)
    if equal:
        result[dim] = Dim(f"d{dim}", 1, len(had))
    every = (frozenset(range(len(had))),)
    return Correspondence(tuple(dims for _ in had), (tuple(result),), linear=every)


def _stacked(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    made = results(node)[0].sizes
    at = dims_arg(call.get("dim", 0), len(made))
    if at is None:
        return None
    dims = numbered(len(made), at)
    operand = tuple(d for i, d in enumerate(dims) if i not in at)
    count = len(tensors(node))
    return Correspondence(tuple(operand for _ in range(count)), (dims,), linear=(frozenset(range(count)),))


def _flipped(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    at = dims_arg(call.get("dims"), len(tensors(node)[0].sizes))
    if at is None:
        return None
    dims = numbered(len(tensors(node)[0].sizes), at)
    return Correspondence((dims,), (dims,), linear=_ALL)


def _padded(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Only dimensions that stay as long."""
    if not is_known(node):
        return None
    had, made = tensors(node)[0].sizes, results(node)[0].sizes
    if len(had) != len(made):
        return None
    pad = call.get("pad")
    touched = [len(had) - 1 - i for i in range(len(pad) // 2)] if isinstance(pad, tuple) else range(len(had))
    touched = [d for d in touched if not isinstance(pad, tuple) or _is_padded(pad, len(had) - 1 - d)]
    dims = numbered(len(had), touched)
    return Correspondence((dims,), (dims,))


def _is_padded(pad: tuple[Arg, ...], number: int) -> bool:
    return pad[2 * number] != 0 or pad[2 * number + 1] != 0


def _scattered(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`slice_scatter`, `select_scatter`: what is put in, and what it is put into."""
    if not is_known(node):
        return None
    had, put = sizes_of(call["self"]), sizes_of(call["src"])
    at = dims_arg(call["dim"], len(had))
    if at is None:
        return None
    dims = numbered(len(had), at)
    own = tuple(d for i, d in enumerate(dims) if i not in at) if len(put) < len(had) else dims
    return Correspondence((dims, own), (dims,), linear=(frozenset((0, 1)),))


_PERMUTES = ("aten.transpose.int", "aten.permute.default", "aten.t.default", "aten.swapaxes.default")
_SPLITS = (
    "aten.split.Tensor",
    "aten.chunk.default",
    "aten.unbind.int",
    "aten.split.sizes",
    "aten.split_with_sizes.default",
)
RULES = MappingProxyType({
    "aten.view.default": _reshaped("size"), "aten.reshape.default": _reshaped("shape"),
    "aten._unsafe_view.default": _reshaped("size"), "aten.flatten.using_ints": _reshaped(None),
    "aten.unflatten.int": _unflattened, "aten.expand.default": _expanded, "aten.expand_as.default": _expanded,
    "aten.broadcast_to.default": _expanded, "aten.repeat.default": _repeated,
    "aten.repeat_interleave.self_int": _each_repeated, "aten.squeeze.dim": _dropped,
    "aten.unsqueeze.default": _dropped, "aten.select.int": _selected, "aten.slice.Tensor": _sliced,
    "aten.narrow.default": _narrowed, "aten.cat.default": _joined, "aten.stack.default": _stacked,
    "aten.flip.default": _flipped, "aten.roll.default": _flipped, "aten.pad.default": _padded,
    "aten.constant_pad_nd.default": _padded, "aten.slice_scatter.default": _scattered,
    "aten.select_scatter.default": _scattered, "aten.concat.default": _joined, "aten.concatenate.default": _joined,
    "aten.squeeze.dims": _dropped,
    **dict.fromkeys(_PERMUTES, _permuted), **dict.fromkeys(_SPLITS, _split),
})  # fmt: skip
