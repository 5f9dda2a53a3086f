"""`dynamic_shapes`: which sizes and numbers of the arguments stay free, by parameter, as torch.export spells it.

    {"x": {0: "B"}}                     a dimension of a tensor; of all that are called B the sizes are equal
    {"batch": {"ids": {0: "B"}}}        inside dicts, lists, tuples, named tuples and dataclasses
    {"n": "n"}                          an int or a float
    ({0: "B"}, None)                    by position

Invariant: what does not fit the program's parameters, or a call's arguments, is an error before anything runs.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from smelt._torch.seen.labels import attribute_label, key_labels
from smelt.compiler.sizes.dims import Entry, bad_shapes, read_entry


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """An entry at its place. place: as guards and signatures spell it, `args[0]['ids']`; axis: None for a number.

    shown: over the user's names, `batch['ids'].shape[0]`. value: what it is in this call.
    """

    place: str
    axis: int | None
    entry: Entry
    shown: str
    value: int | float


def check_names(shapes: Any, target: Callable[..., Any]) -> None:
    """What can be said before a call. Raises: SmeltError (S0304)."""
    if shapes is None:
        return
    if not isinstance(shapes, Mapping | tuple | list):
        raise bad_shapes(
            f"dynamic_shapes cannot be {shapes!r}",
            "it maps names of parameters to what is free in them, or is a tuple in their order",
            "write, for example, dynamic_shapes={'x': {0: 'B'}}",
        )
    parameters = _parameters(target)
    if parameters is None:
        return
    if isinstance(shapes, Mapping):
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
        names = [p.name for p in parameters]
        for name in shapes:
            if name not in names and not takes_any:
                raise bad_shapes(
                    f"dynamic_shapes names {name!r}, which is no parameter",
                    f"the parameters are {', '.join(names) or 'none'}",
                    "correct the name",
                )
    elif len(shapes) > len(parameters) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        raise bad_shapes(
            f"dynamic_shapes has {len(shapes)} entries, and there are {len(parameters)} parameters",
            "a tuple has one entry for each parameter, in order",
            "leave some out, or name them in a dict",
        )


def wishes(
    shapes: Any, target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Wish, ...]:
    """The entries at their places in this call's arguments; parameters that the call leaves out are passed over.

    Raises: SmeltError (S0304) where an entry does not fit what is there.
    """
    if shapes is None:
        return ()
    check_names(shapes, target)
    roots = _roots(target, args, kwargs)
    if isinstance(shapes, Mapping):
        pairs = [(name, entry) for name, entry in shapes.items() if name in roots]
    else:
        pairs = list(zip(roots, shapes, strict=False))
    return tuple(wish for name, entry in pairs for wish in _walk(entry, *roots[name], name))


def _parameters(target: Callable[..., Any]) -> list[inspect.Parameter] | None:
    try:
        return list(
            inspect.signature(target.forward if isinstance(target, torch.nn.Module) else target).parameters.values()
        )
    except (TypeError, ValueError):
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class _Gathered:
    """What `*args` or `**kwargs` took: by index or name, the place and the value."""

    items: Mapping[Any, tuple[str, Any]]


def _roots(target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
    """For each parameter that the call gives: where its value stands, and the value."""
    found: dict[str, tuple[str, Any]] = {}
    named = {name: (f"kwargs[{name!r}]", value) for name, value in kwargs.items()}
    at = 0
    for parameter in _parameters(target) or ():
        name = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            found[name] = "args", _Gathered({i - at: (f"args[{i}]", args[i]) for i in range(at, len(args))})
            at = len(args)
        elif parameter.kind is parameter.VAR_KEYWORD:
            found = {**named, name: ("kwargs", _Gathered(named)), **found}
        elif parameter.kind is not parameter.KEYWORD_ONLY and at < len(args):
            found[name] = f"args[{at}]", args[at]
            at += 1
        elif name in named:
            found[name] = named.pop(name)
    return found


def _walk(entry: Any, place: str, value: Any, shown: str) -> Iterator[Wish]:
    if isinstance(value, torch.Tensor):
        yield from _of_tensor(entry, value, place, shown)
    elif type(value) in (int, float):
        found = read_entry(entry, shown)
        _check_value(found, value, shown)
        yield Wish(place, None, found, shown, value)
    elif entry is not None:
        for inner, (where, part), suffix in _parts(entry, value, place, shown):
            yield from _walk(inner, where, part, shown + suffix)


def _of_tensor(entry: Any, tensor: torch.Tensor, place: str, shown: str) -> Iterator[Wish]:
    if entry is None:
        return
    if isinstance(entry, Mapping):
        pairs = list(entry.items())
    elif isinstance(entry, tuple | list):
        if len(entry) != tensor.dim():
            raise bad_shapes(
                f"dynamic_shapes gives {shown} {len(entry)} dimensions, and it has {tensor.dim()}",
                "a tuple has one entry for each dimension",
                "write a dict {dimension: name} for some of them",
            )
        pairs = list(enumerate(entry))
    else:
        raise bad_shapes(
            f"{shown} is a tensor, and dynamic_shapes says {entry!r} of it",
            "the sizes of a tensor are named by dimension",
            f"write {{0: {str(entry)!r}}}",
        )
    for axis, given in pairs:
        if type(axis) is not int or not -tensor.dim() <= axis < tensor.dim():
            raise bad_shapes(
                f"dynamic_shapes names dimension {axis!r} of {shown}",
                f"it has {tensor.dim()} dimensions",
                "correct the dimension",
            )
        name, size = f"{shown}.shape[{axis}]", tensor.shape[axis]
        found = read_entry(given, name)
        _check_value(found, size, name)
        yield Wish(place, axis % tensor.dim(), found, name, size)


def _check_value(entry: Entry, value: int | float, shown: str) -> None:
    if entry.only is not None and entry.only != value:
        raise bad_shapes(
            f"dynamic_shapes says {entry.only} of {shown}, which is {value}",
            "a number there is the only size",
            "correct it, or give a name",
        )


def _parts(entry: Any, value: Any, place: str, shown: str) -> Iterator[tuple[Any, tuple[str, Any], str]]:
    """Entries for the parts of a value, each with the part at its place, and how that is told from the other parts."""
    parts = _members(value, place)
    if parts is not None and isinstance(entry, Mapping) and not isinstance(value, list | tuple):
        for key, inner in entry.items():
            if key not in parts:
                raise bad_shapes(
                    f"dynamic_shapes names {key!r} in {shown}", f"it has {list(parts)!r}", "correct the name"
                )
            is_field = not isinstance(value, dict | _Gathered)
            yield inner, parts[key], f".{key}" if is_field else f"[{key!r}]"
    elif parts is not None and isinstance(entry, list | tuple) and not isinstance(value, dict):
        if len(entry) != len(parts):
            raise bad_shapes(
                f"dynamic_shapes has {len(entry)} entries for {shown}",
                f"it holds {len(parts)}",
                "give one for each, None for those that stay fixed",
            )
        yield from ((inner, part, f"[{key!r}]") for inner, (key, part) in zip(entry, parts.items(), strict=True))
    else:
        raise bad_shapes(
            f"{shown} is a {type(value).__name__}, and dynamic_shapes says {entry!r} of it",
            "what it says has the structure of the argument: dicts for dicts, tuples for tuples, a name for a number",
            "give the same structure, or None",
        )


def _members(value: Any, place: str) -> dict[Any, tuple[str, Any]] | None:
    """The parts of a value by key, index or field; None where it has none."""
    if isinstance(value, _Gathered):
        return dict(value.items)
    if isinstance(value, dict):
        labels = key_labels(value)
        return {key: (place + label, part) for label, (key, part) in zip(labels, value.items(), strict=True)}
    if isinstance(value, list | tuple):
        names = getattr(type(value), "_fields", ())
        return {i: (f"{place}.{names[i]}" if i < len(names) else f"{place}[{i}]", p) for i, p in enumerate(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        return {name: (place + attribute_label(name), getattr(value, name)) for name in fields if hasattr(value, name)}
    return None
