"""How a graph says that Python read something of its tensors: comparisons that end in `expect`.

    if x.sum() > 0:   ==>   %s = sum %x; %g = gt %s 0; expect(%g, True)

Invariant: where all hold, Python reads what it read in the recorded run; some may fail where it would do so, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smelt.ir import INT, STR, Arg, Builder, DType, TensorType, Value
from smelt.ops.lowering import GraphEmitter

_SIGNED = {1: DType.I8, 2: DType.I16, 4: DType.I32, 8: DType.I64}


def _is_exact(dtype: DType) -> bool:
    return dtype.is_integral or dtype is DType.BOOL


class ExpectEmitter:
    """Adds comparisons where a builder stands."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder
        self._emit = GraphEmitter(builder)

    def call(self, op: str, *args: Arg, **kwargs: Arg) -> Value:
        """An operator with one result."""
        return self._emit.call(op, *args, **kwargs)

    def _single(self, value: Arg) -> Value:
        """The only element of a tensor as a 0-d one."""
        assert isinstance(value, Value) and isinstance(value.type, TensorType)
        return self.call("aten.reshape.default", value, ()) if value.type.shape else value

    def expect(self, value: Value, literal: Arg) -> None:
        """The graph holds for this literal only."""
        self._builder.add("expect", (value, literal), [])

    def number(self, value: Arg, found: Any) -> None:
        """`item`."""
        self.expect(self._single(value), found)

    def truth(self, value: Arg, found: bool) -> None:
        """`bool`."""
        single = self._single(value)
        assert isinstance(single.type, TensorType)
        if single.type.dtype is not DType.BOOL:
            single = self.call("aten.ne.Scalar", single, 0)
        self.expect(single, found)

    def all_of(self, value: Value, found: bool) -> None:
        """Whether all elements are true."""
        self.expect(self.call("aten.all.default", value), found)

    def equality(self, left: Arg, right: Arg, found: bool) -> None:
        """`torch.equal`."""
        assert isinstance(left, Value) and isinstance(right, Value)
        a, b = left.type, right.type
        assert isinstance(a, TensorType) and isinstance(b, TensorType)
        if a.shape != b.shape:
            return
        self.all_of(self.call("aten.eq.Tensor", left, right), found)
        if not found and not _is_exact(a.dtype):
            # Of one memory torch may say that it equals itself whatever is in it: told apart only where no NaN is.
            self.all_of(self.call("aten.eq.Tensor", left, left), True)

    def sizes(self, value: Arg, found: Sequence[int]) -> None:
        """The sizes of a result that follow from data."""
        sizes = self.call("aten._shape_as_tensor.default", value)
        for i, size in enumerate(found):
            self.expect(self.call("aten.select.int", sizes, 0, i), size)

    def offset(self, value: Arg, found: int) -> None:
        """Where a tensor begins in its memory."""
        self.expect(self._builder.add("aten.sym_storage_offset.default", (value,), [INT]).result, found)

    def error(self, op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg], found: str) -> None:
        """What an operator raised, which the program caught."""
        self.expect(self._builder.add("py.raised", (op, *args), [STR], kwargs).result, found)

    def elements(self, value: Arg, found: Value) -> None:
        """All elements, bit by bit."""
        self.all_of(self.call("aten.eq.Tensor", self._bits(value), self._bits(found)), True)

    def _bits(self, value: Arg) -> Value:
        assert isinstance(value, Value) and isinstance(value.type, TensorType)
        if value.type.dtype in (DType.C32, DType.C64, DType.C128):
            value = self.call("aten.view_as_real.default", self.call("aten.resolve_conj.default", value))
        assert isinstance(value.type, TensorType)
        if _is_exact(value.type.dtype):
            return value
        return self.call("aten.view.dtype", value, _SIGNED[value.type.dtype.itemsize])
