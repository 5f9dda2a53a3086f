"""Operators and their schemas as plain data.

Adapter for the schema object of `torch.ops.<ns>.<name>.<overload>` (`OpOverload._schema`); where that name is missing
the same object comes from `torch._C._get_schema`. The classes of operators are those of one that every torch has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import torch

from smelt.diag.records import record

OpOverload: Any = type(torch.ops.aten.add.Tensor)
OPERATORS: tuple[type, ...] = (OpOverload, type(torch.ops.aten.add))
"""The classes of an operator's overload, and of all its overloads together."""
_Namespace: Any = type(torch.ops.aten)

Overload: TypeAlias = "torch._ops.OpOverload"
OpArgs: TypeAlias = Sequence[Any]
"""An operator's arguments by position, each of the kind that its schema names."""
OpKwargs: TypeAlias = dict[str, Any]
"""An operator's arguments by name."""


@record
class Argument:
    """One argument or result of a schema.

    type: as torch spells it: `Tensor`, `Optional[Tensor]`, `List[Tensor]`, `number`, `List[int]`, `ScalarType`, ...
    size: the fixed length of a list that also takes one element in its place (`int[2] stride`), None elsewhere.
    alias: names of the alias sets it belongs to; `is_write`: the op writes to it.
    """

    name: str
    type: str
    default: Any = None
    has_default: bool = False
    kwarg_only: bool = False
    is_out: bool = False
    size: int | None = None
    alias: frozenset[str] = frozenset()
    is_write: bool = False

    @property
    def is_tensor(self) -> bool:
        """Whether it holds tensors: one, an optional one, or a list of them."""
        return "Tensor" in self.type

    @property
    def is_list(self) -> bool:
        """Whether it is a list (optional ones counted)."""
        return "List[" in self.type


@record
class Schema:
    """What an overload takes and gives.

    positional: the arguments that may be passed by position. is_mutable: whether any argument is written.
    """

    name: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]
    positional: tuple[Argument, ...] = field(init=False, repr=False, compare=False)
    is_mutable: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "positional", tuple(a for a in self.arguments if not a.kwarg_only))
        object.__setattr__(self, "is_mutable", any(a.is_write for a in self.arguments))


def _is_method(owner: Any, name: str) -> bool:
    return any(name in vars(base) for base in type(owner).__mro__)


@lru_cache(maxsize=8192)
def _split(name: str) -> tuple[str, str, str] | None:
    """The parts of an operator's name, None where one of them is an attribute of torch's own namespace objects."""
    parts = name.split(".")
    # torch makes a namespace of any name, and keeps it: Python would believe one that it asks modules for (`__path__`).
    if len(parts) != 3 or parts[0].startswith("__") or _is_method(torch.ops, parts[0]):
        return None
    namespace = getattr(torch.ops, parts[0])
    if not isinstance(namespace, _Namespace) or _is_method(namespace, parts[1]):
        return None
    return parts[0], parts[1], parts[2]


# Operators of torch's own namespaces, which stay; a library's may come, go, and come again.
_OWN = ("aten.", "prims.")
_own_overloads: dict[str, Any] = {}


def find_overload(name: str) -> Any | None:
    """The `OpOverload` called `ns.name.overload` (`aten.add.Tensor`), or None where torch has none now."""
    known = _own_overloads.get(name)
    if known is not None:
        return known
    parts = _split(name)
    if parts is None:
        return None
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    found = getattr(packet, parts[2], None)
    if not isinstance(found, OpOverload):
        return None
    if name.startswith(_OWN):
        _own_overloads[name] = found
    return found


def _schema_by_attribute(overload: Any) -> Any:
    return overload._schema


def _schema_by_name(overload: Any) -> Any:
    namespace, name, variant = str(overload).split(".")
    return torch._C._get_schema(f"{namespace}::{name}", "" if variant == "default" else variant)


raw_schema: Callable[[Any], Any] = (
    _schema_by_attribute if hasattr(torch.ops.aten.add.Tensor, "_schema") else _schema_by_name
)
"""The schema of an `OpOverload` as torch's own object."""


