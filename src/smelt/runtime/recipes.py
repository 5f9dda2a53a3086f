"""How a program's outputs are made of what a plan gives, of what came in, and of the program's state.

Invariant: recipes are frozen data without tensors, so that they can be written and read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from smelt._torch.seen.inference_kind import of_kind
from smelt._torch.seen.spent_history import with_spent_history
from smelt.diag.records import record


@record
class StateName:
    """A tensor that the program reads from outside: a parameter, a buffer, or one found in a closure or a global."""

    kind: str
    path: str


@record
class Fresh:
    """Result number `index` of the plan."""

    index: int


@record
class Same:
    """The very tensor that came in: input number `source`, or a tensor of the state."""

    source: int | StateName


@record
class ViewOf:
    """A view of a tensor that came in; `offset` counts elements from that tensor's own start.

    is_detached: whether autograd is to know nothing of where it came from (`detach()`, `.data`).
    number: which tensor of the program it is; the same one may be several outputs, by one way or another.
    """

    source: int | StateName
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    is_detached: bool = False
    number: int = 0


@record
class SizedView:
    """A `ViewOf` a source whose numbers follow from free sizes: results of the plan from number `first` on are its
    sizes, then its strides, then its offset.
    """

    source: int | StateName
    ndim: int
    first: int
    is_detached: bool = False
    number: int = 0

    def at(self, results: Sequence[Any]) -> ViewOf:
        """The view that a plan's results say."""
        sizes, behind = self.first + self.ndim, self.first + 2 * self.ndim
        shape = tuple(results[self.first : sizes]), tuple(results[sizes:behind])
        return ViewOf(self.source, *shape, results[behind], self.is_detached, self.number)


def view_of(base: torch.Tensor, view: ViewOf) -> torch.Tensor:
    """The view of its source, which stays what autograd knows it as, unless it is detached."""
    if base.requires_grad:
        # What is compiled gives no history: the program made the view where no gradients were recorded.
        with torch.no_grad():
            made = base.as_strided(view.sizes, view.strides, base.storage_offset() + view.offset)
    else:
        made = base.as_strided(view.sizes, view.strides, base.storage_offset() + view.offset)
    return made.detach() if view.is_detached else made


@record
class Plain:
    """A Python value of the graph itself."""

    value: Any


@record
class Number:
    """Result number `index` of the plan, a Python number."""

    index: int


@record
class Either:
    """One of several, by the number in result `which` of the plan."""

    which: int
    options: tuple[Fresh | Same | ViewOf | SizedView, ...]


@record
class OfKind:
    """What the run makes, as an inference tensor or as none, whatever the mode of the call makes of it."""

    recipe: Fresh | Either
    inference: bool


@record
class Spent:
    """What the run makes, with a history that the program itself has gone back through."""

    recipe: Fresh | Either


OutputRecipe: TypeAlias = Fresh | Number | Same | ViewOf | SizedView | Plain | Either | OfKind | Spent

Lookup: TypeAlias = Callable[[str, str], torch.Tensor]
"""(kind, path) -> the tensor; kind is "param", "buffer" or "captured"."""


@record
class Mutation:
    """The plan writes into this input or state tensor (and bumps its version)."""

    target: int | StateName


def rebuilt(
    recipes: Sequence[OutputRecipe], results: Sequence[Any], inputs: Sequence[torch.Tensor], lookup: Lookup
) -> list[Any]:
    """The graph's outputs from the plan's results, the call's inputs and the state."""

    def source_of(source: int | StateName) -> torch.Tensor:
        return inputs[source] if isinstance(source, int) else lookup(source.kind, source.path)

    outputs: list[Any] = []
    views: dict[int, torch.Tensor] = {}
    for wanted in recipes:
        recipe = wanted.recipe if isinstance(wanted, (OfKind, Spent)) else wanted
        if isinstance(recipe, Either):
            recipe = recipe.options[results[recipe.which]]
        match recipe:
            case Fresh(index=index):
                made = results[index]
                if isinstance(wanted, OfKind):
                    made = of_kind(made, wanted.inference)
                elif isinstance(wanted, Spent):
                    made = with_spent_history(made)
                outputs.append(made)
            case Number(index=index):
                outputs.append(results[index])
            case Same(source=source):
                outputs.append(source_of(source))
            case ViewOf():
                if recipe.number not in views:
                    views[recipe.number] = view_of(source_of(recipe.source), recipe)
                outputs.append(views[recipe.number])
            case SizedView():
                if recipe.number not in views:
                    views[recipe.number] = view_of(source_of(recipe.source), recipe.at(results))
                outputs.append(views[recipe.number])
            case Plain(value=value):
                outputs.append(value)
    return outputs
