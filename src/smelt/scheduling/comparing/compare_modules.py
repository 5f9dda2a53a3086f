"""Two modules that are to be one program, run side by side and compared in all that their runs show.

    reference ── runs ──▶ observations ─┐
    candidate ── runs ──▶ observations ─┴▶ the first difference, or how far apart they are

Invariant: both modules are consumed (they are copies); nothing else changes. Equal bits need no more. Where bits differ
the same runs in float64 tell what rounding explains; where that says no, so do such runs with random rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from smelt.diag import ScheduleError
from smelt.diag.records import record
from smelt.scheduling.comparing.compare import Comparer, Difference, Tolerance, Words, items
from smelt.scheduling.comparing.compare_exact import Exact
from smelt.scheduling.comparing.compare_runs import GRADIENT, STATE, Arguments, Observation, Run, observe
from smelt.scheduling.comparing.compare_state import names_between, state_of, ties_of

Make = Callable[[], torch.nn.Module]
_MISSING = object()
_DRAWINGS = 3
"""How often rounding at random is tried before a difference is none of rounding."""


@record
class Comparison:
    """What came of comparing.

    difference: the first one, or None. where: the run in which it showed. runs: how many agreed. is_bitwise: whether
    all bits were equal. error, gradient_error: the largest error of a float result, and of a gradient, rms relative to
    its own rms. gradients: whether any were compared. unmatched: parameters and buffers of the reference that the other
    has not.
    """

    difference: Difference | None
    where: str = ""
    runs: int = 0
    is_bitwise: bool = True
    error: float = 0.0
    gradient_error: float = 0.0
    gradients: bool = False
    unmatched: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.difference is not None:
            return f"{self.difference} ({self.where})"
        how = f"within rounding (results {self.error:.2g}, gradients {self.gradient_error:.2g}, rms)"
        how = "bit for bit" if self.is_bitwise else how
        what = "results, states and gradients" if self.gradients else "results and states"
        left = f"; not compared: {', '.join(self.unmatched)}" if self.unmatched else ""
        return f"{what} of {self.runs} runs agree {how}{left}"


def compare(
    reference: Make, candidate: Make, calls: Sequence[Arguments], *, backward: bool | None, tolerance: Tolerance
) -> Comparison:
    """Compare two modules: answers, arguments and states after each call, random numbers drawn, gradients.

    reference, candidate: make a module each; those they give are run, and changed by that. calls: with each, both run
    in their own mode and in the other one (train, eval), without gradients and, unless backward=False, with them.
    Raises: ScheduleError (S0622) where the reference itself cannot be run so, or backward=True and nothing has a
        gradient.
    """
    with torch.inference_mode(False):
        if backward is not False:
            try:
                return _Pair(reference, candidate, tolerance).compare(calls, backward, of_arguments=True)
            except _NotWithGradients:
                pass  # a program that looks at its arguments (numpy, writes) may not take ones with gradients
        return _Pair(reference, candidate, tolerance).compare(calls, backward, of_arguments=False)


class _NotWithGradients(Exception):
    """The reference cannot be run on arguments of which gradients are asked."""


@record
class _Values:
    """One value of a run: the reference's, the candidate's, and the reference's in float64, plain and noisy."""

    path: str
    want: Any
    have: Any
    exact: Any
    noisy: Sequence[Any]


