"""What a `functools.lru_cache` gives for sizes that are free: its function's own result, computed with the sizes.

    plan(x.shape)     one entry of the cache for each shape; in the graph what `plan` makes of a shape

Invariant: only for what the cache holds at the recorded sizes, where the function gives the same now, and where no
tensor is kept: those are state (`capture.reads.filled_caches`).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from smelt._torch.exact import MISSING
from smelt._torch.library.lru import LRU_CACHE, has_tensor, results_of
from smelt.capture.dynamic.arithmetic import at_hand
from smelt.capture.dynamic.values import is_sized, number_of
from smelt.capture.staging.texts import holds_sized

if TYPE_CHECKING:
    from smelt.capture.convert.runtime import Runtime
    from smelt.capture.staging.session import Session


def is_cache_of_sizes(fn: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bool:
    """Whether a cache is asked by sizes that are free."""
    return isinstance(fn, LRU_CACHE) and not kwargs and any(map(holds_sized, args))


def calls_cache(frame: FrameType) -> bool:
    """Whether code that runs now names a cache: as a global, a variable, or a method of something in a variable."""
    names, known = frame.f_code.co_names, tuple(frame.f_locals.values())
    if any(isinstance(frame.f_globals.get(name), LRU_CACHE) for name in names):
        return True
    kinds = {base for value in known for base in type(value).__mro__ if base is not object}
    return any(isinstance(value, LRU_CACHE) for value in known) or any(
        isinstance(vars(kind).get(name), LRU_CACHE) for kind in kinds for name in names
    )


def of_cache(session: Session, runtime: Runtime, cache: Any, args: tuple[Any, ...]) -> Any:
    """The result for these arguments; one object for equal ones, as out of the cache."""
    trace = session.size_trace
    key = (id(cache), *(_expression(trace, arg) for arg in args))
    if key in session.cached:
        return session.cached[key][1]
    held = _held(cache, tuple(map(_at_hand, args)))
    if held is MISSING or has_tensor(held):
        return cache(*args)
    made = runtime.call(0, cache.__wrapped__, args, {})
    if not _is_equal(_at_hand(made), held):
        return cache(*args)
    session.cached[key] = cache, made
    return made


def _held(cache: Any, args: tuple[object, ...]) -> Any:
    """What the cache holds for these arguments; MISSING where that is not known."""
    if cache.cache_parameters()["typed"]:
        return MISSING
    wanted = args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
    return next((result for key, result in results_of(cache) if _is_equal(key, wanted)), MISSING)


def _is_equal(a: object, b: object) -> bool:
    try:
        return bool(a == b)
    except (TypeError, ValueError, RuntimeError):
        return False


def _at_hand(value: object) -> Any:
    """A value with the sizes that it has at capture; nothing is learnt by that."""
    if is_sized(value):
        return at_hand(number_of(value))
    if type(value) is list:
        return list(map(_at_hand, value))
    if isinstance(value, tuple):
        return tuple(map(_at_hand, value))
    if type(value) is dict:
        return {name: _at_hand(held) for name, held in value.items()}
    return value


def _expression(trace: Any, value: Any) -> object:
    if is_sized(value):
        return "size", trace.expr(number_of(value))
    if isinstance(value, tuple):
        return tuple(_expression(trace, item) for item in value)
    return type(value), value
