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
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from smelt._torch import state_native
from smelt._torch.exact import MISSING
from smelt._torch.storage import nbytes_spanned
from smelt._torch.tensor_layout import TensorLayout
from smelt.runtime.entering.entry_arguments import Arguments
from smelt.runtime.entering.entry_sizes import CannotWrite
from smelt.runtime.entering.entry_table import LENGTH_AT, Guard, Space
from smelt.runtime.entering.entry_words import Unsupported, Words, is_plain
from smelt.runtime.guarding.guard_constants import Constants
from smelt.runtime.guarding.guard_facts import FactTest
from smelt.runtime.guarding.guard_layouts import Layouts
from smelt.runtime.guarding.guard_sizes import LIMIT
from smelt.runtime.guarding.guard_versions import Identities, Namespace, Namespaces, set_words
from smelt.runtime.guarding.guards import GuardSet
from smelt.runtime.plan import Kind

_CELL_CONTENT_AT = 16  # PyCellObject: object header, ob_ref


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
    words = Words(layout)
    try:
        _state(words, guards)
        _facts(words, guards)
        _constants(words, guards.constants)
        arguments = Arguments(words, guards)
        registers = arguments.write(args, kwargs)
    except (Unsupported, CannotWrite):
        return None
    words.emit(Guard.END)
    made = (ctypes.c_int64 * len(words.made))(*words.made)
    return Guards(made, registers, arguments.numbers, arguments.sizes.names, tuple(words.keeps), words.asks)


# --- torch's state ---------------------------------------------------------------------------------------------------


def _state(words: Words, guards: GuardSet) -> None:
    checks = state_native.checks()
    if checks is None or any(guards.hook_contents):
        raise Unsupported
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
    if flag is None:
        words.ask(_is_not_compiling)
    else:
        space, entries = flag
        names, values = zip(*entries, strict=True)
        _namespaces(words, Namespaces([Namespace(space, names, values, None)]))


def _is_not_compiling() -> bool:
    return not torch.compiler.is_compiling()


# --- what the program reads ------------------------------------------------------------------------------------------


def _facts(words: Words, guards: GuardSet) -> None:
    facts = guards.facts
    _namespaces(words, facts.namespaces)
    _identities(words, facts.identities)
    for test in facts.single:
        _single(words, test)
    _layouts(words, guards.layouts)
    if guards.grads:
        pairs = zip(facts.tensors, guards.grads, strict=True)
        words.emit(Guard.GRADS, len(guards.grads), *(w for t, wanted in pairs for w in (words.keep(t), int(wanted))))


def _layouts(words: Words, layouts: Layouts) -> None:
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


def _namespaces(words: Words, namespaces: Namespaces) -> None:
    _spaces(words, Guard.SPACES, namespaces.stamped)
    _spaces(words, Guard.UNSTAMPED, namespaces.unstamped)
    for space in namespaces.ordered:
        words.ask(space.in_order)


def _spaces(words: Words, operation: Guard, spaces: Sequence[Namespace]) -> None:
    if not spaces:
        return
    records: list[int] = []
    for space in spaces:
        # The native walk knows the order of plain dicts; another kind of dict is asked in Python.
        is_plain = type(space.entries) is dict
        order = () if space.order is None else space.order
        seen = dict(zip(space.names, space.values, strict=True))
        # Where all that it holds is gone over, in its order, what was read need not be looked for.
        held = {key: seen.pop(key, MISSING) for key in order} if is_plain else {}
        if space.order is not None and is_plain:
            seen = {key: value for key, value in seen.items() if value is not MISSING}
        record = {
            Space.DICT: words.keep(space.entries),
            Space.STAMP: 0,  # of no dict: each is looked into once
            Space.LENGTH: len(seen),
            Space.ENTRIES: words.array(_pairs(words, seen)),
            Space.ORDER_LENGTH: -1 if space.order is None else len(order) if is_plain or not order else LIMIT - 1,
            Space.ORDER: words.array(_pairs(words, held)),
            Space.HOLDS: words.keep(space.holds),
        }
        records += (record[word] for word in Space)
    # All in one block: what is looked at in each call should share cache lines.
    start = words.array(records)
    addresses = range(start, start + 8 * len(records), 8 * len(Space))
    words.emit(operation, len(addresses), *addresses)


def _pairs(words: Words, entries: Mapping[Any, Any]) -> list[int]:
    return [w for k, v in entries.items() for w in (words.keep(k), 0 if v is MISSING else words.keep(v))]


def _identities(words: Words, identities: Identities) -> None:
    pairs = identities.words
    if pairs:
        words.keep(identities)
        words.emit(Guard.WORDS, len(pairs), *(word for pair in pairs for word in pair))
    if identities.needs_python:
        words.ask(identities.unchanged)


def _single(words: Words, test: FactTest) -> None:
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
    elif test.kind == "context" and type(owner) is ContextVar:
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


def _constants(words: Words, constants: Constants) -> None:
    if not constants.tensors:
        return
    layout = words.layout
    known = zip(constants.tensors, constants.pointers, strict=True)
    if not all(is_plain(t) and (nbytes_spanned(t) == 0 or layout.address(t) == p) for t, p in known):
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
