"""Graphs that take numbers: natively and in Python as the evaluator, for every kind of number and dtype."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from smelt.codegen.lower import lower
from smelt.diag import SmeltError
from smelt.ir import parse
from smelt.ops.convert import dtype_from_torch
from smelt.ops.evaluate import evaluate
from tests.codegen.harness import executables, lookup_in
from tests.control.harness import OWN, assert_outcome, outcome

INTS = (0, 1, 2, 3, -1, -3, 7, 127, -128, 255, 40_000, 2**31 - 1, -(2**40) - 3, 2**53 + 1, 2**62, -(2**63), 2**63 - 1)
FLOATS = (
    0.0, -0.0, 1.0, 0.5, -0.5, 2.0, 3.0, -1.0, -2.0, 2.5, -3.7, 1e-30, 65504.0, 7e4, 3e38, 1e300, -1e300, 5e-324,
    math.inf, -math.inf, math.nan, 1.0 + 2**-8 + 2**-40,
)  # fmt: skip
KINDS: dict[str, tuple[Any, ...]] = {"int": INTS, "float": FLOATS, "bool": (True, False)}
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)


def samples(dtype: torch.dtype) -> torch.Tensor:
    """Values of all sorts; no least integer, which torch cannot divide by -1 without ending the process."""
    if dtype is torch.bool:
        return torch.tensor([True, False, True, True, False])
    if dtype.is_floating_point:
        special = [0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.25, -2.75, 1e-20, 1e19, math.inf, -math.inf, math.nan]
        return torch.cat([torch.tensor(special), torch.randn(50) * 3]).to(dtype)
    low, high = torch.iinfo(dtype).min + 1, torch.iinfo(dtype).max
    return torch.tensor([0, 1, 2, 3, 5, 100, low, high, high - 1, max(low, -7)], dtype=dtype)


OPERATORS = {
    "add": "aten.add.Tensor(%x, %n)",
    "radd": "aten.add.Tensor(%n, %x)",
    "sub": "aten.sub.Tensor(%x, %n)",
    "rsub": "aten.rsub.Scalar(%x, %n)",
    "mul": "aten.mul.Tensor(%x, %n)",
    "mul scalar": "aten.mul.Scalar(%x, %n)",
    "div": "aten.div.Tensor(%x, %n)",
    "lt": "aten.lt.Scalar(%x, %n)",
    "ge": "aten.ge.Scalar(%x, %n)",
    "eq": "aten.eq.Scalar(%x, %n)",
    "ne": "aten.ne.Scalar(%x, %n)",
    "remainder": "aten.remainder.Scalar(%x, %n)",
    "fmod": "aten.fmod.Scalar(%x, %n)",
    "floor_divide": "aten.floor_divide.Scalar(%x, %n)",
    "div floor": 'aten.div.Tensor_mode(%x, %n, rounding_mode="floor")',
    "div trunc": 'aten.div.Tensor_mode(%x, %n, rounding_mode="trunc")',
    "alpha": "aten.add.Tensor(%x, %y, alpha=%n)",
    "sub alpha": "aten.sub.Tensor(%x, %y, alpha=%n)",
    "pow": "aten.pow.Tensor_Scalar(%x, %n)",
    "rpow": "aten.pow.Scalar(%n, %x)",
    "clamp": "aten.clamp.default(%x, %n)",
    "clamp both": "aten.clamp.default(%x, %n, %n)",
    "clamp_min": "aten.clamp_min.default(%x, %n)",
    "clamp_max": "aten.clamp_max.default(%x, %n)",
    "where": "aten.where.ScalarOther(%c, %x, %n)",
    "where self": "aten.where.ScalarSelf(%c, %n, %x)",
    "masked_fill": "aten.masked_fill.Scalar(%x, %c, %n)",
    "bitwise_and": "aten.bitwise_and.Scalar(%x, %n)",
    "bitwise_xor": "aten.bitwise_xor.Scalar(%x, %n)",
    "lerp": "aten.lerp.Scalar(%x, %y, %n)",
    "addcmul": "aten.addcmul.default(%x, %y, %y, value=%n)",
    "addcdiv": "aten.addcdiv.default(%x, %y, %y, value=%n)",
    "full_like": "aten.full_like.default(%x, %n)",
    "fill": "aten.fill.Scalar(%x, %n)",
    "leaky_relu": "aten.leaky_relu.default(%x, %n)",
    "hardtanh": "aten.hardtanh.default(%x, -1, %n)",
    "elu": "aten.elu.default(%x, %n)",
}
# Not bit for bit as kernels without numbers of the run are not: the sign of a zero, one rounding less.
CLOSE = {"pow", "rpow", "elu", "lerp", "alpha", "sub alpha"}


def _text(operator: str, dtype: torch.dtype, kind: str, numbers: tuple[Any, ...]) -> str | None:
    """A graph of one call; None where eager takes no such arguments at all."""
    x, size = samples(dtype), len(samples(dtype))
    head = f"%x: {dtype_from_torch(dtype)}[{size}], %y: {dtype_from_torch(dtype)}[{size}], %c: bool[{size}], %n: {kind}"
    for number in numbers:
        try:
            probe = parse(f"graph f({head}) -> any {{\n  %1: any = {OPERATORS[operator]}\n  return %1\n}}")
            found = evaluate(probe, [x, x, x != 0, number], lookup_in({}))[0]
        except (RuntimeError, TypeError, NotImplementedError, SmeltError):
            continue
        type_ = f"{dtype_from_torch(found.dtype)}[{size}]"
        return f"graph f({head}) -> {type_} {{\n  %1: {type_} = {OPERATORS[operator]}\n  return %1\n}}"
    return None


@pytest.mark.spread(30)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("operator", OPERATORS)
def test_operators(operator: str, dtype: torch.dtype, kind: str) -> None:
    numbers = KINDS[kind]
    if operator in ("remainder", "fmod"):
        # Of quotients beyond what it can count torch makes NaN.
        numbers = tuple(n for n in numbers if not 0 < abs(n) < 1e-3)
    text = _text(operator, dtype, kind, numbers)
    if text is None:
        return
    torch.manual_seed(0)
    x = samples(dtype)
    y = x.flip(0).clone()
    graph = parse(text)
    made = lower(graph, lookup_in({}), OWN)
    for number, executable in itertools.product(numbers, executables(made.plan)):
        inputs = [x, y, x != 0, number]
        wanted = outcome(lambda inputs=inputs: evaluate(graph, inputs, lookup_in({})))
        found = outcome(lambda inputs=inputs, run=executable.run: made.rebuild(run(inputs), inputs, lookup_in({})))
        if dtype is torch.bfloat16 and "alpha" in operator and executable.is_native and isinstance(wanted, list):
            # One rounding less matters where terms cancel: f32 is the judge, of the number that eager's vectors take.
            taken = torch.tensor(number, dtype=dtype).item() if isinstance(number, float) else number
            wide = evaluate(graph, [x.float(), y.float(), x != 0, taken], lookup_in({}))
            wanted = [wide[0].to(dtype)]
        try:
            assert_outcome(found, wanted, exact=operator not in CLOSE)
        except AssertionError as error:
            raise AssertionError(f"{operator} of {number!r}: {found} for {wanted}") from error


NATIVE = sorted(OPERATORS.keys() - {"leaky_relu", "hardtanh", "elu"})


@pytest.mark.parametrize("operator", NATIVE)
def test_operators_run_natively(operator: str) -> None:
    dtype = torch.int64 if operator.startswith("bitwise") else torch.float32
    for kind in ("int",) if dtype is torch.int64 else ("int", "float"):
        text = _text(operator, dtype, kind, (3, 0.25))
        assert text is not None
        made = lower(parse(text), lookup_in({}), OWN)
        assert made.report.counts.get("python", 0) == 0, (operator, kind, made.report.python_nodes)