class _Pair:
    """The two modules, and what was run so far."""

    def __init__(self, reference: Make, candidate: Make, tolerance: Tolerance) -> None:
        self._make, self._tolerance = reference, tolerance
        self._reference, self._candidate = reference(), candidate()
        self._training = self._reference.training
        self._state = state_of(self._reference), state_of(self._candidate)
        self._names = names_between(*self._state)
        self._comparer = Comparer(tolerance)
        self._made: list[Run] = []

    def compare(self, calls: Sequence[Arguments], backward: bool | None, *, of_arguments: bool) -> Comparison:
        unmatched = tuple(name for name in self._state[0] if name not in self._names)
        difference = self._at_start()
        if difference is not None:
            return Comparison(difference, "before the first call", unmatched=unmatched)
        gradients = False
        for run in self._runs(calls, backward, of_arguments):
            self._made.append(run)
            expected = observe(self._reference, run)
            self._check(run, expected, backward)
            difference = self._between(expected, observe(self._candidate, run))
            if difference is not None:
                return Comparison(difference, self._text(run), len(self._made) - 1, unmatched=unmatched)
            gradients = gradients or expected.differentiable
        done, errors = self._comparer, self._comparer.errors
        return Comparison(
            None, "", len(self._made), done.is_bitwise, errors["output"], errors["gradient"], gradients, unmatched
        )

    def _runs(self, calls: Sequence[Arguments], backward: bool | None, of_arguments: bool) -> Iterator[Run]:
        for training in (None, not self._training):
            for number, call in enumerate(calls):
                yield Run(call, number, training)
                if backward is not False:
                    yield Run(call, number, training, True, of_arguments)

    def _at_start(self) -> Difference | None:
        """What is different before anything runs: flags, ties, values of parameters and buffers."""
        theirs, mine = self._state
        flags = [{path: part.training for path, part in m.named_modules()} for m in (self._reference, self._candidate)]
        for path in flags[0]:
            if path in flags[1] and flags[0][path] != flags[1][path]:
                return Difference(f"{path}.training".lstrip("."), None, flags[0][path], flags[1][path])
        ties = ties_of({name: theirs[name] for name in self._names})
        kept = ties_of({name: mine[own] for name, own in self._names.items()})
        for group in sorted(ties - kept, key=sorted):
            return Difference(" and ".join(sorted(group)), None, Words("one tensor"), Words("several"))
        comparer = Comparer(self._tolerance)
        for name, own in self._names.items():
            found = comparer.first(items(theirs[name], name), items(mine[own], name))
            if found is not None:
                return replace(found, why="a parameter or buffer starts with another value than the model's")
        return None

    def _check(self, run: Run, expected: Observation, backward: bool | None) -> None:
        """Raises: where the reference cannot be run as asked."""
        if run.backward and run.of_arguments and (expected.error or expected.backward_error):
            raise _NotWithGradients
        error = expected.error or (expected.backward_error if backward else None)
        if error is not None and run.training is None:
            raise ScheduleError(
                f"the model itself raises {_outcome(error)}", why=f"so it does on {self._text(run)}",
                fix="give arguments that the model takes", code="S0622",
            ) from error  # fmt: skip
        if run.backward and backward and not error and not expected.differentiable:
            raise ScheduleError(
                "no output of the model has a gradient", why=f"so it is on {self._text(run)}",
                fix="leave backward=True out, or give the model parameters that require gradients", code="S0622",
            )  # fmt: skip

    def _between(self, expected: Observation, got: Observation) -> Difference | None:
        if type(expected.error) is not type(got.error):
            return Difference("the call", None, Words(_outcome(expected.error)), Words(_outcome(got.error)))
        if got.backward_error is not None and expected.backward_error is None:
            return Difference("backward", None, Words("gradients"), Words(_outcome(got.backward_error)))
        if expected.error is not None or _first(Comparer(None), self._values(expected, got)) is None:
            return None
        exact = self._exact.observe(self._made)
        difference = _first(self._comparer, self._values(expected, got, exact))
        noisy: list[Observation] = []
        for rounded in self._rounded:
            # One drawing may happen to be near where it counts, in a sum of few terms most of all.
            if difference is None or not difference.is_rounding or exact is None:
                break
            run = rounded.observe(self._made)
            noisy += [run] if run is not None else []
            difference = _first(self._comparer, self._values(expected, got, exact, noisy))
        return difference

    @cached_property
    def _exact(self) -> Exact:
        return Exact(self._make)

    @cached_property
    def _rounded(self) -> list[Exact]:
        return [Exact(self._make, noise=self._tolerance.noise, seed=seed) for seed in range(_DRAWINGS)]

    def _values(
        self,
        expected: Observation,
        got: Observation,
        exact: Observation | None = None,
        noisy: Sequence[Observation] = (),
    ) -> Iterator[_Values]:
        """The values of a run that are to agree. A backward that the reference cannot run is left aside."""
        finer = [run.values if run is not None else {} for run in (exact, *noisy)]
        for key, want in expected.values.items():
            other: str | None = key
            for prefix in (STATE, GRADIENT):
                if key.startswith(prefix):
                    own = self._names.get(key.removeprefix(prefix))
                    other = None if own is None else prefix + own
            if key.startswith(GRADIENT) and other not in got.values and self._tolerance.lossy:
                continue  # weights in another form are no parameters any more
            if other is not None:
                wide, *rounded = (run.get(key, _MISSING) for run in finer)
                yield _Values(key, want, got.values.get(other, _MISSING), wide, rounded)
        for path in sorted(expected.changed & got.attributes.keys()):
            found = [run.attributes if run is not None else {} for run in (exact, *noisy)]
            wide, *rounded = (attributes.get(path, _MISSING) for attributes in found)
            want, have = expected.attributes[path], got.attributes[path]
            yield _Values(f"attribute {path} after the call", want, have, wide, rounded)

    def _text(self, run: Run) -> str:
        training = self._training if run.training is None else run.training
        mode = "train" if training else "eval"
        return f"input {run.number} in {mode} mode {'with' if run.backward else 'without'} gradients"


def _first(comparer: Comparer, values: Iterator[_Values]) -> Difference | None:
    for value in values:
        if value.have is _MISSING:
            return Difference(value.path, None, Words("there"), Words("nothing"))
        exact = None if value.exact is _MISSING else items(value.exact, value.path)
        noisy = [items(run, value.path) for run in value.noisy if run is not _MISSING]
        found = comparer.first(items(value.want, value.path), items(value.have, value.path), exact, noisy)
        if found is not None:
            return found
    return None


def _outcome(error: Exception | None) -> str:
    return "a result" if error is None else f"{type(error).__qualname__}: {error}"
