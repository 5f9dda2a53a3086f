"""Which code asks for the class of a thing (`type(n) is int`): to it, a stand-in is something else than it stands for.

`isinstance` and `n.__class__` of a number are answered by the stand-in itself; `type`, `tensor.__class__` and
`functools.singledispatch` look past it, and so do some modules of the standard library. Converted code asks the
runtime, which knows what stands for what.
"""

from __future__ import annotations

import dis
import operator
import types
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from smelt._torch.seen.staged_fakes import is_fake
from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.values import is_sized, number_of, plain
from smelt.capture.staging.fakes.symbols import is_staged, slot_of
from smelt.capture.staging.flow.iterables import StagedRange, StagedSequence
from smelt.ir import BOOL, COMPLEX, FLOAT, INT, STR

if TYPE_CHECKING:
    from smelt.capture.staging.session import Session

CLASSES: dict[Any, type] = {INT: int, FLOAT: float, BOOL: bool, COMPLEX: complex, STR: str}
# Take numbers apart by what they are made of.
_LOOKING = frozenset(("json", "_json", "pickle", "_pickle", "marshal", "decimal", "_decimal", "statistics", "pprint",
                      "datetime", "_datetime", "plistlib", "ast"))  # fmt: skip
_IS_OP = dis.opmap["IS_OP"]
_BETWEEN = frozenset(("CACHE", "PRECALL", "PUSH_NULL", "NOP", "EXTENDED_ARG"))
_GLOBALS = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))


def asks_classes(frame: types.FrameType) -> bool:
    """Whether the code of a frame that has just begun may ask for the class of what it holds, or which object it is."""
    return _asks_identity(frame.f_code) or asks_types(frame)


def asks_types(frame: types.FrameType) -> bool:
    """Whether the code of a frame that has just begun may ask for the class of what it holds."""
    code = frame.f_code
    if ("type" in code.co_names and _calls_type(code)) or "__class__" in code.co_names:
        return True
    known = frame.f_globals
    if any(_is_asking(known[name]) for name in code.co_names if name in known):
        return True
    return any(value is type for value in frame.f_locals.values())


def _is_asking(value: object) -> bool:
    if value is type or dispatcher_of(value) is not None:
        return True
    if isinstance(value, (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)):
        return looks_inside(value)
    return False


def dispatcher_of(value: object) -> Any:
    """What gives a `functools.singledispatch` function's implementation for a class; None for anything else."""
    if not isinstance(value, types.FunctionType) or "registry" not in value.__dict__:
        return None
    return value.__dict__.get("dispatch")


def looks_inside(value: object) -> bool:
    """Whether a module, or a function or class of one, looks at what numbers are made of; so does `int.bit_length`."""
    if getattr(value, "__objclass__", None) in (int, float):
        return True
    home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return isinstance(home, str) and home.partition(".")[0] in _LOOKING


@lru_cache(maxsize=4096)
def _calls_type(code: types.CodeType) -> bool:
    """Whether code has the builtin `type`, other than to ask it for the class of `self`."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in _BETWEEN]
    for i, step in enumerate(steps):
        if step.opname in _GLOBALS and step.argval == "type":
            names = [(s.opname, s.argval) for s in steps[i + 1 : i + 3]]
            of_self = names[:1] in ([("LOAD_FAST", "self")], [("LOAD_FAST_BORROW", "self")])
            if not (of_self and len(names) == 2 and names[1][0] == "CALL"):
                return True
    return False


@lru_cache(maxsize=4096)
def _asks_identity(code: types.CodeType) -> bool:
    """Whether code asks for the identity of something with anything else than None, True, False and `...`."""
    if _IS_OP not in code.co_code[::2]:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in _BETWEEN]
    return any(
        step.opname == "IS_OP" and not (before.opname == "LOAD_CONST" and before.argval in (None, True, False, ...))
        for before, step in pairwise(steps)
    )


def class_of(session: Session, value: object) -> type:
    """What `type` says of a value where stand-ins are what they stand for."""
    if is_sized(value):
        return type(at_hand(number_of(value)))
    if isinstance(value, torch.Tensor) and session.recorder.slot_of(value).kind != "unknown":
        return torch.Tensor if is_fake(value) else type(value)
    if isinstance(value, StagedRange):
        return range
    return CLASSES.get(slot_of(value).type, type(value)) if is_staged(value) else type(value)


def is_stand_in(value: object) -> bool:
    """Whether `type` says something else of a value than the program expects."""
    return is_sized(value) or is_staged(value) or is_fake(value) or isinstance(value, StagedSequence)


def is_other_object(value: object) -> bool:
    """Whether `is` says something else of a value than the program expects: one tensor has one stand-in."""
    return is_stand_in(value) and not is_fake(value)


def all_plain(value: Any) -> Any:
    """The same with sizes as the plain numbers that they are, however deep in Python's own containers."""
    if is_sized(value):
        return plain(value)
    kind = type(value)
    if kind is list or kind is tuple:
        items = [all_plain(item) for item in value]
        return value if all(map(operator.is_, items, value)) else kind(items)
    if kind is dict:
        pairs = {all_plain(key): all_plain(item) for key, item in value.items()}
        return value if all(pairs.get(key) is item for key, item in value.items()) else pairs
    return value
