"""Infinities and NaN stand where eager has them: every kernel operation, at the edges of its range.

Where eager's vectors and its single elements disagree, either may come (docs/decisions/0004-numerics.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt
from smelt.codegen.fusion.groups import RULES
from smelt.ops.registry import overload

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
BLOCK = 64  # eager's vectors are taken for as many elements, at the least


def edges(dtype: torch.dtype) -> Tensor:
    """Numbers at which functions overflow, vanish, or change their formula; both signs, and what is no number."""
    info = torch.finfo(dtype)
    log = math.log(info.max)
    at = [
        0.0, 0.5, 1.0, 2.0, 10.0, 20.0, 30.0, 127.0, 128.0, 1024.0, math.pi / 2, info.eps, info.tiny, info.max,
        info.max / 2, info.tiny * info.eps, math.sqrt(info.max), math.sqrt(info.tiny), info.max ** (1 / 3), log,
        log + math.log(2), math.log2(info.max), -math.log(info.tiny), -math.log(info.tiny * info.eps), 9.01, 26.6,
    ]  # fmt: skip
    near = [x * (1 + k * info.eps) for x in at for k in (-3, -1, 0, 1, 3)] + [x * f for x in at for f in (0.997, 1.003)]
    found = torch.tensor([x for x in near if x <= info.max], dtype=torch.float64).to(dtype).unique()
    return torch.cat([found, -found, torch.tensor([math.inf, -math.inf, math.nan], dtype=dtype)])


def kinds(result: Tensor) -> Tensor:
    """3 for NaN, 2 and -2 for infinities, 0 for numbers."""
    x = result.double()
    return torch.where(x.isnan(), 3.0, torch.where(x.isinf(), 2.0 * x.sign(), 0.0))


def _rows(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function of rows of two, the second of them zero."""
    return lambda x: f(torch.stack([x, torch.zeros_like(x)], -1)).reshape(x.shape[0], -1)[:, 0]


def _generated(operands: int) -> dict[str, Callable[..., Tensor]]:
    """Each operator with a kernel that takes so many tensors, and nothing else that it must be told."""
    found: dict[str, Callable[..., Tensor]] = {}
    for name in sorted(RULES):
        function: Any = overload(name)
        if function is None:
            continue
        needed = [a for a in function._schema.arguments if not a.has_default_value() and not a.kwarg_only]
        if len(needed) == operands and all(str(a.type) == "Tensor" for a in needed):
            x = torch.ones(2, 1)
            try:
                y = function(*[x] * operands)
            except (RuntimeError, TypeError, IndexError):
                continue
            if isinstance(y, Tensor) and y.shape == x.shape and y.dtype == x.dtype and y.data_ptr() != x.data_ptr():
                found[name] = function
    return found


ONE: dict[str, Callable[..., Tensor]] = _generated(1) | {
    "exp2": torch.exp2, "expm1": torch.expm1, "softplus": F.softplus, "mish": F.mish, "gelu": F.gelu, "elu": F.elu,
    "selu": F.selu, "celu": F.celu, "tanhshrink": F.tanhshrink, "logsigmoid": F.logsigmoid, "softsign": F.softsign,
    "softplus of another beta": lambda x: F.softplus(x, beta=2.0, threshold=10.0),
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"), "x**3": lambda x: x**3, "x**-2": lambda x: x**-2,
    "x**0.5": lambda x: x**0.5, "x**2.5": lambda x: x**2.5, "2**x": lambda x: 2.0**x, "logit": torch.logit,
    "logsumexp": _rows(lambda x: torch.logsumexp(x, -1)), "softmax": _rows(lambda x: x.softmax(-1)),
    "log_softmax": _rows(lambda x: x.log_softmax(-1)),
}  # fmt: skip
TWO: dict[str, Callable[..., Tensor]] = _generated(2) | {
    "logaddexp": torch.logaddexp, "logaddexp2": torch.logaddexp2, "xlogy": torch.xlogy, "fmod": torch.fmod,
    "xlog1py": torch.special.xlog1py, "addcdiv": lambda a, b: torch.addcdiv(a, a, b), "ldexp": torch.ldexp,
    "smooth_l1": lambda a, b: F.smooth_l1_loss(a, b, reduction="none"), "pow": torch.pow,
    "exp of a difference": lambda a, b: (a - b).exp(),
}  # fmt: skip


