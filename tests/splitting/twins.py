"""Two equal programs, one as it is and one compiled: the same calls, the same answers, the same effects."""

from __future__ import annotations

import copy
import random
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import smelt
from smelt.compiler.object.compiled import dispatcher_of
from smelt.compiler.split.splitting import Splits

CALLS = 7
"""Enough for the program to be refused, split, its pieces compiled, and these to run."""


@dataclass
class Twin:
    """A program and all that it leaves behind."""

    call: Callable[..., Any]
    state: Callable[[], Any] = lambda: None


@dataclass
class Outcome:
    """What one call gave, or how it ended, and what is left after it."""

    result: Any
    error: tuple[str, str, tuple[tuple[str, int, str], ...]] | None
    state: Any
    generator: Any


def compare(
    make: Callable[[], Twin], arguments: Callable[[int], tuple[Any, ...]], calls: int = CALLS, **options: Any
) -> Any:
    """Run both on equal arguments, several times; returns the compiled object. arguments: of the call with a number."""
    plain, other = make(), make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = smelt.compile(other.call, **options)
        expected = _outcomes(plain.call, plain.state, arguments, calls)
        found = _outcomes(compiled, other.state, arguments, calls)
    for number, (one, two) in enumerate(zip(expected, found, strict=True)):
        same(one.result, two.result, f"call {number}: result")
        assert one.error == two.error, f"call {number}: {one.error} {two.error}"
        same(one.state, two.state, f"call {number}: state")
        same(one.generator, two.generator, f"call {number}: generators")
    return compiled


def _outcomes(call: Callable[..., Any], state: Callable[[], Any], arguments: Any, calls: int) -> list[Outcome]:
    torch.manual_seed(7)
    np.random.seed(7)
    random.seed(7)
    found = []
    for number in range(calls):
        args = arguments(number)
        error = result = None
        try:
            with torch.no_grad():
                result = call(*args)
        except Exception as raised:
            error = (type(raised).__name__, str(raised), users_frames(raised))
        left = copy.deepcopy((result, args, state()))
        generator = (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate())
        found.append(Outcome(left[0], error, left[1:], generator))
    return found


def users_frames(error: BaseException) -> tuple[tuple[str, int, str], ...]:
    """The frames of an error's traceback that are neither Smelt's nor torch's: file, line, function."""
    frames = traceback.extract_tb(error.__traceback__)
    return tuple(
        (f.filename, f.lineno or 0, f.name)
        for f in frames
        if "/src/smelt/" not in f.filename and "/torch/" not in f.filename and not f.filename.endswith("twins.py")
    )


def same(a: Any, b: Any, where: str) -> None:
    """Equal in structure, types and numbers; floats of tensors and of Python up to rounding."""
    assert type(a) is type(b), f"{where}: {type(a)} {type(b)}"
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and a.shape == b.shape, where
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True, msg=lambda text: f"{where}: {text}")
    elif isinstance(a, np.ndarray):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    elif isinstance(a, float):
        assert a == b or abs(a - b) <= 1e-4 * max(1.0, abs(a)) or (a != a and b != b), f"{where}: {a} {b}"
    elif isinstance(a, dict):
        assert list(a) == list(b), f"{where}: {list(a)} {list(b)}"
        for key in a:
            same(a[key], b[key], f"{where}[{key!r}]")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), f"{where}: {len(a)} items, {len(b)}"
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            same(x, y, f"{where}[{i}]")
    elif hasattr(a, "__dict__"):
        same(dict(vars(a)), dict(vars(b)), where)
    else:
        assert a == b, f"{where}: {a} {b}"


def splits_of(compiled: Any) -> Splits:
    """The pieces of a compiled program that is split."""
    found = dispatcher_of(compiled).splits
    assert isinstance(found, Splits), compiled.stats().fallbacks
    return found


def compiled_pieces(compiled: Any) -> int:
    """How many pieces of a split program run compiled."""
    return len(splits_of(compiled).running())


def breaks(compiled: Any) -> str:
    """Why a program is split, in one text."""
    return "\n".join(f"{found.what} @ {found.where}" for found in splits_of(compiled).breaks)


def inputs(*shape: int) -> Callable[[int], tuple[Any, ...]]:
    """Arguments of one tensor, another one at each call."""
    return lambda number: (torch.randn(*shape, generator=torch.Generator().manual_seed(number)),)


def all_of(values: Sequence[Any]) -> Callable[[int], tuple[Any, ...]]:
    """The same arguments at each call, copied."""
    return lambda number: tuple(copy.deepcopy(value) for value in values)


def is_whole(compiled: Any) -> bool:
    """Whether calls are served by one graph, and nothing is split."""
    rows = compiled.stats().rows
    return dispatcher_of(compiled).splits is None and bool(rows) and all(row.entry is not None for row in rows)
