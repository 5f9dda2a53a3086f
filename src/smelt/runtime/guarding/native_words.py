"""What is no argument, as the words that native code walks: torch's settings, facts, layouts, flags, constants.

Invariant: the words hold only if the guards do in Python; what has no words is asked in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from smelt._torch import state as torch_state
from smelt._torch import state_native
from smelt._torch.exact import MISSING
from smelt._torch.storage import nbytes_spanned
from smelt.runtime.encoding.entry_table import LENGTH_AT, Guard, Space
from smelt.runtime.guarding.guard_constants import Constants
from smelt.runtime.guarding.guard_facts import Facts
from smelt.runtime.guarding.guard_layouts import Layouts
from smelt.runtime.guarding.guard_sizes import LIMIT
from smelt.runtime.guarding.guard_versions import Identities, Namespace, Namespaces
from smelt.runtime.guarding.words import Unsupported, Words, is_plain


def settings_words(words: Words, hook_contents: Sequence[Mapping[Any, Any]]) -> None:
    """Torch's settings, and its hooks of all modules. Raises: Unsupported."""
    checks = state_native.checks()
    if checks is None or any(hook_contents):
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
    tables = torch_state.global_hooks()
    words.keep(tables)
    words.emit(Guard.WORDS, len(tables), *(word for table in tables for word in (id(table) + LENGTH_AT, 0)))


def is_compiling_words(words: Words) -> None:
    """That torch does not compile: generated Python is not asked where it does."""
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


def facts_words(words: Words, facts: Facts) -> None:
    """What the program reads by itself."""
    _namespaces(words, facts.namespaces)
    _identities(words, facts.identities)
    for test in facts.single:
        if not test.of_kind.words(test.read, test.holds, words):
            words.ask(test.holds)


def grads_words(words: Words, facts: Facts, grads: Sequence[bool]) -> None:
    """Whether each tensor that the program reads requires gradients."""
    if grads:
        pairs = zip(facts.tensors, grads, strict=True)
        words.emit(Guard.GRADS, len(grads), *(w for t, wanted in pairs for w in (words.keep(t), int(wanted))))


def layouts_words(words: Words, layouts: Layouts) -> None:
    """The layouts of the tensors that the program reads."""
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


# --- constants -------------------------------------------------------------------------------------------------------


def constants_words(words: Words, constants: Constants) -> None:
    """The tensors whose contents are part of the program."""
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
