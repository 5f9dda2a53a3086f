"""Taking a step: from one state to the next, or an error and nothing."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from smelt.diag import ScheduleError, SmeltWarning, user_level
from smelt.scheduling.catalogue import primitive_of, registered
from smelt.scheduling.draft import Draft, Selected, Withdrawn
from smelt.scheduling.own_code import call_own
from smelt.scheduling.paths import paths_of
from smelt.scheduling.state import State
from smelt.scheduling.steps import Step


def take(state: State, step: Step) -> State:
    """The state after a step; the given one stays as it is, and is the answer where the step withdraws itself.

    Raises: ScheduleError: S0601 for a path that there is not, S0606 for a primitive, S0607 for arguments that the
        primitive does not take, and for what the user's own raises; whatever it raises.
    """
    primitive = primitive_of(step.primitive, on_matches=step.selector is not None)()
    draft = Draft(state)
    paths = paths_of(state, step.path)
    if not paths:
        raise ScheduleError(
            f"the model has no module {step.path!r}", step.where, why=f"the step is {step}",
            fix="apply the schedule to a model with such modules", code="S0601",
        )  # fmt: skip
    try:
        if step.selector is not None:
            state.prepare(paths)
        for path in paths:
            selected = Selected(path, step.selector)
            if step.primitive in registered:
                call_own(step.primitive, primitive.apply, draft, selected, **step.arguments)
            else:
                primitive.apply(draft, selected, **step.arguments)
    except ScheduleError as error:
        error.where = error.where or step.where
        raise
    except Withdrawn as why:
        warnings.warn(f"{step} was not applied: {why}", SmeltWarning, stacklevel=user_level())
        return state
    return draft.finish(step, on_graphs=primitive.on_graphs or step.selector is not None)


def states(state: State) -> Iterable[State]:
    """The states from the model as it was to this one."""
    chain = []
    now: State | None = state
    while now is not None:
        chain.append(now)
        now = now.before
    return reversed(chain)
