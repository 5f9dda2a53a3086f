"""How far a system's answer is from eager's and from the same model in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from smelt._torch.seen import dispatch_mode
from smelt.bench.models import Model, flatten
from smelt.diag.records import record


@record
class Accuracy:
    """`max_abs_err` is against eager, `rms_err` against float64 over all outputs, `rms_ratio` rms_err / eager's own."""

    max_abs_err: float
    rms_err: float
    eager_rms_err: float
    rms_ratio: float | None


def _to_double(value: Any) -> Any:
    """float32 dtypes among an operator's arguments become float64 (models that compute parts "in float32")."""
    if value is torch.float32:
        return torch.float64
    if isinstance(value, tuple | list):
        return type(value)(_to_double(v) for v in value)
    return value


def reference(model: Model, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The outputs of the model built in `dtype` and then run in float64 throughout, weights and inputs widened."""

    def in_double(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*_to_double(args), **{name: _to_double(value) for name, value in kwargs.items()})

    target, args = model.build(dtype)
    wide = tuple(a.double() if a.is_floating_point() else a for a in args)
    target = target.double() if isinstance(target, torch.nn.Module) else target
    with torch.no_grad(), dispatch_mode.intercepting(in_double):
        return flatten(target(*wide))


def _differences(got: Sequence[Tensor], want: Sequence[Tensor]) -> Tensor:
    """All element-wise differences in float64; two NaNs, or two equal infinities, differ by 0.

    Raises: ValueError where the number or the shapes of the outputs differ.
    """
    shapes = [tuple(t.shape) for t in got], [tuple(t.shape) for t in want]
    if shapes[0] != shapes[1]:
        raise ValueError(f"outputs have shapes {shapes[0]}, eager's have {shapes[1]}")
    parts = []
    for a, b in zip(got, want, strict=True):
        a, b = a.detach().double(), b.detach().double()
        same = (a == b) | (a.isnan() & b.isnan())
        parts.append(torch.where(same, 0.0, a - b).flatten())
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def _rms(differences: Tensor) -> float:
    return math.sqrt(differences.square().mean().item()) if differences.numel() else 0.0


def compare(got: Sequence[Tensor], eager: Sequence[Tensor], exact: Sequence[Tensor]) -> Accuracy:
    """Errors of `got`, with eager's own beside them. NaN where only one side is NaN.

    Raises: ValueError where the number or the shapes of the outputs differ.
    """
    to_eager = _differences(got, eager)
    rms_err, eager_rms_err = _rms(_differences(got, exact)), _rms(_differences(eager, exact))
    ratio: float | None = None
    if eager_rms_err > 0:
        ratio = rms_err / eager_rms_err
    elif rms_err == 0:
        ratio = 1.0
    return Accuracy(to_eager.abs().max().item() if to_eager.numel() else 0.0, rms_err, eager_rms_err, ratio)
