"""A plan: the whole graph as one list of instructions over numbered slots, with blocks for branches and loops.

Invariant: a plan is frozen data; `check_plan` holds for it before anything runs it. A slot holds one tensor handle, or
what `Plan.kinds` says: a Python number, which native code keeps as eight bytes, or any Python object.
It is an *input* (a tensor lent by the caller for the run, or a number), *held* (a parameter, a packed weight or a
constant that the plan keeps alive), an *arena* tensor (memory planned at compile time, one arena per concurrent run) or
*owned* (made by one instruction, deleted by `Release`, at the latest when the run ends, also when it fails). Only owned
slots can be outputs, so nothing that a caller receives shares memory with an arena, an input or a weight.

    inputs=(0,)  held=((1, packed_weight), (2, bias))  outputs=(4,)  nslots=5
    Call("aoti_torch_cpu__linear_pointwise", (Use(0), Use(1), OptionalUse(2), Text("none"), ..., Out(3)), eager=...)
    CheckLayout(3, sizes=(16, 64), strides=(64, 1), dtype=torch.float32)
    Dispatch(torch.ops.aten.gelu.default, (Use(3),), outs=(4,))
    Launch(kernel, buffers=(3, 5), words=(1024,), items=16, eager=..., writes=(1,))
    Release((3,))
    Loop();  Load(6, 5);  Exit(6);  ...;  End()        while slot 5 is not zero
    Branch(6);  ...;  Otherwise();  ...;  End()

Every instruction has the same meaning in the native executor (`executable.py`) and in the Python interpreter
(`interpret.py`). Builders of the usual calls, with the equal torch expression, stand in `calls.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch

from smelt.diag import Span
from smelt.diag.records import distinct_record, record
from smelt.runtime.encoding.table import Arith

# --- numbers that are known later -------------------------------------------------------------------------------------


if TYPE_CHECKING:  # to the type checker, too, a word is what it passes for
    from builtins import int as _Int
else:
    _Int = object


@distinct_record
class Word(_Int):
    """A number that follows from the sizes of a call (`runtime.encoding.sizes`): a sum of words, each times a factor,
    and `add`.

    terms: (which word, its factor), sorted. is_double: it is a float, whose bits native code takes. It passes for an
    int where Python asks, so that it stands wherever a plan has an int, and is never one by accident.
    """

    terms: tuple[tuple[int, int], ...]
    add: int = 0
    is_double: bool = False

    __class__ = property(lambda self: int)

    @staticmethod
    def of(index: int, *, is_double: bool = False) -> Word:
        """The word of this number itself."""
        return Word(((index, 1),), 0, is_double)

    def __eq__(self, other: object) -> bool:
        # No number is a word, whatever it passes for.
        return type(other) is Word and (self.terms, self.add, self.is_double) == (
            other.terms, other.add, other.is_double,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.terms, self.add, self.is_double))

    def __add__(self, other: Any) -> Word:
        if type(other) is not Word:
            return Word(self.terms, self.add + other, self.is_double)
        factors = dict(self.terms)
        for index, factor in other.terms:
            factors[index] = factors.get(index, 0) + factor
        return Word(tuple(sorted(factors.items())), self.add + other.add)

    __radd__ = __add__

    def __mul__(self, other: float) -> Word:
        if type(other) is float and other == 1.0:
            return Word(self.terms, self.add, True)
        return Word(tuple((index, factor * int(other)) for index, factor in self.terms), self.add * int(other))

    __rmul__ = __mul__

    def value(self, words: Sequence[int | float]) -> int | float:
        """The number, given all words."""
        if len(self.terms) == 1 and not self.add:  # 0 + -0.0 is 0.0
            ((index, factor),) = self.terms
            return words[index] * factor
        total: int | float = self.add
        for index, factor in self.terms:
            total += words[index] * factor
        return total


# --- arguments of a C shim call ---------------------------------------------------------------------------------------


@record
class Use:
    """The handle in a slot (`AtenTensorHandle`)."""

    slot: int


@record
class Out:
    """Address of a slot that the call fills with a new, owned handle (`AtenTensorHandle*`)."""

    slot: int


@record
class OptionalUse:
    """Address of a slot's handle, or null for None (`AtenTensorHandle*` that stands for `Tensor?`)."""

    slot: int | None


@record
class Uses:
    """Pointer to an array of handles (`const AtenTensorHandle*`); the C signature's length follows as its own int."""

    slots: tuple[int, ...]


