"""Types of values: tensors, scalars and containers. All frozen, all with a text form that parses back.

f32[8, 16]              contiguous        f32[8, 16]{1, 8}      the same sizes, strides 1 and 8
f32[B, 16]              symbolic size     f32[?]                a tensor of unknown rank
f32[]                   0-d               list[f32[2]], (int, f32[4]), dict[str, int], optional[f32[]]
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Literal, TypeAlias

from smelt.diag.records import record
from smelt.ir.dims import Dim, is_static, symbols
from smelt.ir.dtypes import DType
from smelt.ir.sizes import Size

ScalarName = Literal[
    "int", "float", "bool", "complex", "str", "none", "dtype", "device", "layout", "memory_format", "any"
]
SCALAR_NAMES: tuple[ScalarName, ...] = (
    "int", "float", "bool", "complex", "str", "none", "dtype", "device", "layout", "memory_format", "any",
)  # fmt: skip


def contiguous_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of a shape, in elements; sizes of 0 count as 1, as in torch."""
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return tuple(strides)


def _are_same(a: tuple[Dim, ...] | None, b: tuple[Dim, ...] | None) -> bool:
    """Whether sizes are the same expressions; those that agree at some sizes only are not, and their hash tells so."""
    return a is b or (hash(a) == hash(b) and a == b)


@record
class TensorType:
    """A tensor: element type, sizes (None: unknown rank), strides (None: row-major), device, layout.

    Strides are what eager would produce; a pass that changes them changes the type. `TensorType.of` normalises
    row-major strides to None, so that equal layouts compare equal.
    """

    dtype: DType
    shape: tuple[Dim, ...] | None
    strides: tuple[Dim, ...] | None = None
    device: str = "cpu"
    layout: str = "strided"

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not TensorType:
            return NotImplemented
        if self is other:
            return True
        assert isinstance(other, TensorType)
        return (
            self.dtype is other.dtype
            and _are_same(self.shape, other.shape)
            and _are_same(self.strides, other.strides)
            and self.device == other.device
            and self.layout == other.layout
        )

    @staticmethod
    def of(
        dtype: DType,
        shape: Sequence[int],
        strides: Sequence[int] | None = None,
        device: str = "cpu",
        layout: str = "strided",
    ) -> TensorType:
        """A static tensor type; strides equal to row-major ones are dropped."""
        sizes = tuple(s if type(s) is Size else int(s) for s in shape)
        steps = None if strides is None else tuple(s if type(s) is Size else int(s) for s in strides)
        if steps is not None and _are_same(steps, contiguous_strides(sizes)):
            steps = None
        return TensorType(dtype, sizes, steps, device, layout)

    @property
    def rank(self) -> int | None:
        """The number of dimensions, None where unknown."""
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether all sizes and strides are integers."""
        return is_static(self.shape) and (self.strides is None or is_static(self.strides))

    @property
    def has_elements(self) -> bool:
        """Whether each index has an element of its own in memory, at its stride, whose bits alone tell its value."""
        return self.layout == "strided" and not self.dtype.is_quantized

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of a static type. Raises: TypeError where a size is symbolic or unknown."""
        shape = self.shape
        if not is_static(shape):
            raise TypeError(f"{self} has no static sizes")
        return shape

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides of a static type in elements, row-major ones spelled out."""
        if self.strides is None:
            return contiguous_strides(self.sizes)
        return tuple(d for d in self.strides if isinstance(d, int))

    @property
    def numel(self) -> int:
        """The number of elements of a static type."""
        return prod(self.sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of a static type, counted once each."""
        return self.numel * self.dtype.itemsize

    def __str__(self) -> str:
        sizes = "?" if self.shape is None else ", ".join(map(str, self.shape))
        text = f"{self.dtype}[{sizes}]"
        if self.strides is not None:
            text += "{" + ", ".join(map(str, self.strides)) + "}"
        if self.layout != "strided":
            text += f":{self.layout}"
        if self.device != "cpu":
            text += f'@"{self.device}"'
        return text


@record
class ScalarType:
    """A Python scalar, or one of torch's small value kinds (dtype, device, layout, memory format)."""

    name: ScalarName

    def __str__(self) -> str:
        return self.name


@record
class ListType:
    """A list of unknown length whose elements share one type."""

    element: Type

    def __str__(self) -> str:
        return f"list[{self.element}]"


@record
class TupleType:
    """A sequence of known length; what an op that returns `Tensor[]` yields in a capture is one, too."""

    elements: tuple[Type, ...]

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.elements))
        return f"({inner},)" if len(self.elements) == 1 else f"({inner})"


@record
class DictType:
    """A dictionary with one key type and one value type."""

    key: Type
    value: Type

    def __str__(self) -> str:
        return f"dict[{self.key}, {self.value}]"


@record
class OptionalType:
    """A value or None."""

    element: Type

    def __str__(self) -> str:
        return f"optional[{self.element}]"


Type: TypeAlias = TensorType | ScalarType | ListType | TupleType | DictType | OptionalType

INT, FLOAT, BOOL, COMPLEX, STR, NONE = (
    ScalarType("int"), ScalarType("float"), ScalarType("bool"),
    ScalarType("complex"), ScalarType("str"), ScalarType("none"),
)  # fmt: skip
ANY = ScalarType("any")


def type_symbols(type_: Type) -> frozenset[str]:
    """The names of all symbolic sizes in a type."""
    found: frozenset[str] = frozenset()
    match type_:
        case TensorType(shape=shape, strides=strides):
            for dim in (*(shape or ()), *(strides or ())):
                found |= symbols(dim)
        case TupleType(elements=elements):
            for element in elements:
                found |= type_symbols(element)
        case ListType(element=element) | OptionalType(element=element):
            found = type_symbols(element)
        case DictType(key=key, value=value):
            found = type_symbols(key) | type_symbols(value)
        case ScalarType():
            pass
    return found
