"""What torch's symbolic numbers hold here: a number with its expression, or a question about some.

torch's kernels for fake tensors calculate with these and ask: an answer that is not the same for all sizes within the
ranges is the one of the sizes at hand, and leaves a guard; a value that C insists on is fixed by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.capture.dynamic.arithmetic import at_hand, call, compute, is_float, is_symbolic
from smelt.capture.dynamic.trace import CaptureTrace, Number
from smelt.capture.staging import current
from smelt.ir import size_terms as terms
from smelt.ir.size_numbers import Size, SizeFloat


class Question:
    """A comparison, or some joined, that has not been answered."""

    __slots__ = ("answer", "static")

    def __init__(self, answer: Callable[[], bool], static: Callable[[], bool | None]) -> None:
        self.answer, self.static = answer, static


class SizeNode:
    """One number, or one truth value, of a trace."""

    __slots__ = ("number", "trace")

    def __init__(self, trace: CaptureTrace, number: Number | Question) -> None:
        self.trace, self.number = trace, number

    # --- what it is ---------------------------------------------------------------------------------------------------

    def is_int(self) -> bool:
        return type(self.number) is Size or type(self.number) is int

    def is_float(self) -> bool:
        return type(self.number) is SizeFloat or type(self.number) is float

    def is_bool(self) -> bool:
        return type(self.number) is Question or type(self.number) is bool

    def is_constant(self) -> bool:
        return not (is_symbolic(self.number) or type(self.number) is Question)

    def is_symbolic(self) -> bool:
        return not self.is_constant()

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    singleton_int = nested_int

    def maybe_as_int(self) -> int | None:
        return self.number if type(self.number) is int else None

    constant_int = maybe_as_int

    def maybe_as_bool(self) -> bool | None:
        return self.number if type(self.number) is bool else None

    constant_bool = maybe_as_bool

    def maybe_as_float(self) -> float | None:
        return self.number if type(self.number) is float else None

    def has_hint(self) -> bool:
        return True

    @property
    def hint(self) -> object:
        return self.number.answer() if type(self.number) is Question else at_hand(self.number)

    @property
    def _hint(self) -> None:
        # torch takes a hint for a reason to say "not always"; what is always so is asked of the trace.
        return None

    @property
    def expr(self) -> SizeNode:
        return self

    @property
    def free_symbols(self) -> frozenset[object]:
        # torch looks for its own symbols, of which nothing is known.
        return frozenset()

    def clone(self) -> SizeNode:
        return self

    def wrap_int(self, number: int) -> SizeNode:
        return SizeNode(self.trace, number)

    wrap_float = wrap_bool = wrap_int

    def _graph_repr(self) -> str:
        return repr(self.number)

    __str__ = __repr__ = _graph_repr

    # --- what C insists on --------------------------------------------------------------------------------------------

    def guard_int(self, file: str, line: int) -> object:
        number = self.number
        session = current.found() if file else None
        if session is not None:
            # C asks; `torch.tensor([n])` of a converted function need not.
            session.reading.want_free(is_text=False)
        if type(number) is SizeFloat:
            return self.trace.fix_float(number)
        if type(number) is Size:
            assert number == number.value
            return number.value
        return number.answer() if type(number) is Question else number

    guard_float = guard_int

    def guard_bool(self, file: str, line: int) -> bool:
        return self.number.answer() if type(self.number) is Question else bool(self.number)

    expect_true = expect_size = guard_size_oblivious = guard_or_false = guard_or_true = guard_bool

    def statically_known_true(self, file: str, line: int) -> bool:
        return bool(self.number.static() if type(self.number) is Question else self.number)

    def int_(self) -> object:
        return self.guard_int("", 0)

    float_ = int_

    def bool_(self) -> bool:
        return self.guard_bool("", 0)

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def sym_sum(self, nodes: Sequence[SizeNode]) -> SizeNode:
        total: Any = 0
        for node in nodes:
            total = total + node.number
        return SizeNode(self.trace, total)

    def sym_float(self) -> SizeNode:
        return SizeNode(self.trace, compute(self.trace, "py.float", self.number))

    def sym_int(self) -> SizeNode:
        return SizeNode(self.trace, compute(self.trace, "py.int", self.number))

    def round(self, digits: int | None = None) -> SizeNode:
        more = () if digits is None else (digits,)
        return SizeNode(self.trace, compute(self.trace, "py.round", self.number, *more))

    def is_integer(self) -> SizeNode:
        if not is_float(self.number):
            return SizeNode(self.trace, True)
        return SizeNode(
            self.trace, compute(self.trace, "py.eq", call(self.trace, "math.floor", self.number), self.number)
        )

    # --- truth --------------------------------------------------------------------------------------------------------

    def sym_not(self) -> SizeNode:
        asked = self.number
        if type(asked) is not Question:
            return SizeNode(self.trace, not asked)

        def static() -> bool | None:
            found = asked.static()
            return None if found is None else not found

        return SizeNode(self.trace, Question(lambda: not asked.answer(), static))

    def sym_and(self, other: SizeNode) -> SizeNode:
        return self._joined(other, False)

    def sym_or(self, other: SizeNode) -> SizeNode:
        return self._joined(other, True)

    and_ = bitwise_and = sym_and
    or_ = bitwise_or = sym_or

    def _joined(self, other: SizeNode, decisive: bool) -> SizeNode:
        a, b = self, other
        for one, two in ((a, b), (b, a)):
            if type(one.number) is bool:
                return one if one.number is decisive else two

        def static() -> bool | None:
            found = [n.number.static() for n in (a, b)]
            if decisive in found:
                return decisive
            return None if None in found else not decisive

        def answer() -> bool:
            found = static()
            if found is not None:
                return found
            if a.guard_bool("", 0) is decisive:
                return decisive
            return b.guard_bool("", 0)

        return SizeNode(self.trace, Question(answer, static))

    def sym_ite(self, then: SizeNode, other: SizeNode) -> SizeNode:
        return then if self.guard_bool("", 0) else other

    # --- layouts ------------------------------------------------------------------------------------------------------

    def is_contiguous(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        return self._layout(_is_dense, sizes, strides, range(len(sizes) - 1, -1, -1))

    def is_channels_last_contiguous_2d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        return self._layout(_is_dense, sizes, strides, (1, 3, 2, 0)) if len(sizes) == 4 else self.wrap_bool(False)

    def is_channels_last_contiguous_3d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        return self._layout(_is_dense, sizes, strides, (1, 4, 3, 2, 0)) if len(sizes) == 5 else self.wrap_bool(False)

    def is_channels_last_strides_2d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        return self._layout(_is_ordered, sizes, strides, (1, 3, 2, 0)) if len(sizes) == 4 else self.wrap_bool(False)

    def is_channels_last_strides_3d(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        return self._layout(_is_ordered, sizes, strides, (1, 4, 3, 2, 0)) if len(sizes) == 5 else self.wrap_bool(False)

    def is_non_overlapping_and_dense(self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]) -> SizeNode:
        hints = [at_hand(s.number) for s in strides]
        order = sorted(range(len(sizes)), key=lambda i: (hints[i], at_hand(sizes[i].number), -i))
        return self._layout(_is_dense, sizes, strides, order)

    def is_non_overlapping_and_dense_indicator(
        self, sizes: Sequence[SizeNode], strides: Sequence[SizeNode]
    ) -> SizeNode:
        found = self.is_non_overlapping_and_dense(sizes, strides).guard_bool("", 0)
        return SizeNode(self.trace, int(found))

    def _layout(
        self, rule: Callable[[list[object], list[object], Sequence[int]], bool], sizes: Sequence[SizeNode],
        strides: Sequence[SizeNode], order: Sequence[int],
    ) -> SizeNode:  # fmt: skip
        a, b = [s.number for s in sizes], [s.number for s in strides]
        return SizeNode(self.trace, rule(a, b, order))


# torch asks for its text by this name.
SizeNode.str = SizeNode._graph_repr  # type: ignore[attr-defined]


def _is_dense(sizes: list[Any], strides: list[object], order: Sequence[int]) -> bool:
    expected: object = 1
    for i in order:
        if sizes[i] == 1:
            continue
        if sizes[i] == 0:
            return True
        if strides[i] != expected:
            return any(sizes[j] == 0 for j in order)
        expected = expected * sizes[i]
    return True


def _is_ordered(sizes: list[Any], strides: list[Any], order: Sequence[int]) -> bool:
    """Strides grow along an order, as torch asks of channels-last ones."""
    least: object = 0
    if strides[1] == 0:
        return False
    for i in order:
        if sizes[i] == 0 or strides[i] < least:
            return False
        if i == 0 and least == strides[1]:
            return False
        least = strides[i]
        if sizes[i] > 1:
            least = least * sizes[i]
    return True


def _binary(op: str) -> Callable[..., object]:
    def method(self: SizeNode, other: SizeNode) -> SizeNode:
        return SizeNode(self.trace, compute(self.trace, op, self.number, other.number))

    return method


def _unary(op: str) -> Callable[..., object]:
    def method(self: SizeNode) -> SizeNode:
        return SizeNode(self.trace, compute(self.trace, op, self.number))

    return method


def _calls(function: str) -> Callable[..., object]:
    def method(self: SizeNode) -> SizeNode:
        return SizeNode(self.trace, call(self.trace, function, self.number))

    return method


def _compares(op: str, sign: Any, is_swapped: bool, is_negated: bool) -> Callable[..., object]:
    def method(self: SizeNode, other: SizeNode) -> SizeNode:
        trace, a, b = self.trace, self.number, other.number
        if not (is_symbolic(a) or is_symbolic(b)):
            return SizeNode(trace, compute(trace, op, a, b))
        if is_float(a) or is_float(b):
            return SizeNode(trace, Question(lambda: bool(compute(trace, op, a, b)), lambda: None))
        left, right = (b, a) if is_swapped else (a, b)
        p = terms.add(trace.poly_of(left), trace.poly_of(right), -1)

        def static() -> bool | None:
            found = trace.decide(sign, p)
            return None if found is None else found is not is_negated

        found = static()
        if found is not None:
            return SizeNode(trace, found)
        return SizeNode(trace, Question(lambda: bool(compute(trace, op, a, b)), static))

    return method


for _name, _op in (
    ("add", "add"), ("sub", "sub"), ("mul", "mul"), ("floordiv", "floordiv"), ("int_floordiv", "floordiv"),
    ("mod", "mod"), ("truediv", "truediv"), ("int_truediv", "truediv"), ("float_truediv", "truediv"), ("pow", "pow"),
    ("float_pow", "pow"), ("pow_by_natural", "pow"), ("lshift", "lshift"), ("rshift", "rshift"), ("sym_min", "min"),
    ("sym_max", "max"), ("bitwise_xor", "xor"),
):  # fmt: skip
    setattr(SizeNode, _name, _binary(f"py.{_op}"))
for _name in ("neg", "pos", "abs"):
    setattr(SizeNode, _name, _unary(f"py.{_name}"))
for _name in ("floor", "ceil", "trunc"):
    setattr(SizeNode, _name, _calls(f"math.{_name}"))
for _name, _sign, _swapped, _negated in (
    ("eq", "==", False, False), ("ne", "==", False, True), ("lt", "<", False, False), ("le", "<=", False, False),
    ("gt", "<", True, False), ("ge", "<=", True, False),
):  # fmt: skip
    setattr(SizeNode, _name, _compares(f"py.{_name}", _sign, _swapped, _negated))


def node_of(value: object) -> SizeNode | None:
    """The node of a number of torch's that is one of ours."""
    node = getattr(value, "node", None)
    return node if type(node) is SizeNode else None
