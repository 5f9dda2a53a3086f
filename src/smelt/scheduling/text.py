"""A schedule as text: `s.to_json()`, `smelt.apply(text, model)`.

    {"smelt_schedule": 1, "model": "BertModel",
     "steps": [{"path": "encoder.layer.*.attention", "primitive": "replace", "selector": {...}, "arguments": {...}}]}

Invariant: applying takes the steps in order on the model, as if they were called; the first that cannot be taken is an
error, and nothing has happened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from smelt.diag import ScheduleError, SmeltError
from smelt.pattern import Where
from smelt.scheduling.applying import states, take
from smelt.scheduling.encoding import Decoder, Encoder
from smelt.scheduling.finding.selector import Selector
from smelt.scheduling.state import State
from smelt.scheduling.steps import Step

FORMAT = 1


def to_json(state: State) -> str:
    """The steps of a state as text. Raises: ScheduleError (S0611), which names what cannot be written."""
    chain = list(states(state))
    steps = []
    for before, step in zip(chain, state.steps, strict=False):
        encoder = Encoder(_path_of(before))
        try:
            entry: dict[str, Any] = {"path": step.path, "primitive": step.primitive}
            if step.selector is not None:
                entry["selector"] = _selector(step.selector, encoder)
            arguments = {name: encoder.encode(value) for name, value in step.arguments.items()}
        except ScheduleError as error:
            raise ScheduleError(f"{error.what} ({step})", step.where, error.why, error.fix, error.code) from error
        steps.append({**entry, "arguments": arguments})
    head = {"smelt_schedule": FORMAT, "model": type(chain[0].tree).__name__}
    return json.dumps({**head, "steps": steps}, indent=1)


def applied(text: str, state: State) -> State:
    """The state after the steps of a text.

    Raises: ScheduleError: S0611 for another text, and whatever a step raises.
    """
    for i, entry in enumerate(_steps(text), 1):
        try:
            decoder = Decoder(_module_at(state))
            selector = entry.get("selector")
            step = Step(
                _text(entry["path"]),
                _text(entry["primitive"]),
                {name: decoder.decode(value) for name, value in entry["arguments"].items()},
                None if selector is None else _selector_of(selector, decoder),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise _unreadable(f"step {i} is none: {error!r}") from error
        except ScheduleError:
            raise
        except SmeltError as error:
            raise _unreadable(f"step {i}: {error.what}") from error
        try:
            state = take(state, step)
        except ScheduleError as error:
            error.notes = (*error.notes, f"in step {i} of the schedule: {step}")
            raise
    return state


def _steps(text: str) -> list[Mapping[str, Any]]:
    try:
        data = json.loads(text)
    except (ValueError, TypeError) as error:
        raise _unreadable(f"it is no JSON: {error}") from error
    if not isinstance(data, dict) or "smelt_schedule" not in data or not isinstance(data.get("steps"), list):
        raise _unreadable("it is JSON of something else")
    if data["smelt_schedule"] != FORMAT:
        raise _unreadable(f"it has format {data['smelt_schedule']}, and this version of Smelt reads {FORMAT}")
    return data["steps"]


def _selector(selector: Selector, encoder: Encoder) -> dict[str, Any]:
    if isinstance(selector.pattern, Where):
        raise ScheduleError(
            "the schedule cannot be written as text: a predicate on nodes", why="it is a function of the graph's nodes",
            fix="find by a pattern, a regex or a class; the schedule itself works unchanged", code="S0611",
        )  # fmt: skip
    ordinals = None if selector.ordinals is None else list(selector.ordinals)
    return {"pattern": encoder.encode(selector.pattern), "ordinals": ordinals, "escaping": selector.escaping}


def _selector_of(data: Mapping[str, Any], decoder: Decoder) -> Selector:
    ordinals = data["ordinals"]
    if ordinals is not None and not (isinstance(ordinals, list) and all(type(n) is int and n >= 0 for n in ordinals)):
        raise TypeError(f"{ordinals!r} are no matches")
    return Selector(decoder.decode(data["pattern"]), None if ordinals is None else tuple(ordinals), data["escaping"])


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{given!r} is no text")
    return given


def _path_of(state: State) -> Callable[[torch.nn.Module], str | None]:
    paths = {id(module): path for path, module in reversed(state.modules.items())}
    known = {key: paths[id(module)] for key, module in state.copies.items() if id(module) in paths}
    return lambda module: paths.get(id(module), known.get(id(module)))


def _module_at(state: State) -> Callable[[str], torch.nn.Module]:
    def module_at(path: str) -> torch.nn.Module:
        found = state.modules.get(path)
        if found is None:
            raise ScheduleError(
                f"the model has no module {path!r}", why="a step of the schedule uses it",
                fix="apply the schedule to a model like the one that it was made for", code="S0601",
            )  # fmt: skip
        return found

    return module_at


def _unreadable(why: str) -> ScheduleError:
    return ScheduleError(
        "this is no schedule that can be applied", why=why, fix="give what to_json() wrote", code="S0611"
    )  # fmt: skip
