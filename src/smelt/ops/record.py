"""What the catalogue says of one operator, and the small builder that its lowering writes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import Enum, Flag, auto
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeAlias

from smelt.diag.records import record
from smelt.ir import Arg, Dim, DType, TensorType, Type, Value

Alias: TypeAlias = Literal["fresh", "view", "maybe"]
"""fresh: results have memory of their own. view: the result is a view of the first operand. maybe: types decide."""


@record
class Sample:
    """One call to try an operator with: tensors and literals of torch, ready to be passed."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def sample(*args: Any, **kwargs: Any) -> Sample:
    """A sample from a call's arguments."""
    return Sample(args, kwargs)


class Emitter(Protocol):
    """What a lowering writes its nodes with."""

    def call(self, op: str, *args: Arg, **kwargs: Arg) -> Value:
        """Add a node with one result; its type is inferred."""
        ...

    def calls(self, op: str, *args: Arg, **kwargs: Arg) -> tuple[Value, ...]:
        """Add a node with several results (a list's elements are unpacked)."""
        ...

    def as_torch_does(self, op: str, call: Call) -> Arg | None:
        """The result of what torch's own code for a composite comes to; None where that cannot be told."""
        ...


@record
class Product:
    """The arguments of a matrix product by name: its factors, and what it adds. first: the left factor's position."""

    left: str
    right: str
    added: str = ""
    first: int = 0

    @property
    def arguments(self) -> tuple[str, ...]:
        """All of them that it has, factors first."""
        return (self.left, self.right, *((self.added,) if self.added else ()))


class Trait(Flag):
    """Yes-or-no facts of an operator that several places ask for (`sets.where` gives the operators that have one)."""

    NONE = 0

    # --- views and copies
    WHOLE_VIEW = auto()
    """A view of all of its first operand wherever both have one type (not `as_strided`, which names a place)."""
    RETURNS_ITSELF = auto()
    """Gives back its operand, the same tensor object, where there is nothing to do."""
    STRIDED_PART = auto()
    """A view with steps of its own in which no element of the operand stands twice."""
    PERMUTES = auto()
    """A view of all elements with the dimensions in another order."""
    RESHAPES = auto()
    """The same elements in the same order, under other sizes."""
    TO_SIZES = auto()
    """One that reshapes to the sizes that its second argument lists."""
    SAME_VALUES = auto()
    """Each element is one of the operand's, as it was or cast: copies, casts, `expand`."""
    ITEM_OF = auto()
    """Elements of the operand's range and no others."""
    AT_START = auto()
    """The result's first element is the operand's first."""
    CARRIES_STRIDES = auto()
    """The result's strides follow from the first operand's."""
    OWN_STRIDES = auto()
    """The strides of an empty result follow its sizes and the operand's order of dimensions."""

    # --- what it takes
    ANY_LAYOUT = auto()
    """Computes the same from any strides, and torch's meta kernel tells the result's exactly."""
    LIES_AS_OPERAND = auto()
    """Where a kernel of our own computes it, its result best lies in the order of its largest operand's dimensions."""
    ANY_SHAPE = auto()
    """Takes a tensor of any rank and sizes, whatever its other arguments."""
    ANY_TENSOR = auto()
    """Takes tensors of any rank and sizes where all other arguments are literals."""
    ANY_RANK = auto()
    """Takes a tensor of any sizes where its rank is known and all other arguments are literals."""
    ANY_NUMBER = auto()
    """Takes any number for its operand, whatever the tensor holds."""
    NUMBER_BESIDE = auto()
    """Its overload for two tensors takes a Python number for the second."""
    TAKES_RUN_NUMBERS = auto()
    """Fusion has a rule for it that takes numbers known at run time only."""

    # --- what it computes
    BY_ELEMENTS = auto()
    """Element by element, though torch does not tag it `pointwise`."""
    ACTIVATION = auto()
    """A function that models put behind a product or a norm, of which a schedule takes any for another."""
    LIKE_OPERAND = auto()
    """Of one floating-point tensor the result has its dtype, sizes and, where it is row-major, its strides."""
    COMMUTES = auto()
    """Its two operands may change places."""
    DIVIDES = auto()
    """A division, which raises for integers divided by zero unless it is a true one."""
    COSTLY = auto()
    """Worth computing once for all runs where its operands follow from sizes."""
    ONE_BY_ONE = auto()
    """Its elements are computed one after the other, not in vectors."""
    READS_ALL = auto()
    """Not by elements, and all elements of its results need all elements of each operand."""
    CONVOLVES = auto()
    """A convolution: linear in its weight, whose first dimension is that of the result's channels."""
    FOLLOWS_PRODUCT = auto()
    """Worth computing on a product's tile while it is in registers."""
    WIDE_INSIDE = auto()
    """Computed in f32 inside where the operands are bf16 or f16, rounding once."""
    KEPT_IN_F32 = auto()
    """Kept in f32 where a schedule narrows what stands around it: norms, softmax, sums, losses."""
    IGNORES_AUTOCAST = auto()
    """A composite in which autocast changes nothing."""
    NOT_ITERATED = auto()
    """Tagged `pointwise`, but its strides are not those that torch's iterator gives."""

    NO_GRADIENT = auto()
    """Its floating-point results have no history, whatever it is given."""

    # --- what it gives
    CONSTANT_FILL = auto()
    """All elements are one number among its arguments, or one that its name says."""
    TYPE_ONLY = auto()
    """Its elements follow from the first operand's type and numbers, not from its elements."""
    SAME_SHAPE = auto()
    """Not tagged `pointwise`, but its sizes are those of its operands, broadcast."""
    FILLS = auto()
    """Not tagged `pointwise`, with a result as large as the largest operand."""
    SHRINKS = auto()
    """Its results are together no larger than its operands."""
    SIZED_BY_RUN = auto()
    """A result may be as long as data, or as numbers that a run computes, say."""
    LIST_OF_VIEWS = auto()
    """Its results are a list of views of its operand, side by side along a dimension."""


