"""The structure of a captured call as an ingot has it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import Any

import torch

from smelt._torch.seen.labels import attribute_label, key_labels
from smelt.capture.structure.tree import ConstantLeaf, Container, Made, SameObject, TensorLeaf, Tree
from smelt.runtime.ingot.errors import unsaved
from smelt.runtime.ingot.structure import Const, Leaf, Mapping_, Sequence_, Shared, Structure, write_constant


def structure_of(tree: Tree, path: str) -> Structure:
    """The structure; path: what the value is called. Raises: PackageError (S0702) naming a part without a form."""
    match tree:
        case TensorLeaf(index=index):
            return Leaf(index)
        case ConstantLeaf(value=value):
            return _constant(value, path)
        case Made(number=number, tree=inner):
            return Shared(number, None if inner is None else structure_of(inner, path))
        case SameObject():
            raise _refused(f"{path} is {tree.path} itself, an object of the caller's", "return a new one")
        case Container(kind="sequence"):
            return _sequence(tree, path)
        case Container(kind="mapping"):
            return _mapping(tree, path)
        case Container(kind="object"):
            labels = [path + attribute_label(name) for name in tree.names]
            items = tuple(map(structure_of, tree.attributes, labels))
            return Mapping_(tree.names, items, _class_name(tree.cls))
    what = getattr(tree, "cls", type(tree)).__qualname__
    raise _refused(f"{path} is a {what}", "pass and return tensors, lists, tuples, dicts and data classes")


def _constant(value: Any, path: str) -> Const:
    try:
        write_constant(value)
    except TypeError:
        raise _refused(
            f"{path} is a {type(value).__qualname__}", "pass numbers, strings, None and tensors; set the rest before"
        ) from None
    return Const(value)


def _sequence(tree: Container, path: str) -> Structure:
    cls = tree.cls
    fields = getattr(cls, "_fields", None)
    is_torch = issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields")
    if is_torch:
        fields = [name for name in dir(cls) if isinstance(getattr(cls, name), _MEMBER)][: len(tree.items)]
    labels = [f"{path}.{fields[i]}" if fields else f"{path}[{i}]" for i in range(len(tree.items))]
    items = tuple(map(structure_of, tree.items, labels))
    if cls in (list, tuple, torch.Size):
        return Sequence_(list if cls is list else tuple, items)
    if issubclass(cls, tuple) and fields is not None:
        return Sequence_(tuple, items, _class_name(cls), tuple(fields))
    raise _refused(f"{path} is a {cls.__qualname__}", "use lists and tuples")


_MEMBER = type(torch.return_types.max.values) if hasattr(torch.return_types, "max") else property


def _mapping(tree: Container, path: str) -> Structure:
    labels = [path + label for label in key_labels(tree.keys)]
    for key, label in zip(tree.keys, labels, strict=True):
        _constant(key, f"the key of {label}")
    items = tuple(map(structure_of, tree.items, labels))
    is_plain = tree.cls is dict or tree.cls is defaultdict
    name = "" if is_plain else "collections.OrderedDict" if tree.cls is OrderedDict else _class_name(tree.cls)
    return Mapping_(tree.keys, items, name)


def _class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _refused(what: str, fix: str) -> Exception:
    return unsaved(
        f"the program cannot be saved: {what}",
        "an ingot holds no Python objects: what stands in arguments and results must have a written form",
        fix,
    )
