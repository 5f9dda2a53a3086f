"""Straight code for one call's way in and out: arguments to inputs, results to the program's own result.

The guards have checked the structure of the arguments before, so the way in need only pick the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from smelt._torch.seen.inference_kind import of_kind
from smelt._torch.seen.spent_history import with_spent_history
from smelt.capture import Signature
from smelt.capture.structure.tree import ConstantLeaf, Container, TensorLeaf, Tree, assembled
from smelt.codegen.lower import Lowered
from smelt.codegen.lower.result import (
    Fresh,
    Number,
    OfKind,
    OutputRecipe,
    Plain,
    Same,
    Spent,
    StateName,
    ViewOf,
    view_of,
)
from smelt.diag import CaptureError
from smelt.runtime.encoding.entry_table import Kind

Extract = Callable[[Sequence[Any], Mapping[str, Any]], Sequence[torch.Tensor]]
Deliver = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[Any], Mapping[str, Any]], Any]

# Deeper results are made part by part: Python's parser has a limit.
_MAX_DEPTH = 40
# Places made of positions, plain keys and plain attributes can be read back by Python as they are printed.
_PLAIN_PLACE = re.compile(r"(args|kwargs)(\[\d+\]|\['[^'\\]*'\]|\.[A-Za-z_][A-Za-z_0-9]*)+\Z")


def extractor(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Extract:
    """What picks a call's inputs out of arguments that are known to fit; tried on one call's arguments.

    Where these do not fit (the program has changed them), it is tried on those of the next call.
    """
    try:
        return _extractor(signature, args, kwargs)
    except CaptureError:
        return _at_next_call(signature)


def _extractor(signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Extract:
    """Raises: CaptureError (S0107) where the arguments do not fit."""
    chosen = _chosen.get(signature)
    if chosen is not None:
        return chosen
    chosen = None
    if all(_PLAIN_PLACE.match(place) for place in signature.inputs):
        picked = "".join(f"{place}, " for place in signature.inputs)
        pick: Extract = eval(f"lambda args, kwargs: ({picked})")
        try:
            found = pick(args, kwargs)
            if all(a is b for a, b in zip(found, signature.flatten_guarded(args, kwargs), strict=True)):
                chosen = pick
        except (AttributeError, LookupError, TypeError):
            pass  # a container that answers otherwise than its parts say: the signature knows how
    if chosen is None:
        return signature.flatten_guarded
    _chosen[signature] = chosen
    return chosen


# A program with free sizes has many plans, and one way in.
_chosen: WeakKeyDictionary[Signature, Extract] = WeakKeyDictionary()


def _at_next_call(signature: Signature) -> Extract:
    found: list[Extract] = []

    def extract(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[torch.Tensor]:
        if not found:
            found.append(_extractor(signature, args, kwargs))
        return found[0](args, kwargs)

    return extract


def result_kind(signature: Signature, lowered: Lowered) -> Kind:
    """How native code can make the program's result of all of a plan's results; Kind.DELIVER if it cannot."""
    if not lowered.is_direct or signature.puts is not None:
        return Kind.DELIVER
    count = len(lowered.plan.outputs)
    match signature.result:
        case TensorLeaf(index=0) if count == 1:
            return Kind.SINGLE
        case Container(kind="sequence", cls=cls, items=items, names=()) if cls is tuple or cls is list:
            order = [item.index for item in items if isinstance(item, TensorLeaf)]
            if len(order) == len(items) and order == list(range(count)):
                return Kind.TUPLE if cls is tuple else Kind.LIST
    return Kind.DELIVER


def deliverer(signature: Signature, lowered: Lowered, lookup: Callable[[str, str], torch.Tensor]) -> Deliver:
    """What makes the program's result of a plan's results."""
    if signature.puts is None:
        try:
            return _Result(lowered.outputs, lookup).function(signature.result)
        except _NoCode:
            pass

    def rebuild(
        results: Sequence[Any], inputs: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        return signature.rebuild(lowered.rebuild(results, inputs, lookup), args, kwargs)

    return rebuild


class _NoCode(Exception):
    """A result that is no expression over a plan's results and a call's inputs."""


class _Result:
    """A program's result as one expression, with the objects that it names; containers are new, constants the same."""

    def __init__(self, outputs: Sequence[OutputRecipe], lookup: Callable[[str, str], torch.Tensor]) -> None:
        self.outputs = outputs
        self._made_here: set[int] = set()
        numbers = [recipe.number for recipe in outputs if isinstance(recipe, ViewOf)]
        self._is_one_twice = len(set(numbers)) < len(numbers)
        self.scope: dict[str, Any] = {
            "assembled": assembled,
            "lookup": lookup,
            "of_kind": of_kind,
            "spent": with_spent_history,
            "view_of": view_of,
            "new_tuple": tuple.__new__,
        }

    def function(self, tree: Tree) -> Deliver:
        """Raises: _NoCode."""
        if self._is_one_twice:
            raise _NoCode
        text = f"lambda results, inputs, args, kwargs: {self._made(tree, 0)}"
        made: Deliver = eval(compile(text, "<smelt result>", "eval"), self.scope)
        return made

    def _made(self, tree: Tree, depth: int) -> str:
        match tree:
            case TensorLeaf(index):
                recipe = self.outputs[index]
                if isinstance(recipe, (ViewOf, OfKind, Spent)) and index in self._made_here:
                    raise _NoCode  # it is made once, and stands in several places
                self._made_here.add(index)
                return self._output(recipe)
            case ConstantLeaf(value):
                return repr(value) if value is None or type(value) is bool else self._named(value)
            case Container() if tree.kind != "registered" and depth < _MAX_DEPTH:
                items, attributes = (
                    [self._made(part, depth + 1) for part in parts] for parts in (tree.items, tree.attributes)
                )
                return self._container(tree, items, attributes)
        raise _NoCode

    def _container(self, tree: Container, items: list[str], attributes: list[str]) -> str:
        cls, listed = tree.cls, "".join(f"{item}, " for item in items)
        if attributes or not issubclass(cls, (tuple, list, dict)):
            return f"assembled({self._named(tree)}, ({listed}), ({''.join(f'{each}, ' for each in attributes)}))"
        if cls is tuple:
            return f"({listed})"
        if cls is list:
            return f"[{listed}]"
        if cls is dict:
            pairs = zip(tree.keys, items, strict=True)
            return f"{{{', '.join(f'{self._named(key)}: {item}' for key, item in pairs)}}}"
        if hasattr(cls, "n_sequence_fields"):
            return f"{self._named(cls)}(({listed}))"
        if issubclass(cls, tuple):
            return f"new_tuple({self._named(cls)}, ({listed}))"
        return f"assembled({self._named(tree)}, ({listed}), ())"

    def _output(self, recipe: OutputRecipe) -> str:
        match recipe:
            case Fresh(index=index) | Number(index=index):
                return f"results[{index}]"
            case OfKind(recipe=Fresh(index=index), inference=inference):
                return f"of_kind(results[{index}], {inference})"
            case Spent(recipe=Fresh(index=index)):
                return f"spent(results[{index}])"
            case Same(source=source):
                return self._source(source)
            case ViewOf():
                return f"view_of({self._source(recipe.source)}, {self._named(recipe)})"
            case Plain(value=value):
                return self._named(value)
        raise _NoCode

    def _source(self, source: int | StateName) -> str:
        return f"inputs[{source}]" if isinstance(source, int) else f"lookup({source.kind!r}, {source.path!r})"

    def _named(self, value: Any) -> str:
        name = f"o{len(self.scope)}"
        self.scope[name] = value
        return name
