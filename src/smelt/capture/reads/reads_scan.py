"""What a code object may read from outside itself: names of globals and closure cells, with the attributes after them.

Invariant: the answer covers every such read the code can make, and maybe more (untaken branches count); it is a pure
function of the code object, found in one linear walk over its bytecode and cached.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Literal, NamedTuple

from smelt.diag.records import record

Root = Literal["global", "cell", "import"]
_Place = tuple[Root, str, tuple[str, ...]]


@record
class Chain:
    """`root name . path[0] . path[1] ...`, read at byte `offset` of its code.

    is_handed_on: what is found there is used otherwise than to ask it for an attribute.
    """

    root: Root
    name: str
    path: tuple[str, ...]
    offset: int
    is_handed_on: bool


@record
class Scan:
    """The outside reads (`chains`) and assignments (`stores`) of one code object.

    calls_getattr: it may read names that it computes. asks_classes: it may hold the class of an object.
    """

    chains: tuple[Chain, ...]
    stores: tuple[Chain, ...]
    calls_getattr: bool
    asks_classes: bool


class SuperRead(NamedTuple):
    """An attribute that code asks `super()` for; is_explicit: it says itself where that begins (`super(A, self)`)."""

    name: str
    offset: int
    is_explicit: bool


_OP = dis.opmap
_LOAD_GLOBAL = _OP["LOAD_GLOBAL"]
_LOAD_NAME = _OP["LOAD_NAME"]
_LOAD_ATTR = {code for name, code in _OP.items() if name in ("LOAD_ATTR", "LOAD_METHOD")}
_CELL_NAMES = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF", "LOAD_CLOSURE")
_LOAD_CELL = {code for name, code in _OP.items() if name in _CELL_NAMES}
_LOAD_FAST = {code for name, code in _OP.items() if name in ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")}
_STORE_FAST = _OP["STORE_FAST"]
_STORE_GLOBAL = {_OP["STORE_GLOBAL"], _OP["DELETE_GLOBAL"]}
_STORE_ATTR = {_OP["STORE_ATTR"], _OP["DELETE_ATTR"]}
_IMPORT_NAME, _IMPORT_FROM = _OP["IMPORT_NAME"], _OP["IMPORT_FROM"]
_OF_ATTRIBUTES = {*_LOAD_ATTR, *_STORE_ATTR, _IMPORT_FROM}
_COPY = _OP["COPY"]
_EXTENDED_ARG = _OP["EXTENDED_ARG"]
_TRANSPARENT_NAMES = ("CACHE", "NOP", "NOT_TAKEN", "PRECALL", "PUSH_NULL", "RESUME")
_TRANSPARENT = {code for name, code in _OP.items() if name in _TRANSPARENT_NAMES}
_CALLS = {code for name, code in _OP.items() if name in ("CALL", "CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_EX")}
_COMPARE_NAMES = ("IS_OP", "COMPARE_OP", "CONTAINS_OP", "FORMAT_VALUE", "FORMAT_SIMPLE", "FORMAT_WITH_SPEC")
_COMPARES = {code for name, code in _OP.items() if name in _COMPARE_NAMES}
_LOADS = {code for name, code in _OP.items() if name.startswith("LOAD_")}
_LOAD_SUPER = _OP.get("LOAD_SUPER_ATTR")
# From 256 on are names that the interpreter's own compiler replaces.
_LOAD_METHOD = {_OP["LOAD_METHOD"]} if _OP.get("LOAD_METHOD", 256) < 256 else {_OP["LOAD_ATTR"]}
# Where LOAD_CLOSURE is such a name, a cell that an inner function is given is loaded as a local variable is.
_OF_CELLS = {code for name, code in _OP.items() if name.endswith("_DEREF") or name in ("LOAD_CLOSURE", "MAKE_CELL")}
_OF_CELLS |= _LOAD_FAST
# Two instructions in one, each with four bits of the argument (from Python 3.13 on).
_PAIRS = {
    _OP[both]: (_OP[first], _OP[second])
    for both, first, second in (
        ("LOAD_FAST_LOAD_FAST", "LOAD_FAST", "LOAD_FAST"),
        ("LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_FAST", "LOAD_FAST"),
        ("STORE_FAST_LOAD_FAST", "STORE_FAST", "LOAD_FAST"),
        ("STORE_FAST_STORE_FAST", "STORE_FAST", "STORE_FAST"),
    )
    if both in _OP
}
_WITHS = {_OP[name] for name in ("BEFORE_WITH", "SETUP_WITH", "LOAD_SPECIAL") if name in _OP}
_BACKWARD = {code for name, code in _OP.items() if "BACKWARD" in name}
NAMES = frozenset({"__name__", "__qualname__", "__module__", "__doc__"})
_ENTERING = frozenset({"acquire", "__enter__", "enter_context"})
_METHOD_BIT = sys.version_info >= (3, 12)  # LOAD_ATTR's argument carries a flag in its lowest bit


def _instructions(code: CodeType) -> Iterator[tuple[int, int, int]]:
    """(offset, opcode, argument), extended arguments applied, and two in one as two."""
    raw = code.co_code
    extended = 0
    for offset in range(0, len(raw), 2):
        op, arg = raw[offset], raw[offset + 1] | extended
        if op == _EXTENDED_ARG:
            extended = arg << 8
            continue
        extended = 0
        if op in _PAIRS:
            first, second = _PAIRS[op]
            yield offset, first, arg >> 4
            yield offset, second, arg & 15
        else:
            yield offset, op, arg


def _local_names(code: CodeType) -> tuple[str, ...]:
    """Names by the index that fast and cell instructions use."""
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return code.co_varnames + cells + code.co_freevars


@lru_cache(maxsize=8192)
def scan_code(code: CodeType) -> Scan:
    """The reads of `code` from globals, closure cells and imported modules, about 0.05 ms a function, then cached."""
    names, local_names = code.co_names, _local_names(code)
    free = frozenset(code.co_freevars)
    assigned = Counter(local_names[arg] for _, op, arg in _instructions(code) if op == _STORE_FAST)
    arguments = set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    chains: dict[_Place, int] = {}
    aliases: dict[str, _Place] = {}
    stored: dict[_Place, int] = {}
    handed_on: set[_Place] = set()
    here: _Place | None = None
    loaded: _Place | None = None  # by the instruction before
    module: _Place | None = None
    doubled: _Place | None = None
    steps = [step for step in _instructions(code) if step[1] not in _TRANSPARENT]
    of_super = _classes_of_super(steps)
    for offset, op, arg in steps:
        if op == _COPY and arg == 1:
            doubled = here
            continue
        if loaded is not None and op not in _OF_ATTRIBUTES and (op != _STORE_FAST or doubled is not None):
            handed_on.add(loaded)
        loaded = None
        doubled = doubled if op in _LOAD_ATTR else None
        if op == _LOAD_GLOBAL:
            here = ("global", names[arg >> 1], ())
        elif op == _LOAD_NAME:
            here = ("global", names[arg], ())
        elif op in _LOAD_CELL and local_names[arg] in free and offset not in of_super:
            here = ("cell", local_names[arg], ())
        elif op in _LOAD_ATTR and here is not None:
            here = (here[0], here[1], (*here[2], names[arg >> 1 if _METHOD_BIT else arg]))
            if doubled is not None:  # `x.n += 1`: it is read, and stored there again
                stored.setdefault(here, offset)
                doubled = None
        elif op in _LOAD_FAST:
            here = loaded = aliases.get(local_names[arg])
            continue
        elif op == _IMPORT_NAME:
            here = module = ("import", names[arg], ())
        elif op == _IMPORT_FROM and module is not None:
            here = (module[0], module[1], (*module[2], names[arg]))
        elif op == _STORE_FAST:
            name = local_names[arg]
            if here is not None and assigned[name] == 1 and name not in arguments:
                aliases[name] = here
            elif here is not None:
                handed_on.add(here)
            here = None
        else:
            if op in _STORE_GLOBAL:
                stored.setdefault(("global", names[arg], ()), offset)
            elif op in _STORE_ATTR and here is not None:
                stored.setdefault((here[0], here[1], (*here[2], names[arg])), offset)
            here = None
        if here is not None:
            chains.setdefault(here, offset)
            loaded = here
    found = tuple(Chain(*place, offset, place in handed_on) for place, offset in chains.items())
    computed = any(c.root == "global" and c.name in ("getattr", "hasattr", "vars") and not c.path for c in found)
    computed = computed or "__dict__" in names
    stores_found = tuple(Chain(*place, offset, False) for place, offset in stored.items())
    return Scan(found, stores_found, computed, _asks_classes(code))


@lru_cache(maxsize=1024)
def _appends(code: CodeType) -> frozenset[int]:
    """The offsets of what is loaded only for its method `append`."""
    steps = [(offset, op, arg) for offset, op, arg in _instructions(code) if op not in _TRANSPARENT]
    return frozenset(
        offset
        for (offset, _, _), (_, op, arg) in pairwise(steps)
        if op in _LOAD_METHOD and (arg & 1 or not _METHOD_BIT) and _attribute(code, arg) == "append"
    )


def is_for_append(code: CodeType, offset: int) -> bool:
    """Whether an attribute that is loaded at an offset is a list that is appended to, and nothing else."""
    return code.co_code[offset] in _LOAD_ATTR and offset in _appends(code)


def only_appends(code: CodeType, root: Root | Literal["attribute"], name: str) -> bool:
    """Whether all that a code object does with a global, with what a closure cell holds, or with attributes of a name,
    is to append to it.
    """
    names, cells = _local_names(code), {*code.co_cellvars, *code.co_freevars}
    for offset, op, arg in _instructions(code):
        if root == "global":
            is_use = (op == _LOAD_GLOBAL and code.co_names[arg >> 1] == name) or (
                (op == _LOAD_NAME or op in _STORE_GLOBAL) and code.co_names[arg] == name
            )
        elif root == "attribute":
            place = arg >> 1 if _METHOD_BIT and op == _OP["LOAD_ATTR"] else arg
            is_use = op in _OF_ATTRIBUTES and code.co_names[place] == name
        else:
            is_use = op in _OF_CELLS and names[arg] == name and name in cells
        if is_use and not (op in _LOADS and offset in _appends(code)):
            return False
    return True


@lru_cache(maxsize=8192)
def may_take_locks(code: CodeType) -> bool:
    """Whether a code object has a `with` statement, or calls by name what enters something."""
    return not _ENTERING.isdisjoint(code.co_names) or any(op in _WITHS for _, op, _ in _instructions(code))


@lru_cache(maxsize=8192)
def turns_back(code: CodeType) -> tuple[tuple[int, int], ...] | None:
    """Where a call goes back to earlier instructions, as (from, to); None for calls that are resumed."""
    resumed = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    if code.co_flags & resumed:
        return None
    steps = (step for step in dis.get_instructions(code) if step.opcode in _BACKWARD)
    return tuple((step.offset, step.argval) for step in steps)


def is_passed_by(code: CodeType, offset: int, last: int) -> bool:
    """Whether a call that ended at the instruction `last` has surely not come to the one at `offset`, after it."""
    loops = turns_back(code)
    return loops is not None and last < offset and all(at < offset or to > last for at, to in loops)


@lru_cache(maxsize=8192)
def only_asks_for_names(code: CodeType, offset: int) -> bool:
    """Whether what is loaded at an instruction, by dotted name, is only asked whether it has something (`x in a.b`)."""
    steps = [step for step in dis.get_instructions(code) if step.offset >= offset]
    names = (
        "LOAD_GLOBAL",
        "LOAD_NAME",
        "LOAD_DEREF",
        "LOAD_ATTR",
        "CACHE",
        "PRECALL",
        "NOP",
        "PUSH_NULL",
        "EXTENDED_ARG",
    )
    after = next((step.opname for step in steps if step.opname not in names), "")
    return after == "CONTAINS_OP"


@lru_cache(maxsize=8192)
def super_reads(code: CodeType) -> tuple[SuperRead, ...]:
    """What a code object reads through `super()`: the names after it, or all that it has, where it keeps one."""
    if "super" not in code.co_names:
        return ()
    steps = [step for step in _instructions(code) if step[1] not in _TRANSPARENT]
    found: dict[str, SuperRead] = {}
    for i, (offset, op, arg) in enumerate(steps):
        if op != _LOAD_GLOBAL or code.co_names[arg >> 1] != "super":
            continue
        name, is_explicit = _after_super(code, steps[i + 1 :])
        texts = [text for text in code.co_consts if isinstance(text, str) and text.isidentifier()]
        for read in (*code.co_names, *texts) if name is None else (name,):
            known = found.get(read)
            found[read] = SuperRead(read, offset, is_explicit or (known is not None and known.is_explicit))
    return tuple(found.values())


def _classes_of_super(steps: Sequence[tuple[int, int, int]]) -> set[int]:
    """Where the class is loaded that a `super()` without arguments begins after: the program does not ask for it."""
    return {steps[i - 2][0] for i, (_, op, arg) in enumerate(steps) if op == _LOAD_SUPER and not arg & 2}


def _after_super(code: CodeType, steps: Sequence[tuple[int, int, int]]) -> tuple[str | None, bool]:
    """The attribute that is asked for where `super` was loaded, and whether it is told its class; None: not known."""
    for i, (_, op, arg) in enumerate(steps):
        if op == _LOAD_SUPER:
            return code.co_names[arg >> 2], bool(arg & 2)
        if op in _CALLS:
            is_asked = i + 1 < len(steps) and steps[i + 1][1] in _LOAD_ATTR
            return _attribute(code, steps[i + 1][2]) if is_asked else None, arg > 0
        if op not in _LOADS:
            break
    return None, True


def _asks_classes(code: CodeType) -> bool:
    """Whether it may hold the class of an object, other than to compare it or to ask for its name."""
    if "type" not in code.co_names and "__class__" not in code.co_names:
        return False
    steps = [(op, arg) for _, op, arg in _instructions(code) if op not in _TRANSPARENT]
    for i, (op, arg) in enumerate(steps):
        if op in _LOAD_ATTR and _attribute(code, arg) == "__class__":
            after = i + 1
        elif op == _LOAD_GLOBAL and code.co_names[arg >> 1] == "type":
            after = next((j + 1 for j in range(i, len(steps)) if steps[j][0] in _CALLS), len(steps))
        else:
            continue
        if not _is_compared_or_named(code, steps[after : after + 6]):
            return True
    return False


def _is_compared_or_named(code: CodeType, steps: Sequence[tuple[int, int]]) -> bool:
    if steps and steps[0][0] in _LOAD_ATTR and _attribute(code, steps[0][1]) in NAMES:
        return True
    for op, _ in steps:
        if op in _COMPARES:
            return True
        if op not in _LOADS:
            return False
    return False


def _attribute(code: CodeType, arg: int) -> str:
    return code.co_names[arg >> 1 if _METHOD_BIT else arg]
