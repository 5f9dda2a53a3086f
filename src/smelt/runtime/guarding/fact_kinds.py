"""The kinds of facts about the world outside the arguments: each is one record, with all forms that its test has.

A fact is (owner, key, value); a kind's `means` says what must be true of these now. A test of a fact stands in one of
the groups that are tested together (`FactGroups`), or alone: then `code` is its Python, `words` its native form.

Invariant: `holds` is exact. `code` and `words` are true only where it is; what they cannot tell, they leave to it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import torch

from smelt._torch.annotations import annotation_held
from smelt._torch.exact import MISSING, contents, same, same_contents, still
from smelt._torch.library.lru import cached_tensors, still_cached
from smelt._torch.seen.labels import key_labels
from smelt._torch.seen.leaves import has_hooks
from smelt._torch.seen.record_patches import TRACKS
from smelt.diag.records import record
from smelt.runtime.encoding.entry_table import Guard
from smelt.runtime.guarding.guard_versions import (
    CLASS_PARTS,
    Identities,
    Namespace,
    Namespaces,
    class_namespace,
    lookup_path,
    set_words,
)
from smelt.runtime.guarding.words import Words

CALL_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")
CALL_METHODS = ("forward", "_call_impl", "_compiled_call_impl")

_TENSOR_TABLES = ("._parameters", "._buffers", ".__dict__")
_CELL_CONTENT_AT = 16  # PyCellObject: object header, ob_ref
Alike = Callable[[Any, Any], bool]
Holds = Callable[[], bool]


class FactGroups:
    """Facts that are tested together: what dicts hold under names, and what objects, functions and classes are."""

    def __init__(self) -> None:
        self._spaces: dict[int, _Space] = {}
        self.objects: list[Any] = []
        self.functions: list[Any] = []
        self.classes: list[type] = []

    def space(self, entries: dict[Any, Any]) -> _Space:
        """What is known of a dict."""
        found = self._spaces.get(id(entries))
        if found is None:
            found = self._spaces[id(entries)] = _Space(entries)
        return found

    def of_class(self, cls: type) -> _Space | None:
        """What is known of a class's dict; None for a class that cannot change."""
        entries = class_namespace(cls)
        return None if entries is None else self.space(entries)

    def made(self) -> tuple[Namespaces, Identities]:
        """The tests."""
        spaces = Namespaces([space.made() for space in self._spaces.values()])
        return spaces, Identities(self.objects, self.functions, self.classes)


class _Space:
    """The names read of one dict; `order`: all its keys, in order, if the whole content counts."""

    def __init__(self, entries: dict[Any, Any]) -> None:
        self.entries = entries
        self.names: dict[Any, Any] = {}
        self.order: tuple[Any, ...] | None = None

    def made(self) -> Namespace:
        return Namespace(self.entries, tuple(self.names), tuple(self.names.values()), self.order)


# --- the defaults ----------------------------------------------------------------------------------------------------


def _alike(read: Any, alike: Alike, now: Any) -> bool:
    return alike(now, read.value)


def _equal(read: Any, alike: Alike, now: Any) -> bool:
    return bool(now == read.value)


def _same_entries(read: Any, alike: Alike, now: Any) -> bool:
    return same_contents(now, read.value, alike)


def _alone(read: Any, groups: FactGroups) -> bool:
    return False


def _asked(read: Any, owner: str, value: str, scope: dict[str, Any]) -> str | None:
    return None


def _asked_too(read: Any, holds: Holds, words: Words) -> bool:
    return False


def _is_users(read: Any) -> bool:
    return False


def _itself(value: Any) -> Iterable[Any]:
    return (value,)


def _own_name(read: Any) -> Iterable[str]:
    return (read.name,)


