"""The open door: any overload of torch's registry by its name in the graph, its schema and tags as plain data."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar

from smelt._torch.library.schemas import Argument, Schema, find_overload, overload_names, read_schema, tag_names
from smelt.ir import Arg, DType, Layout, MemoryFormat, Value

__all__ = [
    "Argument", "Schema", "arguments_of", "by_overload", "normalize", "overload", "read", "schema_of",
    "siblings", "tags_of",
]  # fmt: skip

T = TypeVar("T")

# Overloads about which something is remembered at a time: more than torch has.
_MOST_OVERLOADS = 8192
_FORMAT_DEFAULTS = {0: "contiguous_format", 1: "preserve_format", 2: "channels_last", 3: "channels_last_3d"}


def overload(op_name: str) -> Any | None:
    """torch's `OpOverload` for `ns.name.overload`, e.g. `aten.add.Tensor`; None for structural and unknown ops."""
    return find_overload(op_name)


def by_overload(compute: Callable[[Any], T]) -> Callable[[Any], T]:
    """A function of an overload that is computed once for each; by identity, since torch hashes them in Python."""
    known: dict[int, tuple[Any, T]] = {}

    @wraps(compute)
    def ask(found: Any) -> T:
        entry = known.get(id(found))
        if entry is None:
            if len(known) >= _MOST_OVERLOADS:
                known.clear()
            entry = known[id(found)] = (found, compute(found))
        return entry[1]

    return ask


@by_overload
def read(found: Any) -> Schema:
    """The schema of an overload that was found already."""
    return read_schema(found)


@by_overload
def _tags(found: Any) -> frozenset[str]:
    return tag_names(found)


def schema_of(op_name: str) -> Schema | None:
    """The schema of an overload, None for structural and unknown ops."""
    found = find_overload(op_name)
    return None if found is None else read(found)


def tags_of(op_name: str) -> frozenset[str]:
    """The names of torch's tags on an overload (`pointwise`, `nondeterministic_seeded`, ...)."""
    found = find_overload(op_name)
    tags: frozenset[str] = frozenset() if found is None else _tags(found)
    return tags | {"dynamic_output_shape"} if op_name in _OF_NONZERO else tags


# Composites of `nonzero`, which torch does not tag as it does that.
_OF_NONZERO = frozenset(("aten.nonzero_numpy.default", "aten.where.default", "aten.argwhere.default"))


