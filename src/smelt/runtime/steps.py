"""Every instruction as Python over torch: what the interpreter runs, and what a native plan calls where a symbol is
missing.

Invariant: `python_step(i)` computes what `i` means natively; the only module that says so in torch's terms.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from smelt._torch.library.schemas import raw_schema
from smelt.diag import InternalError, Miss, SmeltError
from smelt.runtime.machine.heap import on_large_pages
from smelt.runtime.plan import (
    NUMBER_DTYPES,
    ArenaTensor,
    Aside,
    Blit,
    Bump,
    Call,
    CheckLayout,
    Copy,
    Dispatch,
    Empty,
    Expect,
    Instruction,
    Kind,
    Launch,
    Load,
    Numbers,
    OptionalUse,
    OptionalUses,
    Plan,
    PyCall,
    Scalar,
    Use,
    Uses,
    View,
)


class LayoutMismatch(Exception):
    """A tensor has another size, stride or dtype than planned."""


def python_step(instruction: Instruction) -> PyCall:
    """The same instruction as a call of Python. `Release` and the ends of blocks have none: whoever runs Python drops
    references, and jumps, itself.
    """
    match instruction:
        case PyCall():
            return instruction
        case Aside(fn=fn):
            return PyCall(fn, ())
        case Call():
            return PyCall(_regrouped(instruction), instruction.uses, instruction.outs)
        case Empty(dst=dst, sizes=sizes, strides=strides, dtype=dtype):
            return PyCall(lambda: torch.empty_strided(sizes, strides, dtype=dtype), (), (dst,))
        case View(dst=dst, src=src, sizes=sizes, strides=strides, offset=offset):
            return PyCall(lambda t: t.as_strided(sizes, strides, t.storage_offset() + offset), (src,), (dst,))
        case CheckLayout():
            return PyCall(lambda t: check_layout(instruction, t), (instruction.slot,), ())
        case Dispatch():
            return _dispatched(instruction)
        case Copy(dst=dst, src=src):
            return PyCall(lambda d, s: d.copy_(s), (dst, src), ())
        case Bump(slot=slot):
            return PyCall(_bumped, (slot,), ())
        case Launch():
            return PyCall(_launched(instruction), instruction.buffers, ())
        case Scalar():
            return PyCall(_computed(instruction), instruction.uses, (instruction.dst,))
        case Load(dst=dst, src=src):
            return PyCall(lambda t: (t.item(),), (src,), (dst,))
        case Blit():
            return _blitted(instruction)
        case Expect(slot=slot):
            return PyCall(_expected(instruction), (slot,), ())
        case _:
            raise InternalError(f"{type(instruction).__name__} has no Python form")


def results_of(step: PyCall, result: Any, kinds: Mapping[int, Kind]) -> Sequence[Any]:
    """What a step returned, as one value for each of its `outs`.

    Raises: InternalError if it is not that many values, or of other types; SmeltError (S0404) for a number that no slot
    can hold.
    """
    if not step.outs:
        return ()
    found = (result,) if isinstance(result, torch.Tensor) else result
    if not isinstance(found, list | tuple) or len(found) != len(step.outs):
        raise InternalError(f"a Python step returned {type(result).__name__} for {len(step.outs)} tensors")
    for slot, value in zip(step.outs, found, strict=True):
        kind = kinds.get(slot) if kinds else None
        if kind is not None:
            check_kind(kind, value, "a result of a Python step")
        # None is an undefined tensor, as some operators return instead of a result they did not make.
        elif value is not None and not isinstance(value, torch.Tensor):
            raise InternalError(f"a Python step returned {type(value).__name__} instead of a tensor")
    return found


_TYPES: dict[Kind, type] = {"int": int, "float": float, "bool": bool}


def check_kind(kind: Kind, value: Any, what: str) -> None:
    """Raises: InternalError where a value is no such number; SmeltError (S0404) where 64 bits do not hold it."""
    if kind == "object":
        return
    if type(value) is not _TYPES[kind]:
        raise InternalError(f"{what} is {type(value).__name__}, instead of a {kind}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise SmeltError(
            f"the number {value} is beyond 64 bits",
            why="native code keeps numbers in 64 bits",
            fix="nothing needs to be done: the program runs eagerly for such numbers",
            code="S0404",
        )


def number_bits(kind: Kind, value: float) -> int:
    """A number as the signed 64-bit word of its slot."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0]) if kind == "float" else int(value)


def number_of(kind: Kind, bits: int) -> int | float | bool:
    """The number whose slot holds this word."""
    if kind == "float":
        return float(struct.unpack("<d", struct.pack("<q", bits))[0])
    return bool(bits) if kind == "bool" else bits


def as_tensor(value: Any, kind: Kind | None) -> Any:
    """A number as the 0-d tensor that kernels take it for; anything else as it is."""
    return value if kind is None or kind == "object" else torch.tensor(value, dtype=NUMBER_DTYPES[kind])


def _computed(instruction: Scalar) -> Callable[..., Any]:
    eager, args = instruction.eager, instruction.args

    def run(*numbers: Any) -> Any:
        rest = iter(numbers)
        return (eager(*(next(rest) if isinstance(a, Use) else a for a in args)),)

    return run