@record
class OptionalUses:
    """Pointer to an array of pointers to handles, null for None (`const AtenTensorHandle**` for `Tensor?[]`)."""

    slots: tuple[int | None, ...]


@record
class Ints:
    """Pointer to a constant array of int64; the C signature's length follows as its own int."""

    values: tuple[int, ...]


@record
class Numbers:
    """Pointer to an array of int64, constants and ints in slots; the C signature's length follows as its own int.

    `eager` gets them as a list, in the place of a tensor.
    """

    values: tuple[Use | int, ...]


@record
class OptionalInt:
    """Pointer to a constant int64 (or, little-endian, int32), or null for None."""

    value: int | None


@record
class OptionalDouble:
    """Pointer to a constant double, or null for None."""

    value: float | None


@record
class DoublePointers:
    """Pointer to an array of pointers to doubles, null for None (`const double**`); the length follows as its own
    int.
    """

    values: tuple[float | None, ...]


@record
class Text:
    """A constant C string (`const char*`)."""

    value: str


@record
class OptionalText:
    """Pointer to a constant C string, or null for None (`const char**`)."""

    value: str | None


# An int or bool is passed in an integer register, a float in a floating-point register (`double`), a dtype as its
# code of the shim, None as a null pointer.
Arg: TypeAlias = (
    "Use | Out | OptionalUse | Uses | OptionalUses | Ints | Numbers | OptionalInt | OptionalDouble | DoublePointers"
    "| Text | OptionalText | int | float | torch.dtype | None"
)

# --- instructions -----------------------------------------------------------------------------------------------------


@record
class Call:
    """Call a C function of libtorch that returns 0 for success.

    `eager` is the same computation in torch, for when the symbol is not there: it takes the tensors of all handle
    arguments in order (a list for `Uses` and `OptionalUses`, None for an absent optional) and returns the tensors for
    the `Out` arguments in order (a tensor, a sequence, or anything where there is no `Out`). An out-variant writes into
    its argument. At most 28 integer and 4 double arguments.
    """

    symbol: str
    args: tuple[Arg, ...]
    eager: Callable[..., Any]

    @property
    def outs(self) -> tuple[int, ...]:
        """Slots this call fills."""
        return tuple(a.slot for a in self.args if isinstance(a, Out))

    @property
    def uses(self) -> tuple[int, ...]:
        """Slots this call reads, in argument order."""
        return tuple(slot for a in self.args for slot in _slots_of(a))


@record
class Empty:
    """Make an owned, uninitialised CPU tensor (for results that leave the plan and are written by an out-variant)."""

    dst: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@record
class View:
    """Make an owned handle over the memory of `src`; `offset` counts elements from where `src` starts.

    itemsize: bytes of an element, 0 if it is not known; where it is, a view that only kernels use needs no handle.
    """

    dst: int
    src: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    itemsize: int = 0


@record
class CheckLayout:
    """Stop the run with a distinct status if a library-made tensor has other sizes, strides or dtype than planned.

    A stride of None is not compared, nor are the strides of dimensions of size 1 or of an empty tensor.
    """

    slot: int
    sizes: tuple[int, ...]
    strides: tuple[int | None, ...]
    dtype: torch.dtype | None = None


@record
class Dispatch:
    """Call an operator through torch's dispatcher.

    `op` is an OpOverload; `args` stand in the order of its schema (keyword-only ones too), trailing defaults may be
    left out. An argument is a `Use`, a tuple of `Use` or None for lists of tensors, or a plain value (int, bool,
    float, str, None, dtype, layout, memory format, device, tuple of numbers). `outs` are the slots of the results,
    None for one that is dropped. A call that `_torch.library.stable.dispatchable` refuses (a Scalar or a string
    argument, results that are not tensors) runs in Python and is counted there.
    """

    op: Any
    args: tuple[Any, ...]
    outs: tuple[int | None, ...]

    @property
    def uses(self) -> tuple[int, ...]:
        """Slots this call reads, in argument order."""
        return tuple(slot for a in self.args for slot in _slots_of(a))


@record
class PyCall:
    """Call Python with the GIL: `fn(*tensors)` returns a tensor or a sequence of tensors for `outs` (None: ignored).

    Gradients are off inside unless the plan keeps them. An exception ends the run and is raised from it. Slots that are
    no tensors give and take numbers and objects. writes: positions in `args` of tensors of the caller's that it writes
    to without counting that in their versions, for which a `Bump` follows.
    """

    fn: Callable[..., Any]
    args: tuple[int, ...]
    outs: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()