def arguments_of(schema: Schema, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> dict[str, Arg]:
    """All arguments of a call by name, defaults filled in. Raises: TypeError where the call does not fit."""
    positional = schema.positional
    if len(args) > len(positional):
        raise TypeError(f"{schema.name} takes {len(positional)} positional arguments, not {len(args)}")
    given: dict[str, Arg] = {a.name: v for a, v in zip(positional, args, strict=False)}
    for name, value in kwargs.items():
        if name in given:
            raise TypeError(f"{schema.name} got {name!r} twice")
        given[name] = value
    found: dict[str, Arg] = {}
    used = 0
    for argument in schema.arguments:
        name = argument.name
        if name in given:
            found[name] = given[name]
            used += 1
        elif argument.has_default:
            default = argument.default
            # Only numbers and lists have another spelling in the graph.
            plain = default is None or default is False or default is True
            found[name] = default if plain else _default(argument)
        else:
            raise TypeError(f"{schema.name} lacks {name!r}")
    if used != len(given):
        raise TypeError(f"{schema.name} has no argument {next(n for n in given if n not in found)!r}")
    return found


def as_call(schema: Schema, found: Mapping[str, Arg]) -> tuple[tuple[Arg, ...], dict[str, Arg]]:
    """All arguments by name as a call."""
    names = [a.name for a in schema.positional]
    return tuple(found[name] for name in names), {n: v for n, v in found.items() if n not in names}


def normalize(op_name: str, args: Sequence[Arg], kwargs: Mapping[str, Arg]) -> tuple[tuple[Arg, ...], dict[str, Arg]]:
    """A call in the graph's one spelling.

    Schema-positional arguments by position with trailing defaults dropped, keyword-only ones by name with defaults
    dropped; one number for a list of fixed length is written out. Raises: TypeError where the call does not fit.
    """
    overload_ = find_overload(op_name)
    if overload_ is None:
        return tuple(args), dict(kwargs)
    if not kwargs and _is_spelled(_spelling(overload_), args):
        return tuple(args), {}
    schema = read(overload_)
    found = arguments_of(schema, args, kwargs)
    for argument in schema.arguments:
        found[argument.name] = _spread(argument, found[argument.name])
    positional = list(schema.positional)
    while positional and positional[-1].has_default and _is_default(positional[-1], found[positional[-1].name]):
        positional.pop()
    named = {
        a.name: found[a.name]
        for a in schema.arguments
        if a.kwarg_only and not (a.has_default and _is_default(a, found[a.name]))
    }
    return tuple(found[a.name] for a in positional), named


class _Spelling(NamedTuple):
    """What tells whether positional arguments are in the graph's spelling as they are.

    least: how many there must be; None where others must be named. spread: places where one number may be a list.
    """

    least: int | None
    positional: tuple[Argument, ...]
    spread: tuple[int, ...]


@by_overload
def _spelling(found: Any) -> _Spelling:
    schema = read(found)
    needed = [i for i, a in enumerate(schema.positional, 1) if not a.has_default]
    is_named = any(a.kwarg_only and not a.has_default for a in schema.arguments)
    least = None if is_named else max(needed, default=0)
    spread = tuple(i for i, a in enumerate(schema.positional) if a.size is not None and "List[int]" in a.type)
    return _Spelling(least, schema.positional, spread)


def _is_spelled(spelling: _Spelling, args: Sequence[Arg]) -> bool:
    count = len(args)
    if spelling.least is None or not max(spelling.least, 1) <= count <= len(spelling.positional):
        return False
    last = spelling.positional[count - 1]
    if last.has_default and _is_default(last, args[-1]):
        return False
    return not any(i < count and type(args[i]) is int for i in spelling.spread)


def _spread(argument: Argument, value: Arg) -> Arg:
    if argument.size is not None and "List[int]" in argument.type and type(value) is int:
        return (value,) * argument.size
    return value


def _default(argument: Argument) -> Arg:
    """The default as a literal: torch gives memory formats and layouts as numbers, lists possibly as one number."""
    value = argument.default
    if type(value) is int and "MemoryFormat" in argument.type:
        # torch numbers them contiguous, preserve, channels_last, channels_last_3d.
        return MemoryFormat(_FORMAT_DEFAULTS[value])
    if isinstance(value, (list, tuple)):
        return tuple(value)
    literal: Arg = value
    return _spread(argument, literal)


def _is_default(argument: Argument, value: Arg) -> bool:
    default = _default(argument)
    if isinstance(value, Value):
        return False
    if "number" in argument.type or argument.type in ("float", "Optional[float]"):
        # A Scalar argument keeps its kind: add(x, y, alpha=1.0) is not alpha=1.
        return type(value) is type(default) and _same_number(value, default)
    if isinstance(value, (DType, Layout, MemoryFormat)) or value is None:
        return value == default
    return type(value) is type(default) and value == default


def _same_number(a: Any, b: Any) -> bool:
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    return bool(a == b)


def siblings(op_name: str) -> tuple[str, ...]:
    """All overloads of the operator that an overload belongs to, by their names in the graph."""
    namespace, name, _ = op_name.split(".")
    return tuple(f"{namespace}.{name}.{variant}" for variant in overload_names(namespace, name))


# --- in-place operators and their functional twins


def functional_name(op_name: str) -> str | None:
    """The name that the functional counterpart of an in-place operator would have."""
    namespace, name, variant = op_name.split(".")
    if name.startswith("__i") and name.endswith("__"):  # `a |= b`
        return f"{namespace}.__{name[3:]}.{variant}"
    if not name.endswith("_") or name.endswith("__"):
        return None
    return f"{namespace}.{name[:-1]}.{variant}"


def functional_twin(op_name: str) -> str | None:
    """The functional overload that takes the same arguments: of the same name, or else (`pow_.Scalar`) of another."""
    name, schema = functional_name(op_name), schema_of(op_name)
    if name is None or schema is None:
        return None
    return next((found for found in (name, *siblings(name)) if is_functional_twin(found, schema)), None)


def is_functional_twin(op_name: str, schema: Schema) -> bool:
    """Whether a functional overload takes the arguments of a schema, the first by any name, and gives one result."""
    other = schema_of(op_name)
    if other is None or other.is_mutable or len(other.returns) != 1:
        return False
    if [(a.name, a.type) for a in other.arguments[1:]] != [(a.name, a.type) for a in schema.arguments[1:]]:
        return False
    return [a.type for a in other.arguments[:1]] == [a.type for a in schema.arguments[:1]]
