"""How outputs are made, and what a run writes to, as JSON and back."""

from __future__ import annotations

from typing import Any

from smelt.runtime.ingot.structure import read_constant, write_constant
from smelt.runtime.ingot.texts.json_text import Part
from smelt.runtime.recipes import (
    Either,
    Fresh,
    Number,
    OfKind,
    OutputRecipe,
    Plain,
    Same,
    SizedView,
    Spent,
    StateName,
    ViewOf,
)

_LOW = -(1 << 63)
_COUNTS = {
    "fresh": 1,
    "number": 1,
    "same": 1,
    "view": 6,
    "sized view": 5,
    "plain": 1,
    "either": 2,
    "of kind": 2,
    "spent": 1,
}


def write(recipe: OutputRecipe) -> Any:
    """A recipe as JSON. Raises: TypeError for a value that has no written form."""
    match recipe:
        case Fresh(index=index):
            return ["fresh", index]
        case Number(index=index):
            return ["number", index]
        case Same(source=source):
            return ["same", _source(source)]
        case ViewOf():
            shape = [list(recipe.sizes), list(recipe.strides), recipe.offset]
            return ["view", _source(recipe.source), *shape, recipe.is_detached, recipe.number]
        case SizedView():
            shape = [recipe.ndim, recipe.first, recipe.is_detached, recipe.number]
            return ["sized view", _source(recipe.source), *shape]
        case Plain(value=value):
            return ["plain", write_constant(value)]
        case Either(which=which, options=options):
            return ["either", which, [write(option) for option in options]]
        case OfKind(recipe=inner, inference=inference):
            return ["of kind", write(inner), inference]
        case Spent(recipe=inner):
            return ["spent", write(inner)]


def _source(source: int | StateName) -> Any:
    return source if isinstance(source, int) else [source.kind, source.path]


def read(part: Part, ninputs: int, nresults: int) -> OutputRecipe:
    """A recipe of JSON. Raises: PackageError (S0701)."""
    first, *own = part.items() or [part]
    kind = first.one_of(*_COUNTS)
    if len(own) != _COUNTS[kind]:
        raise part.bad("is no recipe of an output")
    match kind:
        case "fresh":
            return Fresh(own[0].as_int(0, nresults - 1))
        case "number":
            return Number(own[0].as_int(0, nresults - 1))
        case "same":
            return Same(read_source(own[0], ninputs))
        case "view":
            source, sizes, strides, offset, is_detached, number = own
            return ViewOf(
                read_source(source, ninputs), sizes.ints(), strides.ints(), offset.as_int(_LOW), is_detached.as_bool(),
                number.as_int(),
            )  # fmt: skip
        case "sized view":
            source, ndim, start, is_detached, number = own
            count = ndim.as_int(0, nresults)
            begin = start.as_int(0, nresults - 2 * count - 1)
            return SizedView(read_source(source, ninputs), count, begin, is_detached.as_bool(), number.as_int())
        case "plain":
            return Plain(read_constant(own[0]))
        case "either":
            found = [read(option, ninputs, nresults) for option in own[1].items()]
            options = tuple(option for option in found if isinstance(option, (Fresh, Same, ViewOf, SizedView)))
            if not options or len(options) < len(found):
                raise own[1].bad("are no choices")
            return Either(own[0].as_int(0, nresults - 1), options)
        case _:
            inner = read(own[0], ninputs, nresults)
            if not isinstance(inner, (Fresh, Either)):
                raise own[0].bad("is nothing that a run makes")
            return OfKind(inner, own[1].as_bool()) if kind == "of kind" else Spent(inner)


def read_source(part: Part, ninputs: int) -> int | StateName:
    """An input's number, or the name of a tensor of the state."""
    if type(part.value) is int:
        return part.as_int(0, ninputs - 1)
    kind, path = part.items(2)
    return StateName(kind.as_str(), path.as_str())
