"""Two equal programs with state, one as it is and one compiled: the same answers, and the same state afterwards."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

import smelt
from smelt.capture.structure.state import STATE
from smelt.compiler.object.compiled import dispatcher_of


class Base(torch.nn.Module):
    """A layer of three operators; `init` makes the state of a subclass."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = torch.nn.Parameter(torch.randn(6, 6, generator=generator), requires_grad=False)
        self.init()

    def init(self) -> None:
        """Make the state."""

    def f(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.w).relu().sin()


def plain(value: Any, seen: tuple[int, ...] = ()) -> Any:
    """A value as lists, dicts and tuples of plain values, with the types of what it is made of."""
    if id(value) in seen:
        return "again"
    seen = (*seen, id(value))
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, int | float | str | None):
        return type(value).__name__, value
    if isinstance(value, list | tuple | collections.deque):
        return [type(value).__name__, *(plain(item, seen) for item in value)]
    if isinstance(value, dict):
        return {key: plain(item, seen) for key, item in value.items()}
    if isinstance(value, torch.nn.Module):
        return {key: plain(item, seen) for key, item in vars(value).items() if "hook" not in key}
    slots = [name for cls in type(value).__mro__ for name in cls.__dict__.get("__slots__", ()) if hasattr(value, name)]
    held = {name: getattr(value, name) for name in slots} | dict(getattr(value, "__dict__", {}))
    return type(value).__name__, plain(held, seen)


def same(a: Any, b: Any, where: str) -> None:
    """Fail where two plain values differ by more than rounding."""
    assert type(a) is type(b), f"{where}: {a} and {b}"
    if isinstance(a, torch.Tensor):
        # Where products cancel, what is left has the roundings of the largest results beside it.
        largest = float(b[b.isfinite()].abs().max()) if b.is_floating_point() and b.isfinite().any() else 0.0
        atol = max(1e-5, 2e-6 * largest)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=atol, equal_nan=True, msg=lambda text: f"{where}: {text}")
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), f"{where}: {a} and {b}"
        for i, (one, two) in enumerate(zip(a, b, strict=True)):
            same(one, two, f"{where}[{i}]")
    elif isinstance(a, float):
        assert a == b or abs(a - b) <= 1e-5 * max(abs(a), abs(b)) or (a != a and b != b), f"{where}: {a} and {b}"
    else:
        assert a == b, f"{where}: {a} and {b}"


def outcome(call: Callable[..., Any], args: Sequence[Any], number: int) -> Any:
    """What a call gives, or how it ends, and the random number after it; they follow from its number."""
    torch.manual_seed(number)
    try:
        found = plain(call(*args))
    except Exception as error:
        found = type(error).__name__, str(error)
    return [found, float(torch.rand(()))]


def rows(number: int) -> tuple[torch.Tensor]:
    """One tensor, another one at each call."""
    return (torch.randn(4, 6, generator=torch.Generator().manual_seed(number)),)


def compare(
    make: Callable[[], tuple[Callable[..., Any], Callable[[], Any]]],
    calls: int = 9,
    arguments: Callable[[int], Sequence[Any]] = rows,
    between: Callable[[Any, int], None] = lambda owner, number: None,
    **options: Any,
) -> Any:
    """Call both; make: the program, and what tells its state. between: what a user does to it after a call."""
    (eager, state), (other, other_state) = make(), make()
    with warnings.catch_warnings(record=True) as told, torch.no_grad():
        warnings.simplefilter("always")
        compiled = smelt.compile(other, **options)
        for number in range(calls):
            expected, found = (outcome(call, arguments(number), number) for call in (eager, compiled))
            same(found, expected, f"call {number}: result")
            same(plain(other_state()), plain(state()), f"call {number}: state")
            between(eager, number)
            between(other, number)
    texts = [str(w.message) for w in told]
    texts += [str(compiled.stats()), smelt.explain(compiled).to_text(everything=True)]
    shown = [line for text in texts for line in text.splitlines() if STATE in line]
    assert not shown, f"no program has this name: {shown}"
    return compiled


def is_one_graph(compiled: Any) -> bool:
    """Whether the program is not split, its state an argument of what is compiled."""
    dispatcher = dispatcher_of(compiled)
    rows = compiled.stats().rows
    return dispatcher.splits is None and dispatcher.has_state and any(row.entry is not None for row in rows)
