"""Values of a nest as names in a kernel's text: each made once, where it is needed, inside or before the open loop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from smelt.codegen.kernels import element_types
from smelt.codegen.kernels.graph import StoreValue, Value, operand_dtype
from smelt.codegen.kernels.nest import Const, Gather, Index, Load, Op, Position, Reduce, Scan
from smelt.codegen.triton.frame import ACROSS, Frame
from smelt.codegen.triton.vmath import BESIDE_NUMBERS, FAILING, memory_type, register_type, rounded, written
from smelt.diag import InternalError
from smelt.ir import DType

# An operation that one other uses is written inside it while the text is as short as this.
_SHORT = 60
_POWERS = frozenset({2.0, 3.0})


class Values:
    """Emits values into a frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._inner_bits = frame.graph.inner_bits
        self._outer: dict[object, str] = {}
        self._inner: dict[object, str] = {}
        self._axes: dict[int, int] = {}
        for value in frame.graph.values:
            self._axes[value.number] = self._axes_of(value)
        self._users: Counter[int] = Counter()
        self._user: dict[int, Value] = {}
        for value in frame.graph.values:
            for arg in value.args:
                self._users[arg.number] += 1
                self._user[arg.number] = value
        for store in frame.graph.stores:
            self._users.update(root.number for root in store.roots)

    def iterate(self) -> None:
        """A new loop is opened: what changes in it has no names yet."""
        self._inner = {}

    # --- axes

    def axes(self, value: Value) -> int:
        """The axes of a block along which a value changes."""
        return self._axes[value.number]

    def _axes_of(self, value: Value) -> int:
        axes = 0
        for arg in value.args:
            axes |= self._axes[arg.number]
        match value.source:
            case Position(loop=loop):
                axes |= self.frame.layout.axes(loop)
            case Load(index=index):
                axes |= self.index_axes(index)
            case Reduce():
                axes = self.frame.all_axes if self.frame.layout.form == "dot" else self.frame.all_axes & ACROSS
            case Scan():
                axes = self.frame.all_axes
        return axes

    def index_axes(self, index: Index) -> int:
        """The axes along which the terms of an index that are no gathers change."""
        axes = 0
        for loop, stride in enumerate(index.strides):
            if stride:
                axes |= self.frame.layout.axes(loop)
        return axes

    def is_inner(self, value: Value) -> bool:
        """Whether a value changes along an inner loop."""
        return bool(value.loops & self._inner_bits)

    # --- names

    def known(self, value: Value) -> str | None:
        """A value's name, if it has one."""
        return (self._inner if self.is_inner(value) else self._outer).get(value.number)

    def remember(self, value: Value, name: str) -> str:
        """Give a value its name."""
        (self._inner if self.is_inner(value) else self._outer)[value.number] = name
        return name

    def at(self, value: Value) -> str:
        """A value's name or short text."""
        waiting = [value]
        # In place of recursion, which a chain of a thousand operations would not fit into.
        while waiting:
            last = waiting[-1]
            missing = next((a for a in last.args if self._is_missing(a)), None)
            if missing is not None and not isinstance(last.source, Reduce | Scan):
                waiting.append(missing)
                continue
            waiting.pop()
            if self.known(last) is None:
                self.remember(last, self._made(last))
        name = self.known(value)
        assert name is not None
        return name

    def _is_missing(self, value: Value) -> bool:
        return self.known(value) is None

    def _made(self, value: Value) -> str:
        match value.source:
            case Const():
                return self.number(value)
            case Position(loop=loop):
                counter = self.frame.counters[loop]
                if counter == "0" or self.axes(value) == 0:
                    return self._let(value, f"{counter} + tl.zeros((), tl.int64)")
                return self._let(value, f"{counter}.to(tl.int64)")
            case Load():
                return self._load(value)
            case Op():
                return self._operation(value)
        raise InternalError("a reduction is used before it is finished", notes=(str(self.frame.nest),))

    def _let(self, value: Value, text: str) -> str:
        return self.frame.let(text, self.is_inner(value))

    def literal(self, value: Value) -> str | None:
        """A number's digits; None of what is no number, and of a bool, which has no operation beside which it may
        stand.
        """
        source = value.source
        if not isinstance(source, Const) or source.dtype is DType.BOOL:
            return None
        return digits(source.value, source.dtype)

    def number(self, value: Value) -> str:
        """A number as a value of its dtype."""
        source = value.source
        assert isinstance(source, Const)
        return f"tl.full((), {digits(source.value, source.dtype)}, {register_type(source.dtype)})"

    # --- operations

    def _operation(self, value: Value) -> str:
        source = value.source
        assert isinstance(source, Op)
        operand = operand_dtype(value)
        if source.op == "pow" and isinstance(value.args[1].source, Const) and value.args[1].source.value in _POWERS:
            return self._power(value, int(value.args[1].source.value))
        literals = [self.literal(a) for a in value.args]
        if source.op not in BESIDE_NUMBERS or all(literals):
            literals = [None] * len(literals)
        args = [literal or self.at(a) for literal, a in zip(literals, value.args, strict=True)]
        if source.op in FAILING and not operand.is_floating:
            args[1] = self._divisor(value, value.args[1], args[1])
        text = written(source.op, source.dtype, args, operand)
        return text if self._is_inlined(value, text) else self._let(value, text)

    def _is_inlined(self, value: Value, text: str) -> bool:
        user = self._user.get(value.number)
        return (
            self._users[value.number] == 1
            and user is not None
            and isinstance(user.source, Op)
            and user.source.op in BESIDE_NUMBERS
            and self.is_inner(user) == self.is_inner(value)
            and len(text) <= _SHORT
        )

    def _power(self, value: Value, exponent: int) -> str:
        base = self.at(value.args[0])
        result = base
        for _ in range(exponent - 1):
            result = self._let(value, written("mul", value.dtype, [result, base], value.dtype))
        return result

    def _divisor(self, value: Value, divisor: Value, text: str) -> str:
        """A divisor that the kernel checks, but for a number that is not 0."""
        if isinstance(divisor.source, Const) and divisor.source.value:
            return text
        self.frame.refuses()
        mask = self.frame.mask(self.axes(value)) or "True"
        return self._let(value, f"divisor({text}, {mask}, error)")

    # --- memory

    def _place(self, index: Index, positions: Sequence[Value], where: Value | None, is_inner: bool) -> str:
        """The element's number, as a short sum."""
        frame = self.frame
        terms = [frame.word(index.offset)] if index.offset else []
        for loop, stride in enumerate(index.strides):
            if stride and frame.counters[loop] != "0":
                counter = frame.counters[loop]
                terms.append(counter if stride == 1 else f"{counter} * {frame.word(stride)}")
        for gather, position in zip(index.gathers, positions, strict=True):
            at = self._position(gather, position, where, is_inner)
            terms.append(at if gather.stride == 1 else f"{at} * {frame.word(gather.stride)}")
        return " + ".join(terms) or "0"

    def _position(self, gather: Gather, position: Value, where: Value | None, is_inner: bool) -> str:
        frame = self.frame
        frame.refuses()
        axes = self.axes(position) | (0 if where is None else self.axes(where))
        key = ("position", position.number, gather.size, gather.wraps, None if where is None else where.number)
        names = self._inner if is_inner else self._outer
        if key in names:
            return names[key]
        at, size = self.at(position), frame.word(gather.size)
        if gather.wraps:
            at = frame.let(f"tl.where({at} < 0, {at} + {size}, {at})", is_inner)
        mask = self._mask(axes, where) or "True"
        at = frame.let(f"within({at}, {size}, {mask}, error)", is_inner)
        if not frame.is_wide:
            at = frame.let(f"{at}.to(tl.int32)", is_inner)
        names[key] = at
        return at

    def _mask(self, axes: int, where: Value | None) -> str:
        parts = [self.frame.mask(axes)] if self.frame.mask(axes) else []
        if where is not None:
            parts.append(self.at(where))
        return " & ".join(parts)

    def _load(self, value: Value) -> str:
        source = value.source
        assert isinstance(source, Load)
        count = len(source.index.gathers)
        positions = value.args[:count]
        where = value.args[count] if len(value.args) > count else None
        axes = self.axes(value)
        place = self._place(source.index, positions, where, self.is_inner(value))
        if where is not None:
            place = self._spread(place, axes, source.index, positions)
        mask = self._mask(axes, where)
        other = source.other.value if source.other is not None else 0
        given = f", mask={mask}, other={_memory_digits(other, source.dtype)}" if mask else ""
        text = f"tl.load(b{source.buffer} + {_grouped(place)}{given})"
        if source.dtype is DType.BOOL:
            text = f"{text} != 0"
        if source.dtype.is_half:
            text = f"{text}.to(tl.float32)"
        return self._let(value, text)

    def _spread(self, place: str, axes: int, index: Index, positions: Iterable[Value]) -> str:
        """A place that has all of the axes."""
        own = self.index_axes(index)
        for position in positions:
            own |= self.axes(position)
        return place if own == axes else f"{place} + tl.zeros({self.frame.shape(axes)}, tl.int32)"

    def store(self, store: StoreValue) -> None:
        """Emit a store."""
        frame, source = self.frame, store.source
        is_inner = bool(store.loops & self._inner_bits)
        axes = self.index_axes(source.index)
        for root in store.roots:
            axes |= self.axes(root)
        where = store.where
        place = self._place(source.index, store.positions, where, is_inner)
        place = self._spread(place, axes, source.index, store.positions)
        text = self.at(store.value)
        dtype = frame.nest.buffers[source.buffer].dtype
        if dtype is DType.BOOL or dtype.is_half:
            text = f"{text}.to(tl.{memory_type(dtype)})"
        mask = self._mask(axes, where)
        given = f", mask={mask}" if mask else ""
        if source.mode == "add":
            if self.axes(store.value) != axes:
                text = f"{text} + tl.zeros({frame.shape(axes)}, tl.{memory_type(dtype)})"
            frame.emit(f'tl.atomic_add(b{source.buffer} + {_grouped(place)}, {text}{given}, sem="relaxed")', is_inner)
            return
        frame.emit(f"tl.store(b{source.buffer} + {_grouped(place)}, {text}{given})", is_inner)

    def result(self, value: Value, text: str) -> None:
        """A finished reduction has this value."""
        self.remember(value, self.frame.let(rounded(text, value.dtype)))


def _grouped(text: str) -> str:
    return f"({text})" if " " in text else text


def digits(value: float | int | bool, dtype: DType) -> str:
    """A number of a dtype as text that means that very number."""
    if dtype is DType.BOOL:
        return str(bool(value))
    if not dtype.is_floating:
        return str(element_types.wrapped(int(value), dtype))
    number = element_types.rounded(float(value), dtype)
    if math.isfinite(number):
        return repr(number)
    return f'float("{number}")'


def _memory_digits(value: float | int | bool, dtype: DType) -> str:
    return str(int(bool(value))) if dtype is DType.BOOL else digits(value, dtype)
