"""Which objects a call left behind: what is in them, which of them are one, and which tensors share memory."""

from __future__ import annotations

import array
import collections
import contextvars
import enum
import functools
import itertools
import types
from collections.abc import Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.differential.compare import snapshot, tensor_difference

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device, torch.layout)
_WITHOUT_PARTS = (type, types.ModuleType)
_MOST_TURNS = 20  # of a generator that may have no end


@dataclass
class Objects:
    """text: the nest below some values, where an object met again is its number. tensors: those in it, in order.

    made: what stands there only while it is looked at, kept so that no other object has its address.
    """

    text: str = ""
    tensors: list[Tensor] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    made: list[Any] = field(default_factory=list)

    def difference(self, other: Objects) -> str:
        """The first difference, as what is said of the other; empty where there is none."""
        if self.text != other.text:
            at = next((i for i, (a, b) in enumerate(zip(self.text, other.text, strict=False)) if a != b), 0)
            at = max(at - 40, 0)
            return f"objects: {other.text[at : at + 120]} instead of {self.text[at : at + 120]}"
        for a, b in zip(self.tensors, other.tensors, strict=True):
            text = tensor_difference(a, b, is_exact=False)
            if text is not None:
                return f"a tensor of an object {text}"
        return ""

    def tell(self, value: Any) -> str:
        """A value and all below it."""
        name = type(value).__name__
        if isinstance(value, tuple) and not isinstance(value, torch.Size):
            return f"{name}({self._each(value)})"
        if isinstance(value, PLAIN):
            return repr(value)
        if isinstance(value, (range, np.generic, enum.Enum)):
            return f"{name} {value}"
        if isinstance(value, slice):
            return f"slice({self._each((value.start, value.stop, value.step))})"
        if isinstance(value, (frozenset, KeysView, ValuesView, Set)) and not isinstance(value, set):
            return f"{name}({self._members(value)})"
        number, is_known = self._number(id(value))
        if is_known:
            return f"#{number}"
        if isinstance(value, Tensor):
            self.tensors.append(snapshot(value))
            return f"#{number} tensor{self._memory(value)}"
        return f"#{number} {name}{self._below(value)}"

    def _below(self, value: Any) -> str:
        """What is in an object."""
        match value:
            case list() | collections.deque():
                return f"[{self._each(value)}]"
            case set():
                return f"[{self._members(value)}]"
            case Mapping():
                return f"{{{self._named(value)}}}"
            case bytearray() | memoryview() | array.array() | np.ndarray():
                return f" {value.tolist() if hasattr(value, 'tolist') else bytes(value)!r}"
            case BaseException():
                return f"({self.tell(value.args)}, {self._named(vars(value))}, cause {self.tell(value.__cause__)})"
            case functools.partial():
                return f"({self.tell(value.func)}, {self.tell(value.args)}, {self._named(value.keywords)})"
            case contextvars.ContextVar():
                return f"({self.tell(value.get(None))})"
            case types.GeneratorType():
                return f"[{self._each(self._kept(list(itertools.islice(_left(value), _MOST_TURNS))))}]"
            case types.FunctionType():
                # A function that is named so is there to be asked what it holds.
                return f" {value.__name__}{f' {self.tell(self._kept(value()))}' if value.__name__ == 'ask' else ''}"
            case types.MethodType() | types.BuiltinMethodType():
                is_bound = not isinstance(value.__self__, (types.ModuleType, type(None)))
                return f" {value.__name__}{f' of {self.tell(value.__self__)}' if is_bound else ''}"
            case Iterator() if type(value).__module__ in ("builtins", "itertools"):
                return f"({self._iterator(value)})"
            case _ if isinstance(value, _WITHOUT_PARTS):
                return ""
        return f"({self._named({**_slots(value), **getattr(value, '__dict__', {})})})"

    def _iterator(self, value: Iterator[Any]) -> str:
        """What is left in an iterator, as it would be pickled: nothing is taken from it."""
        try:
            parts = self._kept(value.__reduce__())
        except TypeError:
            return ""
        return parts if isinstance(parts, str) else self._each(parts[1:])

    def _kept(self, value: Any) -> Any:
        self.made.append(value)
        return value

    def _each(self, values: Iterable[Any]) -> str:
        return ", ".join(map(self.tell, values))

    def _members(self, values: Iterable[Any]) -> str:
        told = [self.tell(value) for value in values]
        # Sets have no order that is promised; views have their dictionary's.
        return ", ".join(sorted(told) if isinstance(values, (set, frozenset)) else told)

    def _named(self, items: Mapping[Any, Any]) -> str:
        return ", ".join(f"{self.tell(name)}: {self.tell(item)}" for name, item in items.items())

    def _number(self, key: Any) -> tuple[int, bool]:
        is_known = key in self.numbers
        return self.numbers.setdefault(key, len(self.numbers)), is_known

    def _memory(self, value: Tensor) -> str:
        if value.layout is not torch.strided or not value.numel():
            return ""
        memory, _ = self._number(("memory", value.untyped_storage().data_ptr()))
        # Where the first one begins that is met in a memory, nobody can tell.
        begin = self.begins.setdefault(memory, value.data_ptr())
        return f" @{memory} {value.data_ptr() - begin} {tuple(value.stride())}"


def _slots(value: Any) -> dict[str, Any]:
    names = [name for base in type(value).__mro__ for name in _names(vars(base).get("__slots__", ()))]
    return {name: getattr(value, name) for name in names if name[:2] != "__" and hasattr(value, name)}


def _names(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _left(generator: Any) -> Iterator[Any]:
    """What a generator has yet to give; an error is the last of it."""
    try:
        yield from generator
    except Exception as error:
        yield error


def objects(*values: Any) -> Objects:
    """The objects below these values."""
    found = Objects()
    found.text = found.tell(values)
    return found
