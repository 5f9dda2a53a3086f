"""Calling any operator through torch's dispatcher from native code: which schemas can, and how each argument is passed.

The dispatcher takes a stack of 64-bit words: numbers as they are, tensors as owned handles, lists as owned objects, a
present optional as an owned cell that holds the word. It consumes its arguments, also when the operator
fails; an operator that does not exist is the exception (everything would leak), so existence is settled beforehand.
A string argument would cost 48 bytes and its length, lost inside torch at every call (2.13), so none is passed.
It refuses `Scalar`, generators, storages, tuples and complex numbers, and results other than tensors: `dispatchable`
says so.

Source: torch/csrc/stable/stableivalue_conversions.h; measured on torch 2.13.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from smelt._torch.library import shim
from smelt.diag.records import record

CALL = "torch_call_dispatcher"
NEW_HANDLE = "aoti_torch_new_tensor_handle"
NEW_CELL = "torch_new_stable_ivalue"
NEW_LIST = "torch_new_list_reserve_size"
PUSH = "torch_list_push_back"
DELETERS = {
    NEW_HANDLE: "aoti_torch_delete_tensor_object",
    NEW_CELL: "torch_delete_stable_ivalue",
    NEW_LIST: "torch_delete_list",
}


@record
class Bits:
    """A number, or 0 for None."""

    value: int


@record
class Handle:
    """A new handle to the tensor in a slot."""

    slot: int


@record
class Cell:
    """A new cell around the word of a present optional."""

    word: Word


@record
class List:
    """A new list."""

    words: tuple[Word, ...]


Word: TypeAlias = "Bits | Handle | Cell | List"
SlotOf: TypeAlias = Callable[[Any], "int | None"]


def _no_slot(value: Any) -> int | None:
    return None


class Unsupported(Exception):
    """This argument cannot be passed through the dispatcher's C door."""


def dispatchable(op: Any, args: Sequence[Any] | None = None, slot_of: SlotOf = _no_slot) -> bool:
    """Whether an OpOverload can be called natively.

    With `args` (in schema order, trailing defaults left out) the answer is for this call; `slot_of` tells the slot of
    an argument that stands for a tensor. Without, it is for any call that leaves unsupported optional arguments out.
    """
    try:
        if not _returns_tensors(op._schema):
            return False
        if args is None:
            for argument in op._schema.arguments:
                if not _is_supported(argument.real_type):
                    _word_of_default(argument, slot_of)
        else:
            words_of(op, args, slot_of)
    except Unsupported:
        return False
    return shim.has(CALL) and shim.has(NEW_HANDLE)


def words_of(op: Any, args: Sequence[Any], slot_of: SlotOf) -> tuple[Word, ...]:
    """The dispatcher's stack for a call.

    Raises: Unsupported if an argument or a result of this operator cannot be passed.
    """
    schema = op._schema
    if len(args) > len(schema.arguments) or not _returns_tensors(schema):
        raise Unsupported(str(schema))
    words = [_word(argument, value, slot_of) for argument, value in zip(schema.arguments, args, strict=False)]
    words += [_word_of_default(argument, slot_of) for argument in schema.arguments[len(args) :]]
    needed = {name for word in words for name in _symbols_of(word)}
    missing = sorted(name for name in needed if not shim.has(name))
    if missing:
        raise Unsupported(f"{', '.join(missing)} is not exported")
    return tuple(words)


def _returns_tensors(schema: Any) -> bool:
    return all(result.real_type.kind() == "TensorType" for result in schema.returns)


def _is_supported(kind: Any) -> bool:
    if kind.kind() in ("OptionalType", "ListType"):
        return _is_supported(kind.getElementType())
    name = str(kind)
    return name in _NUMBERS or name in ("Tensor", "Device")


def _word_of_default(argument: Any, slot_of: SlotOf) -> Word:
    if not argument.has_default_value():
        raise Unsupported(f"{argument.name} has no default")
    return _word(argument, argument.default_value, slot_of)


def _word(argument: Any, value: Any, slot_of: SlotOf) -> Word:
    return _convert(argument.real_type, value, slot_of, argument.N)


def _convert(kind: Any, value: Any, slot_of: SlotOf, length: int | None) -> Word:
    if kind.kind() == "OptionalType":
        if value is None:
            return Bits(0)
        return Cell(_convert(kind.getElementType(), value, slot_of, length))
    if kind.kind() == "ListType":
        # `int[2] stride=1` takes one number for all.
        if length is not None and isinstance(value, int | float | bool):
            value = (value,) * length
        if not isinstance(value, list | tuple):
            raise Unsupported(f"{value!r} as {kind}")
        return List(tuple(_convert(kind.getElementType(), item, slot_of, None) for item in value))
    name = str(kind)
    if name == "Tensor":
        slot = slot_of(value)
        if slot is None:
            raise Unsupported(f"{value!r} as {kind}")
        return Handle(slot)
    return Bits(_number(name, value))


def _integer(value: Any) -> int | None:
    # Of a number that is known later only that it is one.
    return value + 0 if isinstance(value, int) else None


def _double(value: Any) -> int | None:
    if not isinstance(value, int | float):
        return None
    if type(value) not in (int, float, bool):
        return value * 1.0  # type: ignore[return-value]  # known later: its bits are made then
    return int(struct.unpack("<q", struct.pack("<d", float(value)))[0])


def _enum(code: Callable[[Any], int | None], kind: Any) -> Callable[[Any], int | None]:
    # torch's own schemas write their defaults as the enum's number.
    return lambda value: code(value) if isinstance(value, kind) else _integer(value)


_NUMBERS: dict[str, Callable[[Any], int | None]] = {
    "int": _integer,
    "SymInt": _integer,
    "bool": _integer,
    "float": _double,
    "ScalarType": _enum(shim.dtype_code, torch.dtype),
    "Layout": _enum(shim.layout_code, torch.layout),
    "MemoryFormat": _enum(shim.memory_format_code, torch.memory_format),
}


def _device(value: Any) -> int | None:
    if isinstance(value, str):
        value = torch.device(value)
    code = shim.device_type_code("cpu")
    if not isinstance(value, torch.device) or value.type != "cpu" or code is None:
        return None
    index = -1 if value.index is None else value.index
    return code << 32 | (index & 0xFFFFFFFF)


def _number(name: str, value: Any) -> int:
    convert = _device if name == "Device" else _NUMBERS.get(name)
    bits = None if convert is None else convert(value)
    if bits is None or (type(bits) is int and not -(2**63) <= bits < 2**63):
        raise Unsupported(f"{value!r} as {name}")
    return bits


def _symbols_of(word: Word) -> tuple[str, ...]:
    match word:
        case Handle():
            return (NEW_HANDLE, DELETERS[NEW_HANDLE])
        case Cell(word=inner):
            return (NEW_CELL, DELETERS[NEW_CELL], *_symbols_of(inner))
        case List(words=words):
            return (NEW_LIST, PUSH, DELETERS[NEW_LIST], *(s for w in words for s in _symbols_of(w)))
        case _:
            return ()
