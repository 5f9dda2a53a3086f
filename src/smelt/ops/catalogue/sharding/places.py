"""What goes along some dimensions by places: puts, windows, triangles, Fourier transforms; others have labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from types import MappingProxyType

from smelt.ir import Arg, MemoryFormat, Node, Value
from smelt.ops.catalogue.sharding.forming import Form, Parting, call_of, divided
from smelt.ops.catalogue.sharding.terms import aligned, dims_arg, is_known, numbered, results, sizes_of, tensors
from smelt.ops.ranks.placements import Correspondence, Dim, Placement, Rule, Shard

_FIRST = (frozenset((0,)),)
_BOTH = (frozenset((0, 1)),)


def _scattered(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """One number put at places along a dimension: the others, where index and operand are as long."""
    found = aligned(node, call, "index")
    if found is None:
        return None
    had, index, at = found
    dims = tuple(Dim(f"d{i}") if i not in at and had[i] == index[i] else None for i in range(len(had)))
    return Correspondence((dims, dims), (dims,))


def _added(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`index_add`: dimensions beside that of the places; a sum of both tensors."""
    found = aligned(node, call, "source")
    if found is None:
        return None
    had, _, at = found
    dims = numbered(len(had), at)
    return Correspondence((dims, (None,) * len(sizes_of(call["index"])), dims), (dims,), linear=(frozenset((0, 2)),))


def _put(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`index_put`: dimensions that no index is for, those behind and before indices that stand side by side."""
    indices = call["indices"]
    if not is_known(node) or not isinstance(indices, tuple):
        return None
    had, put = sizes_of(call["self"]), sizes_of(call["values"])
    places = [i for i, one in enumerate(indices) if isinstance(one, Value)]
    given = [one for one in indices if isinstance(one, Value)]
    if not places or places != list(range(places[0], places[0] + len(places))):
        return None
    if any(t.dtype.name == "BOOL" for t in tensors(node)[1 : 1 + len(given)]):
        return None
    own = numbered(len(had), places)
    wide = max(len(sizes_of(one)) for one in given)
    # As values would lie that are not broadcast.
    whole = (*own[: places[0]], *([None] * wide), *own[places[0] + len(places) :])
    sizes = (*had[: places[0]], *([0] * wide), *had[places[0] + len(places) :])
    shift = len(whole) - len(put)
    if shift < 0:
        return None
    values = tuple(whole[i + shift] if size == sizes[i + shift] else None for i, size in enumerate(put))
    theirs = tuple((None,) * len(sizes_of(one)) for one in given)
    return Correspondence((own, *theirs, values), (own,), linear=(frozenset((0, 1 + len(given))),))


def _windows(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`unfold`: the dimensions that windows do not move along."""
    if not is_known(node):
        return None
    rank = len(tensors(node)[0].sizes)
    at = dims_arg(call["dimension"], rank)
    if at is None or not rank:
        return None
    dims = numbered(rank, at)
    return Correspondence((dims,), ((*dims, None),), linear=_FIRST)


def _matrices(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`tril`, `triu`: all but the last two dimensions."""
    if not is_known(node):
        return None
    rank = len(tensors(node)[0].sizes)
    dims = numbered(rank, range(rank - 2, rank))
    return Correspondence((dims,), (dims,), linear=_FIRST)


def _transformed(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Fourier transforms: the dimensions that they do not go along."""
    if not is_known(node):
        return None
    rank = len(tensors(node)[0].sizes)
    given = call.get("dim", -1)
    sizes = call.get("s")
    if given is None and isinstance(sizes, tuple):
        given = tuple(range(rank - len(sizes), rank))
    at = dims_arg(given, rank)
    if at is None:
        return None
    dims = numbered(rank, at)
    return Correspondence((dims,), (dims,), linear=_FIRST)


def _halves(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`glu`: the dimension that is halved falls into two blocks."""
    if not is_known(node):
        return None
    rank = len(tensors(node)[0].sizes)
    at = dims_arg(call.get("dim", -1), rank)
    if at is None:
        return None
    dims = numbered(rank)
    operand = tuple(Dim(f"d{i}", 1, 2) if i in at else d for i, d in enumerate(dims))
    return Correspondence((operand,), (dims,))


def _parts(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`view_as_real`: each element as two."""
    if not is_known(node):
        return None
    dims = numbered(len(tensors(node)[0].sizes))
    return Correspondence((dims,), ((*dims, None),), linear=_FIRST)


def _pairs(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`view_as_complex`: two as one."""
    if not is_known(node):
        return None
    dims = numbered(len(results(node)[0].sizes))
    return Correspondence(((*dims, None),), (dims,), linear=_FIRST)


# --- a form


def _strided(part: Parting, node: Node) -> Sequence[tuple[Value, Placement]] | None:
    """`as_strided` of a row-major tensor: dimensions in front that it leaves as they are may be divided."""
    call = call_of(node)
    given, sizes, steps = call["self"], call["size"], call["stride"]
    if not isinstance(given, Value) or call.get("storage_offset") not in (None, 0):
        return None
    at, had = divided(part, given), sizes_of(given)
    if at is None or not isinstance(sizes, tuple) or not isinstance(steps, tuple) or given.type.strides is not None:  # type: ignore[union-attr]
        return None
    lead = at.dim + 1
    inner = prod(had[lead:])
    if not all(type(n) is int for n in (*sizes, *steps)) or len(sizes) < lead or sizes[:lead] != had[:lead]:
        return None
    if steps[:lead] != tuple(prod(had[i + 1 :]) for i in range(lead)):
        return None
    pairs = zip(sizes[lead:], steps[lead:], strict=True)
    rest = [(n - 1) * s for n, s in pairs if isinstance(n, int) and isinstance(s, int) and n > 0]
    if sum(rest) >= inner or any(s < 0 for s in rest):
        return None
    own = list(had)
    own[at.dim] = at.local(part.rank)
    b = part.emitter
    x = b.call("aten.clone.default", part.get(given, at), memory_format=MemoryFormat("contiguous_format"))
    fronts = tuple(prod(own[i + 1 :]) for i in range(lead))
    made = b.call("aten.as_strided.default", x, (*own[:lead], *sizes[lead:]), (*fronts, *steps[lead:]))
    return [(made, Shard(at.dim, at.sizes, at.blocks))]


_FOURIER = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn",
            "rfftn", "irfftn", "fftshift", "ifftshift")  # fmt: skip
RULES: Mapping[str, Rule] = MappingProxyType({
    "aten.scatter.value": _scattered, "aten.index_add.default": _added, "aten.index_put.default": _put,
    "aten.unfold.default": _windows, "aten.tril.default": _matrices, "aten.triu.default": _matrices,
    "aten.glu.default": _halves, "aten.view_as_real.default": _parts, "aten.view_as_complex.default": _pairs,
    **{f"aten.fft_{name}.default": _transformed for name in _FOURIER},
})  # fmt: skip
FORMS: Mapping[str, Form] = MappingProxyType({"aten.as_strided.default": _strided})
