"""Nested Python values as a fixed structure around a flat list of tensors.

`flatten` takes a value apart into a frozen `Tree` and its distinct tensors; `match` checks that another value has the
same structure and gives its tensors in the same places; `rebuild` puts a value together from other tensors. Lists,
tuples, dicts, named tuples, dataclasses, `ModelOutput`s and any plain object that holds tensors come apart; a value
without tensors is a leaf that has to be equal (or, where equality says nothing, identical) next time.

Invariant: rebuilding calls no constructor of the user's classes, and no class is registered anywhere.
"""

from __future__ import annotations

import functools
import gc
import struct
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeAlias

import torch

from smelt._torch.exact import same
from smelt._torch.library.pytree import registered
from smelt._torch.seen.labels import attribute_label, key_labels
from smelt.diag.records import distinct_record, record


@record
class TensorLeaf:
    """A tensor: which one of the flat list."""

    index: int


@record
class NumberLeaf:
    """In arguments: an int or float that is an input of the graph, which one of the flat list."""

    index: int
    cls: type


@distinct_record
class ConstantLeaf:
    """A value without tensors that stays as it is: a number, a string, None, a configuration object.

    held: what an object that may change had in it; None for values that do not.
    """

    value: Any
    held: Tree | None = None


@distinct_record
class SameObject:
    """In a result: the very container that stands at a place of the arguments."""

    path: str


@distinct_record
class Made:
    """In a result: a container that the program made, maybe with several places; tree: None where it is met again."""

    number: int
    tree: Tree | None


@distinct_record
class Container:
    """A value with parts.

    kind: "sequence" (cls is tuple, list or a subclass, or deque; in a result, set or slice), "mapping" (dict or a
        subclass), "object" (attributes only) or "registered" (torch's pytree knows the class).
    keys: the keys of a mapping; names: attributes beside the items; context: of a registered class, the default
        factory of a defaultdict, or the greatest length of a deque.
    """

    kind: str
    cls: type
    items: tuple[Tree, ...]
    keys: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()
    attributes: tuple[Tree, ...] = ()
    context: Any = None


Tree: TypeAlias = TensorLeaf | NumberLeaf | ConstantLeaf | SameObject | Made | Container

_ATOMS = (
    int, float, bool, complex, str, bytes, type(None), type(Ellipsis), slice, range, torch.dtype, torch.device,
    torch.layout, torch.memory_format, torch.Size, torch.Generator,
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, torch.nn.Module,
)  # fmt: skip


# What these hold beside their attributes is out of sight.
_NOT_ATTRIBUTES = (set, frozenset, BaseException)
_PLAIN = (int, float, complex, str, bytes)
_INERT = (
    int, float, bool, complex, str, bytes, type(None), type(Ellipsis), range, torch.dtype, torch.device,
    torch.layout, torch.memory_format, torch.Generator, type, types.ModuleType,
)  # fmt: skip
_OF_SLICE = ("start", "stop", "step")
_SEARCH_LIMIT = 4096
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made by a class statement


def is_inert(value: object) -> bool:
    """Whether a value has no parts that could be memory of a tensor: a tensor itself, a number, a text, a type."""
    if type(value) is slice:
        return all(map(is_inert, (value.start, value.stop, value.step)))
    return isinstance(value, (torch.Tensor, torch.Size, *_INERT))


def hidden_tensors(value: object) -> Iterator[torch.Tensor]:
    """Tensors inside a leaf, where no structure leads to them: in closures, sets, dict views, iterators."""
    return (found for found in held_inside(value) if isinstance(found, torch.Tensor))


def held_inside(value: object, is_known: Callable[[object], bool] = lambda value: False) -> Iterator[Any]:
    """A leaf, and all that it holds where no structure leads there; nothing is called, and no iterator is advanced.

    is_known: of things of which it does not matter what they hold.
    """
    stack, seen = [value], {id(value)}
    while stack and len(seen) < _SEARCH_LIMIT:
        found = stack.pop()
        yield found
        for item in () if is_known(found) else _held_next(found):
            if id(item) not in seen:
                seen.add(id(item))
                stack.append(item)


def _held_next(value: Any) -> Sequence[object]:
    """What a value holds by itself."""
    cls = type(value)
    if isinstance(value, type):
        # One that a function made holds what is that call's.
        return tuple(vars(value).values()) if "<locals>" in value.__qualname__ else ()
    if cls in _INERT or isinstance(value, (torch.Tensor, types.ModuleType)):
        return ()
    if str(getattr(cls, "__module__", "")).startswith("smelt."):
        return ()  # not the program's: a staged number leads to the whole run
    if isinstance(value, types.FunctionType):
        # Not its globals: what stands there is not the result's.
        named = {**(value.__kwdefaults__ or {}), **vars(value)}
        return (*(value.__closure__ or ()), *(value.__defaults__ or ()), *named.values())
    if cls is functools.partial:
        return (value.func, *value.args, *value.keywords.values(), *vars(value).values())
    return gc.get_referents(value)


