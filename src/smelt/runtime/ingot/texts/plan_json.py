"""A plan as JSON and back, without its tensors, its code and its computations in torch.

    ["Launch", kernel 3, buffers, words, items, writes, ...]

Invariant: what is read has the types that `runtime.plan` says, so that `check_plan` and the encoder meet no others;
nothing is called, and an operator is found by its name among those that torch has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

import torch

from smelt.diag import Span
from smelt.runtime import plan as p
from smelt.runtime.encoding.table import Arith
from smelt.runtime.ingot.structure import read_constant, write_constant
from smelt.runtime.ingot.tensors import dtype_name, dtype_of
from smelt.runtime.ingot.texts.json_text import Part
from smelt.runtime.plan import ArenaTensor, Instruction, KernelCode, Plan

Eager = Callable[[int], Callable[..., Any]]
"""By the number of an instruction, its computation in torch."""

_LOW = -(1 << 63)
_MOST_SLOTS = 1 << 24
# Records that stand among the arguments of calls, by name.
_ARGUMENTS = (
    p.Use, p.Out, p.OptionalUse, p.Uses, p.OptionalUses, p.Ints, p.Numbers, p.OptionalInt, p.OptionalDouble,
    p.DoublePointers, p.Text, p.OptionalText,
)  # fmt: skip
_BY_NAME: Mapping[str, Any] = {cls.__name__: cls for cls in _ARGUMENTS}
KEYS = ("nslots", "inputs", "outputs", "arena", "arena_nbytes", "keep_grad_mode", "fixed", "kinds", "instructions")
_KINDS = tuple(get_args(p.Kind))


class NotWritten(Exception):
    """A plan that only this process can run. The text says why."""


# --- writing ----------------------------------------------------------------------------------------------------------


def write(
    plan: Plan, kernel: Callable[[KernelCode], int], shown: Callable[[str], str], *, is_sized: bool = False
) -> Any:  # fmt: skip
    """The plan as JSON; kernel: the number that its code is known by; shown: a source file's path as others see it;
    is_sized: there may be words in it, which stand in a table beside.

    Raises: NotWritten.
    """
    writer = _Writer(kernel, shown, is_sized)
    return {
        "nslots": plan.nslots,
        "inputs": list(plan.inputs),
        "outputs": list(plan.outputs),
        "arena": [
            [t.slot, writer.plain(t.offset), writer.plain(t.sizes), writer.plain(t.strides), dtype_name(t.dtype)]
            for t in plan.arena
        ],
        "arena_nbytes": writer.plain(plan.arena_nbytes),
        "keep_grad_mode": plan.keep_grad_mode,
        "fixed": sorted(plan.fixed),
        "kinds": [[slot, kind] for slot, kind in sorted(plan.kinds.items())],
        "instructions": [writer.instruction(instruction) for instruction in plan.instructions],
    }


class _Writer:
    def __init__(
        self, kernel: Callable[[KernelCode], int], shown: Callable[[str], str], is_sized: bool
    ) -> None:  # fmt: skip
        self._kernel, self._shown, self._is_sized = kernel, shown, is_sized

    def instruction(self, instruction: Instruction) -> Any:
        match instruction:
            case p.PyCall():
                raise NotWritten("Python is called in it")
            case p.Launch():
                if not instruction.kernel.object:
                    raise NotWritten("a kernel of it could not be built")
                item_ns = instruction.item_ns
                own = [
                    self._kernel(instruction.kernel), list(instruction.buffers), self.plain(instruction.words),
                    self.plain(instruction.items), list(instruction.writes),
                    self.plain(item_ns) if type(item_ns) is p.Word else float(item_ns).hex(),
                    self.plain(instruction.scratch_nbytes), instruction.label, instruction.piece_of,
                    instruction.may_refuse,
                ]  # fmt: skip
            case p.Call():
                own = [instruction.symbol, [self.argument(arg) for arg in instruction.args]]
            case p.Dispatch():
                own = [
                    _operator_name(instruction.op),
                    list(map(self.argument, instruction.args)),
                    list(instruction.outs),
                ]
            case p.Scalar():
                own = [instruction.operation.name, instruction.dst, [self.argument(arg) for arg in instruction.args]]
            case p.Expect():
                dtype = None if instruction.dtype is None else dtype_name(instruction.dtype)
                span = instruction.where
                where = None if span is None else [self._shown(span.file), span.line, span.function]
                own = [instruction.slot, self.argument(instruction.literal), dtype, where]
            case _:
                own = [self.plain(getattr(instruction, field.name)) for field in fields(instruction)]
        return [type(instruction).__name__, *own]

    def _word(self, word: p.Word) -> Any:
        if not self._is_sized:
            raise NotWritten("sizes in it are known at run time only")
        return {"Word": [[list(term) for term in word.terms], word.add, word.is_double]}

    def plain(self, value: Any) -> Any:
        if type(value) is p.Word:
            return self._word(value)
        if isinstance(value, torch.dtype):
            return dtype_name(value)
        return [self.plain(item) for item in value] if isinstance(value, tuple) else value

    def argument(self, value: Any) -> Any:
        if type(value) is p.Word:
            return self._word(value)
        if isinstance(value, _ARGUMENTS):
            (field,) = fields(value)
            return {type(value).__name__: self.argument(getattr(value, field.name))}
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            return [self.argument(item) for item in value]
        try:
            return write_constant(value)
        except TypeError as error:
            raise NotWritten(str(error)) from None


def _operator_name(op: Any) -> str:
    name = str(op)
    if _overload(name) is not op:
        raise NotWritten(f"{name} is not found by its name")
    return name


# --- reading ----------------------------------------------------------------------------------------------------------


def read(part: Part, kernels: Sequence[KernelCode], eager: Eager, nwords: int = 0) -> Plan:
    """The plan, without the tensors that it holds; nwords: how many words there are in the table of its sizes.

    Raises: PackageError (S0701).
    """
    nslots, inputs, outputs, arena, arena_nbytes, keep, fixed, kinds, instructions = part.keys(*KEYS)
    reader = _Reader(nslots.as_int(0, _MOST_SLOTS), kernels, eager, nwords)
    found = tuple(reader.instruction(i, each) for i, each in enumerate(instructions.items()))
    return Plan(
        nslots=reader.nslots,
        inputs=reader.slots(inputs),
        outputs=reader.slots(outputs),
        instructions=found,
        arena=tuple(map(reader.arena_tensor, arena.items())),
        arena_nbytes=reader.number(arena_nbytes, 0, 1 << 46),
        keep_grad_mode=keep.as_bool(),
        fixed=frozenset(reader.slots(fixed)),
        kinds=dict(reader.kind(each) for each in kinds.items()),
    )


def _overload(name: str) -> Any:
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace, None), packet, None), overload or "default", None)
    return found if isinstance(found, type(torch.ops.aten.add.Tensor)) else None


class _Reader:
    def __init__(self, nslots: int, kernels: Sequence[KernelCode], eager: Eager, nwords: int) -> None:
        self.nslots, self.kernels, self.eager, self.nwords = nslots, kernels, eager, nwords

    def number(self, part: Part, low: int = 0, high: int = (1 << 63) - 1) -> Any:
        """A number, or the word that it is for the sizes of a call."""
        return self._word(part) if self.nwords and type(part.value) is dict else part.as_int(low, high)

    def numbers(self, part: Part, low: int = 0) -> Any:
        return tuple(self.number(each, low) for each in part.items()) if self.nwords else part.ints(low)

    def _word(self, part: Part) -> p.Word:
        terms, add, is_double = part.keys("Word")[0].items(3)
        found = []
        for term in terms.items():
            index, factor = term.items(2)
            found.append((index.as_int(0, self.nwords - 1), factor.as_int(_LOW)))
        return p.Word(tuple(found), add.as_int(_LOW), is_double.as_bool())

    def slot(self, part: Part) -> int:
        return part.as_int(0, self.nslots - 1)

    def slots(self, part: Part) -> tuple[int, ...]:
        return part.ints(0, self.nslots - 1)

    def kind(self, part: Part) -> tuple[int, Any]:
        slot, kind = part.items(2)
        return self.slot(slot), kind.one_of(*_KINDS)

    def arena_tensor(self, part: Part) -> ArenaTensor:
        slot, offset, sizes, strides, dtype = part.items(5)
        shape, steps = self.numbers(sizes), self.numbers(strides)
        if len(shape) != len(steps):
            raise part.bad("has other sizes than strides")
        return ArenaTensor(self.slot(slot), self.number(offset), shape, steps, dtype_of(dtype))

    def instruction(self, index: int, part: Part) -> Instruction:
        name, *own = part.items() or [part]
        read = getattr(self, f"_{name.one_of(*_INSTRUCTIONS)}".lower())
        count = _INSTRUCTIONS[name.as_str()]
        if len(own) != count:
            raise part.bad(f"has {len(own)} fields, a {name.as_str()} has {count}")
        found: Instruction = read(index, *own)
        return found

    def _launch(
        self, index: int, kernel: Part, buffers: Part, words: Part, items: Part, writes: Part, *more: Part
    ) -> Any:
        item_ns, scratch, label, piece, may_refuse = more
        return p.Launch(
            self.kernels[kernel.as_int(0, len(self.kernels) - 1)], self.slots(buffers), self.numbers(words, _LOW),
            self.number(items), self.eager(index), writes.ints(), self._item_ns(item_ns),
            self.number(scratch, 0, 1 << 40),
            label.as_str(), piece.as_int(_LOW), may_refuse.as_bool(),
        )  # fmt: skip

    def _item_ns(self, part: Part) -> Any:
        return self._word(part) if self.nwords and type(part.value) is dict else part.as_float()

    def _call(self, index: int, symbol: Part, args: Part) -> Any:
        return p.Call(symbol.as_str(), tuple(map(self.argument, args.items())), self.eager(index))

    def _dispatch(self, index: int, op: Part, args: Part, outs: Part) -> Any:
        found = _overload(op.as_str())
        if found is None:
            raise op.bad(f"names {op.as_str()!r}, which this torch does not have")
        slots = tuple(None if out.is_null() else self.slot(out) for out in outs.items())
        return p.Dispatch(found, tuple(map(self.argument, args.items())), slots)

    def _scalar(self, index: int, operation: Part, dst: Part, args: Part) -> Any:
        which = Arith[operation.one_of(*Arith.__members__)]
        return p.Scalar(which, self.slot(dst), tuple(map(self.argument, args.items())), self.eager(index))

    def _expect(self, index: int, slot: Part, literal: Part, dtype: Part, where: Part) -> Any:
        span = None
        if not where.is_null():
            file, line, function = where.items(3)
            span = Span(file.as_str(), line.as_int(0, 1 << 31), function.as_str())
        value = read_constant(literal)
        if type(value) not in (int, float, bool):
            raise literal.bad("is no number")
        return p.Expect(self.slot(slot), value, None if dtype.is_null() else dtype_of(dtype), span)

    def _empty(self, index: int, dst: Part, sizes: Part, strides: Part, dtype: Part) -> Any:
        return p.Empty(self.slot(dst), self.numbers(sizes), self.numbers(strides), dtype_of(dtype))

    def _view(self, index: int, dst: Part, src: Part, sizes: Part, strides: Part, offset: Part, itemsize: Part) -> Any:
        return p.View(
            self.slot(dst), self.slot(src), self.numbers(sizes), self.numbers(strides), self.number(offset, _LOW),
            itemsize.as_int(0, 64),
        )  # fmt: skip

    def _checklayout(self, index: int, slot: Part, sizes: Part, strides: Part, dtype: Part) -> Any:
        steps = tuple(None if each.is_null() else self.number(each, _LOW) for each in strides.items())
        return p.CheckLayout(self.slot(slot), self.numbers(sizes), steps, None if dtype.is_null() else dtype_of(dtype))

    def _copy(self, index: int, dst: Part, src: Part) -> Any:
        return p.Copy(self.slot(dst), self.slot(src))

    def _bump(self, index: int, slot: Part) -> Any:
        return p.Bump(self.slot(slot))

    def _release(self, index: int, slots: Part) -> Any:
        return p.Release(self.slots(slots))

    def _load(self, index: int, dst: Part, src: Part, dtype: Part) -> Any:
        return p.Load(self.slot(dst), self.slot(src), dtype_of(dtype))

    def _blit(self, index: int, dst: Part, src: Part, nbytes: Part, row: Part) -> Any:
        return p.Blit(self.slot(dst), self.slot(src), self.number(nbytes), None if row.is_null() else self.slot(row))

    def _branch(self, index: int, test: Part) -> Any:
        return p.Branch(self.slot(test))

    def _otherwise(self, index: int) -> Any:
        return p.Otherwise()

    def _loop(self, index: int) -> Any:
        return p.Loop()

    def _exit(self, index: int, test: Part) -> Any:
        return p.Exit(self.slot(test))

    def _end(self, index: int) -> Any:
        return p.End()

    def argument(self, part: Part) -> Any:
        if type(part.value) is list:
            return tuple(map(self.argument, part.items()))
        if type(part.value) is not dict:
            return read_constant(part)
        found = list(part.pairs())
        if len(found) != 1:
            raise part.bad("is no argument")
        name, inner = found[0]
        match name:
            case "Use" | "Out":
                return _BY_NAME[name](self.slot(inner))
            case "OptionalUse":
                return p.OptionalUse(None if inner.is_null() else self.slot(inner))
            case "Uses":
                return p.Uses(self.slots(inner))
            case "OptionalUses":
                return p.OptionalUses(tuple(None if s.is_null() else self.slot(s) for s in inner.items()))
            case "Word" if self.nwords:
                return self._word(part)
            case "Ints":
                return p.Ints(self.numbers(inner, _LOW))
            case "Numbers":
                return p.Numbers(tuple(map(self._number, inner.items())))
            case "OptionalInt":
                return p.OptionalInt(None if inner.is_null() else self.number(inner, _LOW))
            case "OptionalDouble":
                return p.OptionalDouble(self._double(inner))
            case "DoublePointers":
                return p.DoublePointers(tuple(map(self._double, inner.items())))
            case "Text":
                return p.Text(inner.as_str())
            case "OptionalText":
                return p.OptionalText(None if inner.is_null() else inner.as_str())
        return read_constant(part)

    def _number(self, part: Part) -> Any:
        if type(part.value) is dict and "Use" in part.value:
            return p.Use(self.slot(part.keys("Use")[0]))
        return self.number(part, _LOW)

    def _double(self, part: Part) -> float | None:
        if part.is_null():
            return None
        if self.nwords and type(part.value) is dict and "Word" in part.value:
            return self._word(part)
        value = read_constant(part)
        if type(value) is not float:
            raise part.bad("is no double")
        return value


_INSTRUCTIONS: Mapping[str, int] = {
    "Launch": 10, "Call": 2, "Dispatch": 3, "Scalar": 3, "Expect": 4, "Empty": 4, "View": 6, "CheckLayout": 4,
    "Copy": 2, "Bump": 1, "Release": 1, "Load": 3, "Blit": 4, "Branch": 1, "Otherwise": 0, "Loop": 0, "Exit": 1,
    "End": 0,
}  # fmt: skip
"""How many parts each has behind its name."""
