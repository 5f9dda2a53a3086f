"""A program whose way depends on data as one graph, with branches and loops, by a second run on fake tensors.

Invariant: the graph holds for all ways, so everything that any of them read is guarded; where the second run acts on
anything outside, or its graph cannot be compiled, the recorded way stands for itself (`smelt.compiler.paths`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import torch

from smelt.capture import Captured
from smelt.capture.dynamic.spec import Spec
from smelt.capture.reads.reads import Effect, ReadLog, record_reads
from smelt.capture.reads.reads_arguments import ArgumentHeap
from smelt.capture.staging.draws import Draw
from smelt.capture.staging.objects.outside import nothing_outside
from smelt.capture.staging.stage import Learnt, stage
from smelt.capture.structure.state import Place, without_state
from smelt.compiler.object.compiled_types import NeedsGradients, ObservedProgram
from smelt.compiler.object.output_replay import muted
from smelt.compiler.replayable import acts_repeatably, without_repeated
from smelt.compiler.sizes.size_one import Again, with_ones
from smelt.compiler.sizes.size_one_strides import StrideReads, needs_strides, telling
from smelt.compiler.sizes.sized_unit import SizedUnit, unit_of
from smelt.compiler.training.histories import has_history_on_other_ways
from smelt.compiler.training.training import training_unit
from smelt.compiler.unit import Unit
from smelt.diag import CaptureError, Options, SmeltError
from smelt.runtime.guarding.guard_facts import FactTest

# Where the staged run's own look at the heap does not find them.
_logs: ContextVar[list[ReadLog]] = ContextVar("smelt staging reads")


def staged_unit(
    fn: ObservedProgram,
    native: Captured,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Options,
    dynamic: Spec | None = None,
    *,
    is_wide: bool = False,
    odd: Collection[str] = (),
    narrow: SizedUnit | None = None,
) -> tuple[Unit | None, str]:
    """The whole program, compiled, with `fn.log` telling what all ways read; or None, and why not.

    dynamic: the sizes and numbers that are to be free. is_wide: sizes without a bound from 1 on. odd: tensors with
    sizes of 1 whose strides nothing may depend on. narrow: the same program compiled for sizes from 2 on, which is to
    be widened.
    """
    log = fn.log
    if log is None or not (log.is_replayable or acts_repeatably(log)):
        return None, "the recorded run acts on Python's objects"
    found: list[ReadLog] = []
    before = _logs.set(found)
    start = perf_counter()
    try:
        with muted(), telling() as asked:
            given = ArgumentHeap(tuple(args), dict(kwargs))
            run = _reading(fn.target, fn.name, native, fn.state, given, watches_strides=bool(odd))
            inputs: tuple[Any, Any] = args, kwargs
            if narrow is not None and dynamic is not None:
                inputs = _as_larger(dynamic, args, kwargs)
            again = partial(_staged, run, *inputs, fn.target, fn.name, native, state=fn.state, learnt=fn.learnt)
            if is_wide and dynamic is not None:
                staged = _widened(again, dynamic, args, kwargs, None if narrow is None else narrow.captured)
            else:
                staged = again(dynamic)
    finally:
        _logs.reset(before)
    if staged.error is not None:
        return None, _told(staged.error) if dynamic is None else staged.error.what
    if odd and staged.sizes is not None:
        staged = replace(staged, sizes=replace(staged.sizes, reads_strides=bool(asked)))
    if odd and needs_strides(staged, odd):
        return None, "the layout of a result depends on the strides of a size-1 dimension"
    if not native.has_history and has_history_on_other_ways(staged, args, kwargs):
        return None, "a result has gradients on some of its paths, or may have"
    acts = [effect for more in found for effect in more.effects if not _is_by_fakes(effect)]
    if acts:
        return None, ReadLog(effects=acts[:1]).why_not()
    assert staged.graph is not None
    left = without_repeated(log, staged.graph)
    if not left.is_replayable:
        return None, left.why_not()
    try:
        unit: Unit
        if native.has_history:
            unit = training_unit(staged, options, args, kwargs)
        else:
            unit = unit_of(staged, options)
            if narrow is not None and isinstance(unit, SizedUnit):
                unit.take_plans(narrow)
            if staged.signature is not None:
                unit.keep_sample(staged.signature.flatten(args, kwargs))
        if is_wide and not _is_for(unit.captured, args, kwargs):
            return None, "what its passes rely on does not hold for this call"
        unit.stages_ms["staging run"] = round((perf_counter() - start) * 1000, 3)
        unit.finish()
    except SmeltError as error:
        return None, error.what
    except NeedsGradients as error:
        return None, str(error)
    log.effects.clear()
    known = {_place(read) for read in log.reads}
    for read in (read for more in found for read in map(_as_now, more.reads) if read is not None):
        if _place(read) not in known:
            known.add(_place(read))
            log.reads.append(read)
    return unit, ""


def _told(error: SmeltError) -> str:
    """Why there is no graph of all ways, where that came up, and what to do."""
    where = f" ({error.where})" if error.where is not None else ""
    fix = "for one graph, stay in tensors there (torch.where, masks, topk)" if error.code == "S0101" else error.fix
    return "; ".join(part for part in (f"{error.what}{where}", error.why, fix) if part)


def staged_capture(
    native: Captured,
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dynamic: Spec | None = None,
    *,
    is_wide: bool = False,
    state: Sequence[Place] = (),
) -> Captured:
    """The capture of all ways, with the answer of the native run; its `error` says why there is none.

    Where it `reruns`, whoever calls it runs the program itself if it raises.
    """
    native = replace(native, reruns=True)
    run = partial(_without_state, target) if state else target
    again = partial(_staged, run, args, kwargs, target, native.name, native, state=state, learnt=Learnt())
    with muted(), nothing_outside():
        staged = _widened(again, dynamic, args, kwargs) if is_wide and dynamic is not None else again(dynamic)
    return replace(staged, result=native.result, written=native.written)


def _without_state(target: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return target(*args, **without_state(kwargs))


def _staged(
    run: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    target: Callable[..., Any],
    name: str,
    native: Captured,
    dynamic: Spec | None,
    *,
    state: Sequence[Place],
    learnt: Learnt,
) -> Captured:
    return stage(
        run, args, kwargs, target=target, name=name, native=native, dynamic=dynamic, state=state, learnt=learnt
    )


def _widened(
    again: Again, dynamic: Spec, args: Sequence[Any], kwargs: Mapping[str, Any], known: Captured | None = None
) -> Captured:
    """The capture for sizes from 1 on; its error says why there is none, or none that this call is one of.

    known: the one for larger sizes, where there is one.
    """
    staged = again(dynamic) if known is None else known
    if staged.error is not None:
        return staged
    found = with_ones(staged, dynamic, again)
    if found is None:
        return replace(staged, error=CaptureError("the program is another one where a size is 1", code="S0101"))
    if not _is_for(found, args, kwargs):
        return replace(staged, error=CaptureError("the program is another one where sizes are 1", code="S0101"))
    return found


def _as_larger(dynamic: Spec, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Arguments without contents, of which no size is 1 that is to be free: how a tensor lies is seen there only."""

    def larger(value: Any, place: str) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_contiguous():
            return value
        free = [dynamic.get((place, axis)) for axis in range(value.dim())]
        sizes = [
            size if one is None or one.hint is None else one.hint for size, one in zip(value.shape, free, strict=True)
        ]
        made = value if sizes == list(value.shape) else value.new_empty(sizes)
        return made.requires_grad_() if value.requires_grad and made is not value else made

    named = {name: larger(value, f"kwargs[{name!r}]") for name, value in kwargs.items()}
    return [larger(value, f"args[{i}]") for i, value in enumerate(args)], named


