"""Run a program compiled and in eager over the same calls, and compare all that can be seen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch

Call = tuple[Any, ...]


def outcome(program: Callable[..., Any], args: Call, seed: int) -> tuple[Any, ...]:
    """Result or error, the arguments afterwards, and where the random generator stands."""
    torch.manual_seed(seed)
    given = copy.deepcopy(args)
    try:
        result: Any = program(*given)
    except Exception as error:
        result = (type(error), str(error))
    return result, given, torch.get_rng_state()


def is_same(a: Any, b: Any) -> bool:
    """Equal in kind and in each bit; NaN is NaN."""
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
            return False
        return torch.equal(a, b) if not a.is_floating_point() else torch.allclose(a, b, 1e-6, 1e-7, equal_nan=True)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(is_same(a[k], b[k]) for k in a)
    return type(a) is type(b) and repr(a) == repr(b)


def state_of(program: Any) -> list[Any]:
    """A module's state."""
    return list(program.state_dict().items()) if isinstance(program, torch.nn.Module) else []


def agree(compiled: Any, eager: Any, calls: Sequence[Call]) -> None:
    """All calls in order, on both; raises AssertionError at the first that differs."""
    for n, args in enumerate(calls):
        found, expected = outcome(compiled, args, n), outcome(eager, args, n)
        assert is_same(found, expected), f"call {n} with {args}: {found[:2]} for {expected[:2]}"
        assert is_same(state_of(compiled), state_of(eager)), f"the state after call {n} with {args}"