def eager_kinds(f: Callable[..., Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Of each element in a vector, and alone."""
    count = inputs[0].numel()
    padded = [torch.cat([x, x.new_ones(BLOCK + -count % BLOCK)]) for x in inputs]
    alone = torch.cat([f(*(x[i : i + 1] for x in inputs)) for i in range(count)])
    return kinds(f(*padded)[:count]), kinds(alone)


def differences(table: dict[str, Callable[..., Tensor]], dtype: torch.dtype, *inputs: Tensor) -> dict[str, Any]:
    """By operator, what is neither as in eager's vectors nor as alone, in whole vectors and in 1 to 40 elements."""
    known: dict[str, tuple[Tensor, Tensor]] = {}
    for name, f in table.items():
        try:
            known[name] = eager_kinds(f, inputs)
        except RuntimeError:  # not for this type
            continue

    def program(*xs: Tensor) -> list[Tensor]:
        return [table[name](*xs) for name in known]

    compiled, wrong = smelt.compile(program, dynamic=True), {}
    count = inputs[0].numel()
    spans = [(0, count), (0, count), *((37 * n % (count - 40), n) for n in range(1, 41))]
    with torch.no_grad():
        for start, length in spans:
            results = compiled(*(x[start : start + length].clone() for x in inputs))
            for name, result in zip(known, results, strict=True):
                found, (vector, alone) = kinds(result), (k[start : start + length] for k in known[name])
                bad = (found != vector) & (found != alone)
                if bad.any():
                    at = int(bad.nonzero()[0])
                    wrong[name] = *(x[start + at].item() for x in inputs), "is", result[at].item()
    assert compiled.stats().builds <= 3
    return wrong


@pytest.mark.spread(8)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_function_of_one_number_is_infinite_where_eagers_is(dtype: torch.dtype, part: int) -> None:
    assert {"aten.sinh.default", "aten.sigmoid.default", "aten.lgamma.default", "aten.silu.default"} <= set(ONE)
    assert not differences(dict(list(ONE.items())[part::4]), dtype, edges(dtype))


@pytest.mark.spread(8)
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_function_of_two_numbers_is_infinite_where_eagers_is(dtype: torch.dtype, part: int) -> None:
    assert {"aten.atan2.default", "aten.hypot.default", "aten.maximum.default", "aten.div.Tensor"} <= set(TWO)
    some = edges(dtype)
    some = torch.cat([some[::9], some[-3:], torch.tensor([0.0, -0.0, torch.finfo(dtype).max], dtype=dtype)])
    table = dict(list(TWO.items())[part::4])
    assert not differences(table, dtype, some.repeat_interleave(len(some)), some.repeat(len(some)))


@pytest.mark.parametrize("f", [torch.sinh, torch.cosh])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 88.7228317), (torch.float64, 709.782712893384)])
def test_sinh_and_cosh_overflow_where_eagers_vectors_do(
    f: Callable[[Tensor], Tensor], dtype: torch.dtype, limit: float
) -> None:
    last = torch.tensor(limit, dtype=dtype)
    beyond = torch.nextafter(last, last * 2)
    compiled = smelt.compile(f)
    with torch.no_grad():
        for sign in (1, -1):
            for x in (last, beyond, last + 0.69, last + 0.7):
                given = (sign * x).repeat(BLOCK)
                expected = f(given)
                for _ in range(2):
                    assert torch.allclose(compiled(given), expected, 1e-6)
                assert torch.equal(expected.isinf().all(), x > last)
