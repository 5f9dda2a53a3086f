"""What a module holds: tensors and gradients by the names of a checkpoint, plain attributes by path.

Invariant: names are those of `state_dict`, whatever the parameters became: a merged weight shows as what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

_OF_MODULES = frozenset(torch.nn.Module().__dict__) | {"forward"}
_PLAIN = (type(None), bool, int, float, complex, str)
_FEW = 64


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name, tied ones under each name; also those that no checkpoint has."""
    found = dict(module.named_parameters(remove_duplicate=False))
    found.update(module.named_buffers(remove_duplicate=False))
    found.update(_saved(module))
    return {name: tensor.detach() for name, tensor in found.items()}


def gradients_of(module: torch.nn.Module) -> dict[str, torch.Tensor | None]:
    """The gradients of all parameters, by the names of a checkpoint.

    Where a checkpoint's entries are made of parameters with other names (merged weights), the same is made of the
    gradients: such entries are parts of parameters, so what holds for values holds for gradients.
    """
    found = {name: p.grad for name, p in module.named_parameters(remove_duplicate=False)}
    buffers = dict(module.named_buffers(remove_duplicate=False))
    made = [name for name in _saved(module) if name not in found and name not in buffers]
    if made:
        ones = _saved_with(module, torch.ones_like)
        zeros = _saved_with(module, torch.zeros_like)
        present = _saved_with(module, lambda p: torch.zeros_like(p) if p.grad is None else torch.ones_like(p))
        grads = _saved_with(module, lambda p: torch.zeros_like(p) if p.grad is None else p.grad)
        for name in made:
            if bool((ones[name] == 1).all()) and not bool(zeros[name].any()):
                found[name] = grads[name] if bool((present[name] == 1).all()) else None
    return found


def _saved(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}


def _saved_with(module: torch.nn.Module, change: Callable[[Any], torch.Tensor]) -> dict[str, torch.Tensor]:
    """What a checkpoint would hold if the parameters had other values."""
    parameters = list(module.parameters())
    values = [parameter.data for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.data = change(parameter).detach()
        return {name: value.clone() for name, value in _saved(module).items()}
    finally:
        for parameter, value in zip(parameters, values, strict=True):
            parameter.data = value


def ties_of(state: Mapping[str, torch.Tensor]) -> set[frozenset[str]]:
    """The groups of names that stand for one and the same tensor."""
    groups: dict[Any, set[str]] = {}
    for name, tensor in state.items():
        if tensor.layout is torch.strided and tensor.numel() and tensor.device.type != "meta":
            key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            groups.setdefault(key, set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def names_between(reference: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """Names of `other` by those of `reference`: equal names, and renamed tensors that only one value fits."""
    found = {name: name for name in reference if name in other}
    left = [name for name in other if name not in found]
    for name in reference.keys() - found.keys():
        fitting = [mine for mine in left if _is_equal(reference[name], other[mine])]
        rivals = [theirs for theirs in reference.keys() - found.keys() if _is_equal(reference[name], reference[theirs])]
        if len(fitting) == 1 and len(rivals) == 1:
            found[name] = fitting[0]
    return {name: found[name] for name in reference if name in found}


def attributes_of(module: torch.nn.Module) -> dict[str, tuple[Any, Any]]:
    """Plain attributes of all modules by path and class, each with a mark that differs once it changes.

    Plain are numbers, texts, tensors that are no buffers, and short containers of these.
    """
    found: dict[str, tuple[Any, Any]] = {}
    for path, part in module.named_modules():
        for name, value in part.__dict__.items():
            mark = None if name in _OF_MODULES else _mark(value, 0)
            if mark is not None:
                found[f"{path}.{name} of {type(part).__name__}".lstrip(".")] = (value, mark)
    return found


def _mark(value: Any, depth: int) -> Any:
    """What tells whether a plain value has changed; None for what is not plain."""
    if type(value) in _PLAIN:
        return type(value).__name__, repr(value)
    if isinstance(value, torch.Tensor):
        return "tensor", id(value), 0 if value.is_inference() else value._version
    if depth < 3 and type(value) in (list, tuple, dict) and len(value) <= _FEW:
        parts: Sequence[Any] = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        marks = [_mark(part, depth + 1) for part in parts]
        return None if None in marks else (type(value).__name__, tuple(marks))
    return None


def _is_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.layout == b.layout and bool(torch.equal(a, b))
