"""Guards: what must hold for a recorded program to stand for a call, as one generated Python function.

    table = GuardSet(log.reads, args, kwargs, constants=entry.constants)
    table.check(args, kwargs)      -> None if all hold, else the index of the first guard that failed
    table.guards[i], table.explain(i, args, kwargs), table.source

    free = {"args[0]": TensorForm(("B", 16)), "args[1]": NumberForm("n")}     sizes and numbers that are not compared
    GuardSet(log.reads, args, kwargs, free=free, checks=[SizeCheck("B % 8 == 0"), SizeCheck("n >= 0")])
    table.free_values(args, kwargs)    -> {"B": 24, "n": 3}

Invariant: `check` answers None only if each guard holds by itself. The generated function tests groups; when a group
fails, the guards are asked one by one, exactly, so an equal value in another object passes and the index is precise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, Protocol

import torch

from smelt._torch import state as torch_state
from smelt._torch.exact import MISSING, same
from smelt.diag import Span
from smelt.diag.records import record
from smelt.runtime.guarding.guard_args import NOTHING_OUTSIDE, ArgumentTests, Outside
from smelt.runtime.guarding.guard_constants import Constants
from smelt.runtime.guarding.guard_facts import Facts, FactTest
from smelt.runtime.guarding.guard_layouts import Layouts
from smelt.runtime.guarding.guard_sizes import Form, NumberForm, SizeCheck, TensorForm


class ReadFact(Protocol):
    """A read of the world outside the program; the kinds and their meaning are in `guard_facts`."""

    @property
    def kind(self) -> str: ...
    @property
    def owner(self) -> Any: ...
    @property
    def key(self) -> Any: ...
    @property
    def value(self) -> Any: ...
    @property
    def name(self) -> str: ...
    @property
    def span(self) -> Span | None: ...


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
        return f"{self.expr}: {_short(self.seen)}{where}"


_STATE: tuple[tuple[str, str, Callable[[], Any]], ...] = (
    ("torch.is_grad_enabled()", "grad", torch_state.is_grad_enabled),
    ("torch.is_inference_mode_enabled()", "inference", torch_state.is_inference),
    ("autocast dtypes", "autocast", torch_state.autocast),
    ("torch.get_default_dtype()", "default_dtype", torch_state.default_dtype),
    ("torch.are_deterministic_algorithms_enabled()", "deterministic", torch_state.is_deterministic),
    ("torch.get_float32_matmul_precision()", "precision", torch_state.matmul_precision),
)
# A comparison that raises (of tensors, where a value was replaced) means "changed": the exact tests decide.
_FRAME = """def check(args, kwargs):
    try:
{body}    except Exception:
        return failed(args, kwargs)
    return None
