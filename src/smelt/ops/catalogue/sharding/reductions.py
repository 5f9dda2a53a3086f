"""Reductions, norms and what goes along a dimension: kept dimensions are labels; a sum's own ones, too."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.ir import Arg, Node, Value
from smelt.ops.catalogue.sharding.terms import aligned, dims_arg, is_known, numbered, results, sizes_of, tensors
from smelt.ops.ranks.placements import Correspondence, Dim, Dims, Rule

_FIRST = (frozenset((0,)),)


def _reduced(node: Node, call: Mapping[str, Arg], combined: str) -> Correspondence | None:
    if not is_known(node):
        return None
    rank = len(tensors(node)[0].sizes)
    at = dims_arg(call.get("dim", call.get("axis")), rank)
    if at is None:
        return None
    dims: Dims = tuple(Dim(f"d{i}") for i in range(rank))
    kept = [None if i in at else d for i, d in enumerate(dims)]
    keepdim = call.get("keepdim") is True
    result = tuple(kept) if keepdim else tuple(d for i, d in enumerate(kept) if i not in at)
    if any(len(t.sizes) != len(result) for t in results(node)):
        return None
    reduces = {f"d{i}": combined for i in at} if combined else {}
    if not combined:
        dims = tuple(None if i in at else d for i, d in enumerate(dims))
    linear = _FIRST if combined == "sum" else ()
    return Correspondence((dims,), tuple(result for _ in node.results), reduces, linear)


def _summed(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    return _reduced(node, call, "sum")


def _kept(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    return _reduced(node, call, "")


def _along(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """As long as before in every dimension, of which one is gone along: `softmax`, `cumsum`, `sort`, `topk`."""
    if not is_known(node):
        return None
    rank = len(tensors(node)[0].sizes)
    at = dims_arg(call.get("dim", -1), rank)
    if at is None or not rank:
        return None
    dims = numbered(rank, at)
    others = tuple(numbered(len(t.sizes), range(len(t.sizes))) for t in tensors(node)[1:])
    return Correspondence((dims, *others), tuple(dims for _ in results(node)))


def _differences(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """As `_along`, with what is put in front and behind divided like the operand."""
    found = _along(node, call)
    return None if found is None else Correspondence(found.operands[:1] * len(found.operands), found.results)


def _normed(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`layer_norm`, `rms_norm`: the dimensions in front of the normalised ones."""
    if not is_known(node):
        return None
    shape = call["normalized_shape"]
    if not isinstance(shape, tuple):
        return None
    rank = len(tensors(node)[0].sizes)
    dims = numbered(rank, range(rank - len(shape), rank))
    others = tuple(numbered(len(t.sizes), range(len(t.sizes))) for t in tensors(node)[1:])
    return Correspondence((dims, *others), tuple(dims[: len(t.sizes)] for t in results(node)))


