"""The native guards on a call's arguments, and the registers in which they, and free sizes and numbers, are found.

Invariant: what holds an argument in its register comes before anything that may run Python code.
"""

from __future__ import annotations

import math
import struct
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import getattr_static
from types import MemberDescriptorType
from typing import Any

import torch

from smelt._torch.storage import nbytes_spanned
from smelt.runtime.encoding.entry_table import MAX_APART, MAX_REGISTERS, Guard
from smelt.runtime.encoding.table import NUMBER_CODES
from smelt.runtime.guarding.argument_kinds import kind_of
from smelt.runtime.guarding.guard_args import (
    ArgumentTests,
    Spans,
    extents_meet,
    field_names,
    has_attributes,
    members,
)
from smelt.runtime.guarding.guard_sizes import LIMIT, NumberForm, TensorForm, is_name
from smelt.runtime.guarding.words import Unsupported, Words, is_plain
from smelt.runtime.guarding.words_of_sizes import SizeWords
from smelt.runtime.plan import Kind

_KINDS: dict[type, Kind] = {int: "int", float: "float", bool: "bool"}


class Arguments:
    """Writes the guards on one call's arguments and knows in which register each is found."""

    def __init__(self, words: Words, guards: ArgumentTests) -> None:
        self.words, self.guards = words, guards
        self.registers = words.registers
        self._count = 0
        self._tensors: list[tuple[int, torch.Tensor]] = []
        self._containers: dict[int, int] = {}
        self._apart_too: list[int] = []
        self._rooted = {id(tensor) for tensor in guards.rooted}
        self._tells_inference = guards.writes and not torch.is_inference_mode_enabled()
        self.numbers = words.numbers
        self.sizes = SizeWords(words.emit, self._take)
        words.symbols = self.sizes.names
        self._expressions: list[tuple[int, str]] = []
        # Registers with the bytes that tensors with free sizes span, by the tensor's register.
        self._spans: dict[int, int] = {}

    def write(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises: Unsupported."""
        if any(type(name) is not str for name in kwargs):
            raise Unsupported
        names = [self.words.keep(name) for name in kwargs]
        self._take(len(args) + len(names))
        self.words.emit(Guard.ARGS, len(args), len(names), *names)
        for i, value in enumerate(args):
            self._walk(value, f"args[{i}]", i)
        for i, (name, value) in enumerate(kwargs.items(), start=len(args)):
            self._walk(value, f"kwargs[{name!r}]", i)
        for register, text in self._expressions:
            self.sizes.equals(register, text)
        for check in self.guards.checks:
            self.sizes.check(check.text, check.outcome)
        self._apart()
        self._aliasing()

    def _take(self, count: int) -> int:
        """The first of `count` new registers."""
        first = self._count
        self._count += count
        if self._count > MAX_REGISTERS:
            raise Unsupported
        return first

    def _walk(self, value: Any, place: str, at: int) -> None:
        self.registers[place] = at
        kind_of(value, self.guards.free.get(place), place in self.guards.opened).visit(self, value, place, at)

    # --- each kind of argument (`argument_kinds`) ---

    def constant(self, value: Any, place: str, at: int) -> None:
        """None, True or False."""
        self.identity(value, place, at)

    def plain(self, value: Any, place: str, at: int) -> None:
        """An int or a text."""
        self._plain(value, at)

    def float_number(self, value: float, place: str, at: int) -> None:
        """A float by its bits, but that one nan stands for another."""
        self._plain(value, at)

    def set_of_values(self, value: Any, place: str, at: int) -> None:
        """Raises: Unsupported."""
        raise Unsupported

    def by_value(self, value: Any, place: str, at: int) -> None:
        """Never equal to another value once they are the same object."""
        self.identity(value, place, at)

    def opened_object(self, value: Any, place: str, at: int) -> None:
        """Raises: Unsupported."""
        raise Unsupported

    def identity(self, value: Any, place: str, at: int) -> None:
        """An object of which nothing is known."""
        self.words.emit(Guard.IS, at, self.words.keep(value))

    def _plain(self, value: int | float | str, at: int) -> None:
        """A number or text by its value."""
        if type(value) is int:
            if not -LIMIT <= value < LIMIT:
                raise Unsupported
            self.words.emit(Guard.INT, at, value)
        elif type(value) is float:
            bits = struct.unpack("<q", struct.pack("<d", value))[0]
            self.words.emit(Guard.FLOAT, at, 0 if math.isnan(value) else 1, bits)
        else:
            self.words.emit(Guard.TEXT, at, self.words.keep(value))

    def number(self, value: Any, place: str, at: int) -> None:
        """A number that is free, in a register of its own."""
        form, kind = self.guards.free[place], _KINDS[type(value)]
        assert isinstance(form, NumberForm)
        to = self._take(1)
        self.words.emit(Guard.NUMBER, at, NUMBER_CODES[kind], to)
        self.numbers[place] = kind, to
        if form.name and not self.sizes.bind(form.name, to, is_float=kind == "float"):
            self._expressions.append((to, form.name))

    def container(self, value: Any, place: str, at: int) -> None:
        """A list, tuple, dict or dataclass, member by member. Raises: Unsupported."""
        if type(value) is deque:
            raise Unsupported
        if id(value) in self._containers:
            self.words.emit(Guard.SAME, at, self._containers[id(value)])
            return
        self._containers[id(value)] = at
        if id(value) in self.guards.outside.met:
            self.words.emit(Guard.IS, at, self.words.keep(value))
        elif value or not isinstance(value, tuple):
            self._apart_too.append(at)
        cls = type(value)
        has_keys = cls is dict and not all(type(key) is str for key in value)
        count = len(value) if isinstance(value, (list, tuple, dict)) else len(fields(value))
        first = self._take(2 * count if has_keys else count)
        if has_keys:
            self.words.emit(Guard.ENTRIES, at, self.words.keep(cls), len(value), first)
            for i, key in enumerate(value):
                self._key(key, first + i)
            first += len(value)
        elif cls is dict:
            keys = [self.words.keep(key) for key in value]
            self.words.emit(Guard.MAPPING, at, self.words.keep(cls), len(value), first, *keys)
        elif (_reads_as(cls, tuple) or _reads_as(cls, list)) and not has_attributes(value):
            is_list = issubclass(cls, list)
            self.words.emit(Guard.SEQUENCE, at, self.words.keep(cls), len(value), int(is_list), first)
        elif _has_plain_fields(cls):
            names = [self.words.keep(field.name) for field in fields(cls)]
            self.words.emit(Guard.FIELDS, at, self.words.keep(cls), len(names), first, *names)
            self._no_others(value, at)
        else:
            raise Unsupported
        for i, (label, _, inner) in enumerate(members(value)):
            self._walk(inner, place + label, first + i)

    def _no_others(self, value: Any, at: int) -> None:
        """That an object has no attributes but its fields, which `members` are."""
        if not has_attributes(value):
            return
        held, known = vars(value), field_names(value)
        if not known.issuperset(held):
            raise Unsupported
        own, first = self._take(1), self._take(len(held))
        self.words.emit(Guard.FIELDS, at, self.words.keep(type(value)), 1, own, self.words.keep("__dict__"))
        keys = [self.words.keep(name) for name in held]
        self.words.emit(Guard.MAPPING, own, self.words.keep(dict), len(held), first, *keys)

    def _key(self, key: Any, at: int) -> None:
        """A key by its value where that is seen natively, else as the object that it is."""
        if type(key) in (int, float, str):
            self._plain(key, at)
        elif type(key) is tuple:
            first = self._take(len(key))
            self.words.emit(Guard.SEQUENCE, at, self.words.keep(tuple), len(key), 0, first)
            for i, part in enumerate(key):
                self._key(part, first + i)
        else:
            self.words.emit(Guard.IS, at, self.words.keep(key))

    def tensor(self, value: torch.Tensor, place: str, at: int) -> None:
        """A tensor: what it is, and its layout. Raises: Unsupported."""
        form = self.guards.free.get(place)
        for before, tensor in self._tensors:
            if tensor is value:
                self.words.emit(Guard.SAME, at, before)
                return
        if not is_plain(value):
            raise Unsupported
        if id(value) in self._rooted:
            self.words.emit(Guard.IS, at, self.words.keep(value))
        self._tensors.append((at, value))
        layout = self.words.layout
        sizes, strides = layout.shape(value)
        mask, keys = layout.masked_keys(value, self._tells_inference)
        dtype = layout.dtype_number(value)
        kind = self.words.keep(type(value))
        head = (at, kind, mask, keys, dtype, len(sizes), int(value.requires_grad))
        if isinstance(form, TensorForm):
            self._form(form, value, head)
        else:
            self.words.emit(Guard.TENSOR, *head, *sizes, *strides)

    def _form(self, form: TensorForm, value: torch.Tensor, head: tuple[int, ...]) -> None:
        """A tensor with free sizes: those that are not go by their registers."""
        rank = len(form.sizes)
        first = self._take(rank)
        strides = -1 if form.strides is None else self._take(rank)
        wanted = [size if isinstance(size, int) else -1 for size in form.sizes]
        self.words.emit(Guard.FORM, *head, first, strides, *wanted)
        for register, size in enumerate(form.sizes, start=first):
            # The first place of a name binds it, and each later one is compared with it.
            if isinstance(size, str) and not (is_name(size) and self.sizes.bind(size, register)):
                self._expressions.append((register, size))
        for register, stride in enumerate(form.strides or (), start=strides):
            if isinstance(stride, int):
                self.sizes.equals(register, str(stride))
            elif stride is not None:
                self._expressions.append((register, stride))
        if self.guards.knows_aliases:
            last = None if strides < 0 else range(strides, strides + rank)
            self._spans[head[0]] = self.sizes.spanned(range(first, first + rank), last, value.element_size())

    def _apart(self) -> None:
        """That no two tensors are one object, nor two containers, and that none is one that the program reads."""
        self._others([at for at, _ in self._tensors])
        self._others(self._apart_too)
        self._none_of([at for at, tensor in self._tensors if id(tensor) not in self._rooted], self.guards.rooted)
        self._none_of(self._apart_too, self.guards.outside.others)

    def _others(self, registers: list[int]) -> None:
        if len(registers) > 1:
            self.words.emit(Guard.OTHER, len(registers), *registers)

    def _none_of(self, registers: list[int], objects: Sequence[Any]) -> None:
        if registers and objects:
            table = self.words.array([self.words.keep(one) for one in objects])
            self.words.emit(Guard.NONE_OF, len(objects), table, len(registers), *registers)

    def _aliasing(self) -> None:
        if not self.guards.knows_aliases:
            return
        tensors = [tensor for _, tensor in self._tensors]
        extents = [nbytes_spanned(tensor) for tensor in tensors]
        spans = Spans(self.guards.rooted)
        if extents_meet([t.data_ptr() for t in tensors], extents) or len(tensors) > MAX_APART:
            raise Unsupported
        if any(spans.touched(t.data_ptr(), extent) for t, extent in zip(tensors, extents, strict=True)):
            raise Unsupported
        triples = zip(self._tensors, extents, strict=True)
        words = [word for (at, t), extent in triples for word in (at, self._extent(at, extent), t.element_size())]
        self.words.emit(Guard.APART, len(tensors), *words)
        ranges = [word for pair in zip(spans.starts, spans.ends, strict=True) for word in pair]
        if not ranges:
            return
        table = self.words.array(ranges)
        for (at, tensor), extent in zip(self._tensors, extents, strict=True):
            if extent or at in self._spans:
                nbytes = self._extent(at, extent)
                self.words.emit(Guard.CLEAR, at, nbytes, tensor.element_size(), len(spans.starts), table)

    def _extent(self, at: int, nbytes: int) -> int:
        """The bytes of the tensor in a register, as `Guard.APART` takes them."""
        return ~self._spans[at] if at in self._spans else nbytes


def _has_plain_fields(cls: Any) -> bool:
    """Whether instances are dataclasses whose fields lie in them, and are no containers besides."""
    if issubclass(cls, (list, tuple, dict)) or hasattr(cls, "__getattr__"):
        return False
    found = (getattr_static(cls, field.name, None) for field in fields(cls))
    is_plain = all(isinstance(one, MemberDescriptorType) or not hasattr(type(one), "__get__") for one in found)
    return is_plain and cls.__getattribute__ is object.__getattribute__


def _reads_as(cls: type, base: type) -> bool:
    """Whether instances are sequences whose members are read as those of a plain one."""
    if not issubclass(cls, base) or issubclass(cls, OrderedDict):
        return False
    return all(getattr(cls, name) is getattr(base, name) for name in ("__getitem__", "__len__", "__getattribute__"))
