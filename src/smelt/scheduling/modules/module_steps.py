"""Steps on whole modules: how one runs, not what it computes. The program around it stays ordinary Python.

Invariant: a module keeps its class (a quantized linear layer is of a subclass), its keys, hooks and attributes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch

from smelt.diag import ScheduleError
from smelt.scheduling.draft import Draft, Selected
from smelt.scheduling.modules.module_steps_error import Measured
from smelt.scheduling.modules.module_steps_forward import (
    FORMATS,
    Around,
    ChannelsLast,
    Checkpointed,
    ForkedRandom,
    Printed,
    SeparateBias,
    arounds,
    surround,
)
from smelt.scheduling.primitives import Primitive

_ANNOTATIONS = "_smelt_annotations"


class OnModule(Primitive):
    """A step on a module itself."""

    def module(self, draft: Draft, at: Selected) -> torch.nn.Module:
        """The module. Raises: ScheduleError (S0607) where matches inside it were selected."""
        if at.selector is not None:
            raise ScheduleError(
                f"{self.name} is no step on matches", why="it is about a module as a whole",
                fix=f"select the module: s[{at.path!r}].{self.name}(...)", code="S0607",
            )  # fmt: skip
        return draft.module(at.path)

    def once(self, module: torch.nn.Module, path: str, kind: type[Around]) -> None:
        """Raises: ScheduleError (S0607) where the module has had this step."""
        if any(isinstance(around, kind) for around in arounds(module)):
            raise ScheduleError(
                f"{path or 'the whole'} has had {self.name} already", why="a second time would change nothing",
                fix="leave the step out, or take the first one back with s.undo()", code="S0607",
            )  # fmt: skip


class Checkpoint(OnModule):
    """Compute a module again in backward instead of keeping what is in it."""

    name = "checkpoint"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        module = self.module(draft, at)
        self.once(module, at.path, Checkpointed)
        surround(module, Checkpointed, at.path)
        draft.note(at.path, "checkpoint")


class Decompose(OnModule):
    """A linear layer as a product and an addition."""

    name = "decompose"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        module = self.module(draft, at)
        self.once(module, at.path, SeparateBias)
        if type(module).forward is not torch.nn.Linear.forward or "forward" in module.__dict__:
            raise ScheduleError(
                f"{at.path or 'the whole'} ({type(module).__name__}) cannot be decomposed",
                why="only linear layers with torch's own forward are known to be a product and an addition",
                fix="select nn.Linear modules", code="S0607",
            )  # fmt: skip
        if module.bias is None:
            raise ScheduleError(
                f"{at.path or 'the whole'} has no bias to be added apart", why="it is a product alone already",
                fix="leave the step out", code="S0607",
            )  # fmt: skip
        surround(module, SeparateBias, at.path)
        draft.note(at.path, "decomposed: x @ weight.T, then + bias")


class ForkRng(OnModule):
    """A module on random numbers of its own."""

    name = "fork_rng"
    keeps_meaning: ClassVar[bool] = False
    own_randomness: ClassVar[bool] = True

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        module = self.module(draft, at)
        self.once(module, at.path, ForkedRandom)
        offset = arguments.get("offset", 0)
        if not isinstance(offset, int):
            raise ScheduleError(
                f"{offset!r} is no offset of a seed", why=f"it is of type {type(offset).__name__}",
                fix="give an integer", code="S0607",
            )  # fmt: skip
        surround(module, partial(ForkedRandom, offset=offset), at.path)
        draft.note(at.path, "random numbers of its own")


class PrintAt(OnModule):
    """Show what a module is given, or gives."""

    name = "print_at"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        which, values = arguments.get("which", "output"), bool(arguments.get("values", False))
        if which not in ("input", "output"):
            raise ScheduleError(
                f"a module has no {which!r} to print", fix="which='input' or which='output'", code="S0607"
            )
        surround(self.module(draft, at), partial(Printed, path=at.path, which=which, values=values), at.path)
        draft.note(at.path, f"prints its {which}")


class Layout(OnModule):
    """A module on images that lie in memory channel by channel."""

    name = "layout"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        format = arguments["format"]
        if format not in FORMATS:
            raise ScheduleError(f"{format!r} is no layout", fix=f"one of {', '.join(map(repr, FORMATS))}", code="S0607")
        module = self.module(draft, at)
        self.once(module, at.path, ChannelsLast)
        measured = Measured(draft)
        rank = FORMATS[format][1]
        for part in module.modules():
            for name, parameter in part._parameters.items():
                if parameter is not None and parameter.dim() == rank:
                    on_copies(part, f"_smelt_layout_{name}", _Relaid(parameter, format))
        surround(module, partial(ChannelsLast, format=format), at.path)
        measured.error(f"layout({format!r})", at.path, math.inf)
        draft.note(at.path, format)


class Annotate(OnModule):
    """A mark on a parameter."""

    name = "annotate"

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        param, key, value = arguments["param"], arguments["key"], arguments["value"]
        module = self.module(draft, at)
        where, _, last = param.rpartition(".")
        try:
            owner = module.get_submodule(where)
        except AttributeError:
            owner = None
        parameter = owner._parameters.get(last) if owner is not None else None
        if owner is None or parameter is None:
            raise ScheduleError(
                f"{at.path or 'the whole'} has no parameter {param!r}",
                why=f"it has {', '.join(name for name, _ in module.named_parameters()) or 'none'}",
                fix="give the name of a parameter, counted from the module", code="S0607",
            )  # fmt: skip
        if not isinstance(key, str) or not key.isidentifier() or hasattr(torch.nn.Parameter, key):
            raise ScheduleError(
                f"a parameter cannot be annotated with {key!r}",
                why="each tensor has an attribute of this name" if isinstance(key, str) and key.isidentifier()
                else "it is no name of an attribute",
                fix="choose another name", code="S0607",
            )  # fmt: skip
        known = owner.__dict__.get(_ANNOTATIONS, {})
        marks = {**(known[last].marks if last in known else {}), key: value}
        owner.__dict__[_ANNOTATIONS] = {**known, last: _Marked(parameter, marks)}
        draft.note(at.path, f"{param}.{key} = {value!r}")


class _OnCopy:
    """Does something to a parameter's copies, and nothing to the model's own parameter.

    Invariant: lies in the parameter's module, so that whoever copies the module copies this with it.
    """

    def __init__(self, parameter: torch.Tensor) -> None:
        self.parameter = parameter

    def do(self, copied: torch.Tensor) -> None:
        raise NotImplementedError

    def __deepcopy__(self, memo: dict[int, Any]) -> _OnCopy:
        made = copy.copy(self)
        made.parameter = copy.deepcopy(self.parameter, memo)
        if made.parameter is not self.parameter:
            made.do(made.parameter)
        return made


class _Marked(_OnCopy):
    def __init__(self, parameter: torch.Tensor, marks: Mapping[str, Any]) -> None:
        super().__init__(parameter)
        self.marks = marks

    def do(self, copied: torch.Tensor) -> None:
        for key, value in self.marks.items():
            setattr(copied, key, value)


class _Relaid(_OnCopy):
    def __init__(self, parameter: torch.Tensor, format: str) -> None:
        super().__init__(parameter)
        self.format = format

    def do(self, copied: torch.Tensor) -> None:
        copied.data = copied.detach().contiguous(memory_format=FORMATS[self.format][0])


def on_copies(module: torch.nn.Module, name: str, action: _OnCopy) -> None:
    """Let copies of a module do something to theirs of a parameter."""
    module.__dict__[name] = action


def annotations_of(model: torch.nn.Module) -> dict[str, dict[str, Any]]:
    """All annotations by the path of the parameter."""
    return {
        f"{path}.{name}".lstrip("."): dict(marked.marks)
        for path, module in model.named_modules()
        for name, marked in module.__dict__.get(_ANNOTATIONS, {}).items()
    }