@record
class Aside:
    """Have Python do something beside the computation: `fn()`, with the GIL; it neither reads nor makes slots."""

    fn: Callable[[], None]


@record
class Copy:
    """Copy the values of `src` into the memory of `dst` (dtype conversion and broadcasting as `Tensor.copy_`)."""

    dst: int
    src: int


@record
class Bump:
    """Count one more write in the version of a tensor that a launch has written to, as `Copy` does of its own.

    Inference tensors have no version. The tensor is an input or the program's live state, which no other input, and no
    other live state, shares memory with.
    """

    slot: int


@record
class Release:
    """Delete owned handles at their last use."""

    slots: tuple[int, ...]


@record
class KernelCode:
    """Object code of one own kernel: an ELF object that defines `symbol`, empty where it could not be built.

    The symbol is a digest of the kernel's text, so two of the same symbol are the same kernel.

        i32 symbol(i64* args, i64 begin, i64 end, void* scratch)
    """

    symbol: str
    object: bytes = field(compare=False, repr=False)


@record
class Launch:
    """Run an own kernel over all its work items, in ranges of any size, in any order, on any threads.

    `args` of the kernel are the addresses of the first elements of `buffers`, then `words` (sizes, strides in elements,
    doubles as their bits; int64). It writes into `buffers[i]` for `i` in `writes`; all slots exist before (an arena
    slot, `Empty`, or an input or live state that a `Bump` follows for; behind those nothing may end the run as a
    miss). With no items nothing runs. A kernel returns 0, or a positive number when it refuses the data (an
    index out of range): then, and where no machine code runs, `eager` is called with the tensors of all buffers in
    order. It does the same in torch, writes included, or raises eager's error.

    item_ns: estimated time of one item, for the grain of threads; 0: one range. scratch_nbytes: memory that the running
    thread lends, 64-byte aligned. label: what it computes, for profiles. piece_of: launches of one number (not 0) write
    apart from one another, though into the same buffers, and read nothing that another of them writes. may_refuse:
    whether there are data that the kernel refuses.
    """

    kernel: KernelCode
    buffers: tuple[int, ...]
    words: tuple[int, ...]
    items: int
    eager: Callable[..., Any]
    writes: tuple[int, ...]
    item_ns: float = 0.0
    scratch_nbytes: int = 0
    label: str = ""
    piece_of: int = 0
    may_refuse: bool = True


@record
class Scalar:
    """Compute a number of numbers: `operation` is a `table.Arith`, `args` are slots or literals of its operand types.

    Where it cannot be done in 64 bits or must raise, `eager` is called with the numbers, as it is where no machine code
    runs: Python's own meaning.
    """

    operation: Arith
    dst: int
    args: tuple[Use | int | float | bool, ...]
    eager: Callable[..., Any]

    @property
    def uses(self) -> tuple[int, ...]:
        """Slots this instruction reads, in argument order."""
        return tuple(a.slot for a in self.args if isinstance(a, Use))


@record
class Load:
    """The only element of a tensor as a Python number: a float, an int or a bool, by the tensor's dtype."""

    dst: int
    src: int
    dtype: torch.dtype


@record
class Blit:
    """Copy the `nbytes` bytes of `src` over those of `dst`; both lie densely, in one order.

    row: `dst` has one dimension more in front; write at this index of it (a number's slot), within its size.
    A number as `src` is copied into a 0-d tensor.
    """

    dst: int
    src: int
    nbytes: int
    row: int | None = None


@record
class Expect:
    """End the run as a miss unless a number, or the element of a tensor of one, is the literal: bit for bit, but any
    nan is any other. Stands before all writes.
    """

    slot: int
    literal: int | float | bool
    dtype: torch.dtype | None = None
    where: Span | None = None


@record
class Branch:
    """What follows, up to `Otherwise` or `End`, runs if the bool in a slot is true."""

    test: int


@record
class Otherwise:
    """What follows, up to `End`, runs if the branch's bool is false."""


@record
class Loop:
    """What follows, up to `End`, runs again and again, until an `Exit` of its own is taken."""


@record
class Exit:
    """Leave the loop at hand if the bool in a slot is false."""

    test: int


@record
class End:
    """The end of a branch or a loop."""