def is_alike(one: Any, other: Any) -> bool:
    """Whether two structures, or what is put by two, are the same, with the same plain values and the very same objects
    in them. Nothing is asked of these.
    """
    if type(one) is tuple or isinstance(one, Mapping):
        pairs = (tuple(one.items()), tuple(other.items())) if isinstance(one, Mapping) else (one, other)
        return type(one) is type(other) and len(one) == len(other) and all(map(is_alike, *pairs))
    if is_dataclass(one) and type(one).__module__.startswith("smelt.") and type(one) is type(other):
        return all(is_alike(getattr(one, f.name), getattr(other, f.name)) for f in fields(one) if f.compare)
    return same(one, other)


class UnfitError(ValueError):
    """A value does not fit a structure; the message names the place and both sides."""


def is_lazy(value: object) -> bool:
    """Whether a value computes its parts only when asked (generators, coroutines, iterators of them)."""
    return isinstance(value, (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, map, filter, zip))


def is_iterator(value: object) -> bool:
    """Whether a value gives its parts once, so that each call has one of its own."""
    return hasattr(type(value), "__next__")


def is_called_only(value: object) -> bool:
    """Whether what a value is cannot be told from its parts: a function, a callable of C, a library's operator.

    An object of a program's own class that has `__call__` is its attributes like any other; its method is the class's.
    """
    if not callable(value) or is_dataclass(value):
        return False
    cls = type(value)
    is_own = str(getattr(cls, "__module__", "")).partition(".")[0] not in (
        "torch",
        "functools",
        "numpy",
        "typing",
        "smelt",
    )
    call = next((c.__dict__["__call__"] for c in cls.__mro__ if "__call__" in c.__dict__), None)
    return not (is_own and type(call) is types.FunctionType)


def has_parts(value: object) -> bool:
    """Whether a value can come apart."""
    if isinstance(value, (list, tuple, dict)) and not isinstance(value, torch.Size):
        return True
    if type(value) is deque:
        return True
    # A dataclass is its fields for guards, too, whether it can be called or not.
    if isinstance(value, (*_ATOMS, *_NOT_ATTRIBUTES)) or is_called_only(value):
        return False
    return registered(type(value)) is not None or bool(_attribute_names(value))


def _attribute_names(value: object) -> tuple[str, ...]:
    names = list(getattr(value, "__dict__", ()))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, mangled):
                names.append(mangled)
    return tuple(names)


def parts(value: object) -> Iterator[tuple[str, Any]]:
    """The parts of a value that can come apart, each with the suffix of its path (`[0]`, `['k']`, `.name`)."""
    if type(value) is slice:
        yield from ((f".{name}", getattr(value, name)) for name in _OF_SLICE)
        return
    if isinstance(value, dict):
        yield from zip(key_labels(value), value.values(), strict=True)
    elif isinstance(value, (list, tuple)) or type(value) is deque:
        named = getattr(type(value), "_fields", ())
        for i, item in enumerate(value):
            yield (f".{named[i]}" if i < len(named) else f"[{i}]"), item
    elif (kind := registered(type(value))) is not None:
        for i, item in enumerate(kind.flatten(value)[0]):
            yield f"[{i}]", item
        return
    for name in _attribute_names(value):
        yield attribute_label(name), getattr(value, name)


