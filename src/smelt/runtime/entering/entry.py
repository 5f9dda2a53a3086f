"""The native entry of compiled objects: its machine code, and the tables of rows that it walks.

    code = entry_code(machine_code, dispatcher_type, slow)          the process's one, or None where it cannot be
    code.install(cls)                                               calls of instances of cls go through it
    dispatcher.table = code.table([row, ...])                       row = code.row(guards, target)

Invariant: a class is only touched where its instances keep their dispatcher in reach and its call goes through the slot
where PyType_GetSlot says so. What a table points to lives as long as the table, and a call holds the table that it
uses. Assigning `__call__` to the class undoes the installation, as it does for any class.

Source: CPython's C API (PyType_GetSlot, PyTypeObject.tp_call); the layout is compared with it before it is used.
"""

from __future__ import annotations

import ctypes
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from smelt._torch.library import shim
from smelt._torch.seen import busy
from smelt._torch.tensor_layout import TensorLayout, tensor_layout
from smelt.diag import SmeltError
from smelt.diag.interpreter import is_free_threaded
from smelt.diag.records import record
from smelt.runtime.encoding.entry_table import (
    BASICSIZE_AT,
    BLOCK_SYMBOL,
    CALL_SYMBOL,
    EXTERNALS,
    FIRST_SLOT_AT,
    GUARDS_SYMBOL,
    LENGTH_AT,
    LIST_ITEMS_AT,
    MAX_REGISTERS,
    REFERENCES_AT,
    TABLE_AT,
    TUPLE_ITEMS_AT,
    TYPE_AT,
    Block,
    Kind,
    Row,
)
from smelt.runtime.encoding.table import BYTES_OFFSET
from smelt.runtime.entering.entry_guards import Guards, native_guards
from smelt.runtime.guarding.guards import GuardSet
from smelt.runtime.machine import drafts
from smelt.runtime.machine.loader import LoadedCode, python_functions
from smelt.runtime.runner import entry_context

NAME = "native entry"
"""What `shim.hidden` takes to leave calls to Python."""

_CALL_SLOT = 50  # Py_tp_call
_CALL_AT = 128


@record
class Target:
    """What runs when a row's guards hold.

    python(args, kwargs or None): the whole in Python. call: the builtin of the plan to run natively instead; inputs:
    the places of its inputs among the arguments; kind: what its results become. deliver(results, args, kwargs or None)
    for Kind.DELIVER; fail(frame, status, args, kwargs or None) after a run that failed.
    """

    python: Callable[..., Any]
    call: Callable[..., Any] | None = None
    inputs: tuple[str, ...] = ()
    kind: Kind = Kind.PYTHON
    deliver: Callable[..., Any] | None = None
    fail: Callable[..., Any] | None = None


class Counters:
    """Counts of one compiled object: calls that ran natively, and a clock that ticks at each hit."""

    __slots__ = ("words",)

    def __init__(self) -> None:
        self.words = (ctypes.c_int64 * 2)()

    @property
    def calls(self) -> int:
        return self.words[0]

    def tick(self) -> int:
        """The next time."""
        self.words[1] += 1
        return self.words[1]


class NativeRow:
    """A row as words; `hits` counts its native runs, `used` is when it was hit last."""

    __slots__ = ("guards", "keeps", "words")

    def __init__(self, guards: Guards, words: Mapping[Row, int], keeps: tuple[Any, ...]) -> None:
        self.guards = guards
        self.words = (ctypes.c_int64 * len(Row))(*[words[word] for word in Row])
        self.keeps = keeps

    def hold(self, word: Row, values: Sequence[int]) -> None:
        """Let a word be the address of these."""
        memory = (ctypes.c_int64 * max(len(values), 1))(*values)
        self.words[word] = ctypes.addressof(memory)
        self.keeps = (*self.keeps, memory)

    @property
    def hits(self) -> int:
        return self.words[Row.HITS]

    @property
    def used(self) -> int:
        return self.words[Row.USED]

    @property
    def keeps_gil(self) -> bool:
        """Whether its plan is so short that other threads of Python wait for it."""
        return bool(self.words[Row.KEEPS_GIL])

    @property
    def runs_plan(self) -> bool:
        """Whether a hit runs natively to its end, at least at some sizes."""
        return bool(self.words[Row.KIND] != Kind.PYTHON or self.words[Row.PLANS])


def _as_register(number: float) -> int:
    """A number as guards leave it in a register: of a float its bits."""
    return number if isinstance(number, int) else int.from_bytes(struct.pack("<d", number), "little", signed=True)