Control: TypeAlias = Branch | Otherwise | Loop | Exit | End
CONTROL = (Branch, Otherwise, Loop, Exit, End)
Instruction: TypeAlias = (
    Call | Empty | View | CheckLayout | Dispatch | PyCall | Aside | Copy | Bump | Release | Launch | Scalar | Load
    | Blit | Expect | Control
)  # fmt: skip
Kind: TypeAlias = Literal["int", "float", "bool", "object"]
NUMBER_DTYPES: dict[Kind, torch.dtype] = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}
"""What the memory of a number's slot holds."""

# --- the plan ---------------------------------------------------------------------------------------------------------

ARENA_ALIGNMENT = 64


@record
class ArenaTensor:
    """A tensor at a fixed byte offset (a multiple of 64) of the arena."""

    slot: int
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes from its first to past its last element."""
        if 0 in self.sizes:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))
        return (last + 1) * self.dtype.itemsize


@record
class Plan:
    """Everything a run needs; see the module's head.

    `nslots`: slots are 0..nslots-1. `inputs[i]` is the slot of the i-th tensor, or number, given to `run`. `outputs`
    are owned slots; the same one may stand twice and then gives the same tensor twice. `arena_nbytes` is the size of
    the arena. `keep_grad_mode`: leave the caller's grad mode as it is instead of switching gradients off around the
    run. `fixed` are held slots whose tensors keep their memory (the compiler's own: packed weights, folded constants);
    that of a program's live state may be exchanged between runs. `origins[i]`, if given, says where instruction i comes
    from, for error messages. `profile`: measure every instruction. `kinds`: the slots that hold no tensors; these may
    be filled again and again.
    """

    nslots: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    held: tuple[tuple[int, torch.Tensor], ...] = ()
    arena: tuple[ArenaTensor, ...] = ()
    arena_nbytes: int = 0
    keep_grad_mode: bool = False
    origins: tuple[str, ...] = field(default=())
    fixed: frozenset[int] = frozenset()
    profile: bool = False
    kinds: Mapping[int, Kind] = field(default_factory=dict)


@record
class Counts:
    """How many instructions go to the library directly, through the dispatcher, through Python, and to own kernels."""

    library: int = 0
    dispatcher: int = 0
    python: int = 0
    kernels: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.library + other.library, self.dispatcher + other.dispatcher, self.python + other.python,
            self.kernels + other.kernels,
        )  # fmt: skip

    def __mul__(self, times: int) -> Counts:
        return Counts(self.library * times, self.dispatcher * times, self.python * times, self.kernels * times)


def uses_of(instruction: Instruction) -> tuple[int, ...]:
    """Slots that an instruction reads (those it deletes included)."""
    match instruction:
        case Call() | Dispatch():
            return instruction.uses
        case View(src=src):
            return (src,)
        case CheckLayout(slot=slot) | Bump(slot=slot):
            return (slot,)
        case PyCall(args=args):
            return args
        case Copy(dst=dst, src=src):
            return (dst, src)
        case Release(slots=slots):
            return slots
        case Launch(buffers=buffers):
            return buffers
        case Scalar():
            return instruction.uses
        case Load(src=src):
            return (src,)
        case Blit(dst=dst, src=src, row=row):
            return (dst, src) if row is None else (dst, src, row)
        case Expect(slot=slot) | Branch(test=slot) | Exit(test=slot):
            return (slot,)
        case Empty() | Aside() | Otherwise() | Loop() | End():
            return ()


def outs_of(instruction: Instruction) -> tuple[int, ...]:
    """Slots that an instruction fills: owned tensors, numbers and objects."""
    match instruction:
        case Call():
            return instruction.outs
        case Empty(dst=dst) | View(dst=dst):
            return (dst,)
        case Dispatch(outs=outs):
            return tuple(slot for slot in outs if slot is not None)
        case PyCall(outs=outs):
            return outs
        case Scalar(dst=dst) | Load(dst=dst):
            return (dst,)
        case _:
            return ()


def _slots_of(arg: Any) -> Sequence[int]:
    match arg:
        case Use(slot=slot):
            return (slot,)
        case OptionalUse(slot=slot):
            return () if slot is None else (slot,)
        case Uses(slots=slots):
            return slots
        case OptionalUses(slots=slots):
            return tuple(s for s in slots if s is not None)
        case Numbers(values=values):
            return tuple(value.slot for value in values if isinstance(value, Use))
        case tuple() | list():
            return tuple(s for item in arg for s in _slots_of(item))
        case _:
            return ()
