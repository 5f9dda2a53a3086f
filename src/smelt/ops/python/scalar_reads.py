"""Operators of torch that give Python's scalars: an element of a tensor, its sizes, its rank.

They read and do nothing else; what torch's tags leave open (whether they may raise) is decided by the operand's type.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

from smelt.diag.records import record
from smelt.ir import ANY, BOOL, COMPLEX, FLOAT, INT, Arg, ListType, TensorType, Type, Value


@record
class ScalarRead:
    """result: the type of what it gives. throws: whether it may raise on operands of these types."""

    result: Callable[[Sequence[Arg]], Type]
    throws: Callable[[Sequence[Arg]], bool]


def _tensor(args: Sequence[Arg]) -> TensorType | None:
    type_ = args[0].type if args and isinstance(args[0], Value) else None
    return type_ if isinstance(type_, TensorType) else None


def _element(args: Sequence[Arg]) -> Type:
    type_ = _tensor(args)
    if type_ is None:
        return ANY
    kinds: dict[str, Type] = {"bool": BOOL, "int": INT, "uint": INT, "float": FLOAT, "complex": COMPLEX}
    return kinds.get(type_.dtype.kind, ANY)


def _is_not_one(args: Sequence[Arg]) -> bool:
    type_ = _tensor(args)
    return type_ is None or not type_.is_static or type_.numel != 1


def _has_no_dim(args: Sequence[Arg]) -> bool:
    type_, dim = _tensor(args), args[1] if len(args) > 1 else None
    rank = None if type_ is None else type_.rank
    return rank is None or type(dim) is not int or not -rank <= dim < rank


def _never(args: Sequence[Arg]) -> bool:
    return False


def _int(args: Sequence[Arg]) -> Type:
    return INT


def _ints(args: Sequence[Arg]) -> Type:
    return ListType(INT)


def _bool(args: Sequence[Arg]) -> Type:
    return BOOL


_ELEMENT, _COUNT, _SIZE = ScalarRead(_element, _is_not_one), ScalarRead(_int, _never), ScalarRead(_int, _has_no_dim)
_READS = MappingProxyType(
    {
        **dict.fromkeys(("aten.item.default", "aten._local_scalar_dense.default"), _ELEMENT),
        **dict.fromkeys(
            ("aten.dim.default", "aten.numel.default", "aten.sym_numel.default", "aten.sym_storage_offset.default"),
            _COUNT,
        ),
        **dict.fromkeys(
            ("aten.size.int", "aten.sym_size.int", "aten.stride.int", "aten.sym_stride.int"),
            _SIZE,
        ),
        **dict.fromkeys(
            ("aten.size.default", "aten.sym_size.default", "aten.stride.default", "aten.sym_stride.default"),
            ScalarRead(_ints, _never),
        ),
        "aten.is_nonzero.default": ScalarRead(_bool, _is_not_one),
    }
)


def scalar_read(op: str) -> ScalarRead | None:
    """What is known of an operator that gives a scalar; None for any other."""
    return _READS.get(op)
