"""The builder behind `smelt.compile`: one recorded native run becomes an entry."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from smelt.autodiff.inside import computes_gradients
from smelt.capture import Captured, capture
from smelt.capture.staging.flow.stops import TOO_LONG, TOO_MANY
from smelt.capture.staging.stage import Learnt
from smelt.compiler.long_loops import with_long_loops
from smelt.compiler.object.compiled_types import KnownProgram, NeedsGradients, ObservedProgram, Unrepeated
from smelt.compiler.object.originals import move_originals
from smelt.compiler.programs.narrow_layers import NARROW
from smelt.compiler.replayable import acts_repeatably
from smelt.compiler.sizes.sized_unit import SizedUnit
from smelt.compiler.source_digest import begin_source_digest
from smelt.compiler.staged import staged_unit
from smelt.compiler.training.training import training_unit
from smelt.compiler.unit import Unit
from smelt.diag import Options, SmeltWarning, user_level
from smelt.diag.collector import collections_later


def build(fn: ObservedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options) -> Unit:
    """Run the program once under the recorder; the unit that computes the same from now on. Where an earlier build for
    other sizes knows the program, that may do without a run (`ObservedProgram.is_spared`).

    Raises: CaptureError where the program cannot be captured, NeedsGradients where autograd must see it run (it has run
        to its end all the same), Unrepeated where it did what no replay of a graph does.
    """
    if fn.known is not None:
        unit = _by_known(fn, fn.known, args, kwargs, options)
        if unit is not None:
            return unit
    # Before anything is recorded: guards then see parameters where they stay.
    moved = move_originals(fn.target, options)
    if options.keep_plans and options.cache_dir:
        begin_source_digest()
    start = perf_counter()
    captured = capture(
        fn, args, kwargs,
        name=fn.name, target=fn.target, specialize=True, reruns=True, changed=lambda: fn.heap, raised=fn.raised.note,
        state=fn.state,
    )  # fmt: skip
    recorded_ms = (perf_counter() - start) * 1000
    collections_later()
    # The result is the caller's, and not to be kept.
    captured = replace(captured, result=None)
    if captured.has_history:
        if not options.train:
            raise NeedsGradients
        if options.dtype in NARROW:
            warnings.warn(
                f"{fn.name} is computed in f32, not {options.dtype}, where gradients are needed: whole numbers of "
                "steps have none; call it in torch.no_grad(), or with parameters that need none",
                SmeltWarning, stacklevel=user_level(),
            )  # fmt: skip
            options = replace(options, dtype="default")
        with fn.as_before():
            unit = _training(fn, captured, args, kwargs, options)
        unit.moved = moved
        unit.stages_ms = {"recorded run": round(recorded_ms, 3), **unit.stages_ms}
        return unit
    if fn.log is not None:
        captured = replace(captured, drawers=fn.log.drawers, class_askers=fn.log.class_askers)
    if captured.not_put and fn.log is not None:
        fn.log.keep_mutations()
    with fn.as_before():
        unit = _unit(fn, captured, args, kwargs, options)
        unit.keep_sample(captured.signature.flatten(args, kwargs) if captured.signature is not None else ())
    unit.moved = moved
    unit.stages_ms = {"recorded run": round(recorded_ms, 3), **unit.stages_ms}
    return unit


def _by_known(
    fn: ObservedProgram, known: KnownProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
) -> Unit | None:
    """The program with free sizes by what an earlier build learnt of it; None where it has to be recorded."""
    if options.keep_plans and options.cache_dir:
        begin_source_digest()
    fn.log, (spec, is_wide) = known.log, fn.freedom.specs[0]
    begun_as = fn.learnt.assumed
    fn.learnt.follows, fn.learnt.most_s = False, fn.staging_s
    narrow = known.narrow if isinstance(known.narrow, SizedUnit) else None
    stage = partial(staged_unit, fn, known.captured, args, kwargs, options, spec, is_wide=is_wide, narrow=narrow)
    unit, _ = fn.attempts.of(("known", narrow is None, frozenset(spec)), stage)
    if unit is None:
        fn.log = None
        fn.freedom = fn.freedom.from_one()
        fn.learnt = Learnt(begun_as, fn.learnt.exhausted)
        return None
    unit.background, unit.ledger = fn.background, fn.ledger
    return unit


def _training(
    fn: ObservedProgram, captured: Captured, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
) -> Unit:
    """The program with its gradients. Raises: NeedsGradients where eager has to run."""
    if fn.log is not None and not (fn.log.is_replayable or acts_repeatably(fn.log)):
        raise NeedsGradients(fn.log.why_not())
    stage = partial(staged_unit, fn, args=args, kwargs=kwargs, options=options)
    why_fixed = ""
    for number, (spec, is_wide) in enumerate(fn.freedom.specs if fn.freedom else ()):
        free = partial(stage, captured, dynamic=spec, is_wide=is_wide, odd=fn.freedom.odd)
        unit, why_fixed = fn.attempts.of(("gradients of free sizes", number, frozenset(spec)), free)
        if unit is not None:
            return unit
        if why_fixed in (TOO_LONG, TOO_MANY):
            break
    found = _training_as_it_is(fn, captured, args, kwargs, options, stage)
    found.why_fixed = why_fixed
    return found


def _training_as_it_is(
    fn: ObservedProgram,
    captured: Captured,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: Options,
    stage: Callable[[Captured], tuple[Unit | None, str]],
) -> Unit:
    """The same for the sizes of this call. Raises: as `_training`."""
    if captured.conversions:
        unit, why = fn.attempts.of("gradients of all paths", lambda: stage(captured))
        if unit is None:
            raise NeedsGradients(f"its path depends on data: {why}")
        return unit
    looped = with_long_loops(captured, fn.log)
    if looped is not None:
        unit, _ = fn.attempts.of("gradients of loops", lambda: stage(looped))
        if unit is not None:
            return unit
    return training_unit(captured, options, args, kwargs)


def _unit(
    fn: ObservedProgram, captured: Captured, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
) -> Unit:
    """The program compiled for more than the recorded way and its sizes where it can be and is to be."""
    unit, why_paths, why_fixed = None, "", ""
    began = last = perf_counter()
    # A run whose effects no graph repeats is not taken up again: a debugger would stop in it a second time.
    is_whole = fn.log is None or fn.log.is_replayable or acts_repeatably(fn.log)
    asks = bool(captured.conversions) or (fn.log is not None and (fn.log.warned or acts_repeatably(fn.log)))
    odd = fn.freedom.odd if fn.freedom else ()
    # The gradient of a loop is not unrolled again.
    to_run = captured.graph is None or not computes_gradients(captured.graph)
    if asks and captured.error is None:
        captured = with_long_loops(captured, fn.log, to_run=to_run) or captured
    if captured.error is None and is_whole and not fn.next_path:
        fn.learnt.follows = False
        fn.learnt.most_s = fn.staging_s
        stage, attempts = partial(staged_unit, fn, captured, args, kwargs, options), fn.attempts
        begun_as = fn.learnt.assumed.as_native, fn.learnt.assumed.counts
        for number, (spec, is_wide) in enumerate(fn.freedom.specs if fn.freedom else ()):
            last = perf_counter()
            free = partial(stage, spec, is_wide=is_wide, odd=odd)
            unit, why_fixed = attempts.of(("free", number, frozenset(spec), begun_as), free)
            if unit is not None or why_fixed in (TOO_LONG, TOO_MANY):
                break
        last = perf_counter() if unit is None else last
        if unit is None and asks:
            unit, why_paths = attempts.of(("merged graph", begun_as), stage)
        elif unit is None:
            looped = with_long_loops(captured, fn.log, to_run=to_run)
            if looped is not None:
                unit, _ = attempts.of("loops", partial(staged_unit, fn, looped, args, kwargs, options))
        if unit is None and asks and fn.learnt.asks_natively:
            unit, is_free = _as_native(fn, captured, args, kwargs, options)
            why_fixed = "" if is_free else why_fixed
    if unit is None:
        last = perf_counter()
        if fn.log is not None and not fn.log.is_replayable:
            raise Unrepeated(lambda: Unit.of(captured, options).graph)
        unit = Unit.of(captured, options)
    lost_ms = round((last - began) * 1000, 3)
    if lost_ms >= 1:
        unit.stages_ms = {"staging that came to no graph": lost_ms, **unit.stages_ms}
    unit.why_paths, unit.why_fixed, unit.background, unit.ledger = why_paths, why_fixed, fn.background, fn.ledger
    return unit


def _as_native(
    fn: ObservedProgram, captured: Captured, args: tuple[Any, ...], kwargs: Mapping[str, Any], options: Options
) -> tuple[Unit | None, bool]:
    """The program compiled for the answers that the recorded run found, not for the numbers that led to these.

    Second: whether sizes and numbers are free in it.
    """
    fn.learnt.assumed = replace(fn.learnt.assumed.without_loops(), as_native=True)
    for spec, is_wide in (*(fn.freedom.specs if fn.freedom else ()), (None, False)):
        odd = fn.freedom.odd if fn.freedom and spec is not None else ()
        unit, _ = staged_unit(fn, captured, args, kwargs, options, spec, is_wide=is_wide, odd=odd)
        if unit is not None:
            return unit, spec is not None
    # Further builds need not begin with what led to nothing.
    fn.learnt.assumed = replace(fn.learnt.assumed.without_loops(), as_native=False, counts=False)
    return None, False
