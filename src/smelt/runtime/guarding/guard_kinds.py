"""The kinds of guards: each is one record with all forms that its guards have, and `ORDER` is the order of all.

    for kind in ORDER: kind.rows(guarded)       for people                kind.now(guarded, i, call)     the value now
                       kind.lines(guarded, scope)   generated Python      kind.words(guarded, words)     native code
                       kind.failed(guarded, call)   asked one by one      kind.explain(guarded, i, call) why it failed

Invariant: whatever form is asked, a guard holds by itself: what a group of tests cannot tell, `failed` decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import torch

from smelt._torch import state as torch_state
from smelt._torch.exact import MISSING, same
from smelt.diag import Span
from smelt.diag.records import record
from smelt.runtime.guarding.guard_args import ArgumentTests
from smelt.runtime.guarding.guard_constants import Constants
from smelt.runtime.guarding.guard_facts import Facts
from smelt.runtime.guarding.guard_layouts import Layouts
from smelt.runtime.guarding.native_words import (
    constants_words,
    facts_words,
    grads_words,
    is_compiling_words,
    layouts_words,
    settings_words,
)
from smelt.runtime.guarding.words import Words
from smelt.runtime.guarding.words_of_arguments import Arguments

_FAIL = "return failed(args, kwargs)"
_MISSING_ARGUMENT = "<no such argument>"
_READ_TENSORS = "the tensors that the program reads"
_ANOTHER = "another pattern"
_requires_grad = attrgetter("requires_grad")


@record
class Guard:
    """One thing that must hold. kind: what sort; expr: readable, over the user's names; seen: the value it must have.

    span: the line of the user's program that read it, if one did.
    """

    kind: str
    expr: str
    seen: Any
    span: Span | None = None

    def __str__(self) -> str:
        where = f"        # {self.span}" if self.span is not None else ""
        return f"{self.expr}: {short(self.seen)}{where}"


@record
class Call:
    """The arguments of one call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def scope(self) -> dict[str, Any]:
        """As code over the arguments names them."""
        return {"args": self.args, "kwargs": self.kwargs}


class Guarded:
    """What the guards of one program are about, as it was when they were made.

    arguments: the tests of a call's; settings: of torch's (`SETTINGS`) what each was; facts: what the program reads by
    itself; grads: whether each of the tensors among them required gradients (empty where that did not matter);
    layouts: of these; constants: tensors whose contents are part of the program. named: code over the arguments as
    people know it.
    """

    arguments: ArgumentTests
    settings: tuple[Any, ...]
    facts: Facts
    grads: list[bool]
    layouts: Layouts
    constants: Constants
    named: Callable[[str], str]


# --- torch's settings ------------------------------------------------------------------------------------------------


def _unchanged(value: Any) -> Any:
    return value


def _is(name: str, read: Callable[[], Any], seen: Any, scope: dict[str, Any]) -> str:
    scope[f"read_{name}"], scope[f"seen_{name}"] = read, seen
    return f"read_{name}() is seen_{name}"


def _equals(name: str, read: Callable[[], Any], seen: Any, scope: dict[str, Any]) -> str:
    return _is(name, read, seen, scope).replace(" is ", " == ")


def _autocast(name: str, read: Callable[[], Any], seen: Any, scope: dict[str, Any]) -> str:
    if seen:
        return _equals(name, read, seen, scope)
    scope["any_autocast"] = torch_state.is_any_autocast
    return "not any_autocast()"


def _hooks(name: str, read: Callable[[], Any], seen: Any, scope: dict[str, Any]) -> str:
    scope["hooks"], scope["hook_contents"] = read(), seen
    return "hooks == hook_contents" if any(seen) else "not any(hooks)"


@record
class Setting:
    """One of torch's settings. shown, kind: for people; read: the value now; name, code: its test in generated Python.

    copied: what of it is compared later; told: what of that people are told.
    """

    name: str
    shown: str
    read: Callable[[], Any]
    code: Callable[[str, Callable[[], Any], Any, dict[str, Any]], str] = _is
    kind: str = "state"
    copied: Callable[[Any], Any] = _unchanged
    told: Callable[[Any], Any] = _unchanged