def _group_normed(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """The batch, and whole groups of channels."""
    if not is_known(node):
        return None
    sizes, groups = sizes_of(call["input"]), call["num_groups"]
    if not isinstance(groups, int) or not groups:
        return None
    channel = Dim("c", sizes[1] // groups)
    dims: Dims = (Dim("n"), channel, *(None for _ in sizes[2:]))
    others = tuple((channel,) for _ in tensors(node)[1:])

    def local(operands: object, made: object) -> Mapping[str, Arg]:
        ours = made[0][1] * groups // sizes[1]  # type: ignore[index]
        return {"num_groups": max(ours, 1)}  # no channels are one group of none

    return Correspondence((dims, *others), (dims,), local=local)


def _gathered(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`gather`: where index and operand are as long, they go together."""
    found = aligned(node, call, "index")
    if found is None:
        return None
    had, index, at = found
    own = tuple(None if i in at or had[i] != index[i] else Dim(f"d{i}") for i in range(len(had)))
    by_index = tuple(Dim(f"d{i}") if i in at else own[i] for i in range(len(had)))
    return Correspondence((own, by_index), (by_index,), linear=_FIRST)


def _scatter(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`scatter`, `scatter_add`: dimensions beside the one that is scattered along, of equal lengths."""
    if not is_known(node):
        return None
    all_sizes = [t.sizes for t in tensors(node)]
    at = dims_arg(call["dim"], len(all_sizes[0]))
    if at is None or any(len(s) != len(all_sizes[0]) for s in all_sizes):
        return None
    same = [i for i in range(len(all_sizes[0])) if len({s[i] for s in all_sizes}) == 1 and i not in at]
    dims = tuple(Dim(f"d{i}") if i in same else None for i in range(len(all_sizes[0])))
    return Correspondence(tuple(dims for _ in all_sizes), (dims,))


def _indexed(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`x[i, j]`: the operand's dimensions that no index is for, and where the indices are side by side, theirs."""
    if not is_known(node):
        return None
    indices = call["indices"]
    if not isinstance(indices, tuple):
        return None
    had, made = sizes_of(call["self"]), results(node)[0].sizes
    places = [i for i, one in enumerate(indices) if isinstance(one, Value)]
    given = [sizes_of(indices[i]) for i in places]
    if not places or places != list(range(places[0], places[0] + len(places))):
        return None
    if any(one.type.dtype.name == "BOOL" for one in indices if isinstance(one, Value)):  # type: ignore[union-attr]
        return None
    wide = max(len(s) for s in given)
    shape = made[places[0] : places[0] + wide]
    own = tuple(None if i in places else Dim(f"d{i}") for i in range(len(had)))
    by_index = tuple(Dim(f"i{k}") for k in range(wide))
    theirs = tuple(
        tuple(by_index[k + wide - len(s)] if size == shape[k + wide - len(s)] else None for k, size in enumerate(s))
        for s in given
    )
    result = (*own[: places[0]], *by_index, *own[places[0] + len(places) :])
    return Correspondence((own, *theirs), (result,), linear=_FIRST)


def _index_select(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    rank = len(sizes_of(call["self"]))
    at = dims_arg(call["dim"], rank)
    if at is None or len(sizes_of(call["index"])) != 1:
        return None
    own = numbered(rank, at)
    result = tuple(Dim("i") if i in at else d for i, d in enumerate(own))
    return Correspondence((own, (Dim("i"),)), (result,), linear=_FIRST)


def _whole_sum(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    dims = tuple(Dim(f"d{i}") for i in range(len(tensors(node)[0].sizes)))
    return Correspondence((dims,), ((),), {d.label: "sum" for d in dims}, _FIRST)


_KEPT = (
    "aten.amax.default", "aten.amin.default", "aten.max.dim", "aten.min.dim", "aten.argmax.default",
    "aten.argmin.default", "aten.var.correction", "aten.std.correction", "aten.var.dim", "aten.std.dim",
    "aten.logsumexp.default", "aten.all.dim", "aten.any.dim", "aten.prod.dim_int", "aten.mean.dim",
    "aten.var_mean.correction", "aten.linalg_vector_norm.default", "aten.norm.ScalarOpt_dim",
)  # fmt: skip


def _counted(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Counts of elements between two bounds; without them, they are those of all elements."""
    low, high = call["min"], call["max"]
    if not is_known(node) or not isinstance(low, int | float) or not isinstance(high, int | float) or low >= high:
        return None
    dims = numbered(len(tensors(node)[0].sizes))
    return Correspondence((dims,), ((None,),), {f"d{i}": "sum" for i in range(len(dims))})


_ALONG = (
    "aten.softmax.int", "aten._softmax.default", "aten.log_softmax.int", "aten._log_softmax.default",
    "aten.cumsum.default", "aten.cumprod.default", "aten.sort.default", "aten.sort.stable", "aten.argsort.default",
    "aten.topk.default", "aten.logcumsumexp.default", "aten.cummax.default",
)  # fmt: skip
PICKS = ("aten.index.Tensor", "aten.index_select.default")
"""Rows by their numbers."""
OF_COUNTS = ("aten.cumsum.default", "aten.to.dtype", "aten._to_copy.default")
"""Of whole numbers: what is computed of shares adds up to what is computed of the sum."""
RULES: Mapping[str, Rule] = MappingProxyType({
    "aten.sum.dim_IntList": _summed, "aten.sum.default": _whole_sum,
    **dict.fromkeys(_KEPT, _kept), **dict.fromkeys(_ALONG, _along), "aten.diff.default": _differences,
    "aten.layer_norm.default": _normed, "aten.native_layer_norm.default": _normed, "aten.rms_norm.default": _normed,
    "aten.group_norm.default": _group_normed, "aten.gather.default": _gathered, "aten.scatter.src": _scatter,
    "aten.scatter_add.default": _scatter, "aten.index.Tensor": _indexed, "aten.index_select.default": _index_select,
    "aten.histc.default": _counted,
})  # fmt: skip
