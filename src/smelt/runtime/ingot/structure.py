"""The structure of a call's arguments and of its result: nested values around a flat list of tensors.

    ["tuple", [["tensor", 0], ["dict", ["mask", "n"], [["tensor", 1], ["is", 3]]]]]

Invariant: nothing that stands in a file decides which class is called: a result of a class that is not Python's or
torch's own is a named tuple or a `Record`, unless the caller of `smelt.load` has given the class.
"""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from keyword import iskeyword
from typing import Any, TypeAlias

import torch

from smelt._torch.exact import same
from smelt.diag import CaptureError
from smelt.diag.records import record
from smelt.runtime.ingot.texts.json_text import Part

Classes: TypeAlias = Mapping[str, type]
"""By "module.name", the classes that results may be of."""


class Record(OrderedDict[Any, Any]):
    """A result of a class that is not at hand: its parts by name, as attributes and by position."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the result has no {name!r}; it has {', '.join(map(str, self))}") from None

    def __getitem__(self, key: Any) -> Any:
        return tuple(self.values())[key] if isinstance(key, (int, slice)) else super().__getitem__(key)

    def to_tuple(self) -> tuple[Any, ...]:
        """Its parts, in order."""
        return tuple(self.values())


@record
class Leaf:
    """A tensor: which one of the flat list."""

    index: int


@record
class Const:
    """A value without tensors."""

    value: Any


@record
class Sequence_:
    """A list or a tuple; fields: of a named tuple, whose class is called `name`."""

    cls: type
    items: tuple[Structure, ...]
    name: str = ""
    fields: tuple[str, ...] = ()


@record
class Mapping_:
    """A dict; of another class where it is called `name`."""

    keys: tuple[Any, ...]
    items: tuple[Structure, ...]
    name: str = ""


@record
class Shared:
    """In a result: what stands at several places; `made` is missing where it is met again."""

    number: int
    made: Structure | None


Structure: TypeAlias = Leaf | Const | Sequence_ | Mapping_ | Shared

_LOW = -(1 << 63)
_TORCH_TUPLES = "torch.return_types."

# --- text -------------------------------------------------------------------------------------------------------------


def write(structure: Structure) -> Any:
    """A structure as JSON."""
    match structure:
        case Leaf(index=index):
            return ["tensor", index]
        case Const(value=value):
            return ["is", write_constant(value)]
        case Sequence_(items=items, fields=()):
            return ["list" if structure.cls is list else "tuple", [write(item) for item in items]]
        case Sequence_(items=items):
            return ["named", structure.name, list(structure.fields), [write(item) for item in items]]
        case Mapping_(keys=keys, items=items, name=name):
            return ["dict", name, [write_constant(key) for key in keys], [write(item) for item in items]]
        case Shared(number=number, made=made):
            return ["shared", number, None if made is None else write(made)]


def read(part: Part) -> Structure:
    """A structure of JSON. Raises: PackageError (S0701)."""
    first, *rest = part.items() or [part]
    kind = first.one_of("tensor", "is", "list", "tuple", "named", "dict", "shared")
    if len(rest) != {"named": 3, "dict": 3, "shared": 2}.get(kind, 1):
        raise part.bad("is no structure")
    match kind:
        case "tensor":
            return Leaf(rest[0].as_int(0, 1 << 20))
        case "is":
            return Const(read_constant(rest[0]))
        case "list" | "tuple":
            return Sequence_(list if kind == "list" else tuple, tuple(map(read, rest[0].items())))
        case "named":
            fields = tuple(field.as_str() for field in rest[1].items())
            items = tuple(map(read, rest[2].items(len(fields))))
            if len(set(fields)) < len(fields) or not all(f.isidentifier() and not iskeyword(f) for f in fields):
                raise rest[1].bad("are no names of fields")
            return Sequence_(tuple, items, rest[0].as_str(), fields)
        case "dict":
            keys = tuple(map(read_constant, rest[1].items()))
            return Mapping_(keys, tuple(map(read, rest[2].items(len(keys)))), rest[0].as_str())
        case _:
            made = None if rest[1].is_null() else read(rest[1])
            return Shared(rest[0].as_int(0, 1 << 20), made)


_TORCH_VALUES = (torch.dtype, torch.layout, torch.memory_format)


def write_constant(value: Any) -> Any:
    """A value without tensors as JSON. Raises: TypeError where it has no such form."""
    match value:
        case None | bool() | str():
            return value
        case int() if type(value) is int and -(1 << 63) <= value < 1 << 63:
            return value
        case float() if type(value) is float:
            return {"float": value.hex()}
        case complex() if type(value) is complex:
            return {"complex": [value.real.hex(), value.imag.hex()]}
        case torch.Size():
            return {"size": list(value)}
        case torch.device():
            return {"device": str(value)}
        case tuple() if type(value) is tuple:
            return {"tuple": [write_constant(item) for item in value]}
        case slice():
            return {"slice": [write_constant(item) for item in (value.start, value.stop, value.step)]}
        case range():
            return {"range": [value.start, value.stop, value.step]}
        case _ if value is Ellipsis:
            return {"ellipsis": None}
        case _ if isinstance(value, _TORCH_VALUES):
            return {"torch": str(value).removeprefix("torch.")}
    raise TypeError(f"a {type(value).__qualname__} has no written form")


def read_constant(part: Part) -> Any:
    """A value of JSON. Raises: PackageError (S0701)."""
    if type(part.value) in (type(None), bool, int, str):
        return part.value
    found = list(part.pairs())
    if len(found) != 1:
        raise part.bad("is no value")
    kind, inner = found[0]
    match kind:
        case "float":
            return inner.as_float()
        case "complex":
            real, imaginary = inner.items(2)
            return complex(real.as_float(), imaginary.as_float())
        case "size":
            return torch.Size(inner.ints())
        case "device":
            return _device(inner)
        case "tuple":
            return tuple(map(read_constant, inner.items()))
        case "slice":
            return slice(*map(read_constant, inner.items(3)))
        case "range":
            start, stop, step = inner.items(3)
            return range(start.as_int(_LOW), stop.as_int(_LOW), step.as_int(_LOW) or 1)
        case "ellipsis":
            return Ellipsis
        case "torch":
            value = getattr(torch, inner.as_str(), None)
            if isinstance(value, _TORCH_VALUES):
                return value
    raise part.bad("is no value")


def _device(part: Part) -> torch.device:
    name = part.as_str()
    try:
        return torch.device(name)
    except RuntimeError:
        raise part.bad("is no device of this torch") from None


# --- arguments --------------------------------------------------------------------------------------------------------


def flatten(args: Sequence_, kwargs: Mapping_, given: Sequence[Any], named: Mapping[str, Any], count: int) -> list[Any]:
    """The flat tensors of a call. Raises: CaptureError (S0107) naming the first argument that does not fit."""
    found: dict[int, Any] = {}
    _match(args, tuple(given), "args", found)
    _match(kwargs, dict(named), "kwargs", found)
    return [found[i] for i in range(count)]


def _match(structure: Structure, value: Any, path: str, found: dict[int, Any]) -> None:
    match structure:
        case Leaf(index=index):
            if not isinstance(value, torch.Tensor):
                raise _unfit(f"{path} is {_describe(value)}, where the program was saved for a tensor")
            if found.setdefault(index, value) is not value:
                raise _unfit(f"{path} is another tensor than one it was identical with when the program was saved")
        case Const(value=wanted):
            if not same(value, wanted):
                raise _unfit(f"{path} is {_describe(value)}, the program was saved for {wanted!r}")
        case Sequence_(items=items, fields=fields):
            if not isinstance(value, list if structure.cls is list else tuple) or len(value) != len(items):
                raise _unfit(f"{path} is {_describe(value)}, not a {structure.cls.__name__} of {len(items)}")
            for i, (item, part) in enumerate(zip(items, value, strict=True)):
                _match(item, part, f"{path}.{fields[i]}" if fields else f"{path}[{i}]", found)
        case Mapping_(keys=keys, items=items):
            parts = value if isinstance(value, Mapping) else getattr(value, "__dict__", None)
            if parts is None or set(parts) != set(keys):
                has = f"has the keys {', '.join(map(repr, parts))}" if parts is not None else f"is {_describe(value)}"
                raise _unfit(f"{path} {has}, the program was saved for {', '.join(map(repr, keys)) or 'none'}")
            for key, item in zip(keys, items, strict=True):
                _match(item, parts[key], f"{path}[{key!r}]", found)
        case Shared():
            raise _unfit(f"{path} cannot be passed")


def _unfit(what: str) -> CaptureError:
    return CaptureError(
        what,
        why="the saved program holds for one structure of arguments; numbers and strings are part of it",
        fix="call it with the captured arguments' structure, or save it again for these arguments",
        code="S0107",
    )


def _describe(value: Any) -> str:
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__qualname__} of {len(value)}"
    return repr(value) if isinstance(value, (int, float, str, type(None))) else f"a {type(value).__qualname__}"


def leaves(structure: Structure) -> Iterator[int]:
    """The numbers of the tensors in a structure."""
    match structure:
        case Leaf(index=index):
            yield index
        case Sequence_(items=items) | Mapping_(items=items):
            for item in items:
                yield from leaves(item)
        case Shared(made=made) if made is not None:
            yield from leaves(made)


# --- results ----------------------------------------------------------------------------------------------------------


def rebuild(structure: Structure, outputs: Sequence[Any], classes: Classes) -> Any:
    """The result around these tensors; containers are new."""
    return _made(structure, outputs, classes, {})


def _made(structure: Structure, outputs: Sequence[Any], classes: Classes, shared: dict[int, Any]) -> Any:
    match structure:
        case Leaf(index=index):
            return outputs[index]
        case Const(value=value):
            return value
        case Sequence_(items=items):
            made = [_made(item, outputs, classes, shared) for item in items]
            if not structure.name:
                return made if structure.cls is list else tuple(made)
            return _named_tuple(structure.name, structure.fields, made, classes)
        case Mapping_(keys=keys, items=items, name=name):
            parts = {key: _made(item, outputs, classes, shared) for key, item in zip(keys, items, strict=True)}
            return parts if not name else _of_class(name, parts, classes)
        case Shared(number=number, made=inner):
            if inner is not None:
                shared[number] = _made(inner, outputs, classes, shared)
            return shared[number]


def _named_tuple(name: str, fields: tuple[str, ...], items: list[Any], classes: Classes) -> Any:
    if name.startswith(_TORCH_TUPLES):
        found = getattr(torch.return_types, name.removeprefix(_TORCH_TUPLES), None)
        if isinstance(found, type) and issubclass(found, tuple):
            return found(items)
    cls = classes.get(name) or _tuple_class(name.rpartition(".")[2], fields)
    return tuple.__new__(cls, items)


@lru_cache(maxsize=256)
def _tuple_class(name: str, fields: tuple[str, ...]) -> type:
    plain = name if name.isidentifier() and not iskeyword(name) else "Result"
    return namedtuple(plain, fields, rename=True)


def _of_class(name: str, parts: dict[Any, Any], classes: Classes) -> Any:
    if name == "collections.OrderedDict":
        return OrderedDict(parts)
    cls = classes.get(name)
    return Record(parts) if cls is None else cls(**parts)
