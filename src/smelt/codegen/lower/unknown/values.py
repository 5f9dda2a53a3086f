"""What stands for values of unknown size: memory for as much as there can be, and how much there is.

Invariant: elements of a `Padded` whose index is below the count in each dimension are those of the exact tensor; the
others are whatever comes out, but always something that no kernel refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from smelt.diag import SmeltError
from smelt.diag.records import distinct_record
from smelt.ir import BOOL, FLOAT, INT, Arg, Builder, DType, Node, TensorType, Type, Value, map_values
from smelt.ir.python_operators import BINARY
from smelt.ir.sizes import is_symbolic, size_max, size_min
from smelt.ops.convert import has_values
from smelt.ops.sets import is_by_elements
from smelt.ops.typing import infer

Count: TypeAlias = Value | int
"""A number of elements: of the graph, or known."""


@distinct_record
class Padded:
    """A tensor as long as it can get. counts: for each dimension how much of it counts; None: all of it.

    below: it holds indices, all of them less than this, and 0 where nothing counts.
    """

    tensor: Value
    counts: tuple[Count | None, ...]
    below: Count | None = None

    @property
    def type(self) -> TensorType:
        """The type of the whole."""
        assert isinstance(self.tensor.type, TensorType)
        return self.tensor.type


@distinct_record
class Buffer:
    """A list of tensors of one type, or of numbers, as rows of one tensor, with the number of rows.

    start: the node that began it.
    """

    rows: Value
    count: Count
    start: Node

    @property
    def element(self) -> TensorType:
        """The type of a row."""
        assert isinstance(self.rows.type, TensorType)
        return TensorType.of(self.rows.type.dtype, self.rows.type.sizes[1:])


Held: TypeAlias = "Arg | Padded | Buffer | Parts"


@distinct_record
class Parts:
    """The elements of a sequence that nothing but `unpack` takes."""

    held: tuple[Held, ...]


class Refused(Exception):
    """A node has no such form."""


def type_of(value: Value) -> TensorType:
    """The type of a tensor of known size. Raises: Refused for any other value."""
    if not isinstance(value.type, TensorType) or not value.type.is_static:
        raise Refused(f"%{value.name} is {value.type}")
    return value.type


def size_of(held: Padded | Value, dim: int) -> Count:
    """How much of a dimension counts."""
    if isinstance(held, Padded):
        count = held.counts[dim]
        return held.type.sizes[dim] if count is None else count
    return type_of(held).sizes[dim]


def same_count(a: Count, b: Count) -> bool:
    """Whether two counts are surely one."""
    return a is b or (not isinstance(a, Value) and not isinstance(b, Value) and a == b)


def counted_alike(a: Count | None, b: Count | None) -> bool:
    """Whether surely as much counts of two dimensions of one size."""
    return a is b or (a is not None and b is not None and same_count(a, b))


def padded_or_value(tensor: Value, counts: Sequence[Count | None], below: Count | None = None) -> Padded | Value:
    """A tensor with its counts, as a plain value where all of it counts."""
    if below is None and all(count is None for count in counts):
        return tensor
    return Padded(tensor, tuple(counts), below)


class Emitter:
    """Adds nodes with the types that they have, equal ones of a region once."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._made: list[dict[object, tuple[Value, ...]]] = [{}]
        self.added: list[Node] = []

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A region: what is made in it is not there behind it."""
        self._made.append({})
        try:
            yield
        finally:
            self._made.pop()

    def many(self, op: str, *args: Arg, **kwargs: Arg) -> tuple[Value, ...]:
        """The results of an operator. Raises: Refused where it takes no such operands."""
        key = (op, _key(args), tuple((name, _key(arg)) for name, arg in kwargs.items()))
        for made in reversed(self._made):
            if key in made:
                return made[key]
        try:
            types = self._types(op, args, kwargs)
        except (SmeltError, TypeError, ValueError, RuntimeError, IndexError) as error:
            raise Refused(str(error)) from error
        if any(isinstance(t, TensorType) and not t.is_static for t in types):
            raise Refused(f"{op} gives {types}")
        node = self.builder.add(op, args, types, kwargs)
        self.added.append(node)
        self._made[-1][key] = found = tuple(node.results)
        return found

    def _types(self, op: str, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> Sequence[Type]:
        """The types of the results, which do not follow what numbers among the arguments are."""
        if op == "aten.nonzero_static.default":
            size = kwargs["size"]
            assert isinstance(size, int)
            return (TensorType.of(DType.I64, (size, 1), (1, size)),)
        if op.startswith("py.") or op == "aten.item.default":
            return infer(op, args, kwargs)

        if is_by_elements(op):  # what the numbers are decides no type
            args = [args[0], *(1 if type(arg) is int else arg for arg in args[1:])]

        def known(value: Value) -> Arg:
            return _SAMPLES.get(value.type, value) if op != "aten.select.int" or value.type != INT else 0

        swapped = {name: map_values(arg, known) for name, arg in kwargs.items()}
        return infer(op, [map_values(arg, known) for arg in args], swapped)

    def __call__(self, op: str, *args: Arg, **kwargs: Arg) -> Value:
        (found,) = self.many(op, *args, **kwargs)
        return found

    def take_back(self, first: int) -> None:
        """Forget what was added since there were so many nodes."""
        gone = self.added[first:]
        del self.added[first:]
        for node in reversed(gone):
            node.drop_arguments()
            assert node.parent is not None
            node.parent.remove(node)
        made = self._made[-1]
        for key in [key for key, values in made.items() if values[0].node in gone]:
            del made[key]

    # --- numbers

    def number(self, op: str, a: Count, b: Count) -> Count:
        """`py.add`, `py.sub`, `py.mul`, `py.min` or `py.max` of two counts."""
        if not isinstance(a, Value) and not isinstance(b, Value):
            return _KNOWN[op](a, b)
        if op == "add" and not isinstance(a, Value) and a == 0:
            return b
        if op in ("add", "sub") and not isinstance(b, Value) and b == 0:
            return a
        if op == "mul" and 1 in (a, b):
            return b if not isinstance(a, Value) else a
        return self(f"py.{op}", a, b)


_KNOWN: dict[str, Callable[[int, int], int]] = {
    **{o.name: o.function for o in BINARY if o.symbol in ("+", "-", "*")}, "min": size_min, "max": size_max,
}  # fmt: skip


_NUMBERS: dict[Type, DType] = {INT: DType.I64, FLOAT: DType.F64, BOOL: DType.BOOL}


def as_row(element: Type) -> Type:
    """What stands in a buffer for an item of a list: a number is a tensor of its own."""
    return TensorType.of(_NUMBERS[element], ()) if element in _NUMBERS else element


def row_of(emit: Emitter, item: Held, row: TensorType) -> Value:
    """An item as it stands in a buffer. Raises: Refused for one of another type."""
    if isinstance(item, (Padded, Buffer, Parts)):
        raise Refused("a tensor of unknown size, or a sequence")
    if isinstance(item, Value) and isinstance(item.type, TensorType):
        if type_of(item).sizes != row.sizes or type_of(item).dtype is not row.dtype:
            raise Refused("an item of another type")
        return item
    if isinstance(item, Value) and item.node is not None and item.node.op == "aten.item.default":
        (source,) = (v for v in item.node.args if isinstance(v, Value))
        if source.type == row:
            return source
    return emit("aten.scalar_tensor.default", item, dtype=row.dtype)


_SAMPLES: dict[Type, Arg] = {INT: 1, FLOAT: 1.0, BOOL: True}


def _key(arg: Arg) -> object:
    """What tells arguments apart, numbers of different types too."""
    if isinstance(arg, tuple):
        return tuple(map(_key, arg))
    return arg if isinstance(arg, Value) else (type(arg), arg)


def literal(arg: Arg) -> bool:
    """Whether an argument holds no values and no sizes that are known later."""
    return not has_values(arg) and not is_symbolic(arg)
