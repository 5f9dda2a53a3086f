"""Copies of module trees: a *shadow* has modules of its own over the same tensors, a *build* tensors of its own, too.

Invariant: the original is read only; in both kinds what was one object stays one (shared modules, tied parameters,
views of one memory), and classes, keys, flags, hooks and attributes are those of the original.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from smelt._torch.seen.leaves import is_leaf
from smelt.diag import ScheduleError

HOOKS = (
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_backward_pre_hooks", "_backward_hooks",
)  # fmt: skip
"""Where a module keeps its hooks, and what is known of them."""
CALLED = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_PLAIN = (bool, int, float, str, type(None), set)
Memo = dict[int, Any]
"""What deepcopy has copied, by the id of the original."""


def shadow(module: torch.nn.Module, known: Mapping[int, Any] | None = None) -> tuple[torch.nn.Module, Memo]:
    """A copy that shares all tensors, and what became of each object.

    known: objects that have their copy already. Raises: ScheduleError (S0612) where a part cannot be copied.
    """
    memo: Memo = _emptied(module)
    memo.update((id(tensor), tensor) for tensor in tensors(module))
    memo.update(known or {})
    return _copied(module, memo), memo


def build(module: torch.nn.Module, known: Mapping[int, Any] | None = None) -> torch.nn.Module:
    """A copy with tensors of its own. known, Raises: as of `shadow`."""
    # What autograd computed is no leaf, which deepcopy refuses; the copy has its value, and is computed anew.
    memo: Memo = _emptied(module)
    memo.update((id(t), t.detach().clone()) for t in tensors(module) if not is_leaf(t))
    memo.update(known or {})
    return _copied(module, memo)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether something is to be called before or after a module's forward or backward."""
    return any(getattr(module, name, None) for name in CALLED)


def without_hooks(module: torch.nn.Module) -> torch.nn.Module:
    """A build of a module that nobody watches: to try what it gives."""
    copied = build(module)
    for part in copied.modules():
        for name in HOOKS:
            getattr(part, name, {}).clear()
    return copied


def _emptied(module: torch.nn.Module) -> Memo:
    """Copies of the empty tables that each module has a dozen of (its hooks): deepcopy takes much longer for them."""
    memo: Memo = {}
    for part in module.modules():
        for value in part.__dict__.values():
            kind = type(value)
            if kind is OrderedDict:
                if not value and not value.__dict__:
                    memo[id(value)] = OrderedDict()
            elif (kind is set or kind is dict) and not value:
                memo[id(value)] = kind()
    return memo


def _copied(module: torch.nn.Module, memo: Memo) -> torch.nn.Module:
    try:
        copied: torch.nn.Module = copy.deepcopy(module, memo)
    except Exception as error:
        raise ScheduleError(
            f"{type(module).__name__} cannot be copied: {type(error).__name__}: {error}",
            why="a schedule works on copies, so that the model stays unchanged; copy.deepcopy of a part of it fails",
            fix="give what cannot be copied a __deepcopy__, or store it outside the model", code="S0612",
        ) from error  # fmt: skip
    return copied


def ties(module: torch.nn.Module) -> tuple[tuple[str, ...], ...]:
    """The names of each parameter or buffer that has several."""
    names: dict[int, list[str]] = {}
    for found in (module.named_parameters, module.named_buffers):
        for name, tensor in found(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
    return tuple(tuple(group) for group in names.values() if len(group) > 1)


def tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """All tensors of a tree: parameters, buffers, and those in plain attributes and containers of these."""
    for part in module.modules():
        for value in part.__dict__.values():
            kind = type(value)
            if kind not in _PLAIN and (kind not in (dict, OrderedDict) or value):
                yield from _tensors_in(value, 0)


def _tensors_in(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < 4 and isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item, depth + 1)
    elif depth < 4 and isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item, depth + 1)
