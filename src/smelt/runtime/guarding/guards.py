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
from typing import Any, Protocol

import torch

from smelt._torch import state as torch_state
from smelt.diag import Span
from smelt.runtime.guarding.guard_args import NOTHING_OUTSIDE, ArgumentTests, Outside
from smelt.runtime.guarding.guard_constants import Constants
from smelt.runtime.guarding.guard_facts import Facts, FactTest
from smelt.runtime.guarding.guard_kinds import (
    ARGUMENTS,
    CONSTANTS,
    FACTS,
    ORDER,
    PYTHON_ORDER,
    Call,
    Guard,
    Guarded,
    GuardKind,
    explain,
    settings_now,
)
from smelt.runtime.guarding.guard_layouts import Layouts
from smelt.runtime.guarding.guard_sizes import Form, NumberForm, SizeCheck, TensorForm


class ReadFact(Protocol):
    """A read of the world outside the program; the kinds and their meaning are in `fact_kinds`."""

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


# A comparison that raises (of tensors, where a value was replaced) means "changed": the exact tests decide.
_FRAME = """def check(args, kwargs):
    try:
{body}    except Exception:
        return failed(args, kwargs)
    return None
"""


class GuardSet(Guarded):
    """The guards of one recorded program.

    writes: whether it writes into memory that others may see. layouts: of what it reads and of `state`. free: forms of
    the arguments whose sizes, or whose values, are not compared, by place; checks: what these must fulfil
    (`guard_sizes`). opened: ids of objects of the arguments that are compared part by part; outside: what it reads by
    itself that an argument is, or could be. named: code over the arguments as people know it. enables_grad: whether
    gradients matter in any mode.
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
        self.named = named
        self.facts = Facts(reads)
        self.arguments = ArgumentTests(args, kwargs, self.facts.tensors, writes, free, checks, opened, outside)
        self.settings = settings_now()
        self.grads = (
            [t.requires_grad for t in self.facts.tensors] if enables_grad or torch_state.is_grad_enabled() else []
        )
        self.layouts = Layouts(list({id(t): t for t in (*self.facts.tensors, *state)}.values()), writes)
        self.watch(constants)

    def watch(self, constants: Sequence[torch.Tensor]) -> None:
        """Guard the contents of these tensors as they are now, in place of those guarded so far."""
        self.constants = Constants(constants)
        self.layouts.leave_addresses_of(constants)
        self._write()

    def follow(self) -> bool:
        """Say of the lists that a layer has made anew, of the same weights, what was said of those before. Whether
        there are such, and all facts hold again.
        """
        moved = self.facts.moved()
        if moved is None:
            return False
        self.facts = moved
        self._write()
        return True

    def _write(self) -> None:
        """The lines of the check function."""
        scope = {**self.arguments.scope, "failed": self.first_failed}
        lines = [line for kind in PYTHON_ORDER for line in kind.lines(self, scope)]
        self.source = _FRAME.format(body="".join(f"        {line}\n" for line in lines))
        self._text_and_scope = self.source, scope  # at once, for threads that look meanwhile
        for made in ("guards", "_owners", "check"):
            self.__dict__.pop(made, None)  # listed anew when next asked for

    @cached_property
    def check(self) -> Callable[[tuple[Any, ...], Mapping[str, Any]], int | None]:
        """None for a call whose guards hold, else the index of the first that does not; made when first needed."""
        source, scope = self._text_and_scope
        exec(compile(source, "<smelt guards>", "exec"), scope)
        made: Callable[[tuple[Any, ...], Mapping[str, Any]], int | None] = scope["check"]
        return made

    @property
    def tensors(self) -> Sequence[torch.Tensor]:
        """The tensors that the program reads by itself: parameters, buffers, globals."""
        return self.facts.tensors

    @property
    def free(self) -> Mapping[str, Form]:
        """The forms of arguments that are not compared as a whole, by place."""
        return self.arguments.free

    @property
    def checks(self) -> Sequence[SizeCheck]:
        """What free sizes and numbers must fulfil."""
        return self.arguments.checks

    @property
    def opened(self) -> Collection[str]:
        """The places of objects that are compared part by part."""
        return self.arguments.opened

    def free_values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The value of each free name in a call that has the arguments' structure."""
        return self.arguments.free_values(args, kwargs)

    def refresh(self) -> None:
        """Take the constants' present contents as those the program holds (after it was packed anew)."""
        self.constants.refresh()

    @cached_property
    def guards(self) -> tuple[Guard, ...]:
        """Every guard, in the order of their indices (`guard_kinds.ORDER`)."""
        return tuple(guard for kind in ORDER for guard in kind.rows(self))

    @cached_property
    def _owners(self) -> tuple[tuple[GuardKind, int], ...]:
        """Of each guard its kind, and its index among those of the kind."""
        return tuple((kind, i) for kind in ORDER for i in range(kind.count(self)))

    def is_of_constant(self, failed: int) -> bool:
        """Whether a guard is one on the contents of a constant: all others hold where it is the first to fail."""
        return self._owners[failed][0] is CONSTANTS

    @property
    def listed(self) -> tuple[Guard, ...]:
        """The guards that a user has something to do with: without those on the wrappers put around `forward`."""
        facts, owners = self.facts.tests, zip(self.guards, self._owners, strict=True)
        return tuple(guard for guard, (kind, i) in owners if kind is not FACTS or not facts[i].is_internal)

    def replaced(self, failed: int) -> str | None:
        """The place of an argument that a guard wants to be one object, and that is another one."""
        kind, i = self._owners[failed]
        if kind is not ARGUMENTS or self.arguments.tests[i].kind != "identity":
            return None
        return self.arguments.tests[i].place

    def explain(self, failed: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """A sentence with the guard, the value it needs and the value there is now."""
        kind, i = self._owners[failed]
        return explain(self, kind, i, kind.rows(self)[i], Call(args, kwargs))

    def first_failed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
        """Ask the guards one by one; None if all hold after all."""
        call, first = Call(args, kwargs), 0
        for kind in ORDER:
            failed = kind.failed(self, call)
            if failed is not None:
                return first + failed
            first += kind.count(self)
        return None

    def changed_fact(self) -> FactTest | None:
        """The first fact of what was read outside the arguments that does not hold any more."""
        failed = self.facts.first_failed()
        return None if failed is None else self.facts.tests[failed]


__all__ = ["FactTest", "Form", "Guard", "GuardSet", "NumberForm", "ReadFact", "SizeCheck", "TensorForm"]
