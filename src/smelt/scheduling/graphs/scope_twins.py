"""Whether the graph of one module's call is that of another's, too: twelve equal layers are captured once.

Invariant: an answer is yes only where a run of the other call would read the same at each step. The two are laid over
each other: tensors and modules correspond one to one, all else is equal. An attribute may differ if the recorded run
did not read it; what the run read outside of the module must not tell modules apart.
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from smelt._torch.exact import same
from smelt.capture.reads.reads_effects import file_kind
from smelt.capture.reads.reads_facts import Read
from smelt.diag.records import distinct_record
from smelt.scheduling.modules.copying import HOOKS

_TABLES = ("_parameters", "_buffers", "_modules")
_CALLED = ("forward", "_call_impl", "_compiled_call_impl")
_CONTAINERS = (list, tuple, dict, OrderedDict)
_PLAIN = (bool, int, float, str, type(None))
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_OF_OWN = frozenset(("item", "absent", "content", "module", "object"))
_DEPTH = 3
_OF_SELF = frozenset(("__getattribute__", "__getattr__", "__bool__", "__len__", "__iter__"))
# How a program gets at an object's attributes without naming them, of which no record tells.
_WHOLE = frozenset(
    ("__dict__", "vars", "__getstate__", "__reduce__", "__reduce_ex__", "copy", "deepcopy", "dumps", "asdict",
     "getmembers")
)  # fmt: skip


@distinct_record
class Call:
    """One call of a module in a run of the model."""

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Known:
    """What a recorded run of a call read, made ready to be compared with other calls, until code of the user's runs.

    reads: all of it. state: the tensors behind the run's graph, by path.
    """

    def __init__(self, reads: Iterable[Read], state: Mapping[str, torch.Tensor]) -> None:
        self.reads, self.state = list(reads), state
        self.told = [_told(read.key) | _told(read.value) for read in self.reads]

    @cached_property
    def asks_for_all(self) -> bool:
        """Whether code that ran, or may have, asks a module for all of its attributes."""
        return _asks_for_all(self.reads)


def twins(first: Call, known: Known, other: Call) -> dict[str, torch.Tensor] | None:
    """The other call's tensors behind the first one's graph, by path; None where it may have another graph."""
    pairs = _Pairs()
    if not (
        pairs.modules(first.module, other.module)
        and pairs.values(first.args, other.args)
        and pairs.values(first.kwargs, other.kwargs)
        and all(map(pairs.holds, known.reads, known.told))
    ):
        return None
    if pairs.differing and known.asks_for_all:
        return None
    found = {path: pairs.there.get(id(tensor), tensor) for path, tensor in known.state.items()}
    if any(pairs.is_own(tensor) for path, tensor in known.state.items() if found[path] is tensor):
        return None
    return found


class _Pairs:
    """Which object of one call stands where which one of another does.

    there: by id. differing: places in dicts of the first that hold something else in the second.
    """

    def __init__(self) -> None:
        self.there: dict[int, Any] = {}
        self.differing: set[tuple[int, Any]] = set()
        self._back: dict[int, int] = {}
        self._memory: dict[int, int] = {}
        self._memory_back: dict[int, int] = {}
        self._own: set[int] = set()  # objects of one of the two alone
        self._done: list[tuple[dict[int, Any], int]] = []

    def _set(self, table: dict[int, Any], key: int, value: Any) -> None:
        if key not in table:
            table[key] = value
            self._done.append((table, key))

    def _pair(self, a: Any, b: Any) -> bool:
        if self.there.get(id(a), b) is not b or self._back.get(id(b), id(a)) != id(a):
            return False
        self._set(self.there, id(a), b)
        self._set(self._back, id(b), id(a))
        if a is not b:
            self._own.update((id(a), id(b)))
        return True

    def modules(self, a: torch.nn.Module, b: torch.nn.Module) -> bool:
        """Lay one module over another."""
        if id(a) in self.there or a is b:
            return self._pair(a, b)
        if not self._pair(a, b) or type(a) is not type(b) or isinstance(a, torch.jit.ScriptModule):
            return False
        mine, others = a.__dict__, b.__dict__
        if list(mine) != list(others) or any(name in mine for name in _CALLED):
            return False
        if any(mine.get(name) or others.get(name) for name in HOOKS):
            return False  # a hook is told of which module it runs
        self._pair(mine, others)
        for key, value in mine.items():
            if key in _TABLES:
                if not self.values(value, others[key]):
                    return False
            elif not self._tried(value, others[key]):
                self.differing.add((id(mine), key))
        return True

    def _tried(self, a: Any, b: Any) -> bool:
        """The same, leaving nothing behind where they are not alike."""
        if type(a) in _PLAIN:
            return type(a) is type(b) and same(a, b)
        done, differing = len(self._done), set(self.differing)
        if self.values(a, b):
            return True
        while len(self._done) > done:
            table, key = self._done.pop()
            del table[key]
        self.differing = differing
        return False

    def values(self, a: Any, b: Any) -> bool:
        """Lay one value over another."""
        kind = type(a)
        if kind is not type(b):
            return False
        if kind in _TENSORS:
            return self._tensors(a, b)
        if isinstance(a, torch.nn.Module):
            return self.modules(a, b)
        if a is b or kind not in _CONTAINERS:
            return same(a, b)
        if len(a) != len(b) or not self._pair(a, b):
            return False
        if isinstance(a, dict):
            return all(map(same, a, b)) and all(map(self.values, a.values(), b.values()))
        return all(map(self.values, a, b))

    def _tensors(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        if not self._pair(a, b):
            return False
        if a is not b and (_facts(a) is None or _facts(a) != _facts(b)):
            return False
        if a.layout is not torch.strided or a.device.type == "meta":
            return a is b
        here, there = a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr()
        if self._memory.get(here, there) != there or self._memory_back.get(there, here) != here:
            return False
        self._set(self._memory, here, there)
        self._set(self._memory_back, there, here)
        return True

    def holds(self, read: Read, told: frozenset[int | None]) -> bool:
        """Whether what the first run read is the same for the other. told: what could tell the two apart."""
        owner = id(read.owner)
        if owner in self._own:
            if read.kind not in _OF_OWN:
                return False
            if read.kind == "content":
                return not any(where == owner for where, _ in self.differing)
            return read.kind in ("module", "object") or (owner, read.key) not in self.differing
        return None not in told and told.isdisjoint(self._own)

    def is_own(self, value: object) -> bool:
        """Whether only one of the two has an object."""
        return id(value) in self._own


def _told(value: Any, depth: int = 0) -> frozenset[int | None]:
    """By what a value could tell one call from another: objects in it, or their numbers; None where that is open."""
    if isinstance(value, weakref.ReferenceType):
        return frozenset((None,))
    told: set[int | None] = {id(value)}
    if type(value) is int:
        told.add(value)
    elif depth < _DEPTH:
        if isinstance(value, dict):
            told.update(*(_told(item, depth + 1) for pair in value.items() for item in pair))
        elif isinstance(value, list | tuple | set | frozenset):
            told.update(*(_told(item, depth + 1) for item in value))
    return frozenset(told)


def _asks_for_all(reads: Sequence[Read]) -> bool:
    # Of other classes these are told of their own object, and a name at most.
    elsewhere = {
        id(getattr(read.value, "__code__", None))
        for read in reads
        if read.kind == "static" and read.key in _OF_SELF and not issubclass(read.owner, torch.nn.Module)
    }
    return any(
        _sees_all(read.value)
        for read in reads
        if (read.kind in ("item", "static") and id(getattr(read.value, "__code__", None)) not in elsewhere)
        or (read.kind == "function" and id(read.value[0]) not in elsewhere)
    )


def _sees_all(value: Any) -> bool:
    """Whether a function's code names a way to all attributes of an object."""
    if isinstance(value, tuple):
        return any(map(_sees_all, value))
    if isinstance(value, types.FunctionType | types.MethodType | staticmethod | classmethod):
        return _sees_all(getattr(getattr(value, "__func__", value), "__code__", None))
    if not isinstance(value, types.CodeType) or file_kind(value.co_filename) != "user":
        return False
    consts = value.co_consts
    named = (*value.co_names, *(const for const in consts if isinstance(const, str)))
    return not _WHOLE.isdisjoint(named) or any(map(_sees_all, consts))


def _facts(tensor: torch.Tensor) -> Any:
    """What of a tensor a program can ask without reading its elements; None where there is more to ask."""
    if tensor.layout is not torch.strided or tensor.__dict__ or tensor._backward_hooks:
        return None
    return (
        tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes(),
        tensor.device, tensor.requires_grad, tensor.is_leaf, tensor.is_inference(), tensor.is_conj(), tensor.is_neg(),
        tensor.is_leaf and tensor.grad is None, type(tensor.grad_fn),
    )  # fmt: skip