class _Table(bytes):
    """Eight bytes with the address of a table, and what must live as long."""

    keeps: tuple[Any, ...]


class EntryCode:
    """The loaded functions with the process's block."""

    def __init__(self, loaded: LoadedCode, block: Any, layout: TensorLayout, keeps: tuple[Any, ...]) -> None:
        self._loaded, self._block, self._keeps = loaded, block, keeps
        self.layout = layout
        self._call = loaded.address(CALL_SYMBOL)
        prototype = ctypes.PYFUNCTYPE(
            ctypes.c_int32, ctypes.c_void_p, ctypes.py_object, ctypes.py_object, ctypes.c_void_p
        )
        self._guards = prototype(loaded.address(GUARDS_SYMBOL))

    def holds(self, guards: Guards, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """What native code says of a call."""
        registers = (ctypes.c_int64 * MAX_REGISTERS)()
        return bool(self._guards(guards.address, args, kwargs, ctypes.addressof(registers)) == 1)

    def row(
        self,
        guards: GuardSet,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        target: Target,
        counters: Counters,
        plans: Sequence[tuple[Mapping[str, float], Target]] = (),
    ) -> NativeRow | None:
        """A row for calls like this one, which has just passed its guards; None where they cannot be native.

        plans: for calls with these values of free names (the same ones each time) another target.
        """
        found = native_guards(guards, args, kwargs, self.layout)
        return None if found is None else self.row_with(found, target, counters, plans)

    def row_with(
        self,
        found: Guards,
        target: Target,
        counters: Counters,
        plans: Sequence[tuple[Mapping[str, float], Target]] = (),
    ) -> NativeRow:
        """The same, given its guards: those of another row say what they said."""
        row = self._row(found, target, counters)
        names = list(plans[0][0]) if plans else []
        if not plans or any(name not in found.symbols for name in names):
            return row
        rows = []
        for sizes, each in plans:
            one = self._row(found, each, counters)
            if one.runs_plan:
                one.hold(Row.SIZES, [_as_register(sizes[name]) for name in names])
                rows.append(one)
        row.hold(Row.SIZES, [found.symbols[name] for name in names])
        row.hold(Row.PLANS, [len(rows), *(ctypes.addressof(one.words) for one in rows)])
        row.words[Row.NSIZES] = len(names)
        row.keeps = (*row.keeps, rows)
        return row

    def _row(self, found: Guards, target: Target, counters: Counters) -> NativeRow:
        plan = None if target.call is None else entry_context(target.call)
        inputs = [] if plan is None else found.inputs(target.inputs, plan.kinds)
        if inputs is None:
            plan, inputs = None, []
        registers = (ctypes.c_int64 * max(len(inputs), 1))(*inputs)
        address = ctypes.addressof(counters.words)
        words = {
            Row.GUARDS: found.address,
            Row.HITS: 0,
            Row.USED: 0,
            Row.CALLS: address,
            Row.CLOCK: address + 8,
            Row.KIND: Kind.PYTHON if plan is None else target.kind,
            Row.CONTEXT: 0 if plan is None else plan.address,
            Row.NINPUTS: len(inputs),
            Row.INPUTS: ctypes.addressof(registers),
            Row.PYTHON: id(target.python),
            Row.FAIL: id(target.fail),
            Row.DELIVER: id(target.deliver),
            Row.KEEPS_GIL: 0 if plan is None else int(plan.is_short),
            Row.RUN: 0 if plan is None else plan.run,
            Row.PLANS: 0,
            Row.NSIZES: 0,
            Row.SIZES: 0,
        }
        return NativeRow(found, words, (registers, counters, target))

    def table(self, rows: Sequence[NativeRow]) -> bytes:
        """What a dispatcher keeps so that its calls are served by these rows, asked in this order."""
        words = (ctypes.c_int64 * (1 + len(rows)))(len(rows), *[ctypes.addressof(row.words) for row in rows])
        table = _Table(ctypes.addressof(words).to_bytes(8, "little"))
        table.keeps = (self, words, tuple(rows))
        return table

    def install(self, cls: type) -> bool:
        """Have calls of instances of this very class go through native code; False where that is not possible."""
        slot = _call_slot(cls)
        if slot is None:
            return False
        slot.value = self._call
        return _slot_value(cls) == self._call

    def is_installed(self, cls: type) -> bool:
        """Whether calls of this class go through native code now."""
        return _slot_value(cls) == self._call


def keeps_in_reach(instance: Any, dispatcher: Any) -> bool:
    """Whether an object keeps its dispatcher where native code looks for it."""
    return id(dispatcher) in (
        _word(id(instance) + type(instance).__basicsize__ - 8),
        _word(id(instance) + FIRST_SLOT_AT),
    )


def _slot_value(cls: type) -> int:
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_int)(("PyType_GetSlot", ctypes.pythonapi))
    return get(cls, _CALL_SLOT) or 0