"""
_requires_grad = attrgetter("requires_grad")
_MISSING_ARGUMENT = "<no such argument>"


class GuardSet:
    """The guards of one recorded program.

    writes: whether it writes into memory that others may see. facts: what it reads; grads: whether each of the tensors
    among them required gradients (empty where that did not matter); layouts: of these and of `state`; hooks: torch's
    tables of hooks for all modules, hook_contents: what was in them. free: forms of the arguments whose sizes, or whose
    values, are not compared, by place; checks: what these must fulfil (`guard_sizes`). opened: ids of objects of the
    arguments that are compared part by part; outside: what it reads by itself that an argument is, or could be.
    named: code over the arguments as people know it. enables_grad: whether gradients matter in any mode.
    """

    def __init__(
        self,
        reads: Iterable[ReadFact],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        constants: Sequence[torch.Tensor] = (),
        state: Sequence[torch.Tensor] = (),
        writes: bool = True,
        free: Mapping[str, Form] | None = None,
        checks: Sequence[SizeCheck] = (),
        opened: Collection[int] = (),
        outside: Outside = NOTHING_OUTSIDE,
        named: Callable[[str], str] = str,
        enables_grad: bool = False,
    ) -> None:
        self.writes, self.outside, self._named = writes, outside, named
        self.facts = Facts(reads)
        self._arguments = ArgumentTests(args, kwargs, self.facts.tensors, writes, free, checks, opened, outside)
        self._state = tuple((shown, read, read()) for shown, _, read in _STATE)
        self.grads = (
            [t.requires_grad for t in self.facts.tensors] if enables_grad or torch_state.is_grad_enabled() else []
        )
        self.layouts = Layouts(list({id(t): t for t in (*self.facts.tensors, *state)}.values()), writes)
        self.hooks = torch_state.global_hooks()
        self.hook_contents = tuple(dict(table) for table in self.hooks)
        self.watch(constants)

    def watch(self, constants: Sequence[torch.Tensor]) -> None:
        """Guard the contents of these tensors as they are now, in place of those guarded so far."""
        self.constants = Constants(constants)
        self.layouts.leave_addresses_of(constants)
        self.source, scope = self._generate()
        exec(compile(self.source, "<smelt guards>", "exec"), scope)
        self.check: Callable[[tuple[Any, ...], Mapping[str, Any]], int | None] = scope["check"]
        self.__dict__.pop("guards", None)  # listed anew when next asked for

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """The tensors that the program reads by itself: parameters, buffers, globals."""
        return self.facts.tensors

    @property
    def free(self) -> Mapping[str, Form]:
        """The forms of arguments that are not compared as a whole, by place."""
        return self._arguments.free

    @property
    def checks(self) -> Sequence[SizeCheck]:
        """What free sizes and numbers must fulfil."""
        return self._arguments.checks

    @property
    def opened(self) -> Collection[str]:
        """The places of objects that are compared part by part."""
        return self._arguments.opened

    def free_values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The value of each free name in a call that has the arguments' structure."""
        return self._free_values(args, kwargs)

    @cached_property
    def _free_values(self) -> Callable[[tuple[Any, ...], Mapping[str, Any]], dict[str, Any]]:
        pairs = ", ".join(f"{name!r}: {place}" for name, place in self._arguments.places.items())
        found: Callable[..., dict[str, Any]] = eval(f"lambda args, kwargs: {{{pairs}}}", dict(self._arguments.scope))
        return found

    @property
    def knows_aliases(self) -> bool:
        """Whether it matters which arguments share memory, and with what."""
        return any(test.kind == "aliasing" for test in self._arguments.tests)

    def refresh(self) -> None:
        """Take the constants' present contents as those the program holds (after it was packed anew)."""
        self.constants.refresh()

    @cached_property
    def guards(self) -> tuple[Guard, ...]:
        """Every guard, in the order of their indices: arguments, torch's settings, what the program read, constants."""
        tests = self._arguments.tests
        made = [Guard(t.kind, self._named(t.shown or t.place), self._seen(t.seen), t.span) for t in tests]
        made += [Guard("state", shown, seen) for shown, _, seen in self._state]
        made += [Guard("hooks", "torch.nn's global module hooks", [len(t) for t in self.hook_contents])]
        made += [Guard("requires_grad", "the tensors that the program reads", any(self.grads))]
        made += [Guard("layout", "the tensors that the program reads", "unchanged")]
        made += [Guard(t.kind, t.name, t.seen, t.span) for t in self.facts.tests]
        names = self.facts.tensor_names()
        made += [
            Guard("constant", names.get(id(t), f"constant {i}"), tuple(t.shape))
            for i, t in enumerate(self.constants.tensors)
        ]
        return tuple(made)

    def _seen(self, value: Any) -> Any:
        """What a guard has seen; the names of keywords that are no program's as people know them."""
        if type(value) is tuple and all(type(name) is str for name in value):
            return tuple(self._named(f"kwargs[{name!r}]") if name.startswith("<") else name for name in value)
        return value

    def is_of_constant(self, failed: int) -> bool:
        """Whether a guard is one on the contents of a constant: all others hold where it is the first to fail."""
        return failed >= len(self.guards) - len(self.constants.tensors)

    @property
    def listed(self) -> tuple[Guard, ...]:
        """The guards that a user has something to do with: without those on the wrappers put around `forward`."""
        first = len(self.guards) - len(self.constants.tensors) - len(self.facts.tests)
        hidden = {first + i for i, test in enumerate(self.facts.tests) if test.is_internal}
        return tuple(guard for i, guard in enumerate(self.guards) if i not in hidden)

    def replaced(self, failed: int) -> str | None:
        """The place of an argument that a guard wants to be one object, and that is another one."""
        tests = self._arguments.tests
        return tests[failed].place if failed < len(tests) and tests[failed].kind == "identity" else None

    def explain(self, failed: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """A sentence with the guard, the value it needs and the value there is now."""
        guard = self.guards[failed]
        if guard.kind == "constant":
            return f"the contents of {guard.expr} were changed"
        changed = self.layouts.changed() if guard.kind == "layout" else None
        if changed is not None:
            name = self.facts.tensor_names().get(id(changed), "a tensor that the program reads")
            return f"{name} has another layout, now {_short(changed)}"
        where = f" (read at {guard.span})" if guard.span is not None else ""
        if guard.kind == "check":
            return f"{guard.expr} does not hold for {self._shown_values(args, kwargs)}{where}"
        before, now = _difference(guard.seen, self._now(failed, args, kwargs))
        if failed >= len(self._arguments.tests) and same(now, before):
            return f"{guard.kind} of {guard.expr} holds another object that is equal to {_short(before)}{where}"
        return f"{guard.kind} of {guard.expr} was {_short(before)}, now {_short(now)}{where}"

    def _shown_values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        found = self.free_values(args, kwargs)
        places = {name: self._named(place) for name, place in self._arguments.names.items()}
        return ", ".join(f"{name} = {value} ({places[name]})" for name, value in found.items())

    def _now(self, index: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        tests = self._arguments.tests
        if index < len(tests):
            try:
                value = eval(tests[index].where, dict(self._arguments.scope), {"args": args, "kwargs": kwargs})
                return _aspect(tests[index].kind, value)
            except (LookupError, AttributeError, TypeError):
                return _MISSING_ARGUMENT
        index -= len(tests)
        if index < len(self._state):
            return self._state[index][1]()
        index -= len(self._state) + 3
        if index < 0:
            return [len(table) for table in self.hooks] if index == -3 else "another pattern"
        return self.facts.tests[index].now()

    def first_failed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Ask the guards one by one; None if all hold after all."""
        index = 0
        names = {"args": args, "kwargs": kwargs}
        for test in self._compiled_tests:
            try:
                if not eval(test, self._arguments.scope, names):
                    return index
            except (LookupError, AttributeError, TypeError, ArithmeticError):
                return index
            index += 1
        for _, read, seen in self._state:
            if read() != seen:
                return index
            index += 1
        for holds in (self.hooks == self.hook_contents, self._grads_unchanged(), self.layouts.unchanged()):
            if not holds:
                return index
            index += 1
        failed = self.facts.first_failed()
        if failed is not None:
            return index + failed
        changed = None if self.constants.unchanged() else self.constants.first_changed()
        return None if changed is None else index + len(self.facts.tests) + changed

    def changed_fact(self) -> FactTest | None:
        """The first fact of what was read outside the arguments that does not hold any more."""
        failed = self.facts.first_failed()
        return None if failed is None else self.facts.tests[failed]

    @cached_property
    def _compiled_tests(self) -> list[Any]:
        return [compile(test.code, "<smelt guard>", "eval") for test in self._arguments.tests]

    def _grads_unchanged(self) -> bool:
        return not self.grads or list(map(_requires_grad, self.facts.tensors)) == self.grads

    def _generate(self) -> tuple[str, dict[str, Any]]:
        scope = dict(self._arguments.scope)
        scope["failed"] = self.first_failed
        body = list(self._arguments.lines)
        conditions = []
        for (_, name, read), (_, _, seen) in zip(_STATE, self._state, strict=True):
            if name == "autocast" and not seen:
                scope["any_autocast"] = torch_state.is_any_autocast
                conditions.append("not any_autocast()")
                continue
            scope[f"read_{name}"], scope[f"seen_{name}"] = read, seen
            conditions.append(f"read_{name}() {'==' if name in ('autocast', 'precision') else 'is'} seen_{name}")
        scope["hooks"], scope["hook_contents"] = self.hooks, self.hook_contents
        conditions.append("hooks == hook_contents" if any(self.hook_contents) else "not any(hooks)")
        body.append(f"if not ({' and '.join(conditions)}): return failed(args, kwargs)")
        body += self.facts.emit(scope)
        if self.grads:
            scope["grads_unchanged"] = self._grads_unchanged
            body.append("if not grads_unchanged(): return failed(args, kwargs)")
        if self.layouts:
            scope["layouts_unchanged"] = self.layouts.unchanged
            body.append("if not layouts_unchanged(): return failed(args, kwargs)")
        if self.constants.tensors:
            scope["constants_unchanged"] = self.constants.unchanged
            body.append("if not constants_unchanged(): return failed(args, kwargs)")
        return _FRAME.format(body="".join(f"        {line}\n" for line in body)), scope


def _aspect(kind: str, value: Any) -> Any:
    """What of an argument a guard of this kind looked at."""
    if kind in ("dtype", "layout", "device", "requires_grad", "shape"):
        found = getattr(value, kind)
        return tuple(found) if kind == "shape" else found
    if kind == "stride":
        return value.stride() if isinstance(value, torch.Tensor) else value
    if kind == "type":
        return type(value)
    if kind == "length":
        return len(value)
    if kind == "keys":
        return list(value)
    return value


def _difference(before: Any, now: Any) -> tuple[Any, Any]:
    """Of two dicts, only the entries that differ; other values as they are."""
    if not (isinstance(before, dict) and isinstance(now, dict)):
        return before, now
    keys = [k for k in {**before, **now} if not same(before.get(k, MISSING), now.get(k, MISSING))]
    return {k: before.get(k, MISSING) for k in keys} or before, {k: now.get(k, MISSING) for k in keys} or now


def _short(value: Any, limit: int = 80) -> str:
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


__all__ = ["FactTest", "Form", "Guard", "GuardSet", "NumberForm", "ReadFact", "SizeCheck", "TensorForm"]
