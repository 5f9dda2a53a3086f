"""Operators with a Python number run without Python and keep their bits; those that could not stay in Python."""

from __future__ import annotations

import math

import pytest
import torch

from smelt.ir import Builder
from smelt.ops.convert import type_of
from smelt.ops.registry import normalize
from smelt.ops.samples import bools, floats, ints, special
from smelt.ops.typing import infer
from tests.codegen.harness import Lowered, check

OPERANDS = {
    "f32": floats(3, 4),
    "special": special(),
    "f64": special(torch.float64),
    "bf16": special(torch.bfloat16),
    "f16": floats(5, dtype=torch.float16),
    "0-d f32": torch.tensor(0.1),
    "0-d f64": torch.tensor(0.1, dtype=torch.float64),
    "0-d bf16": torch.tensor(0.1, dtype=torch.bfloat16),
    "i64": ints(3, 4, low=1),
    "big": torch.tensor([2**62 + 1, -(2**53) - 1, 7]),
    "i8": ints(5, dtype=torch.int8, low=1),
    "0-d i32": torch.tensor(5, dtype=torch.int32),
    "bool": bools(4),
    "empty": torch.empty(0, 3),
    "empty rows": torch.empty(3, 0, 1),
}
NUMBERS = (2, -1, 0, 0.1, 3.0, -0.0, math.nan, math.inf, True, 2**53 + 1, 100)
ARITHMETIC = ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor", "rsub.Scalar", "add.Scalar", "mul.Scalar")
COMPARISONS = ("eq.Scalar", "ne.Scalar", "lt.Scalar", "le.Scalar", "gt.Scalar", "ge.Scalar")


def run(op: str, tensors: list[torch.Tensor], *args: object, **kwargs: object) -> Lowered | None:
    """Check one call; None where eager refuses it."""
    name = f"aten.{op}"
    builder = Builder.new("f", {f"x{i}": type_of(t) for i, t in enumerate(tensors)})
    positional, named = normalize(name, (*builder.graph.inputs, *args), kwargs)  # type: ignore[arg-type]
    space, short, variant = name.split(".")
    try:
        getattr(getattr(getattr(torch.ops, space), short), variant)(*tensors, *args, **kwargs)
    except RuntimeError:
        return None
    node = builder.add(name, positional, infer(name, positional, named), named)
    builder.finish((node.result,))
    return check(builder.graph, tensors)


@pytest.mark.spread(14)
@pytest.mark.parametrize("operand", OPERANDS)
@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISONS])
def test_numbers(op: str, operand: str) -> None:
    for number in NUMBERS:
        run(op, [OPERANDS[operand]], number)


@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARISONS, "pow.Tensor_Scalar"])
def test_floats_need_no_python(op: str) -> None:
    for number in (2, 0.1, 3.0):
        plan = run(op, [floats(3, 4)], number)
        assert plan is not None and plan.report.python_nodes == ()


@pytest.mark.parametrize("operand", OPERANDS)
def test_powers(operand: str) -> None:
    for exponent in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, 3.0, math.nan):
        run("pow.Tensor_Scalar", [OPERANDS[operand]], exponent)


@pytest.mark.parametrize("operand", OPERANDS)
def test_scaled_sums(operand: str) -> None:
    x = OPERANDS[operand]
    for alpha in (1, 2, 0.5, -1, 2**53 + 1):
        for op in ("add.Tensor", "sub.Tensor", "rsub.Tensor"):
            run(op, [x, x], alpha=alpha)


@pytest.mark.parametrize("operand", OPERANDS)
def test_masks_and_choices(operand: str) -> None:
    x = OPERANDS[operand]
    mask = torch.arange(x.numel()).reshape(x.shape) % 2 == 0
    for number in (0, 1.5, -math.inf, torch.finfo(torch.float32).min, 300, True):
        run("masked_fill.Scalar", [x, mask], number)
        run("where.ScalarOther", [mask, x], number)


@pytest.mark.spread(6)
@pytest.mark.parametrize("operand", OPERANDS)
def test_bounds(operand: str) -> None:
    x = OPERANDS[operand]
    for low, high in ((0, None), (None, 0), (-1, 1), (0, 6), (0.0, 6.0), (-0.0, 6.0), (1.5, -1.5), (None, 0.1)):
        run("clamp.default", [x], low, high)
        if low is not None and high is not None:
            run("hardtanh.default", [x], low, high)
    for bound in (0, -0.0, 0.5, math.nan):
        run("clamp_min.default", [x], bound)
        run("clamp_max.default", [x], bound)


@pytest.mark.parametrize("operand", ["f32", "f64", "bf16", "i64"])
def test_borders_and_variances(operand: str) -> None:
    x = OPERANDS[operand].reshape(-1, 2, 2) if operand == "f32" else OPERANDS[operand]
    for number in (0, -1.5, math.inf):
        run("constant_pad_nd.default", [x], (1, 2), number)
    for correction in (None, 0, 1, 2):
        run("var.correction", [x], (0,), correction=correction)
        run("std.correction", [x], (0,), correction=correction, keepdim=True)


@pytest.mark.parametrize("name", ["f32", "special", "f64", "bf16", "f16", "empty"])
def test_vector_norm(name: str) -> None:
    x = OPERANDS[name]
    last = x.dim() - 1
    for dims in ((last,), tuple(range(x.dim())), ()):
        for keep in (False, True):
            plan = run("linalg_vector_norm.default", [x], 2, dims, keep)
            assert plan is None or plan.report.python_nodes == ()
    for order in (1, 2.5, math.inf):
        run("linalg_vector_norm.default", [x], order, (last,))
    run("linalg_vector_norm.default", [x], 2, None)
