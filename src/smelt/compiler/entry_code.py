"""Straight code for one call's way in and out: arguments to inputs, results to the program's own result.

The guards have checked the structure of the arguments before, so the way in need only pick the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch

from smelt.capture import Signature
from smelt.capture.tree import Container, TensorLeaf
from smelt.codegen.lower import Lowered
from smelt.diag import CaptureError
from smelt.runtime.entry_table import Kind

Extract = Callable[[Sequence[Any], Mapping[str, Any]], Sequence[torch.Tensor]]
Deliver = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[Any], Mapping[str, Any]], Any]

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
    if lowered.is_direct and signature.puts is None:
        match signature.result:
            case TensorLeaf(index=index):
                return lambda results, inputs, args, kwargs: results[index]
            case Container(kind="sequence", cls=cls, items=items, names=()) if cls is tuple or cls is list:
                order = [item.index for item in items if isinstance(item, TensorLeaf)]
                if len(order) == len(items):
                    return lambda results, inputs, args, kwargs: cls([results[i] for i in order])

    def rebuild(
        results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        return signature.rebuild(lowered.rebuild(results, inputs, lookup), args, kwargs)

    return rebuild
