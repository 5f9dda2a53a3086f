"""`s.verify`: the schedule's module against the model as it was; a wrong step is named.

Invariant: neither the schedule nor the model changes, and no random state, mode or hook of the process does. Both
modules that run are copies made for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from smelt.diag import ScheduleError, VerifyError
from smelt.parallel.proving.proof import Optimizer, Proof
from smelt.scheduling.applying import states, take
from smelt.scheduling.catalogue import primitive_of
from smelt.scheduling.comparing.compare import Difference, Tolerance
from smelt.scheduling.comparing.compare_modules import Comparison, compare
from smelt.scheduling.comparing.compare_runs import Arguments
from smelt.scheduling.ranks.parallel_build import AnyMesh, verify_on
from smelt.scheduling.state import State
from smelt.scheduling.steps import Step


@dataclass(eq=False)
class StepError(VerifyError):
    """A schedule gives other results than its model.

    difference: the first value that differs: its path, index, what was expected and what came. step: the step after
    which it does. Pickled, it keeps the difference and its text.
    """

    difference: Difference | None = field(default=None)
    step: Step | None = field(default=None)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.what, self.where, self.why, self.fix, self.code, self.notes, self.difference))


class Verifying:
    """`verify`, for schedules."""

    @property
    def _state(self) -> State:
        raise NotImplementedError

    @overload
    def verify(
        self,
        /,
        *args: Any,
        inputs: Sequence[Any] = (),
        backward: bool | None = None,
        mesh: None = None,
        steps: int = 3,
        optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> Comparison: ...
    @overload
    def verify(
        self,
        /,
        *args: Any,
        inputs: Sequence[Any] = (),
        backward: bool | None = None,
        mesh: AnyMesh,
        steps: int = 3,
        optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> Proof: ...
    def verify(
        self,
        /,
        *args: Any,
        inputs: Sequence[Any] = (),
        backward: bool | None = None,
        mesh: AnyMesh | None = None,
        steps: int = 3,
        optimizer: Optimizer | None = None,
        **kwargs: Any,
    ) -> Comparison | Proof:
        """Compare what `build()` gives with the untouched model; a wrong step is found and named.

        args, kwargs: the arguments of a call of the whole model. inputs: those of more calls, each a tuple of
            arguments, a dict of keyword arguments, an `Arguments` with both, or one argument. Without any, the example
            inputs of the schedule.
        backward: whether gradients are compared; None where there are any, True where they must be.
        Each call runs in the model's mode and in the other one (train, eval), without gradients and with them, from
        the same random seed, on copies. Compared are outputs however nested, what happens to arguments, buffers,
        parameters and attributes, the random numbers drawn, and the gradients of floating arguments and parameters.
        Integers and bools must be equal, NaN and infinities in the same elements; floats must be as near to float64 as
        eager's, up to a small factor; steps that lose precision on purpose (`precision`, `quantize`) may do so.
        mesh: run the steps on ranks, all ranks of a mesh ({"dp": 2, "tp": 4}) in this process, and compare outputs,
            gradients and parameters after some steps of training. steps: how many. optimizer: makes one of parameters,
            by default SGD with momentum. The arguments are those of all ranks together.
        Returns: what was compared, with the largest error. Parameters are matched by name; renamed ones by value.
        Raises: StepError, a VerifyError (S0621) with the step after which the results differ and the first value that
            does; ScheduleError (S0622) where the model itself does not run on these arguments.
        """
        if mesh is not None:
            return verify_on(self._state, mesh, args, kwargs, steps=steps, optimizer=optimizer)
        return verified(self._state, as_calls(self._state, args, kwargs, inputs), backward)


def verified(state: State, calls: Sequence[Arguments], backward: bool | None = None) -> Comparison:
    """As `Verifying.verify`, for a state. Raises: as there."""
    chain = list(states(state))
    found = _compared(chain[0], state, calls, backward)
    if found.difference is None:
        return found
    # The last of them differs; what was found for it stands until an earlier one is known to differ.
    right, wrong = -1, len(chain) - 1
    while wrong - right > 1:
        middle = (right + wrong) // 2
        now = _compared(chain[0], chain[middle], calls, backward)
        if now.difference is None:
            right = middle
        else:
            wrong, found = middle, now
    raise _error(chain[wrong], found)


def checked(state: State) -> None:
    """Compare a state with the model on the schedule's examples. Raises: StepError (S0621) naming its last step."""
    base = next(iter(states(state)))
    found = _compared(base, state, examples_of(state), None)
    if found.difference is not None:
        raise _error(state, found)


def examples_of(state: State) -> list[Arguments]:
    """The schedule's example inputs. Raises: ScheduleError (S0622) where it has none."""
    if state.examples is None:
        raise ScheduleError(
            "there is nothing to compare on", why="neither arguments nor example inputs were passed",
            fix="call s.verify(x), or smelt.schedule(model, example_inputs=(x,))", code="S0622",
        )  # fmt: skip
    return [Arguments(tuple(state.examples))]


def _compared(base: State, state: State, calls: Sequence[Arguments], backward: bool | None) -> Comparison:
    lossy = 0.0
    reference = base
    for step in state.steps:
        primitive = primitive_of(step.primitive, on_matches=step.selector is not None)
        lossy += primitive.allowed_error(step.arguments)
        if primitive.own_randomness:
            # What such a step is for is other random numbers: the rest is compared with a model that draws them, too.
            # Where it is about what an earlier step made, the model has nothing of it.
            with contextlib.suppress(ScheduleError):
                reference = take(reference, step)
    return compare(reference.build, state.build, calls, backward=backward, tolerance=Tolerance(lossy=lossy))


def _error(state: State, found: Comparison) -> StepError:
    assert found.difference is not None
    step = state.steps[-1] if state.steps else None
    if step is None:
        what, fix = "a copy of the model gives other results than the model", "look for state that copies share"
    else:
        what = f"after step {len(state.steps)}, {step}, {found.difference}"
        fix = f"correct or undo the step; the {len(state.steps) - 1} before it agree with the model"
    where = step.where if step is not None else None
    why = f"{found.where}: {found.difference.why or 'they must be equal'}"
    return StepError(what, where, why, fix, "S0621", (), found.difference, step)


def as_calls(state: State, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: Sequence[Any]) -> list[Arguments]:
    """The calls that `verify` is given, or the schedule's examples. Raises: ScheduleError (S0622) for none."""
    whole = len(args) == 1 and isinstance(args[0], Arguments) and not kwargs
    first = [_as_call(args[0]) if whole else Arguments(args, kwargs)] if args or kwargs else []
    return first + [_as_call(given) for given in inputs] or examples_of(state)


def _as_call(given: Any) -> Arguments:
    if isinstance(given, Arguments):
        return given
    if isinstance(given, Mapping):
        return Arguments((), given)
    return Arguments(given if isinstance(given, tuple) else (given,))