def _is_for(captured: Captured, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the graph holds for the sizes of this call."""
    if captured.sizes is None or captured.signature is None:
        return False
    inputs = captured.signature.flatten(args, kwargs)
    origins = captured.sizes.symbols.items()
    return captured.sizes.holds(
        {n: inputs[o.input] if o.dim is None else inputs[o.input].shape[o.dim] for n, o in origins}
    )


def _reading(
    target: Callable[..., Any],
    name: str,
    native: Captured,
    state: Sequence[Place],
    given: ArgumentHeap,
    *,
    watches_strides: bool = False,
) -> Callable[..., Any]:
    """The program, what it reads put aside at each run. native: tells which objects of the arguments it changes; given:
    those of the call, where sizes that are symbols stand in others, made for the run: what is read of these is theirs.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        failure: Exception | None = None
        result: Any = None
        heap = ArgumentHeap(args, kwargs, native.opened) if native.opened else None
        with (
            record_reads({name: target}, args, kwargs, heap, state) as log,
            StrideReads() if watches_strides else nullcontext(),
        ):
            try:
                result = target(*args, **without_state(kwargs))
            except Exception as error:
                failure = error  # a way that ends in an error reads, too
        made = ArgumentHeap(args, kwargs)
        log.reads[:] = [read for read in log.reads if given.owns(id(read.owner)) or not made.owns(id(read.owner))]
        _logs.get().append(log)
        if failure is not None:
            raise failure
        return result

    return run


def _is_by_fakes(effect: Effect) -> bool:
    """Whether it was done by torch on its way to a fake tensor's type, not by the line that called the operator."""
    return effect.name in ("eval", "exec") and (effect.span is None or effect.name not in effect.span.text)


def _place(read: Any) -> tuple[Any, ...]:
    """What a fact is about: what two facts say of one place, and both hold now, is the same."""
    key = read.key if isinstance(read.key, str | int) else id(read.key)
    return read.kind, id(read.owner), type(read.key), key


def _as_now(read: Any) -> Any:
    """A fact of the staged run, as it is after it; None for what was there during that run only."""
    test = FactTest.of(read)
    if test.holds():
        return read
    if type(read.value) is Draw:  # for the time of that run
        return _as_now(read._replace(value=read.value.__wrapped__))
    # Functions ran other code for a while.
    return read._replace(value=test.now()) if read.kind == "function" else None
