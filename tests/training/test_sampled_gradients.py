"""torch's own samples of its operators, each as a program of one operator that is trained: gradients against eager's.

They are as near to those in f64 as eager's are: at most 1.5 times its rms error, and a few roundings.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import smelt
from tests.differential.test_operators import operators

Tensor = torch.Tensor
OPTIONS = {"measure": False, "train": True, "adaptive": False}
# What is compared with itself already differs: it draws, gives what memory held, or one of many right answers.
_WITHOUT_ANSWER = ("empty", "svd", "eig", "qr", "pca", "lobpcg", "lstsq", "ormqr", "householder", "geqrf")


def _floating(op: Any) -> list[str]:
    return [
        name
        for name, one in op.items()
        if one.supports_autograd
        and {torch.float32, torch.float64} <= set(one.supported_dtypes("cpu"))
        and torch.float32 in one.supported_backward_dtypes("cpu")
        and not any(part in name for part in _WITHOUT_ANSWER)
    ]


def _gradients(program: Callable[..., Any], inputs: Sequence[Any]) -> list[Tensor | None]:
    """Those of the inputs that require gradients, by results each in a direction of its own."""
    torch.manual_seed(0)
    results = [r for r in tree_flatten(program(*inputs))[0] if isinstance(r, Tensor) and r.requires_grad]
    wanted = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
    if not results or not wanted:
        return []
    directions = [_direction(r, i) for i, r in enumerate(results)]
    return list(torch.autograd.grad(results, wanted, directions, allow_unused=True))


def _direction(like: Tensor, seed: int) -> Tensor:
    made = torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)
    return made.to(like.dtype)


def _leaves(flat: Sequence[Any], dtype: torch.dtype) -> list[Any]:
    return [
        x.detach().to(dtype).clone(memory_format=torch.preserve_format).requires_grad_(x.requires_grad)
        if isinstance(x, Tensor) and x.is_floating_point()
        else x
        for x in flat
    ]


def _samples(op: Any) -> Iterator[tuple[Callable[..., Any], list[Any]]]:
    torch.manual_seed(0)
    for sample in op.sample_inputs("cpu", torch.float32, requires_grad=True):
        flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))

        def program(*given: Any, spec: Any = spec, sample: Any = sample) -> Any:
            first, args, kwargs = tree_unflatten(given, spec)
            return sample.output_process_fn_grad(op.op(first, *args, **kwargs))

        yield program, flat


def gradient_difference(program: Callable[..., Any], flat: Sequence[Any]) -> str | None:
    """What differs from eager's gradients; None where nothing does, or eager itself raises."""
    if any(isinstance(x, Tensor) and x.is_complex() for x in flat):
        return None
    try:
        exact = _gradients(program, _leaves(flat, torch.float64))
        eager, again = (_gradients(program, _leaves(flat, torch.float32)) for _ in range(2))
    except (RuntimeError, TypeError, NotImplementedError, ValueError):
        return None
    compiled = smelt.compile(program, options=OPTIONS)
    for call in range(2):
        own = _gradients(compiled, _leaves(flat, torch.float32))
        if [g is None for g in own] != [g is None for g in eager]:
            return f"call {call}: gradients {[g is not None for g in own]} instead of {[g is not None for g in eager]}"
        for i, (g, e, a, x) in enumerate(zip(own, eager, again, exact, strict=True)):
            if g is None or e is None or a is None or x is None:
                continue
            if not torch.equal(e.nan_to_num(), a.nan_to_num()):
                return None  # eager is not of one mind
            text = _difference(g, e, x)
            if text is not None:
                return f"call {call}, gradient {i}: {text}"
    return None


def _difference(own: Tensor, eager: Tensor, exact: Tensor) -> str | None:
    if own.shape != eager.shape or own.dtype != eager.dtype:
        return f"{own.dtype} of {tuple(own.shape)} instead of {eager.dtype} of {tuple(eager.shape)}"
    odd = ~eager.isfinite()
    if not torch.equal(own[odd].nan_to_num(1.0, 2.0, 3.0), eager[odd].nan_to_num(1.0, 2.0, 3.0)):
        return f"{own[odd]} instead of {eager[odd]}"
    seen = ~odd & exact.isfinite()
    if not seen.any():
        return None
    errors = [(g[seen].double() - exact[seen]).square().mean().sqrt().item() for g in (own, eager)]
    # Of few elements eager's own error may be small by chance. What is summed has the size of the directions, 1.
    roundings = (8 if exact.numel() < 32 else 4) * torch.finfo(torch.float32).eps
    allowed = 1.5 * errors[1] + roundings * max(1.0, exact[seen].abs().max().item())
    return None if errors[0] <= allowed else f"rms {errors[0]:.3g} against eager's {errors[1]:.3g}"


def _check(names: Sequence[str], limit: int) -> None:
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            for number, (program, flat) in enumerate(_samples(operators()[name])):
                if number == limit:
                    break
                text = gradient_difference(program, flat)
                if text is not None:
                    found[name, number] = text
    assert not found


@pytest.mark.spread(16)
@pytest.mark.parametrize("part", range(16))
def test_gradients_of_operators(part: int) -> None:
    _check(_floating(operators())[part::16], limit=1)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(64))
def test_gradients_of_all_samples(part: int) -> None:
    _check(_floating(operators())[part::64], limit=50)
