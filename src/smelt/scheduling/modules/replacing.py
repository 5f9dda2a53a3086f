"""`replace`: another module or function in the place of a module, or of a part of a module's graph; `replace_all`.

    before:  %1 = linear(%x, ...)  %2 = batch_norm(%1, ...)        after:  %1 = Identity_0(%x)

One match is replaced as it stands (vertically). Several at once (horizontally) are replaced by one call, which gets the
values that they are computed from and gives their results, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch

from smelt.diag import ScheduleError
from smelt.ops.modes import entered
from smelt.scheduling.draft import Draft, Selected
from smelt.scheduling.finding.binding import bind
from smelt.scheduling.finding.match import Match
from smelt.scheduling.finding.target import join
from smelt.scheduling.graphs.editing import Editor, types_of
from smelt.scheduling.graphs.graph_primitive import GraphPrimitive
from smelt.scheduling.modules import copying
from smelt.scheduling.modules.functions import Applied, as_list, run_on_stand_ins
from smelt.scheduling.own_code import call_own
from smelt.scheduling.primitives import Primitive, Steps

Make = Callable[..., torch.nn.Module]


class Replace(GraphPrimitive):
    """Something else in the place of a module, or of matches."""

    name = "replace"
    keeps_meaning: ClassVar[bool] = False

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        """Replace the matches, where some are selected, else the module itself."""
        if at.selector is not None:
            super().apply(draft, at, **arguments)
            return
        old = draft.module(at.path)
        make = arguments.get("make")
        new = call_own("make", make, at.path, old) if make is not None else arguments.get("new")
        draft.put(at.path, draft.own(_as_module(new, at.path)))
        draft.note(at.path, f"replaced: was {type(old).__name__}")

    def prepare(self, draft: Draft, at: Selected, **arguments: Any) -> Mapping[str, Any]:
        """Put a new module below the one whose graph is edited: `Identity_0`, or `name_0`."""
        given = dict(arguments)
        new, name = given.pop("new", None), given.pop("name", None)
        if not isinstance(new, torch.nn.Module):
            if not callable(new):
                raise _no_replacement(new, at.path)
            return {"new": new, **given}
        home, n = draft.module(at.path), 0
        wish = name or type(new).__name__
        while f"{wish}_{n}" in home._modules or hasattr(home, f"{wish}_{n}"):
            n += 1
        child = draft.own(new)
        for part in child.modules():
            part.training = home.training
        home.add_module(f"{wish}_{n}", child)
        return {"child": f"{wish}_{n}", **given}

    @staticmethod
    def edit(editor: Editor, matches: Sequence[Match], **arguments: Any) -> None:
        """Check the part, give the replacement its values, and put its results there."""
        child, constants = arguments.get("child"), arguments.get("arguments") or {}
        function: Any = editor.module.get_submodule(child) if child is not None else arguments["new"]
        # From the last one on: what a match is computed from is then still as it was found.
        parts = [[match] for match in reversed(matches)] if arguments.get("each") else [list(matches)]
        for selected in parts:
            part = editor.part(selected)
            bound, operands = bind(function, selected, constants)
            values = None if child is not None else editor.inline(bound, operands, part)
            if values is None:
                name = child if child is not None else editor.free_name(_plain_name(function))
                while name in editor.calls:
                    name = editor.free_name(name)

                def call(*given: Any, bound: Callable[..., Any] = bound) -> list[Any]:
                    return as_list(bound(*given))

                types = [value.type for value in part.outputs]
                if editor.is_concrete:
                    tried = (
                        bind(copying.without_hooks(function), selected, constants)[0] if child is not None else bound
                    )
                    with entered(part.mode):
                        types = types_of(run_on_stand_ins(tried, operands, part.where))
                scope = None if child is None else child
                values = editor.call(name, call, operands, types, part, scope, part.mode)
            editor.put(part, values)


class ReplaceAll(Primitive):
    """Others in the place of all modules of a type."""

    name = "replace_all"
    keeps_meaning: ClassVar[bool] = False

    def apply(self, draft: Draft, at: Selected, **arguments: Any) -> None:
        """Ask `make(path, old, **options)` for each module of the type below the path, inner ones first."""
        given = dict(arguments)
        wanted, make = given.pop("type"), given.pop("make")
        if not isinstance(wanted, type | tuple):
            raise ScheduleError(
                f"{wanted!r} is no type of modules", fix="give a class, such as torch.nn.ReLU", code="S0607"
            )
        below = draft.module(at.path).named_modules()
        found = [(join(at.path, name), module) for name, module in below if isinstance(module, wanted)]
        if not found:
            raise ScheduleError(
                f"{at.path or 'the whole'} has no module of type {_type_name(wanted)}",
                why="there is nothing to replace", fix="print the schedule to see its modules", code="S0607",
            )  # fmt: skip
        for path, old in sorted(found, key=lambda item: -item[0].count(".") if item[0] else 1):
            draft.put(path, draft.own(_as_module(call_own("make", make, path, old, **given), path)))
            draft.note(path, f"replaced: was {type(old).__name__}")


class ReplaceSteps(Steps):
    """The typed methods of this module's primitives."""

    def replace(
        self,
        new: torch.nn.Module | Callable[..., Any] | None = None,
        match: Match | Sequence[Match] | None = None,
        *,
        make: Make | None = None,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        each: bool = False,
        equal: bool = False,
        scope: str | None = None,
    ) -> Self:
        """Replace this module by another one, or matches by a module or function.

        before:  fc1: Linear            s["fc1"].replace(Mine())                after:  fc1: Mine
        before:  %1 = relu(%x)          s.replace(F.gelu, s.find(relu)[0])      after:  %1 = gelu(%x)
        before:  %1 = q(%x)  %2 = k(%x) %3 = v(%x)   s.replace(QKV(), matches)  after:  %1, %2, %3 = QKV_0(%x)

        new: a module (it may contain the old one: `nn.Sequential(s["fc1"].module, nn.ReLU())`) or a function. make: for
            a module, called as `make(path, old)` when the step is applied, once for each of a selection.
        match: one match, or several that one call replaces; its results are theirs in order. each: each separately.
        equal: a function computes what it replaces, so that a call which the step does not fit may fall back to eager,
            with a warning; else that is an error.
        name: of a new module, which stands as `name_0` below the module whose graph is edited (else `Mine_0`).
        arguments: further arguments of the function, or of the module's call. scope: the module whose graph is
            edited, if it should be a larger one than the smallest that contains the matches.
        Parameters of a replacement are found by the pattern's names, else by position; defaults stand where neither
        gives more. Of a whole module, the new one gets hooks and `training`. A module passed once and assigned under
        several names is copied for each.
        Elsewhere called: replace (Slapo).
        Raises: ScheduleError, before anything is edited: S0608 if number, dtype or sizes of the replacement's arguments
            and results do not fit; S0609 for matches that overlap, escape, or have other effects or dependents between
            their nodes; S0610 if a hook is inside.
        """
        if match is None:
            given = {"new": new, "make": make}
        else:
            if arguments is not None and not isinstance(arguments, Mapping):
                raise ScheduleError(
                    f"{arguments!r} are no arguments", why=f"it is of type {type(arguments).__name__}",
                    fix="give a dictionary: arguments={'scale': 2.0}", code="S0607",
                )  # fmt: skip
            given = {"new": new, "name": name, "arguments": arguments, "each": each or None, "equal": equal or None}
        return self.take("replace", {k: v for k, v in given.items() if v is not None}, match, scope)

    def replace_all(self, type: type | tuple[type, ...], make: Make, **options: Any) -> Self:
        """Replace each module of a type, in here and below.

        before:  act: ReLU, layers.0.act: ReLU        s.replace_all(nn.ReLU, lambda path, old: nn.GELU())
        after:   act: GELU, layers.0.act: GELU
        make: called as `make(path, old, **options)`; its result may contain the old module, which then stays unchanged.
            The new module gets hooks and `training` flags.
        Elsewhere called: replace_all (Slapo).
        Raises: ScheduleError: S0607 where there is no such module, or `make` raises; S0608 where it gives no
            module.
        """
        return self.take("replace_all", {"type": type, "make": make, **options})


def _as_module(given: Any, path: str) -> torch.nn.Module:
    if isinstance(given, torch.nn.Module):
        return given
    if callable(given) and not isinstance(given, type):
        return Applied(given)
    raise _no_replacement(given, path)


def _no_replacement(given: Any, path: str) -> ScheduleError:
    return ScheduleError(
        f"{given!r} cannot stand in {path or 'the whole'}", why="it is neither a module nor a function",
        fix="give a module or a function of tensors", code="S0608",
    )  # fmt: skip


def _plain_name(function: Any) -> str:
    name = str(getattr(function, "__name__", type(function).__name__))
    return name if name.isidentifier() else "function"


def _type_name(wanted: Any) -> str:
    return " or ".join(map(_type_name, wanted)) if isinstance(wanted, tuple) else wanted.__name__