@dataclass
class Flattener:
    """Takes values apart; `tensors` are the distinct tensors found so far, `paths` where each was first seen.

    same: containers (by id) that are to be kept as the object at a place of the arguments.
    closed: by id, objects without tensors, which are compared as a whole, and what they would be taken apart.
    convert: a value as it is to be taken apart (a stand-in tensor for a number of the graph's).
    stays: whether a value is not taken apart, but is that very object. key: a key of a mapping as it is to be kept.
    """

    check: Callable[[object, str], None] = lambda value, path: None
    same: Mapping[int, str] = field(default_factory=dict)
    tensors: list[torch.Tensor] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    containers: dict[int, str] = field(default_factory=dict)
    closed: dict[int, tuple[object, Container]] = field(default_factory=dict)
    convert: Callable[[object], object] = lambda value: value
    stays: Callable[[object], bool] = lambda value: False
    key: Callable[[Any], Any] = lambda key: key
    _index: dict[int, int] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)
    _seen: int = 0

    def flatten(self, value: object, path: str) -> Tree:
        """The structure of a value; its tensors join the list."""
        value = self.convert(value)
        if isinstance(value, torch.Tensor):
            self.check(value, path)
            return TensorLeaf(self._slot(value, path))
        if not has_parts(value) or id(value) in self._open or self.stays(value):
            if id(value) in self.same and not self.stays(value):
                return SameObject(self.same[id(value)])
            self.check(value, path)
            if not isinstance(value, _ATOMS):
                self.containers[id(value)] = path
            return ConstantLeaf(value, _held_by(value))
        if id(value) in self.same:
            return SameObject(self.same[id(value)])
        self._open.add(id(value))
        before = self._seen
        tree: Container | ConstantLeaf
        try:
            tree = self._container(value, path)
        finally:
            self._open.discard(id(value))
        is_plain = tree.kind == "sequence" or tree.cls in (dict, OrderedDict, defaultdict)
        if self._seen == before and not is_plain and self.is_closed(value):
            # An object without tensors is its own business: compared as a whole, returned as itself.
            self.closed[id(value)] = value, tree
            tree = ConstantLeaf(value, tree)
        self.containers[id(value)] = path
        return tree

    def of_slice(self, value: slice, path: str) -> Tree:
        """The structure of a slice in a result; one of plain numbers is itself."""
        trees = tuple(self.flatten(part, path + suffix) for suffix, part in parts(value))
        is_plain = all(isinstance(tree, ConstantLeaf) for tree in trees)
        return ConstantLeaf(value) if is_plain else Container("sequence", slice, trees)

    def of_set(self, value: set[object]) -> Container:
        """The structure of a set that the run made: a new one around the same items."""
        return Container("sequence", set, tuple(ConstantLeaf(self.key(item)) for item in value))

    def is_closed(self, value: object) -> bool:
        """Whether an object without tensors stays whole."""
        return True

    def _slot(self, tensor: torch.Tensor, path: str) -> int:
        self._seen += 1
        index = self._index.get(id(tensor))
        if index is None:
            index = self._index[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
            self.paths.append(path)
        return index

    def _container(self, value: Any, path: str) -> Container:
        cls = type(value)
        if isinstance(value, (list, tuple, dict)) or cls is deque:
            children = list(parts(value))
            count = len(value)
            trees = tuple(self.flatten(item, path + suffix) for suffix, item in children)
            return Container(
                "mapping" if isinstance(value, dict) else "sequence",
                cls,
                trees[:count],
                tuple(map(self.key, value)) if isinstance(value, dict) else (),
                _attribute_names(value),
                trees[count:],
                _context_of(value),
            )
        node = registered(cls)
        if node is not None:
            items, context = node.flatten(value)
            trees = tuple(self.flatten(item, f"{path}[{i}]") for i, item in enumerate(items))
            return Container("registered", cls, trees, context=context)
        names = _attribute_names(value)
        attributes = tuple(self.flatten(getattr(value, name), path + attribute_label(name)) for name in names)
        return Container("object", cls, (), names=names, attributes=attributes)


def _held_by(value: Any) -> Tree | None:
    """What is in a value that does not come apart: elements of a set, attributes beside a number or text."""
    cls = type(value)
    if cls in _PLAIN:
        return None
    if cls in (set, bytearray):
        return ConstantLeaf(cls(value))
    is_whole = isinstance(value, _ATOMS) and not isinstance(value, _PLAIN)
    if is_whole or not cls.__flags__ & _HEAP_TYPE:
        return None
    names = () if is_called_only(value) else _attribute_names(value)
    attributes = tuple(ConstantLeaf(getattr(value, name)) for name in names)
    return Container("object", cls, (), names=names, attributes=attributes)


def _context_of(value: object) -> object:
    """What a container is made with, beside its items."""
    if isinstance(value, defaultdict):
        return value.default_factory
    return value.maxlen if type(value) is deque else None


def same_constant(a: Any, b: Any) -> bool:
    """Whether two values without tensors mean the same: same class, and identical, equal bits, or equal."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return struct.pack("<d", a) == struct.pack("<d", b)
    if isinstance(a, complex):
        return same_constant(a.real, b.real) and same_constant(a.imag, b.imag)
    try:
        return (a == b) is True
    except Exception:  # a user's __eq__ may raise anything; then nothing is known to be equal
        return False


def mapped(tree: Tree, path: str, change: Callable[[str, ConstantLeaf], Tree]) -> Tree:
    """The structure with its constants changed, each told by its path."""
    match tree:
        case ConstantLeaf():
            return change(path, tree)
        case Container():
            labels = key_labels(tree.keys) or [f"[{i}]" for i in range(len(tree.items))]
            items = tuple(mapped(t, path + label, change) for label, t in zip(labels, tree.items, strict=True))
            more = zip(tree.names, tree.attributes, strict=True)
            return replace(
                tree, items=items, attributes=tuple(mapped(t, path + attribute_label(n), change) for n, t in more)
            )
    return tree


def opened(tree: Tree, ids: Collection[int], closed: Mapping[int, tuple[object, Container]]) -> Tree:
    """The structure with some objects, which were to be compared as a whole, taken apart."""
    match tree:
        case ConstantLeaf(value) if id(value) in ids:
            found = closed.get(id(value))
            return Container("object", type(value), ()) if found is None else opened(found[1], ids, closed)
        case Container():
            items = tuple(opened(item, ids, closed) for item in tree.items)
            return replace(tree, items=items, attributes=tuple(opened(a, ids, closed) for a in tree.attributes))
    return tree


def match(tree: Tree, value: object, path: str, tensors: dict[int, object], *, constants: bool = True) -> None:
    """Check a value against a structure and put its tensors into their places. constants: these are compared, too.

    Raises: UnfitError, which names the first place that differs.
    """
    match tree:
        case TensorLeaf(index):
            if not isinstance(value, torch.Tensor):
                raise UnfitError(f"{path} is {describe(value)}, where a tensor stood when the program was captured")
            if tensors.setdefault(index, value) is not value:
                raise UnfitError(f"{path} is another tensor than one it was identical with at capture")
        case NumberLeaf(index, cls):
            if type(value) is not cls:
                raise UnfitError(f"{path} is {describe(value)}, where a number of type {cls.__name__} stood at capture")
            tensors[index] = value
        case ConstantLeaf() if constants:
            _match_constant(tree, value, path)
        case Container():
            _match_container(tree, value, path, tensors, constants)
        case SameObject() | Made():
            raise UnfitError(f"{path} refers to an argument, which only a result can")


def _match_constant(leaf: ConstantLeaf, value: object, path: str) -> None:
    """That it is, or equals, what stood there, and has in it what that had: the same object may have changed, and
    objects that call themselves equal may differ beside that.
    """
    held = leaf.held
    if held is not None and type(value) is type(leaf.value):
        match(held, value, path, {})
    if same_constant(leaf.value, value):
        return
    now, before = describe(value), describe(leaf.value)
    if now == before:
        raise UnfitError(f"{path} is another {type(value).__qualname__} than at capture")
    raise UnfitError(f"{path} is {now}, where it was {before} at capture")


def _match_container(tree: Container, given: object, path: str, tensors: dict[int, object], constants: bool) -> None:
    value: Any = given
    if type(given) is not tree.cls:
        raise UnfitError(f"{path} is {describe(value)}, where a {tree.cls.__qualname__} stood at capture")
    if tree.kind == "registered":
        node = registered(tree.cls)
        items, context = node.flatten(value) if node is not None else ((), None)
        if len(items) != len(tree.items) or not same_constant(context, tree.context):
            raise UnfitError(f"{path} has another structure than the {tree.cls.__qualname__} at capture")
        children = [(f"[{i}]", item) for i, item in enumerate(items)]
    else:
        if tree.kind == "mapping" and tuple(value) != tree.keys:
            raise UnfitError(f"{path} has the keys {list(value)}, where it had {list(tree.keys)} at capture")
        if tree.cls is deque and value.maxlen != tree.context:
            raise UnfitError(f"{path} holds at most {value.maxlen} items, where that was {tree.context} at capture")
        if tree.kind == "sequence" and len(value) != len(tree.items):
            raise UnfitError(f"{path} has {len(value)} items, where it had {len(tree.items)} at capture")
        children = list(parts(value))
        names = _attribute_names(value)
        if names != tree.names:
            raise UnfitError(f"{path} has the attributes {list(names)}, where it had {list(tree.names)} at capture")
    for child, (suffix, item) in zip((*tree.items, *tree.attributes), children, strict=True):
        match(child, item, path + suffix, tensors, constants=constants)


def describe(value: object) -> str:
    """A short text for a value in an error: its class, and the value itself where it is small."""
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if value is None:
        return "None"
    text = repr(value) if isinstance(value, (int, float, bool, complex, str)) else ""
    return text if text and len(text) <= 40 else f"a {type(value).__qualname__}"


def rebuild(tree: Tree, tensors: Sequence[object], same: dict[str, object] | None = None) -> Any:
    """A value of the structure around other tensors; containers are new, constants are the same objects.

    same: what stands at the places of the arguments that the structure names; it also keeps what is met again.
    """
    match tree:
        case TensorLeaf(index) | NumberLeaf(index):
            return tensors[index]
        case ConstantLeaf(value):
            return value
        case SameObject(path):
            return (same or {})[path]
        case Made(number, inner):
            assert same is not None
            if inner is not None:
                same[f"made {number}"] = rebuild(inner, tensors, same)
            return same[f"made {number}"]
    items = [rebuild(item, tensors, same) for item in tree.items]
    if tree.kind == "registered":
        node = registered(tree.cls)
        if node is None:
            raise TypeError(f"{tree.cls.__qualname__} is no longer registered with torch's pytree")
        return node.unflatten(items, tree.context)
    return assembled(tree, items, [rebuild(attribute, tensors, same) for attribute in tree.attributes])


def assembled(tree: Container, items: Sequence[object], attributes: Sequence[object]) -> object:
    """A value of the structure's class, of any kind but "registered", with these parts."""
    value = _shell(tree, items)
    for name, attribute in zip(tree.names, attributes, strict=True):
        # Past a frozen dataclass's own __setattr__.
        object.__setattr__(value, name, attribute)
    return value


def tuple_of(cls: type, items: Sequence[object]) -> object:
    """A tuple of a class around these items, whatever its constructor takes."""
    # torch.return_types and torch.Size are tuples of C's making, which only their own constructors make.
    is_plain = cls in (tuple, torch.Size) or hasattr(cls, "n_sequence_fields")
    return cls(items) if is_plain else tuple.__new__(cls, items)


def _shell(tree: Container, items: Sequence[object]) -> object:
    cls = tree.cls
    if issubclass(cls, tuple):
        return tuple_of(cls, items)
    if cls is deque:
        return deque(items, tree.context)
    if cls is set:
        return set(items)
    if cls is slice:
        return slice(*items)
    if issubclass(cls, list):
        new_list = list.__new__(cls)
        list.extend(new_list, items)
        return new_list
    if issubclass(cls, dict):
        new_dict: dict[Any, Any] = cls.__new__(cls)
        if isinstance(new_dict, defaultdict):
            new_dict.default_factory = tree.context
        # An ordered dict keeps its order in a list of its own, which only its own setter fills.
        put = OrderedDict.__setitem__ if issubclass(cls, OrderedDict) else dict.__setitem__
        for key, item in zip(tree.keys, items, strict=True):
            put(new_dict, key, item)
        return new_dict
    # A namespace's memory is laid out by a class of C's, whose own making is the only one that is safe.
    base: Any = next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE)
    return base.__new__(cls)