SETTINGS: tuple[Setting, ...] = (
    Setting("grad", "torch.is_grad_enabled()", torch_state.is_grad_enabled),
    Setting("inference", "torch.is_inference_mode_enabled()", torch_state.is_inference),
    Setting("autocast", "autocast dtypes", torch_state.autocast, _autocast),
    Setting("default_dtype", "torch.get_default_dtype()", torch_state.default_dtype),
    Setting("deterministic", "torch.are_deterministic_algorithms_enabled()", torch_state.is_deterministic),
    Setting("precision", "torch.get_float32_matmul_precision()", torch_state.matmul_precision, _equals),
    Setting(
        "hooks",
        "torch.nn's global module hooks",
        torch_state.global_hooks,
        _hooks,
        "hooks",
        copied=lambda tables: tuple(dict(table) for table in tables),
        told=lambda tables: [len(table) for table in tables],
    ),
)


def settings_now() -> tuple[Any, ...]:
    """What each of `SETTINGS` is."""
    return tuple(setting.copied(setting.read()) for setting in SETTINGS)


# --- the record ------------------------------------------------------------------------------------------------------


def _no_words(guarded: Guarded, words: Words) -> None:
    """Nothing that native code has to ask."""


def _no_reason(guarded: Guarded, index: int, guard: Guard, call: Call) -> str | None:
    return None


@record
class GuardKind:
    """One kind of guard. In all forms `index` counts the guards of the kind, in the order of `rows`.

    count: how many there are; rows: each, for people; failed: the index of the first that does not hold, asked one by
    one; now: the value that a guard looks at; explain: why it failed, where that is more than another value; lines: of
    the generated function, with the names that they use put into a scope; words: the same for native code.
    is_of_objects: whether an equal value may be another object.
    """

    name: str
    count: Callable[[Guarded], int]
    rows: Callable[[Guarded], list[Guard]]
    failed: Callable[[Guarded, Call], int | None]
    now: Callable[[Guarded, int, Call], Any]
    lines: Callable[[Guarded, dict[str, Any]], list[str]]
    words: Callable[[Guarded, Words], None] = _no_words
    explain: Callable[[Guarded, int, Guard, Call], str | None] = _no_reason
    is_of_objects: bool = True


# --- the arguments ---------------------------------------------------------------------------------------------------


def _argument_rows(guarded: Guarded) -> list[Guard]:
    named, tests = guarded.named, guarded.arguments.tests
    return [Guard(t.kind, named(t.shown or t.place), _seen(guarded, t.seen), t.span) for t in tests]


def _seen(guarded: Guarded, value: Any) -> Any:
    """What a guard has seen; the names of keywords that are no program's as people know them."""
    if type(value) is tuple and all(type(name) is str for name in value):
        return tuple(guarded.named(f"kwargs[{name!r}]") if name.startswith("<") else name for name in value)
    return value


def _argument_failed(guarded: Guarded, call: Call) -> int | None:
    names = call.scope
    for i, test in enumerate(guarded.arguments.compiled_tests):
        try:
            if not eval(test, guarded.arguments.scope, names):
                return i
        except (LookupError, AttributeError, TypeError, ArithmeticError):
            return i
    return None


def _argument_now(guarded: Guarded, index: int, call: Call) -> Any:
    test = guarded.arguments.tests[index]
    try:
        value = eval(test.where, dict(guarded.arguments.scope), call.scope)
        return _ASPECTS.get(test.kind, _unchanged)(value)
    except (LookupError, AttributeError, TypeError):
        return _MISSING_ARGUMENT


_ASPECTS: Mapping[str, Callable[[Any], Any]] = {
    "dtype": lambda value: value.dtype,
    "layout": lambda value: value.layout,
    "device": lambda value: value.device,
    "requires_grad": lambda value: value.requires_grad,
    "shape": lambda value: tuple(value.shape),
    "stride": lambda value: value.stride() if isinstance(value, torch.Tensor) else value,
    "type": type,
    "length": len,
    "keys": list,
}
"""What of an argument a guard looks at; the others look at all of it."""