Call: TypeAlias = Mapping[str, Any]
"""All arguments of a call by the schema's names, defaults filled in."""

TypeRule: TypeAlias = Callable[[Call], "tuple[Type, ...] | None"]
Lowering: TypeAlias = Callable[[Emitter, Call], "Arg | tuple[Value, ...] | None"]
Samples: TypeAlias = Callable[[], Iterable[Sample]]
Parts: TypeAlias = Mapping[str, Callable[[], Arg]]
"""By argument of a call: what writes its gradient, asked only where that is needed."""
Gradient: TypeAlias = Callable[[Emitter, Call, tuple[Value, ...], "tuple[Value | None, ...]"], "Parts | None"]
"""Gradients of a call's tensors, from the call, its results and the results' gradients (None: a result has none).

A gradient may have the operand's sizes before broadcasting or those after, and any floating-point dtype: who asks sums
and casts. For a list of tensors it is a tuple. An argument that is left out has no gradient. None: not for this call.
"""


@record
class OnnxValue:
    """A value of an ONNX graph: its name and element type; is_sequence: a list of tensors, not one."""

    name: str
    dtype: DType
    is_sequence: bool = False


OnnxItems: TypeAlias = "tuple[OnnxValue, ...]"
"""A list or a tuple whose length is known: its items, each a value of its own."""


class NoOnnxForm(Exception):
    """ONNX cannot say a call, for the reason given."""


class OnnxEmitter(Protocol):
    """What ONNX forms write their nodes with. Operands are values of either graph; None: an input that is left out."""

    def op(self, kind: str, *operands: Value | OnnxValue | None, dtype: DType | None = None, **how: Any) -> OnnxValue:
        """Add a node with one output, of the first operand's element type unless it is given."""
        ...

    def ops(
        self, kind: str, dtypes: tuple[DType, ...], *operands: Value | OnnxValue | None, **how: Any
    ) -> tuple[OnnxValue, ...]:
        """Add a node with an output of each of these element types."""
        ...

    def constant(self, data: Any, dtype: DType) -> OnnxValue:
        """A constant tensor: nested lists of numbers, or a number, or a tensor of torch."""
        ...

    def value(self, arg: Arg) -> OnnxValue:
        """A tensor or number of the graph, or a number as a constant."""
        ...

    def items(self, arg: Arg) -> OnnxItems | OnnxValue:
        """A list of the graph: its items where their number is known, else a sequence."""
        ...

    def stacked(self, arg: Arg) -> OnnxValue | None:
        """The tensors of a list that a loop gathers, along a new first dimension; None for any other list."""
        ...

    def size(self, dim: Dim) -> OnnxValue | None:
        """A size as a number, where it is one or follows from those of the inputs."""
        ...

    def owns_memory(self, x: Value) -> bool:
        """Whether a tensor is the first of its memory, and no view of another one or of what the caller passes."""
        ...

    def require(self, holds: OnnxValue, what: str) -> None:
        """Make the run fail where a bool is false. what: what must be, for people."""
        ...


