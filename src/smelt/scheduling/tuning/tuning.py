"""`s.tune`: a measured search over the knobs of a scheduling function.

    for each way through the knobs:   shape(s')  ▶  verify s' once  ▶  time s' and the untouched model in turns
    the fastest few once more side by side  ▶  the best one's steps are the schedule's

Invariant: the schedule changes once, at the end, to a state that was verified, or not at all. Models that are timed are
copies; the process's random numbers are as before.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import torch

from smelt.diag import ScheduleError, SmeltError, VerifyError
from smelt.diag.console import progress, text_column
from smelt.diag.records import record
from smelt.scheduling.applying import states
from smelt.scheduling.comparing.compare_runs import Arguments, isolated
from smelt.scheduling.comparing.verify import as_calls, verified
from smelt.scheduling.state import State
from smelt.scheduling.tuning import tuning_cache
from smelt.scheduling.tuning.knobs import Choose, Run, Search
from smelt.scheduling.tuning.tuned import Failure, Trial, Tuned
from smelt.scheduling.tuning.tuning_measure import Clock, Times, call_of, medians

_FINALISTS = 3
_NOT_ITS_FAULT = ("S0622", "S0631", "S0902")
"""Errors of the model on these arguments, of a scheduling function, of Smelt."""
Timed = Callable[[torch.nn.Module], Any]
"""What is timed of a module, where it is not a plain call."""


Advance = Callable[[int, str], None]
"""Told after each trial: how many there will be at most, and the best gain so far."""


@record
class _Candidate:
    """A trial with what came of it: the state, what was warned of on the way, what the knobs were, the error."""

    trial: Trial
    state: State | None
    warned: Sequence[warnings.WarningMessage]
    run: Run
    error: BaseException | None = None


class Tuning:
    """`tune`, for schedules."""

    @property
    def _state(self) -> State:
        raise NotImplementedError

    def _become(self, state: State) -> None:
        raise NotImplementedError

    def _fork(self, choose: Choose) -> Self:
        raise NotImplementedError

    def tune(
        self,
        shape: Callable[[Self], Any],
        *args: Any,
        inputs: Sequence[Any] = (),
        budget: float | None = 60.0,
        trials: int = 64,
        repeats: int = 9,
        backward: bool | None = None,
        seed: int = 0,
        cache: bool = True,
        progress: bool | None = None,
        run: Timed | None = None,
        clock: Clock = time.perf_counter,
        **kwargs: Any,
    ) -> Tuned:
        """Apply the steps of a scheduling function with the choices of its knobs that measure fastest.

        shape: applies steps to the schedule in its argument, and calls `knob(name, choices)` where it needs one. It is
            called once for each candidate, on a schedule like this one; which knobs it requests, and which steps it
            applies, may depend on earlier knobs, and on nothing else that changes.
        args, kwargs, inputs: calls of the whole model, as of `verify`. The first is timed, without gradients.
        budget: seconds after which no further candidate is begun; None for no limit. trials: at most so many are tried.
            Are there no more, all are; else they are drawn at random first, then near the best so far.
        repeats: how often a candidate and the untouched model run, interleaved; the medians count.
        backward: as of `verify`. seed: of the random choices. cache: store the result on disk, by the program, the
            function's code and knobs and the machine, and use one that is there. A cached one is verified again.
        progress: whether a bar is shown; None where the terminal is one. run: what is timed of a module instead of a
            plain call, for example a step of training. clock: gives seconds.
        A candidate with a step that is refused, with other results or gradients than the model's, or that fails when it
        runs, is counted and skipped. The model never changes.
        Returns: what was tried, what was chosen.
        Raises: ScheduleError: S0631 for knobs that differ each time, S0632 where no candidate
            can be used, S0622 where the model cannot be run on these arguments. VerifyError, or what a step raised, is
            its cause. Nothing has changed then.
        """
        if not callable(shape):
            raise ScheduleError(
                f"{shape!r} is no function to tune", why="tune calls it with a schedule for each candidate",
                fix="give a function: def shape(s): s.tile(..., s.knob('tile', [2, 4]))", code="S0607",
            )  # fmt: skip
        if trials < 1 or repeats < 1:
            raise ScheduleError(
                f"tune(trials={trials}, repeats={repeats}) tries nothing", why="at least one is needed of both",
                fix="leave them out for the defaults", code="S0631",
            )  # fmt: skip
        calls = as_calls(self._state, args, kwargs, inputs)
        bench = _Bench(self._state, calls, repeats, backward, run, clock, budget)
        search = Search(trials, seed)
        with _bar(progress, trials) as advance:
            chosen, tried, ended, is_kept = _chosen(self, shape, bench, search, advance, cache, (trials, repeats, seed))
        assert chosen.state is not None
        self._become(chosen.state)
        for told in chosen.warned:
            warnings.warn_explicit(told.message, told.category, told.filename, told.lineno)
        every, is_complete = tuple(each.trial for each in tried), search.tree.is_done
        return Tuned(self, every, chosen.trial, ended, is_complete, is_kept, search.space)


class _Bench:
    """Candidates of one schedule are made, verified and timed here."""

    def __init__(
        self, base: State, calls: Sequence[Arguments], repeats: int, backward: bool | None,
        timed: Timed | None, clock: Clock, budget: float | None,
    ) -> None:  # fmt: skip
        self.base, self.calls, self.repeats, self.backward = base, calls, repeats, backward
        self.timed, self.clock, self.budget = timed, clock, budget
        self.deadline = float("inf") if budget is None else clock() + budget
        self._untouched: Callable[[], Any] | None = None

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up."""
        return self.clock() > self.deadline

    def shaped(self, schedule: Tuning, shape: Callable[[Any], Any], run: Run) -> _Candidate:
        """A candidate, not yet verified, or a failure. Raises: what is no fault of a step."""
        with isolated(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                made = schedule._fork(run)
                shape(made)
            except (SmeltError, RuntimeError, MemoryError) as error:
                return _failed(_Candidate(Trial({}), None, (), run), error)
            finally:
                _check_alone(schedule, self.base)
        return _Candidate(Trial(run.values, steps=len(made._state.steps)), made._state, tuple(warned), run)

    def verified(self, candidate: _Candidate) -> _Candidate:
        """The candidate, or a failure where it differs from the model. Raises: what is no fault of a step."""
        if candidate.state is None:
            return candidate
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            try:
                verified(candidate.state, self.calls, self.backward)
            except (SmeltError, RuntimeError, MemoryError) as error:
                return _failed(candidate, error)
        return candidate

    def timed_beside(self, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """The candidates with their times; those whose runs fail are failures."""
        with isolated(), warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            try:
                if self._untouched is None:
                    self._untouched = self._way(next(iter(states(self.base))))
                ways = [self._untouched, *(self._way(each.state) for each in candidates if each.state is not None)]
                beside, *own = medians(ways, self.repeats, self.clock, self.deadline)
            except (RuntimeError, MemoryError, SmeltError) as error:
                return [_failed(each, error) for each in candidates]
        found = zip(candidates, own, strict=True)
        return [replace(each, trial=_with_times(each.trial, times, beside)) for each, times in found]

    def _way(self, state: State) -> Callable[[], Any]:
        module, timed = state.build(), self.timed
        return call_of(module, self.calls[0]) if timed is None else lambda: timed(module)


def _chosen(
    schedule: Any, shape: Callable[[Any], Any], bench: _Bench, search: Search, advance: Advance, cache: bool,
    effort: tuple[int, ...],
) -> tuple[_Candidate, list[_Candidate], str, bool]:  # fmt: skip
    """The best candidate, all, why the search ended, and whether the best was kept. Raises: as `tune`."""
    tried: list[_Candidate] = []
    best: list[_Candidate] = []
    key = ""
    while not (tried and bench.is_over) and (run := search.next()) is not None:
        now = bench.shaped(schedule, shape, run)
        if cache and not key:
            knobs = [str(knob) for knob, _ in run.answers.values()]
            looked = (bench.budget, bench.backward, *effort)
            key = tuning_cache.key_of(bench.base, bench.calls, knobs, (shape, bench.timed), looked)
            kept = _kept(key, schedule, shape, bench)
            if kept is not None:
                return kept, [kept], "", True
        now = bench.verified(now)
        if now.state is not None:
            (now,) = bench.timed_beside([now])
        # An error holds what ran when it came; one of them tells enough.
        tried.append(replace(now, state=None, error=None if tried else now.error))
        if now.state is not None:
            best = sorted([*best, now], key=_slowness)[:_FINALISTS]
        search.closed(run, is_best=bool(best) and best[0] is now)
        advance(min(search.space, effort[0]), f"{best[0].trial.gain:.2f}x" if best else "")
    if not best:
        raise _none(tried) from tried[0].error
    ended = "the budget ended the search" if bench.is_over else "the number of trials ended the search"
    if search.tree.is_done:
        ended = "all were tried"
    if len(best) > 1:
        again = [each for each in bench.timed_beside(best) if each.state is not None]
        best = sorted(again, key=_slowness) or best
    final = {id(each.run): each for each in best}
    tried = [final.get(id(each.run), each) for each in tried]
    if cache:
        trial = best[0].trial
        assert trial.seconds is not None and trial.untouched is not None
        made = tuning_cache.Kept(best[0].run.indices, trial.seconds, trial.untouched, trial.gain)
        tuning_cache.write(key, made)
    return best[0], tried, ended, False


def _with_times(trial: Trial, times: Times, beside: Times) -> Trial:
    return replace(trial, seconds=times.seconds, untouched=beside.seconds, gain=times.gain)


def _slowness(candidate: _Candidate) -> float:
    return -candidate.trial.gain


def _kept(key: str, schedule: Any, shape: Callable[[Any], Any], bench: _Bench) -> _Candidate | None:
    """The candidate that an earlier search chose, verified here; None where there is none, or it does not fit."""
    kept = tuning_cache.read(key)
    if kept is None:
        return None
    search = Search(1, 0)
    run = Run(search.tree, lambda knob, left: min(kept.indices.get(knob.name, 0), len(left) - 1))
    found = bench.verified(bench.shaped(schedule, shape, run))
    if found.state is None or run.indices != kept.indices:
        return None
    return replace(found, trial=replace(found.trial, seconds=kept.seconds, untouched=kept.untouched, gain=kept.gain))


def _failed(candidate: _Candidate, error: BaseException) -> _Candidate:
    """A candidate that failed. Raises: the error, where the function or the model is at fault and not the choice."""
    if isinstance(error, SmeltError) and error.code in _NOT_ITS_FAULT:
        raise error
    failure: Failure = "failed"
    if isinstance(error, VerifyError):
        failure = "wrong"
    elif isinstance(error, SmeltError):
        failure = "refused"
    text = error.what if isinstance(error, SmeltError) else f"{type(error).__name__}: {error}"
    trial = Trial(candidate.run.values, failure=failure, why=text.partition("\n")[0])
    return replace(candidate, trial=trial, state=None, error=error)


def _check_alone(schedule: Tuning, base: State) -> None:
    """Raises: ScheduleError (S0631) where a scheduling function took steps on the schedule that is tuned."""
    if schedule._state is not base:
        schedule._become(base)
        raise ScheduleError(
            "the scheduling function applied steps to the schedule that is being tuned",
            why="each candidate has a schedule of its own, which the function receives",
            fix="use the function's argument, not the schedule around it", code="S0631",
        )  # fmt: skip


def _none(tried: Sequence[_Candidate]) -> ScheduleError:
    trials = [each.trial for each in tried]
    last = "; ".join(dict.fromkeys(f"{trial.failure}: {trial.why}" for trial in trials[:3]))
    return ScheduleError(
        f"none of {len(trials)} candidates can be used", why=last,
        fix="correct the step, or give the knobs other choices", code="S0632",
    )  # fmt: skip


@contextlib.contextmanager
def _bar(wanted: bool | None, trials: int) -> Iterator[Advance]:
    """A progress bar on the terminal; gives what is called after each trial."""
    # No thread that draws: it would take its time from what is measured. In a file only the finished bar stands.
    with progress(text_column("{task.fields[gain]}"), wanted=wanted, auto_refresh=False) as bar:
        task = bar.add_task("tuning", total=trials, gain="")
        yield lambda total, gain: bar.update(task, advance=1, total=total, gain=gain, refresh=True)