def _argument_reason(guarded: Guarded, index: int, guard: Guard, call: Call) -> str | None:
    if guard.kind != "check":
        return None
    found = guarded.arguments.free_values(call.args, call.kwargs)
    places = {name: guarded.named(place) for name, place in guarded.arguments.names.items()}
    values = ", ".join(f"{name} = {value} ({places[name]})" for name, value in found.items())
    return f"{guard.expr} does not hold for {values}{_where(guard.span)}"


def _argument_words(guarded: Guarded, words: Words) -> None:
    Arguments(words, guarded.arguments).write(words.args, words.kwargs)


ARGUMENTS = GuardKind(
    "argument",
    lambda guarded: len(guarded.arguments.tests),
    _argument_rows,
    _argument_failed,
    _argument_now,
    lambda guarded, scope: list(guarded.arguments.lines),
    _argument_words,
    _argument_reason,
    is_of_objects=False,
)

# --- torch's settings ------------------------------------------------------------------------------------------------


def _setting_rows(guarded: Guarded) -> list[Guard]:
    pairs = zip(SETTINGS, guarded.settings, strict=True)
    return [Guard(setting.kind, setting.shown, setting.told(seen)) for setting, seen in pairs]


def _setting_failed(guarded: Guarded, call: Call) -> int | None:
    for i, (setting, seen) in enumerate(zip(SETTINGS, guarded.settings, strict=True)):
        if setting.read() != seen:
            return i
    return None


def _setting_lines(guarded: Guarded, scope: dict[str, Any]) -> list[str]:
    pairs = zip(SETTINGS, guarded.settings, strict=True)
    conditions = [setting.code(setting.name, setting.read, seen, scope) for setting, seen in pairs]
    return [f"if not ({' and '.join(conditions)}): {_FAIL}"]


def _setting_words(guarded: Guarded, words: Words) -> None:
    settings_words(words, guarded.settings[-1])
    is_compiling_words(words)


STATE = GuardKind(
    "state",
    lambda guarded: len(SETTINGS),
    _setting_rows,
    _setting_failed,
    lambda guarded, index, call: SETTINGS[index].told(SETTINGS[index].read()),
    _setting_lines,
    _setting_words,
)

# --- the tensors that the program reads ------------------------------------------------------------------------------


def _grads_unchanged(guarded: Guarded) -> bool:
    return not guarded.grads or list(map(_requires_grad, guarded.facts.tensors)) == guarded.grads


def _grad_lines(guarded: Guarded, scope: dict[str, Any]) -> list[str]:
    if not guarded.grads:
        return []
    scope["grads_unchanged"] = lambda: _grads_unchanged(guarded)
    return [f"if not grads_unchanged(): {_FAIL}"]


GRADS = GuardKind(
    "requires_grad",
    lambda guarded: 1,
    lambda guarded: [Guard("requires_grad", _READ_TENSORS, any(guarded.grads))],
    lambda guarded, call: None if _grads_unchanged(guarded) else 0,
    lambda guarded, index, call: _ANOTHER,
    _grad_lines,
    lambda guarded, words: grads_words(words, guarded.facts, guarded.grads),
)


def _layout_lines(guarded: Guarded, scope: dict[str, Any]) -> list[str]:
    if not guarded.layouts:
        return []
    scope["layouts_unchanged"] = guarded.layouts.unchanged
    return [f"if not layouts_unchanged(): {_FAIL}"]


def _layout_reason(guarded: Guarded, index: int, guard: Guard, call: Call) -> str | None:
    changed = guarded.layouts.changed()
    if changed is None:
        return None
    name = guarded.facts.tensor_names().get(id(changed), "a tensor that the program reads")
    return f"{name} has another layout, now {short(changed)}"


LAYOUTS = GuardKind(
    "layout",
    lambda guarded: 1,
    lambda guarded: [Guard("layout", _READ_TENSORS, "unchanged")],
    lambda guarded, call: None if guarded.layouts.unchanged() else 0,
    lambda guarded, index, call: _ANOTHER,
    _layout_lines,
    lambda guarded, words: layouts_words(words, guarded.layouts),
    _layout_reason,
)

# --- facts, constants ------------------------------------------------------------------------------------------------

