"""What native code needs of a compiled object: its machine code, and for each row what runs when the guards hold.

Invariant: only what native code does as Python would is given to it; all else is a row that calls Python, or no row.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

from smelt.codegen.llvm.walkers.entry import entry_object
from smelt.compiler.object.compiled_types import Row, attempt
from smelt.compiler.object.entry_code import Extract, deliverer, extractor, result_kind
from smelt.compiler.sizes.sized_unit import SizedUnit
from smelt.compiler.unit import Unit
from smelt.diag import Miss, Options, SmeltError, SmeltWarning
from smelt.runtime.encoding.entry_table import Kind
from smelt.runtime.entering.entry import EntryCode, Target, is_hidden, load_entry
from smelt.runtime.machine.cache import code_cache
from smelt.runtime.runner import entry_context

Python: TypeAlias = Callable[[tuple[Any, ...], "dict[str, Any] | None"], Any]


class Owner(Protocol):
    """What a dispatcher offers to the native rows of its table; called with the call's arguments."""

    table: bytes

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The whole call in Python."""

    def run_row(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call in Python from where this row's guards are known to hold."""

    def renew_native(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let native code know of a plan that this row has got since."""

    def try_others(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any], why: Exception | None = None) -> Any:
        """The answer of a call that took another path than this row's; why: where it did."""

    def repeat(self, row: Row, error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The call of which the compiled program raised the program's own error."""

    def recover(self, row: Row, error: SmeltError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The answer of a call whose compiled program failed."""


class _Process:
    """The native entry of this process, made when it is first needed."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made: dict[type, EntryCode | None] = {}


_process = _Process()


def native_entry(dispatcher: type, slow: Callable[..., Any], options: Options) -> EntryCode | None:
    """The native entry for this class of dispatchers, or None where calls go through Python."""
    if is_hidden():
        return None
    with _process.lock:
        if dispatcher not in _process.made:
            _process.made[dispatcher] = _load(dispatcher, slow, options)
        return _process.made[dispatcher]


def _load(dispatcher: type, slow: Callable[..., Any], options: Options) -> EntryCode | None:
    try:
        machine_code = entry_object(code_cache(options.cache_dir, options.cache_limit_mb))
    except Exception as error:  # whatever LLVM or its absence raises: calls take the way through Python
        if options.strict:
            raise
        warnings.warn(
            f"native code for calls cannot be made here ({type(error).__name__}: {error}); calls go through Python",
            SmeltWarning,
            stacklevel=2,
        )
        return None
    return load_entry(machine_code, dispatcher, slow)


def target_of(owner: Owner, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Target:
    """What native code does for a row of a dispatcher, neither of which it keeps alive, on calls like this one."""
    unit = row.entry
    if isinstance(unit, SizedUnit):
        return Target(_sized_python(owner, row, unit))
    return _target(owner, row, unit, args, kwargs)


def plans_of(
    owner: Owner, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[Mapping[str, int], Target]]:
    """For a row whose sizes are free: what native code does at the sizes for which there is a plan."""
    unit = row.entry
    if not isinstance(unit, SizedUnit):
        return []
    plans = list(unit.plans.copy().items())
    pick = extractor(unit.signature, args, kwargs)
    return [
        (dict(zip(unit.names, sizes, strict=True)), _target(owner, row, plan, args, kwargs, pick))
        for sizes, plan in plans
    ]


def _python(owner: Owner, row: Row) -> Python:
    """The whole of a call in Python."""
    get_owner, get_row = weakref.ref(owner), weakref.ref(row)

    def python(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        found, dispatcher = get_row(), get_owner()
        assert dispatcher is not None  # a method of it is running
        if found is None:  # evicted by another thread
            return dispatcher(args, dict(kwargs or {}))
        return dispatcher.run_row(found, args, dict(kwargs or {}))

    return python


def _sized_python(owner: Owner, row: Row, unit: SizedUnit) -> Python:
    """The same for free sizes; where it comes to a plan that native code does not know, it is told."""
    python, get_owner, get_row = _python(owner, row), weakref.ref(owner), weakref.ref(row)
    get_unit, known = weakref.ref(unit), frozenset(unit.plans.copy())

    def sized(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        before = get_unit()
        used = before.plans_used if before is not None else 0
        result = python(args, kwargs)
        found, dispatcher = get_row(), get_owner()
        # Not for one that this call made: sizes that come once have no use for it.
        is_news = before is not None and before.plans_used > used and not known.issuperset(before.plans.copy())
        if is_news and found is not None and dispatcher is not None and found.entry is before:
            dispatcher.renew_native(found, args, dict(kwargs or {}))
        return result

    return sized


def _target(
    owner: Owner, row: Row, unit: Any, args: tuple[Any, ...], kwargs: dict[str, Any], pick: Extract | None = None
) -> Target:
    get_owner, get_row, python = weakref.ref(owner), weakref.ref(row), _python(owner, row)

    def recovered(error: SmeltError, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        found, dispatcher = get_row(), get_owner()
        if found is None or dispatcher is None:
            raise error
        return dispatcher.recover(found, error, args, dict(kwargs or {}))

    def missed(error: Exception, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        found, dispatcher = get_row(), get_owner()
        if found is None or dispatcher is None:
            raise error
        return dispatcher.try_others(found, args, dict(kwargs or {}), error)

    if not isinstance(unit, Unit) or unit.executable is None or unit.lowered is None:
        return Target(python)
    if unit.draws and (unit.is_path or unit.repeats_errors or unit.is_staged or unit.draws_in_python):
        return Target(python)  # which puts the random generators back
    if unit.prints:
        return Target(python)  # which knows what is printed where a call fails
    context = entry_context(unit.executable.call)
    if context is None:
        return Target(python)

    def fail(frame: int, status: int, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        result, failure = attempt(context.fail, frame, status)
        if failure is None:
            return result
        if isinstance(failure, Miss) or (is_path and isinstance(failure, SmeltError)):
            return missed(failure, args, kwargs)
        if isinstance(failure, SmeltError):
            return recovered(failure, args, kwargs)
        found, dispatcher = get_row(), get_owner()
        if not repeats_errors or found is None or dispatcher is None:
            raise failure
        return dispatcher.repeat(found, failure, args, dict(kwargs or {}))

    def deliver(results: list[Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        named = kwargs or {}
        result, failure = attempt(lambda: make(results, chosen(args, named), args, named))
        if isinstance(failure, SmeltError) and not acts:
            return recovered(failure, args, kwargs)
        if failure is not None:
            raise failure
        return result

    acts = unit.acts
    is_path, repeats_errors = unit.is_path, unit.repeats_errors
    chosen = pick or extractor(unit.signature, args, kwargs)
    make = deliverer(unit.signature, unit.lowered, unit.lookup)
    kind = result_kind(unit.signature, unit.lowered)
    inputs = tuple(unit.signature.inputs)
    return Target(python, unit.executable.call, inputs, kind, deliver if kind is Kind.DELIVER else None, fail)