OnnxResult: TypeAlias = "OnnxValue | tuple[OnnxValue | None, ...] | OnnxItems | None"
Types: TypeAlias = tuple[Type, ...]
"""Those of a call's results."""
OnnxForm: TypeAlias = Callable[[OnnxEmitter, Call, Types], OnnxResult]
"""A call in ONNX's operators, from its arguments and the types of its results: a value for each result, or the items of
the only one. None: not for this call. Raises: NoOnnxForm.
"""


class Slot(Enum):
    """What a pass or a backend brings for an operator; `codegen.slots.filled` tells whether it is there."""

    VJP = "vjp"
    """Its gradient, in the graph's operators: in the record."""
    KERNEL = "C kernel"
    """Code of ours for the CPU: a rule of `codegen.fusion.rules.rules`, a product, a lowering."""
    ONNX = "ONNX"
    """Its form in ONNX's operators: in the record, or by the simpler operators that it is lowered to."""
    TRITON = "Triton"
    """Code of ours for GPUs: the same rules in Triton, products, attention, random numbers."""


def as_torch_does(op: str) -> Lowering:
    """The lowering of a composite with one result, by following torch's own code for it."""
    return lambda b, call: b.as_torch_does(op, call)


def library(why: str, *slots: Slot) -> Mapping[Slot, str]:
    """No kernel of ours: torch's library computes the operator, for this reason. slots: on a CPU alone, or a GPU; else
    on both.
    """
    return MappingProxyType(dict.fromkeys(slots or (Slot.KERNEL, Slot.TRITON), why))


def never(call: Call) -> bool:
    """For no call."""
    return False


def nothing_written(call: Call) -> tuple[str, ...]:
    """No argument is written."""
    return ()


@record
class OpRecord:
    """All that is known of one overload; what is left out comes from torch's registry.

    name: as in the graph. oracle: dotted name of the public torch function with the same meaning.
    result: types of the results where torch's meta kernel is wrong or missing; None for a call it cannot tell.
    result_of_unknown: where sizes of operands are unknown, and too many of them depend on each other to be tried.
    lower: the same in simpler ops, or None for a call that stays; `exact`: bit for bit what eager computes.
    rng: whether a call draws random numbers. writes: arguments that a call changes though its schema does not say so.
    may_throw: whether the data may make eager raise. uninitialised: the result's content is arbitrary.
    traits: further facts that are asked for by name. product: the factors of a matrix product.
    neutral: of a reduction, the number that changes no result (infinite: for floating-point numbers only).
    vjp: its gradient. onnx: its form in ONNX's operators. why_not: for each slot that is empty, why.
    """

    name: str
    oracle: str
    samples: Samples
    source: str = ""
    result: TypeRule | None = None
    result_of_unknown: TypeRule | None = None
    lower: Lowering | None = None
    exact: bool = False
    alias: Alias = "fresh"
    rng: Callable[[Call], bool] = never
    writes: Callable[[Call], tuple[str, ...]] = nothing_written
    may_throw: bool = False
    uninitialised: bool = False
    traits: Trait = Trait.NONE
    product: Product | None = None
    neutral: float | bool | None = None
    vjp: Gradient | None = None
    onnx: OnnxForm | None = None
    why_not: Mapping[Slot, str] = field(default_factory=dict)


def tensor_type(arg: Any) -> TensorType:
    """The type of an argument that is a tensor. Raises: TypeError for any other."""
    if isinstance(arg, Value) and isinstance(arg.type, TensorType):
        return arg.type
    raise TypeError(f"{arg!r} is no tensor")