FACTS = GuardKind(
    "fact",
    lambda guarded: len(guarded.facts.tests),
    lambda guarded: [Guard(t.kind, t.name, t.seen, t.span) for t in guarded.facts.tests],
    lambda guarded, call: guarded.facts.first_failed(),
    lambda guarded, index, call: guarded.facts.tests[index].now(),
    lambda guarded, scope: guarded.facts.emit(scope),
    lambda guarded, words: facts_words(words, guarded.facts),
)


def _constant_rows(guarded: Guarded) -> list[Guard]:
    names = guarded.facts.tensor_names()
    tensors = enumerate(guarded.constants.tensors)
    return [Guard("constant", names.get(id(t), f"constant {i}"), tuple(t.shape)) for i, t in tensors]


def _constant_failed(guarded: Guarded, call: Call) -> int | None:
    return None if guarded.constants.unchanged() else guarded.constants.first_changed()


def _constant_lines(guarded: Guarded, scope: dict[str, Any]) -> list[str]:
    if not guarded.constants.tensors:
        return []
    scope["constants_unchanged"] = guarded.constants.unchanged
    return [f"if not constants_unchanged(): {_FAIL}"]


CONSTANTS = GuardKind(
    "constant",
    lambda guarded: len(guarded.constants.tensors),
    _constant_rows,
    _constant_failed,
    lambda guarded, index, call: tuple(guarded.constants.tensors[index].shape),
    _constant_lines,
    lambda guarded, words: constants_words(words, guarded.constants),
    lambda guarded, index, guard, call: f"the contents of {guard.expr} were changed",
)

# --- their order -----------------------------------------------------------------------------------------------------

ORDER: tuple[GuardKind, ...] = (ARGUMENTS, STATE, GRADS, LAYOUTS, FACTS, CONSTANTS)
"""The order of all guards: of their indices, and in which they are asked one by one. Where several fail, the first says
why: that a tensor has another dtype tells more than that a module holds another tensor."""
PYTHON_ORDER: tuple[GuardKind, ...] = (ARGUMENTS, STATE, FACTS, GRADS, LAYOUTS, CONSTANTS)
"""The order of the generated lines: what goes over every tensor that the program reads comes last."""
NATIVE_ORDER: tuple[GuardKind, ...] = (STATE, FACTS, LAYOUTS, GRADS, CONSTANTS, ARGUMENTS)
"""The order of native code: the arguments last, so that no Python code runs between the moment when an argument is
found and the moment when it is held; a tensor's flag is read where its layout says that it is."""


# --- for people ------------------------------------------------------------------------------------------------------


def explain(guarded: Guarded, kind: GuardKind, index: int, guard: Guard, call: Call) -> str:
    """A sentence with the guard, the value it needs and the value there is now."""
    reason = kind.explain(guarded, index, guard, call)
    if reason is not None:
        return reason
    before, now = _difference(guard.seen, kind.now(guarded, index, call))
    if kind.is_of_objects and same(now, before):
        return f"{guard.kind} of {guard.expr} holds another object that is equal to {short(before)}{_where(guard.span)}"
    return f"{guard.kind} of {guard.expr} was {short(before)}, now {short(now)}{_where(guard.span)}"


def _where(span: Span | None) -> str:
    return f" (read at {span})" if span is not None else ""


def _difference(before: Any, now: Any) -> tuple[Any, Any]:
    """Of two dicts, only the entries that differ; other values as they are."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return before, now
    keys = [k for k in {**before, **now} if not same(before.get(k, MISSING), now.get(k, MISSING))]
    return {k: before.get(k, MISSING) for k in keys} or before, {k: now.get(k, MISSING) for k in keys} or now


def short(value: Any, limit: int = 80) -> str:
    """A value on one line; tensors by type and shape, never by their elements."""
    if isinstance(value, torch.Tensor):
        return f"{type(value).__name__}{list(value.shape)} of {value.dtype} (id {id(value):#x})"
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, (dict, list, tuple)) and any(isinstance(v, torch.Tensor) for v in _values(value)):
        return f"{type(value).__name__} of {len(value)}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # the user's own `__repr__`, of an object that may be half made
        return f"a {type(value).__qualname__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value
