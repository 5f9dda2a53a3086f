"""Which values of a match a replacement is given: by name where the names fit, else in the order of the pattern."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from smelt.diag import ScheduleError
from smelt.ir import Arg, Value
from smelt.scheduling.finding.match import Match
from smelt.scheduling.modules.functions import name_of, signature_of

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class Bound:
    """A function called with some of its parameters by name.

    names: of the operands; None where they are given by position. constants: further arguments.
    """

    function: Callable[..., Any]
    names: tuple[str, ...] | None
    constants: Mapping[str, Any]

    def __call__(self, *operands: Any) -> Any:
        if self.names is None:
            return self.function(*operands, **self.constants)
        return self.function(**dict(zip(self.names, operands, strict=True)), **self.constants)


def bind(function: Any, matches: Sequence[Match], constants: Mapping[str, Any]) -> tuple[Bound, list[Arg]]:
    """How a function or module is called in the place of matches, and with which values.

    Parameters are taken by name where all that have no default are names of the pattern's (and, for several matches,
    mean one value); else by position: what the pattern's parameters stand for, for several matches each value once.
    Raises: ScheduleError (S0608) where it takes another number.
    """
    given = _given(matches)
    by_name = _by_name(matches)
    signature = signature_of(function)
    if signature is None:
        return Bound(function, None, constants), given
    parameters = [p for p in signature.parameters.values() if p.name not in constants]
    plain = [p for p in parameters if p.kind in _POSITIONAL]
    needed = [p for p in parameters if p.default is p.empty and p.kind in (*_POSITIONAL, p.KEYWORD_ONLY)]
    if by_name and needed and all(p.name in by_name and p.kind is not p.POSITIONAL_ONLY for p in needed):
        used = [p.name for p in parameters if p.name in by_name and p.kind is not p.POSITIONAL_ONLY]
        return Bound(function, tuple(used), constants), [by_name[name] for name in used]
    fewest = sum(p.default is p.empty for p in plain)
    most = len(given) if any(p.kind is p.VAR_POSITIONAL for p in parameters) else len(plain)
    unfilled = [p.name for p in needed if p.kind is p.KEYWORD_ONLY]
    if unfilled or not fewest <= len(given) <= most:
        where = next((node.span for node in matches[0].nodes if node.span is not None), None)
        takes = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        raise ScheduleError(
            f"{name_of(function)} takes {takes} argument{'s' * (takes != '1')}, and the match passes {len(given)}",
            where,
            why=_why(matches, given) + (f"; {', '.join(unfilled)} is not among them" if unfilled else ""),
            fix="give one that takes as many, give it defaults, or arguments={...}", code="S0608",
        )  # fmt: skip
    return Bound(function, None, constants), given


def _given(matches: Sequence[Match]) -> list[Arg]:
    """What the parameters of the pattern stand for, in order; of several matches each value once."""
    lists: list[list[Arg]] = [[*match.bound.values()] if match.bound else [*match.inputs] for match in matches]
    if all(_same(items, lists[0]) for items in lists):
        return lists[0]
    found: list[Arg] = []
    for items in lists:
        found += [item for item in items if not any(_is_one(item, other) for other in found)]
    return found


def _by_name(matches: Sequence[Match]) -> dict[str, Arg]:
    names = matches[0].bound
    return {
        name: arg for name, arg in names.items() if all(_is_one(match.bound.get(name), arg) for match in matches)
    }  # fmt: skip


def _same(items: Sequence[Arg], others: Sequence[Arg]) -> bool:
    return len(items) == len(others) and all(map(_is_one, items, others))


def _is_one(arg: Arg, other: Arg) -> bool:
    if isinstance(arg, Value) or isinstance(other, Value):
        return arg is other
    return type(arg) is type(other) and arg == other


def _why(matches: Sequence[Match], given: Sequence[Arg]) -> str:
    shown = ", ".join(f"%{arg.name}" if isinstance(arg, Value) else repr(arg) for arg in given)
    if len(matches) == 1:
        return f"the match has ({shown})"
    return f"the {len(matches)} matches have ({shown}) together"
