"""Which objects a call left behind: what is in them, which of them are one, and which tensors share memory."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.differential.compare import snapshot, tensor_difference

_WITHOUT_PARTS = (type, types.FunctionType, types.MethodType, types.ModuleType)


@dataclass
class Objects:
    """text: the nest below some values, where an object met again is its number. tensors: those in it, in order."""

    text: str = ""
    tensors: list[Tensor] = field(default_factory=list)
    numbers: dict[Any, int] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)

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
        if isinstance(value, tuple):
            return f"{type(value).__name__}({', '.join(map(self.tell, value))})"
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.Size)):
            return repr(value)
        number, is_known = self._number(id(value))
        if is_known:
            return f"#{number}"
        if isinstance(value, Tensor):
            self.tensors.append(snapshot(value))
            return f"#{number} tensor{self._memory(value)}"
        if isinstance(value, list):
            return f"#{number} {type(value).__name__}[{', '.join(map(self.tell, value))}]"
        if isinstance(value, Mapping):
            return f"#{number} {type(value).__name__}{{{self._named(value)}}}"
        is_bare = isinstance(value, _WITHOUT_PARTS) or not hasattr(value, "__dict__")
        return f"#{number} {type(value).__name__}{'' if is_bare else f'({self._named(vars(value))})'}"

    def _named(self, items: Mapping[Any, Any]) -> str:
        return ", ".join(f"{name!r}: {self.tell(item)}" for name, item in items.items())

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


def objects(*values: Any) -> Objects:
    """The objects below these values."""
    found = Objects()
    found.text = found.tell(values)
    return found