def _blitted(instruction: Blit) -> PyCall:
    if instruction.row is not None:
        return PyCall(lambda d, s, i: d[i].copy_(s), (instruction.dst, instruction.src, instruction.row), ())

    def run(target: torch.Tensor, source: Any) -> None:
        if isinstance(source, torch.Tensor):
            target.data.copy_(source)  # bytes alone: a `Bump` counts what is written of the caller's
        else:
            target.fill_(source)

    return PyCall(run, (instruction.dst, instruction.src), ())


def _expected(instruction: Expect) -> Callable[..., Any]:
    literal = instruction.literal

    def run(value: Any) -> None:
        found = value.item() if isinstance(value, torch.Tensor) else value
        if not is_same_number(found, literal):
            raise Miss(literal, found, instruction.where)

    return run


def is_same_number(a: Any, b: Any) -> bool:
    """Whether two numbers are of one type and equal bit for bit, or both nan."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1.0, a) == math.copysign(1.0, b))
    return bool(a == b)


def check_layout(planned: CheckLayout, tensor: torch.Tensor) -> None:
    """Compare a tensor with the plan.

    Raises: LayoutMismatch.
    """
    strides = compared_strides(planned)
    same = tuple(tensor.shape) == planned.sizes and all(
        want is None or want == got for want, got in zip(strides, tensor.stride(), strict=True)
    )
    if not same or (planned.dtype is not None and planned.dtype != tensor.dtype):
        raise LayoutMismatch(f"it is {tensor.dtype}{tuple(tensor.shape)} with strides {tensor.stride()}")


def compared_strides(planned: CheckLayout) -> tuple[int | None, ...]:
    """The strides that matter: none for an empty tensor, none for a dimension of size 1."""
    empty = 0 in planned.sizes
    return tuple(
        None if empty or size == 1 else stride for size, stride in zip(planned.sizes, planned.strides, strict=True)
    )


def make_arena(plan: Plan, *, on_large: bool = True) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """The arena's memory and the planned tensors over it, as ordinary tensors (neither views nor inference tensors).

    on_large: ask for large pages, which memory that others are to use is not asked for.
    """
    if not plan.arena:
        return None, []
    with torch.inference_mode(False), torch.no_grad():
        memory = torch.empty(max(plan.arena_nbytes, 1), dtype=torch.uint8)
        if on_large:
            on_large_pages(memory)
        storage = memory.untyped_storage()
        return memory, [over(storage, tensor) for tensor in plan.arena]


def over(storage: Any, planned: ArenaTensor) -> torch.Tensor:
    """A planned tensor in the arena's memory."""
    offset = planned.offset // planned.dtype.itemsize
    return torch.empty(0, dtype=planned.dtype).set_(storage, offset, planned.sizes, planned.strides)


def _regrouped(call: Call) -> Callable[..., Any]:
    """`call.eager` taking the flat list of tensors that the call's slots hold."""
    eager, args = call.eager, call.args

    def run(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        grouped: list[Any] = []
        for arg in args:
            match arg:
                case Use():
                    grouped.append(next(rest))
                case OptionalUse(slot=slot):
                    grouped.append(None if slot is None else next(rest))
                case Uses(slots=slots):
                    grouped.append([next(rest) for _ in slots])
                case OptionalUses(slots=optional):
                    grouped.append([None if s is None else next(rest) for s in optional])
                case Numbers(values=values):
                    grouped.append([next(rest) if isinstance(v, Use) else v for v in values])
                case _:
                    continue
        return eager(*grouped)

    return run


def _bumped(tensor: torch.Tensor) -> None:
    if not tensor.is_inference():
        torch.autograd.graph.increment_version(tensor)


def _launched(launch: Launch) -> Callable[..., Any]:
    eager, writes = launch.eager, frozenset(launch.writes)

    def run(*tensors: torch.Tensor) -> None:
        if launch.items:
            # Like a kernel, it counts in no version.
            eager(*(t.data if i in writes else t for i, t in enumerate(tensors)))

    return run


def _dispatched(instruction: Dispatch) -> PyCall:
    op, template = instruction.op, instruction.args
    names = [a.name for a in raw_schema(op).arguments]
    first_keyword = next((i for i, a in enumerate(raw_schema(op).arguments) if a.kwarg_only), len(names))
    kept = [i for i, slot in enumerate(instruction.outs) if slot is not None]
    outs = tuple(slot for slot in instruction.outs if slot is not None)
    is_single = len(raw_schema(op).returns) == 1

    def run(*tensors: torch.Tensor) -> Any:
        rest = iter(tensors)
        args = [_filled(arg, rest) for arg in template]
        result = op(*args[:first_keyword], **dict(zip(names[first_keyword:], args[first_keyword:], strict=False)))
        found = (result,) if is_single else result
        return [found[i] for i in kept]

    return PyCall(run, instruction.uses, outs)


def _filled(arg: Any, tensors: Any) -> Any:
    match arg:
        case Use():
            return next(tensors)
        case tuple() | list():
            return [_filled(item, tensors) for item in arg]
        case _:
            return arg