@record
class FactKind:
    """One kind of fact.

    means: what must be true of owner, key and value. now(owner, key): what the place holds at this moment.
    compare(read, alike, now): whether that is what was seen, exactly; `alike` compares where equal ones may do.
    ask(read, alike): the same of the place itself, where nothing needs to be copied for it.
    group(read, groups): puts the fact where it is cheapest to test together with others, and tells whether it did;
    code(read, owner, value, scope): its Python where it is tested alone, over two names of the scope; words(read,
    holds, words): writes the same natively, and tells whether it could. is_internal(read): whether a user has nothing
    to do with it. tensors(value): what of a value may be tensors that the program reads; names(read): what the program
    calls them, or nothing.
    """

    name: str
    means: str
    now: Callable[[Any, Any], Any]
    compare: Callable[[Any, Alike, Any], bool] = _alike
    ask: Callable[[Any, Alike], bool] | None = None
    group: Callable[[Any, FactGroups], bool] = _alone
    code: Callable[[Any, str, str, dict[str, Any]], str | None] = _asked
    words: Callable[[Any, Holds, Words], bool] = _asked_too
    is_internal: Callable[[Any], bool] = _is_users
    tensors: Callable[[Any], Iterable[Any]] = _itself
    names: Callable[[Any], Iterable[str]] = _own_name

    def holds(self, read: Any, alike: Alike) -> bool:
        """Whether the place still holds what was seen, exactly."""
        if self.ask is not None:
            return self.ask(read, alike)
        return self.compare(read, alike, self.now(read.owner, read.key))


# --- a dict's items --------------------------------------------------------------------------------------------------


def _item_now(owner: Any, key: Any) -> Any:
    return dict.get(owner, key, MISSING)


def _item_holds(read: Any, alike: Alike, now: Any) -> bool:
    return still(now, read.value)


def _group_item(read: Any, groups: FactGroups) -> bool:
    groups.space(read.owner).names[read.key] = read.value
    return True


def _is_of_recording(read: Any) -> bool:
    """Whether a dict holds a wrapper of Smelt's own, which is there only while the program is recorded."""
    if not isinstance(read.owner, dict):
        return False
    keys = read.value if read.kind == CONTENT.name else (read.key,)
    return TRACKS in read.owner and not {*keys} - {TRACKS, "__wrapped__"}


ITEM = FactKind(
    "item",
    "owner[key] is value; owner is a dict that serves as a namespace",
    _item_now,
    _item_holds,
    group=_group_item,
    is_internal=_is_of_recording,
)
ABSENT = FactKind(
    "absent", "key is not in owner (a namespace)", _item_now, group=_group_item, is_internal=_is_of_recording
)

# --- attributes that are no dict's items -----------------------------------------------------------------------------


def _attribute_code(read: Any, owner: str, value: str, scope: dict[str, Any]) -> str | None:
    if read.value is MISSING or not read.key.isidentifier():
        return None
    scope["MISSING"] = MISSING
    return f"getattr({owner}, {read.key!r}, MISSING) is {value}"


def _attribute_words(read: Any, holds: Holds, words: Words) -> bool:
    owner, key, seen = read.owner, read.key, read.value
    if seen is MISSING or type(key) is not str:
        return False
    words.emit(Guard.ATTRIBUTE, words.keep(owner), words.keep(key), words.keep(seen), words.keep(holds))
    return True


ATTR = FactKind(
    "attr",
    "getattr(owner, key) is value (slots and other attributes of C)",
    lambda owner, key: getattr(owner, key, MISSING),
    code=_attribute_code,
    words=_attribute_words,
)


def _group_static(read: Any, groups: FactGroups) -> bool:
    for base, found in lookup_path(read.owner, read.key):
        space = groups.of_class(base)
        if space is not None:
            space.names[read.key] = found
    return True


def _is_torchs(read: Any) -> bool:
    """Whether it is a method of tensors as torch has it; those of C have no module."""
    module = getattr(read.value, "__module__", None) or "torch"
    return read.owner is torch.Tensor and bool(module.startswith("torch"))


STATIC = FactKind(
    "static",
    "what the class owner has under key, bases included, is value (MISSING: nothing)",
    lambda owner, key: lookup_path(owner, key)[-1][1],
    group=_group_static,
    is_internal=_is_torchs,
)

# --- cells, context variables ----------------------------------------------------------------------------------------


