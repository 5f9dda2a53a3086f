"""Layers: embeddings, attention, convolutions, pooling."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.ir import Arg, Node, Value
from smelt.ops.catalogue.sharding.terms import is_known, numbered, results, sizes_of, tensors
from smelt.ops.ranks.placements import Correspondence, Dim, Dims, Rule

_BATCH, _HEAD, _INNER, _OUT = Dim("b"), Dim("h"), Dim("k"), Dim("o")


def _embedding(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Columns of the table, and the places looked up. Rows of the table: `forms`."""
    if not is_known(node):
        return None
    places = tuple(Dim(f"i{k}") for k in range(len(sizes_of(call["indices"]))))
    return Correspondence(((None, _OUT), places), ((*places, _OUT),), linear=(frozenset((0,)),))


def _attention(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Batches and heads; of groups of heads that share keys whole ones. Dropout inside: `forms`."""
    if not is_known(node):
        return None
    query, key, value = (sizes_of(call[name]) for name in ("query", "key", "value"))
    if len(query) != 4 or len(key) != 4:
        return None
    if key[1] != query[1] and (call.get("enable_gqa") is not True or query[1] % key[1]):
        return None
    own = Dim("h", query[1] // key[1])
    operands: list[Dims] = [(_BATCH, own, None, None), (_BATCH, _HEAD, None, None), (_BATCH, _HEAD, None, None)]
    mask = call.get("attn_mask")
    if isinstance(mask, Value):
        sizes = sizes_of(mask)
        wide = (None,) * (4 - len(sizes)) + tuple(range(len(sizes)))
        batch = _BATCH if len(sizes) == 4 and sizes[0] == query[0] and query[0] > 1 else None
        head = own if len(sizes) >= 3 and sizes[-3] == query[1] and query[1] > 1 else None
        operands.append(tuple(d for d, has in zip((batch, head, None, None), wide, strict=True) if has is not None))
    if value[1] != key[1]:
        return None
    return Correspondence(tuple(operands), ((_BATCH, own, None, None),))


def _convolution(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Images, and channels that come out; those that come in where there is no bias. Groups: images only."""
    if not is_known(node):
        return None
    name = "input"
    given, weight = sizes_of(call[name]), sizes_of(call["weight"])
    rank, groups = len(given), call.get("groups", 1)
    if rank != len(weight):
        return None
    has_bias = isinstance(call.get("bias"), Value)
    rest = (None,) * (rank - 2)
    if groups != 1:
        whole = tuple(numbered(len(t.sizes), range(len(t.sizes))) for t in tensors(node)[1:])
        return Correspondence(((_BATCH, None, *rest), *whole), ((_BATCH, None, *rest),))
    inner = None if has_bias else _INNER
    operands: tuple[Dims, ...] = ((_BATCH, inner, *rest), (_OUT, inner, *rest))
    if has_bias:
        operands = (*operands, (_OUT,))
    return Correspondence(operands, ((_BATCH, _OUT, *rest),), {} if has_bias else {"k": "sum"})


def _pooled(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Images and channels: all in front of the one to three dimensions that it goes along."""
    if not is_known(node):
        return None
    sizes = tensors(node)[0].sizes
    made, front = results(node), len(sizes) - next(n for n in (1, 2, 3) if f"{n}d" in node.op)
    if front < 1 or any(t.sizes[:front] != sizes[:front] for t in made):
        return None
    dims: Dims = (*numbered(front), *(None for _ in sizes[front:]))
    return Correspondence((dims,), tuple(dims for _ in made))


def _recurrent(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """`lstm`, `gru`, `rnn_tanh`, `rnn_relu`: the batch, in what goes in and out and in the states."""
    given = tensors(node)
    if not is_known(node) or len(given[0].sizes) != 3:
        return None
    wide: Dims = (_BATCH, None, None) if call.get("batch_first") is True else (None, _BATCH, None)
    states = len(results(node)) - 1
    of_states = tuple((None, _BATCH, None) for _ in range(states))
    weights = tuple((None,) * len(t.sizes) for t in given[1 + states :])
    if any(len(t.sizes) != 3 for t in given[1 : 1 + states]):
        return None
    return Correspondence((wide, *of_states, *weights), (wide, *of_states))


def _batch_norm(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Channels; images too where running statistics are used."""
    if not is_known(node):
        return None
    training = call.get("training", call.get("train"))
    sizes = sizes_of(call["input"])
    dims: Dims = (None if training is not False else Dim("n"), Dim("c"), *(None for _ in sizes[2:]))
    others = tuple((Dim("c"),) for _ in tensors(node)[1:])
    made = tuple(dims if len(t.sizes) == len(sizes) else (Dim("c"),) for t in results(node))
    return Correspondence((dims, *others), made)


def _one_hot(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    dims = numbered(len(tensors(node)[0].sizes))
    return Correspondence((dims,), ((*dims, None),))


def _resized(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    return _pooled(node, call)


_POOLS = (
    "aten.max_pool2d.default", "aten.avg_pool2d.default", "aten.adaptive_avg_pool2d.default",
    "aten.max_pool1d.default", "aten.avg_pool1d.default", "aten.max_pool2d_with_indices.default",
    "aten.adaptive_avg_pool1d.default", "aten.adaptive_avg_pool3d.default", "aten.adaptive_max_pool1d.default",
    "aten.adaptive_max_pool2d.default", "aten.avg_pool3d.default", "aten.max_pool3d.default",
    "aten.upsample_nearest2d.vec", "aten.upsample_bilinear2d.vec", "aten.upsample_bicubic2d.vec",
)  # fmt: skip
_CONVOLUTIONS = ("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default")
_NORMS = ("aten.batch_norm.default", "aten._native_batch_norm_legit_functional.default")
RULES: Mapping[str, Rule] = MappingProxyType({
    "aten.embedding.default": _embedding, "aten.scaled_dot_product_attention.default": _attention,
    "aten.one_hot.default": _one_hot, **dict.fromkeys(_CONVOLUTIONS, _convolution),
    **{f"aten.{name}.input": _recurrent for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    **dict.fromkeys(_POOLS, _pooled), **dict.fromkeys(_NORMS, _batch_norm),
})  # fmt: skip