def _call_slot(cls: type) -> ctypes.c_uint64 | None:
    """The word of a class that holds the function for calls, or None where it is not found."""
    slot = ctypes.c_uint64.from_address(id(cls) + _CALL_AT)
    return slot if slot.value == _slot_value(cls) and _word(id(cls) + BASICSIZE_AT) == cls.__basicsize__ else None


def _word(address: int) -> int:
    return int(ctypes.c_int64.from_address(address).value)


def load_entry(machine_code: bytes, dispatcher: type, slow: Callable[..., Any]) -> EntryCode | None:
    """The entry for objects of a dispatcher class, or None where something is not where it is thought to be.

    dispatcher: a class with the slot `table` first. slow: called as slow(self, args, kwargs or None).
    """
    layout = tensor_layout()
    if layout is None or not layout_is_known(dispatcher):
        return None
    block = (ctypes.c_int64 * len(Block))(*_block_words(layout, dispatcher, slow))
    # The counter itself is the block's first word from now on.
    busy.share(block)
    try:
        loaded = drafts.load(machine_code, {**python_functions(EXTERNALS), BLOCK_SYMBOL: ctypes.addressof(block)})
        return EntryCode(loaded, block, layout, (dispatcher, slow))
    except (SmeltError, OSError):
        return None


def _block_words(layout: TensorLayout, dispatcher: type, slow: Callable[..., Any]) -> list[int]:
    words = {
        Block.BUSY: 0,
        Block.SLOW: id(slow),
        Block.DISPATCHER: id(dispatcher),
        Block.NONE: id(None),
        Block.TRUE: id(True),
        Block.TEXT_TYPE: id(str),
        Block.INT_TYPE: id(int),
        Block.FLOAT_TYPE: id(float),
        Block.BOOL_TYPE: id(bool),
        Block.REQUIRES_GRAD: layout.requires_grad,
        Block.IMPL: layout.impl,
        Block.KEYS: layout.keys,
        Block.DTYPE: layout.dtype,
        Block.NDIM: layout.ndim,
        Block.SIZES: layout.sizes,
        Block.CAPACITY: layout.capacity,
        Block.STORAGE: layout.storage,
        Block.DATA: layout.data,
        Block.OFFSET: layout.offset,
        Block.META: layout.meta,
        Block.VERSION: layout.version,
        Block.COUNT: layout.count,
    }
    return [words[word] for word in Block]


def layout_is_known(dispatcher: type) -> bool:
    """Whether Python's own objects are laid out as the emitted code reads them."""
    if is_free_threaded() or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    members = (1.5, "x", b"y")
    probe = _Table(b"8 bytes.")
    made: Any = object.__new__(dispatcher)
    dispatcher.table.__set__(made, probe)  # type: ignore[attr-defined]
    found = [*members]
    mapping = OrderedDict(a=1, b=2)
    return (
        _word(id(probe) + TYPE_AT) == id(_Table)
        and _counts_references(probe)
        and ctypes.string_at(id(probe) + BYTES_OFFSET, 8) == probe
        and _word(id(made) + TABLE_AT) == id(probe)
        and [_word(id(members) + LENGTH_AT), _word(id(found) + LENGTH_AT), _word(id(mapping) + LENGTH_AT)] == [3, 3, 2]
        and [_word(id(members) + TUPLE_ITEMS_AT + 8 * i) for i in range(3)] == [id(m) for m in members]
        and [_word(_word(id(found) + LIST_ITEMS_AT) + 8 * i) for i in range(3)] == [id(m) for m in members]
    )


def _counts_references(value: Any) -> bool:
    """Whether the count of an object's references is where it is thought to be."""
    count = ctypes.c_uint32.from_address(id(value) + REFERENCES_AT)
    before = count.value
    more = [value] * 5
    return count.value == before + len(more)


def is_hidden() -> bool:
    """Whether calls are to be left to Python here."""
    return shim.is_hidden(NAME)
