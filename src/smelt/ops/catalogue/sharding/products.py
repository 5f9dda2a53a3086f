"""Products: rows, columns and what is summed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from smelt.ir import Arg, Node, Value
from smelt.ops.catalogue.sharding.terms import is_known, results, sizes_of, tensors
from smelt.ops.ranks.placements import Correspondence, Dim, Dims, Rule

_EACH = (frozenset((0,)), frozenset((1,)))
_ROW, _COLUMN, _SUM = Dim("m"), Dim("n"), Dim("k")


def _matmul(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    left, right = (t.sizes for t in tensors(node))
    made = results(node)[0].sizes
    if not left or not right:
        return None
    count = len(made) - (len(left) > 1) - (len(right) > 1)
    batch = made[:count]
    a = _batched(left[:-2], batch) + ((_ROW,) if len(left) > 1 else ()) + (_SUM,)
    b = _batched(right[:-2], batch) + ((_SUM, _COLUMN) if len(right) > 1 else (_SUM,))
    result = (
        *(Dim(f"b{i}") for i in range(count)),
        *((_ROW,) if len(left) > 1 else ()),
        *((_COLUMN,) if len(right) > 1 else ()),
    )
    return Correspondence((a, b), (result,), {"k": "sum"}, _EACH)


def _batched(sizes: tuple[int, ...], batch: tuple[int, ...]) -> Dims:
    shift = len(batch) - len(sizes)
    return tuple(Dim(f"b{i + shift}") if s == batch[i + shift] else None for i, s in enumerate(sizes))


def _linear(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """The bias would be added by every rank: without one, the inner dimension may be divided, too (`forms`)."""
    if not is_known(node):
        return None
    rank = len(sizes_of(call["input"]))
    rows = tuple(Dim(f"d{i}") for i in range(rank - 1))
    has_bias = isinstance(call.get("bias"), Value)
    inner = None if has_bias else _SUM
    operands: tuple[Dims, ...] = ((*rows, inner), (_COLUMN, inner))
    if has_bias:
        operands = (*operands, (_COLUMN,))
    return Correspondence(operands, ((*rows, _COLUMN),), {} if has_bias else {"k": "sum"}, () if has_bias else _EACH)


def _addmm(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    if not is_known(node):
        return None
    added, made = sizes_of(call["self"]), results(node)[0].sizes
    batch = (Dim("b"),) if len(made) == 3 else ()
    result = (*batch, _ROW, _COLUMN)
    shift = len(made) - len(added)
    own = tuple(result[i + shift] if s == made[i + shift] else None for i, s in enumerate(added))
    return Correspondence((own, (*batch, _ROW, None), (*batch, None, _COLUMN)), (result,))


def _outer(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    return Correspondence(((_ROW,), (_COLUMN,)), ((_ROW, _COLUMN),), linear=_EACH) if is_known(node) else None


def _grouped(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """Rows with the weights of their groups; which rows those are depends on all (`experts`)."""
    if not is_known(node) or call.get("bias") is not None:
        return None
    left, right = sizes_of(call["self"]), sizes_of(call["mat2"])
    if len(left) != 2 or len(right) != 3 or not isinstance(call.get("offs"), Value):
        return None
    return Correspondence(((None, _SUM), (None, _SUM, _COLUMN), (None,)), ((None, _COLUMN),), {"k": "sum"}, _EACH)


def _einsum(node: Node, call: Mapping[str, Arg]) -> Correspondence | None:
    """The letters of the equation; those of the result that it leaves out are summed over."""
    text, operands = call["equation"], [t.sizes for t in tensors(node)]
    if not is_known(node) or not isinstance(text, str):
        return None
    left, arrow, right = text.replace(" ", "").partition("->")
    terms = left.split(",")
    most = max((len(sizes) - len(term.replace("...", "")) for term, sizes in zip(terms, operands, strict=True)
                if "..." in term), default=0)  # fmt: skip
    letters = [_letters(term, len(sizes), most) for term, sizes in zip(terms, operands, strict=True)]
    if any(len(one) != len(sizes) or len(set(one)) != len(one) for one, sizes in zip(letters, operands, strict=True)):
        return None  # a diagonal
    every = [one for term in letters for one in term]
    if arrow:
        made = _letters(right, len(right.replace("...", "")) + (most if "..." in right else 0), most)
    else:
        made = [
            *(f"...{i}" for i in range(most)),
            *sorted(c for c in set(every) if len(c) == 1 and every.count(c) == 1),
        ]
    length: dict[str, int] = {}
    for term, sizes in zip(letters, operands, strict=True):
        for letter, size in zip(term, sizes, strict=True):
            length[letter] = max(length.get(letter, 0), size)

    def labels(term: Sequence[str], sizes: Sequence[int]) -> Dims:
        return tuple(
            Dim(letter) if size == length[letter] else None for letter, size in zip(term, sizes, strict=True)
        )  # fmt: skip

    if len(made) != len(results(node)[0].sizes):
        return None
    summed = dict.fromkeys(set(every) - set(made), "sum")
    # What is broadcast along a letter that is summed counts as often as that is long, on each rank.
    alone = {a for term, sizes in zip(letters, operands, strict=True) for a, n in zip(term, sizes, strict=True)
             if n != length[a]}  # fmt: skip
    if alone & summed.keys():
        return None
    each = tuple(frozenset((i,)) for i in range(len(operands)))
    return Correspondence(
        tuple(map(labels, letters, operands)), (labels(made, results(node)[0].sizes),), summed, each
    )  # fmt: skip


def _letters(term: str, rank: int, most: int) -> list[str]:
    """The letters of a term, an ellipsis as the dimensions that it stands for, counted from the back."""
    front, dots, back = term.partition("...")
    count = rank - len(front) - len(back) if dots else 0
    return [*front, *(f"...{i}" for i in range(most - count, most)), *back]


_PRODUCTS = ("aten.matmul.default", "aten.mm.default", "aten.bmm.default", "aten.mv.default", "aten.dot.default")
RULES: Mapping[str, Rule] = MappingProxyType({
    **dict.fromkeys(_PRODUCTS, _matmul), "aten.linear.default": _linear, "aten.addmm.default": _addmm,
    "aten.baddbmm.default": _addmm, "aten.outer.default": _outer,
    "aten._grouped_mm.default": _grouped, "aten.einsum.default": _einsum,
})  # fmt: skip