def _cell_now(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _cell_code(read: Any, owner: str, value: str, scope: dict[str, Any]) -> str | None:
    if read.value is MISSING:
        return None
    scope["cell_now"] = _cell_now
    return f"cell_now({owner}) is {value}"


def _cell_words(read: Any, holds: Holds, words: Words) -> bool:
    if read.value is MISSING:
        return False
    place = words.keep(read.owner) + _CELL_CONTENT_AT
    if ctypes.c_int64.from_address(place).value != id(read.owner.cell_contents):
        return False
    words.emit(Guard.EITHER, words.keep(holds), 1, place, words.keep(read.value))
    return True


CELL = FactKind(
    "cell", "owner.cell_contents is value", lambda owner, _: _cell_now(owner), code=_cell_code, words=_cell_words
)


def _context_code(read: Any, owner: str, value: str, scope: dict[str, Any]) -> str | None:
    scope["MISSING"] = MISSING
    return f"{owner}.get(MISSING) is {value}"


def _context_words(read: Any, holds: Holds, words: Words) -> bool:
    if type(read.owner) is not ContextVar:
        return False
    words.emit(Guard.CONTEXT, words.keep(read.owner), words.keep(MISSING), words.keep(read.value))
    return True


CONTEXT = FactKind(
    "context",
    "the context variable owner holds value (MISSING: nothing)",
    lambda owner, _: owner.get(MISSING),
    code=_context_code,
    words=_context_words,
)

# --- containers ------------------------------------------------------------------------------------------------------


def _content_holds(read: Any, alike: Alike) -> bool:
    return same_contents(read.owner, read.value, alike)


def _group_content(read: Any, groups: FactGroups) -> bool:
    if not isinstance(read.owner, dict):
        return False
    space = groups.space(read.owner)
    space.names.update(read.value)
    space.order = tuple(read.value)
    return True


def _content_words(read: Any, holds: Holds, words: Words) -> bool:
    owner, seen = read.owner, read.value
    if type(owner) is list:
        items = [words.keep(item) for item in seen]  # in the order of the list
        words.emit(Guard.ITEMS, words.keep(owner), words.keep(holds), len(items), *items)
        return True
    if type(owner) is not set:
        return False
    pairs = set_words(owner)
    if not pairs or not all(item in owner for item in seen) or len(owner) != len(seen):
        return False
    words.keep((owner, seen))
    words.emit(Guard.EITHER, words.keep(holds), len(pairs), *(word for pair in pairs for word in pair))
    return True


def _members(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _member_names(read: Any) -> Iterator[str]:
    """As in `model[0].weight`, where a dict holds them."""
    if not isinstance(read.value, dict):
        return
    owner = name = str(read.name)
    for table in _TENSOR_TABLES:
        owner = owner.removesuffix(table)
    for label in key_labels(read.value) if owner == name else [f".{key}" for key in read.value]:
        yield owner + label


CONTENT = FactKind(
    "content",
    "the container owner holds value (a shallow copy)",
    lambda owner, _: contents(owner),
    ask=_content_holds,
    group=_group_content,
    words=_content_words,
    is_internal=_is_of_recording,
    tensors=_members,
    names=_member_names,
)
CACHED = FactKind(
    "cached",
    "the functools.lru_cache owner caches these tensors (by identity), whatever else",
    lambda owner, _: cached_tensors(owner),
    ask=lambda read, alike: still_cached(read.owner, read.value),
    tensors=_members,
    names=lambda read: (),
)
LOADED = FactKind("loaded", "the dict owner has exactly the keys of value", lambda owner, _: frozenset(owner), _equal)
ARRAY = FactKind(
    "array",
    "the NumPy array owner has (dtype, shape, bytes) of value",
    lambda owner, _: (owner.dtype, owner.shape, owner.tobytes()),
    _equal,
)

# --- what classes, functions, objects and modules are ----------------------------------------------------------------


def _group_unset(read: Any, groups: FactGroups) -> bool:
    if (space := groups.of_class(read.owner)) is not None:
        space.names[read.key] = MISSING
    return True


UNSET = FactKind(
    "unset",
    "the class owner itself has no attribute key",
    lambda owner, key: owner.__dict__.get(key, MISSING),
    group=_group_unset,
)


def _class_now(cls: type, key: Any) -> dict[str, Any]:
    left = key or ()
    own = ((k, v) for k, v in cls.__dict__.items() if not (k.startswith("__") and k.endswith("__")))
    return {k: v for k, v in own if k not in left}


def _group_class(read: Any, groups: FactGroups) -> bool:
    if (space := groups.of_class(read.owner)) is not None:
        space.names.update(read.value)
        space.order = tuple(space.entries)
    return True


CLASS = FactKind(
    "class",
    "the class owner's own attributes are value (special ones, and those that key names, left out)",
    _class_now,
    _same_entries,
    group=_group_class,
)


def _special_now(cls: type, names: tuple[str, ...]) -> dict[str, Any]:
    own = cls.__dict__
    return {name: getattr(cls, name) if name in CLASS_PARTS else own.get(name, MISSING) for name in names}


def _group_special(read: Any, groups: FactGroups) -> bool:
    groups.classes.append(read.owner)
    if (space := groups.of_class(read.owner)) is not None:
        space.names.update({name: held for name, held in read.value.items() if name not in CLASS_PARTS})
    return True


SPECIAL = FactKind(
    "special",
    "the class owner is what it was: its name, its bases, and those of its own attributes that key names are value "
    "(a dict; MISSING: not there)",
    _special_now,
    _same_entries,
    group=_group_special,
    is_internal=lambda read: True,
)
ANNOTATION = FactKind(
    "annotation",
    "the function or class owner itself holds value as key, __annotations__ or __annotate__ (MISSING: not computed)",
    annotation_held,
)


def _group_function(read: Any, groups: FactGroups) -> bool:
    groups.functions.append(read.owner)
    return True


FUNCTION = FactKind(
    "function",
    "(owner.__code__, owner.__defaults__, owner.__kwdefaults__) is value",
    lambda owner, _: (owner.__code__, owner.__defaults__, owner.__kwdefaults__),
    group=_group_function,
    is_internal=lambda read: str(read.owner.__globals__.get("__name__", "")).startswith("smelt.capture."),
)


def _same_objects(read: Any, alike: Alike, now: Any) -> bool:
    """The very dicts that the other facts look into."""
    return all(a is b for a, b in zip(now[:2], read.value[:2], strict=True))


def _group_object(read: Any, groups: FactGroups) -> bool:
    groups.objects.append(read.owner)
    return True


OBJECT = FactKind(
    "object",
    "(type(owner), owner.__dict__) is value",
    lambda owner, _: (type(owner), owner.__dict__),
    _same_objects,
    group=_group_object,
)


def _module_now(module: Any, key: Any) -> tuple[Any, ...]:
    own = module.__dict__
    shadowed = {name: own[name] for name in CALL_METHODS if name in own}
    return (type(module), own, tuple(own.get(name) for name in CALL_HOOKS), shadowed)


def _module_holds(read: Any, alike: Alike, now: Any) -> bool:
    seen = read.value
    same_tables = all(a is b for a, b in zip(now[2], seen[2], strict=True))
    return _same_objects(read, alike, now) and same_tables and same(now[3], seen[3])


def _group_module(read: Any, groups: FactGroups) -> bool:
    groups.objects.append(read.owner)
    own, tables, shadowed = read.value[1], read.value[2], read.value[3]
    names = groups.space(own).names
    names.update(zip(CALL_HOOKS, tables, strict=True))
    for name in CALL_METHODS:
        names[name] = shadowed.get(name, MISSING)
    return True


MODULE = FactKind(
    "module",
    "the nn.Module owner is (type, __dict__, tables of hooks, shadowed methods) of value",
    _module_now,
    _module_holds,
    group=_group_module,
)

# --- tensors ---------------------------------------------------------------------------------------------------------

GIVEN = FactKind(
    "given",
    "(getattr(tensor, key) is not None for tensor in the tuple owner) are value",
    lambda owner, key: tuple(getattr(tensor, key) is not None for tensor in owner),
    _equal,
)
HOOKED = FactKind(
    "hooked",
    "whether autograd calls hooks for any tensor of the tuple owner is value",
    lambda owner, _: any(map(has_hooks, owner)),
    _equal,
)

FACT_KINDS: tuple[FactKind, ...] = (
    ITEM, ABSENT, ATTR, STATIC, CELL, CONTENT, UNSET, CLASS, SPECIAL, ANNOTATION, FUNCTION, OBJECT, MODULE, CONTEXT,
    CACHED, LOADED, GIVEN, HOOKED, ARRAY,
)  # fmt: skip
KINDS_BY_NAME: Mapping[str, FactKind] = {kind.name: kind for kind in FACT_KINDS}