def tensors_at(tree: Tree, value: object) -> list[object]:
    """What stands in a value at the places of the structure's tensors, in the order of their numbers."""
    found: dict[int, Any] = {}
    stack: list[tuple[Tree, object]] = [(tree, value)]
    while stack:
        match stack.pop():
            case TensorLeaf(index), tensor:
                found[index] = tensor
            case Made(_, inner), held if inner is not None:
                stack.append((inner, held))
            case Container() as container, held:
                children = (*container.items, *container.attributes)
                stack.extend((child, part) for child, (_, part) in zip(children, parts(held), strict=False))
    return [found[index] for index in sorted(found)]


def held_keys(tree: Tree, path: str) -> Iterator[tuple[str, object]]:
    """The keys of mappings that are, or hold, objects, with names for them."""
    if isinstance(tree, Container):
        labels = key_labels(tree.keys)
        for label, key in zip(labels, tree.keys, strict=True):
            if isinstance(key, torch.Tensor) or not is_inert(key):
                yield f"{path}.keys{label}", key
        labels = labels or [f"[{i}]" for i in range(len(tree.items))]
        for label, item in zip(labels, tree.items, strict=True):
            yield from held_keys(item, path + label)
        for name, item in zip(tree.names, tree.attributes, strict=True):
            yield from held_keys(item, path + attribute_label(name))


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, TensorLeaf | NumberLeaf | ConstantLeaf]]:
    """All leaves with their paths, in order."""
    match tree:
        case TensorLeaf() | NumberLeaf() | ConstantLeaf():
            yield path, tree
        case Container():
            labels = key_labels(tree.keys) or [f"[{i}]" for i in range(len(tree.items))]
            for label, item in zip(labels, tree.items, strict=True):
                yield from leaves(item, path + label)
            for name, item in zip(tree.names, tree.attributes, strict=True):
                yield from leaves(item, path + attribute_label(name))
        case Made(_, inner) if inner is not None:
            yield from leaves(inner, path)