def schema_text(overload: Any) -> str:
    """The schema of an `OpOverload` as torch writes it: `aten::relu(Tensor self) -> Tensor`."""
    return str(raw_schema(overload))


def parsed_schema(text: str) -> Schema | None:
    """A schema by its text; None where it is none. Adapter for `torch._C.parse_schema`, without which there is none."""
    raw = _parsed(text)
    if raw is None:
        return None
    name, variant = raw.name.replace("::", "."), raw.overload_name or "default"
    return Schema(f"{name}.{variant}", tuple(map(_argument, raw.arguments)), tuple(map(_argument, raw.returns)))


def _parsed(text: str) -> Any | None:
    try:
        return torch._C.parse_schema(text)
    except (AttributeError, RuntimeError, TypeError):
        return None


def takes_calls_of(overload: Any, text: str) -> bool:
    """Whether calls that were right for a schema, by its text, are right for this operator: arguments with defaults may
    have come since, and those that are passed by position may have other names. Adapter for
    `torch._C.parse_schema`; without it, texts must be equal.
    """
    return schema_text(overload) == text or _takes(raw_schema(overload), _parsed(text))


def is_taken_by(text: str, later: str) -> bool:
    """The same of two schemas by their texts."""
    return text == later or _takes(_parsed(later), _parsed(text))


def _takes(later: Any, earlier: Any) -> bool:
    """Adapter for `is_backward_compatible_with`, which holds renamed arguments to be others."""
    if later is None or earlier is None:
        return False
    compatible = getattr(later, "is_backward_compatible_with", None)
    if compatible is not None and compatible(earlier):
        return True
    (taken, needed), (given, named) = _by_position(later), _by_position(earlier)
    if len(taken) < len(given) or [a.type for a in _results(later)] != [a.type for a in _results(earlier)]:
        return False
    more = [*taken[len(given) :], *(a for name, a in needed.items() if name not in named)]
    return (
        all(replace(a, name=b.name) == b for a, b in zip(taken, given, strict=False))
        and all(needed.get(name) == a for name, a in named.items())
        and all(a.has_default for a in more)
    )


def _by_position(raw: Any) -> tuple[list[Argument], dict[str, Argument]]:
    """The arguments that are passed by position, and the others by name."""
    arguments = list(map(_argument, raw.arguments))
    return [a for a in arguments if not a.kwarg_only], {a.name: a for a in arguments if a.kwarg_only}


def _results(raw: Any) -> list[Argument]:
    return list(map(_argument, raw.returns))


def _argument(raw: Any) -> Argument:
    alias = raw.alias_info
    return Argument(
        raw.name,
        str(getattr(raw, "real_type", raw.type)),
        tuple(raw.default_value) if isinstance(raw.default_value, list) else raw.default_value,
        raw.has_default_value(),
        raw.kwarg_only,
        raw.is_out,
        getattr(raw, "N", None),
        frozenset(alias.before_set | alias.after_set) if alias is not None else frozenset(),
        alias is not None and alias.is_write,
    )


def read_schema(overload: Any) -> Schema:
    """The schema of an `OpOverload` as plain data."""
    raw = raw_schema(overload)
    return Schema(str(overload), tuple(map(_argument, raw.arguments)), tuple(map(_argument, raw.returns)))


def tag_names(overload: Any) -> frozenset[str]:
    """The names of the overload's tags, e.g. `pointwise`, `nondeterministic_seeded`."""
    return frozenset(str(tag).rpartition(".")[2] for tag in getattr(overload, "tags", ()))


def operator_name(function: Any) -> str:
    """The name of an `OpOverload` without namespace and overload (`softmax` of `aten.softmax.int`); "" for others."""
    return str(function).split(".")[1] if isinstance(function, OpOverload) else ""


def overload_names(namespace: str, name: str) -> tuple[str, ...]:
    """The names of an operator's overloads; empty where torch has no such operator."""
    packet = getattr(getattr(torch.ops, namespace), name, None)
    return tuple(packet.overloads()) if packet is not None and hasattr(packet, "overloads") else ()
