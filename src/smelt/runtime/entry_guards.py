"""A program's guards as the words that native code walks (`entry_table` has the encoding).

    code = native_guards(guards, args, kwargs, layout)       -> Guards, or None where something cannot be written so

Invariant: the words hold only if `guards.check` passes. They are made from a call whose guards hold, in its thread, and
say that a later call is like that one; they may ask for more than the guards do (the same dispatch keys, the same
object where an equal one would do): the Python check then decides.

Order: torch's state, what the program reads, constants, and the arguments last, so that no Python code runs between
the moment when an argument is found and the moment when it is held.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from smelt._torch import state_native
from smelt._torch.exact import MISSING
from smelt._torch.storage import nbytes_spanned
from smelt._torch.tensor_layout import TensorLayout
from smelt.runtime import guard_versions
from smelt.runtime.entry_sizes import CannotWrite, SizeWords
from smelt.runtime.entry_table import LENGTH_AT, MAX_APART, MAX_REGISTERS, Guard, Space
from smelt.runtime.guard_args import BY_VALUE, TENSORS, Spans, extents_meet, members
from smelt.runtime.guard_constants import Constants
from smelt.runtime.guard_facts import FactTest
from smelt.runtime.guard_layouts import Layouts
from smelt.runtime.guard_sizes import Form, NumberForm, TensorForm, is_name
from smelt.runtime.guard_versions import Identities, Namespace, Namespaces, set_words
from smelt.runtime.guards import GuardSet
from smelt.runtime.plan import Kind
from smelt.runtime.table import NUMBER_CODES

_CELL_CONTENT_AT = 16  # PyCellObject: object header, ob_ref
_LIMIT = 1 << 63


class _Unsupported(Exception):
    """This cannot be written as native guards."""


@dataclass(slots=True)
class Guards:
    """Native guards. words: the table; registers: place of an argument (`args[0]`) -> its register.

    numbers: place of a free number -> its kind, and the register with its bits; symbols: the registers of free names.
    keeps: whatever the words point to. asks: how many guards call Python at each call.
    """

    words: Any
    registers: Mapping[str, int]
    numbers: Mapping[str, tuple[Kind, int]]
    symbols: Mapping[str, int]
    keeps: tuple[Any, ...]
    asks: int

    def inputs(self, places: Sequence[str], kinds: Sequence[Kind | None]) -> list[int] | None:
        """Where a plan finds its inputs (`Row.INPUTS`); None if one is not there, or is not what it takes."""
        if len(places) != len(kinds):
            return None
        found = []
        for place, kind in zip(places, kinds, strict=True):
            number, at = self.numbers.get(place, (None, -1))
            if number != kind or (number is None and place not in self.registers):
                return None
            found.append(self.registers[place] if number is None else ~at)
        return found

    @property
    def address(self) -> int:
        """Address of the first word."""
        return ctypes.addressof(self.words)


def native_guards(
    guards: GuardSet, args: tuple[Any, ...], kwargs: Mapping[str, Any], layout: TensorLayout
) -> Guards | None:
    """The guards as words, given a call that has just passed them, or None."""
    words = _Words(layout)
    try:
        _state(words, guards)
        _facts(words, guards)
        _constants(words, guards.constants)
        arguments = _Arguments(words, guards)
        registers = arguments.write(args, kwargs)
    except (_Unsupported, CannotWrite):
        return None
    words.emit(Guard.END)
    made = (ctypes.c_int64 * len(words.made))(*words.made)
    return Guards(made, registers, arguments.numbers, arguments.sizes.names, tuple(words.keeps), words.asks)


@dataclass(slots=True)
class _Words:
    layout: TensorLayout
    made: list[int] = field(default_factory=list)
    keeps: list[Any] = field(default_factory=list)
    asks: int = 0

    def emit(self, op: Guard, *operands: int) -> None:
        self.made += (int(op), 2 + len(operands), *map(_signed, operands))

    def keep(self, value: Any) -> int:
        """The address of an object, which stays alive."""
        self.keeps.append(value)
        return id(value)

    def array(self, values: Iterable[int]) -> int:
        """The address of words."""
        words = list(map(_signed, values))
        memory = (ctypes.c_int64 * max(len(words), 1))(*words)
        self.keeps.append(memory)
        return ctypes.addressof(memory)

    def ask(self, callable: Callable[[], Any]) -> None:
        """A guard that only Python can decide."""
        self.asks += 1
        self.emit(Guard.PYTHON, self.keep(callable))


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= _LIMIT else word


# --- torch's state ---------------------------------------------------------------------------------------------------


def _state(words: _Words, guards: GuardSet) -> None:
    checks = state_native.checks()
    if checks is None or any(guards.hook_contents):
        raise _Unsupported
    for check in checks:
        match check:
            case state_native.Value(function, argument, mask, value):
                words.emit(Guard.VALUE, function, argument, mask, value)
            case state_native.Pointed(function, argument, pairs):
                words.emit(Guard.POINTED, function, argument, len(pairs), *(word for pair in pairs for word in pair))
            case state_native.Memory(address, mask, value):
                words.emit(Guard.MASKED, address, mask, value)
            case state_native.NoArgs():
                function, this = state_native.address_of(check.builtin)
                words.keep(check.builtin)
                words.emit(Guard.NOARGS, function, this, words.keep(check.value), check.is_text)
            case state_native.Asked(callable):
                words.ask(callable)
    tables = guards.hooks
    words.keep(tables)
    words.emit(Guard.WORDS, len(tables), *(word for table in tables for word in (id(table) + LENGTH_AT, 0)))
    flag = state_native.compiling_flag()
    if flag is None or not guard_versions.HAVE_STAMPS:
        words.ask(_is_not_compiling)
    else:
        space, entries = flag
        names, values = zip(*entries, strict=True)
        _spaces(words, [Namespace(space, names, values, None)])


def _is_not_compiling() -> bool:
    return not torch.compiler.is_compiling()


# --- what the program reads ------------------------------------------------------------------------------------------


def _facts(words: _Words, guards: GuardSet) -> None:
    facts = guards.facts
    _namespaces(words, facts.namespaces)
    _identities(words, facts.identities)
    for test in facts.single:
        _single(words, test)
    _layouts(words, guards.layouts)
    if guards.grads:
        pairs = zip(facts.tensors, guards.grads, strict=True)
        words.emit(Guard.GRADS, len(guards.grads), *(w for t, wanted in pairs for w in (words.keep(t), int(wanted))))


def _layouts(words: _Words, layouts: Layouts) -> None:
    if not layouts:
        return
    told = layouts.words(words.layout)
    if told is None:
        words.ask(layouts.unchanged)
        return
    words.keep(layouts)
    pairs, masked = told
    words.emit(Guard.WORDS, len(pairs), *(word for pair in pairs for word in pair))
    for one in masked:
        words.emit(Guard.MASKED, *one)


def _namespaces(words: _Words, namespaces: Namespaces) -> None:
    if not namespaces.spaces:
        return
    if not guard_versions.HAVE_STAMPS:
        words.ask(namespaces.unchanged)
        return
    _spaces(words, namespaces.spaces)
    for space in namespaces.ordered:
        words.ask(space.in_order)


def _spaces(words: _Words, spaces: Sequence[Namespace]) -> None:
    records: list[int] = []
    for space in spaces:
        pairs = zip(space.names, space.values, strict=True)
        entries = [w for k, v in pairs for w in (words.keep(k), 0 if v is MISSING else words.keep(v))]
        # The native walk knows the order of plain dicts; another kind of dict is asked in Python.
        is_plain = type(space.entries) is dict
        order = () if space.order is None else space.order
        record = {
            Space.DICT: words.keep(space.entries),
            Space.STAMP: 0,  # of no dict: each is looked into once
            Space.LENGTH: len(space.names),
            Space.ENTRIES: words.array(entries),
            Space.ORDER_LENGTH: -1 if space.order is None else len(order) if is_plain or not order else _LIMIT - 1,
            Space.ORDER: words.array(words.keep(key) for key in order),
            Space.HOLDS: words.keep(space.holds),
        }
        records += (record[word] for word in Space)
    # All in one block: what is looked at in each call should share cache lines.
    start = words.array(records)
    addresses = range(start, start + 8 * len(records), 8 * len(Space))
    words.emit(Guard.SPACES, len(addresses), *addresses)


def _identities(words: _Words, identities: Identities) -> None:
    pairs = identities.words
    if pairs:
        words.keep(identities)
        words.emit(Guard.WORDS, len(pairs), *(word for pair in pairs for word in pair))
    if identities.needs_python:
        words.ask(identities.unchanged)


def _single(words: _Words, test: FactTest) -> None:
    """A fact that stands alone."""
    owner, key, seen = test.read.owner, test.read.key, test.seen
    if test.kind == "cell" and seen is not MISSING:
        place = words.keep(owner) + _CELL_CONTENT_AT
        if ctypes.c_int64.from_address(place).value == id(owner.cell_contents):
            words.emit(Guard.EITHER, words.keep(test.holds), 1, place, words.keep(seen))
            return
    elif test.kind == "attr" and seen is not MISSING and type(key) is str:
        words.emit(Guard.ATTRIBUTE, words.keep(owner), words.keep(key), words.keep(seen), words.keep(test.holds))
        return
    elif test.kind == "context":
        words.emit(Guard.CONTEXT, words.keep(owner), words.keep(MISSING), words.keep(seen))
        return
    elif test.kind == "content" and type(owner) is list:
        items = [words.keep(item) for item in seen]  # in the order of the list
        words.emit(Guard.ITEMS, words.keep(owner), words.keep(test.holds), len(items), *items)
        return
    elif test.kind == "content" and type(owner) is set:
        pairs = set_words(owner)
        if pairs and all(item in owner for item in seen) and len(owner) == len(seen):
            words.keep((owner, seen))
            flat = [word for pair in pairs for word in pair]
            words.emit(Guard.EITHER, words.keep(test.holds), len(pairs), *flat)
            return
    words.ask(test.holds)


# --- constants -------------------------------------------------------------------------------------------------------


def _constants(words: _Words, constants: Constants) -> None:
    if not constants.tensors:
        return
    layout = words.layout
    known = zip(constants.tensors, constants.pointers, strict=True)
    if not all(_is_plain(t) and (nbytes_spanned(t) == 0 or layout.address(t) == p) for t, p in known):
        words.ask(constants.unchanged)
        return
    records: list[int] = []
    versions = iter(constants.versions)
    for tensor in constants.tensors:
        version = -1 if tensor.is_inference() else next(versions)
        records += (words.keep(tensor), layout.address(tensor), version, tensor.element_size())
    words.emit(Guard.CONSTANTS, len(constants.tensors), words.array(records))
    samples: list[int] = []
    for group, bits in zip(constants.groups, constants.bits, strict=True):
        at = words.keep(bits) + bytes.__basicsize__ - 1
        words.keep(group)
        for view in group:
            address, stride = view.__array_interface__["data"][0], view.strides[0]
            samples += (address, stride, len(view), view.itemsize, at)
            at += view.nbytes
    if samples:
        words.emit(Guard.SAMPLES, len(samples) // 5, words.array(samples))


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in TENSORS and tensor.layout is torch.strided and tensor.device.type == "cpu"


# --- arguments -------------------------------------------------------------------------------------------------------

# Never equal to another value once they are the same object.
_IMMUTABLE = tuple(kind for kind in BY_VALUE if kind is not set)
_KINDS: dict[type, Kind] = {int: "int", float: "float", bool: "bool"}


class _Arguments:
    """Writes the guards on one call's arguments and knows in which register each is found."""

    def __init__(self, words: _Words, guards: GuardSet) -> None:
        self.words, self.guards = words, guards
        self.registers: dict[str, int] = {}
        self._count = 0
        self._tensors: list[tuple[int, torch.Tensor]] = []
        self._containers: dict[int, int] = {}
        self._wants_grad = torch.is_grad_enabled()
        self.numbers: dict[str, tuple[Kind, int]] = {}
        self.sizes = SizeWords(words.emit, self._take)
        self._expressions: list[tuple[int, str]] = []
        # Registers with the bytes that tensors with free sizes span, by the tensor's register.
        self._spans: dict[int, int] = {}

    def write(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, int]:
        """Raises: _Unsupported."""
        if any(type(name) is not str for name in kwargs):
            raise _Unsupported
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
        self._aliasing()
        return self.registers

    def _take(self, count: int) -> int:
        """The first of `count` new registers."""
        first = self._count
        self._count += count
        if self._count > MAX_REGISTERS:
            raise _Unsupported
        return first

    def _walk(self, value: Any, place: str, at: int) -> None:
        self.registers[place] = at
        emit, keep, cls = self.words.emit, self.words.keep, type(value)
        form = self.guards.free.get(place)
        if cls in TENSORS:
            self._tensor(value, at, form)
        elif isinstance(form, NumberForm):
            self._number(form, value, place, at)
        elif cls is int and -_LIMIT <= value < _LIMIT:
            emit(Guard.INT, at, value)
        elif cls is float:
            bits = struct.unpack("<q", struct.pack("<d", value))[0]
            emit(Guard.FLOAT, at, 0 if math.isnan(value) else 1, bits)
        elif cls is str:
            emit(Guard.TEXT, at, keep(value))
        elif cls in (int, set):
            raise _Unsupported
        elif cls in _IMMUTABLE:
            emit(Guard.IS, at, keep(value))
        elif isinstance(value, (list, tuple, dict)):
            self._container(value, place, at)
        elif hasattr(cls, "__dataclass_fields__") and not isinstance(value, type):
            raise _Unsupported
        else:
            emit(Guard.IS, at, keep(value))

    def _number(self, form: NumberForm, value: Any, place: str, at: int) -> None:
        kind = _KINDS[type(value)]
        to = self._take(1)
        self.words.emit(Guard.NUMBER, at, NUMBER_CODES[kind], to)
        self.numbers[place] = kind, to
        if form.name and not self.sizes.bind(form.name, to, is_float=kind == "float"):
            self._expressions.append((to, form.name))

    def _container(self, value: Any, place: str, at: int) -> None:
        if id(value) in self._containers:
            self.words.emit(Guard.SAME, at, self._containers[id(value)])
            return
        self._containers[id(value)] = at
        cls = type(value)
        first = self._take(len(value))
        if cls is dict and all(type(key) is str for key in value):
            keys = [self.words.keep(key) for key in value]
            self.words.emit(Guard.MAPPING, at, self.words.keep(cls), len(value), first, *keys)
        elif _reads_as(cls, tuple) or _reads_as(cls, list):
            is_list = issubclass(cls, list)
            self.words.emit(Guard.SEQUENCE, at, self.words.keep(cls), len(value), int(is_list), first)
        else:
            raise _Unsupported
        for i, (step, inner) in enumerate(members(value)):
            self._walk(inner, f"{place}{step}", first + i)

    def _tensor(self, value: torch.Tensor, at: int, form: Form | None) -> None:
        for before, tensor in self._tensors:
            if tensor is value:
                self.words.emit(Guard.SAME, at, before)
                return
        if not _is_plain(value):
            raise _Unsupported
        self._tensors.append((at, value))
        layout = self.words.layout
        sizes, strides = layout.shape(value)
        mask, keys, dtype = layout.keys_mask, layout.key_bits(value), layout.dtype_number(value)
        wants_grad = int(value.requires_grad) if self._wants_grad else -1
        kind = self.words.keep(type(value))
        head = (at, kind, mask, keys, dtype, len(sizes), wants_grad)
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
            else:
                self._expressions.append((register, stride))
        if self.guards.knows_aliases:
            last = None if strides < 0 else range(strides, strides + rank)
            self._spans[head[0]] = self.sizes.spanned(range(first, first + rank), last, value.element_size())

    def _aliasing(self) -> None:
        if not self.guards.knows_aliases:
            return
        tensors = [tensor for _, tensor in self._tensors]
        extents = [nbytes_spanned(tensor) for tensor in tensors]
        spans = Spans(self.guards.tensors)
        if extents_meet([t.data_ptr() for t in tensors], extents) or len(tensors) > MAX_APART:
            raise _Unsupported
        if any(spans.touched(t.data_ptr(), extent) for t, extent in zip(tensors, extents, strict=True)):
            raise _Unsupported
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


def _reads_as(cls: type, base: type) -> bool:
    """Whether instances are sequences whose members are read as those of a plain one."""
    if not issubclass(cls, base) or issubclass(cls, OrderedDict):
        return False
    return all(getattr(cls, name) is getattr(base, name) for name in ("__getitem__", "__len__", "__getattribute__"))
