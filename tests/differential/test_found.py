# ruff: noqa: E501 (a table of program text)
"""Programs whose answers were once wrong, each small."""

from __future__ import annotations

import pytest
import torch

import smelt
from tests.differential.judge import OWN, judge
from tests.differential.programs import Program

F32, I64 = "torch.float32", "torch.int64"


def T(seed: int, shape: tuple[int, ...], dtype: str = F32, layout: str = "plain", kind: str = "tame") -> str:
    return f"T({seed}, {shape}, {dtype}, {layout!r}, {kind!r})"


FOUND = {
    # An in-place operator whose functional overload has another name.
    "pow_": Program((T(0, (3,)),), ("x0.pow_(2)",), "x0.exp()"),
    # A start counted from the end, so that the end came out as 0.
    "narrow from the end": Program((T(0, (3, 1), I64),), (), "x0.narrow(0, -1, 1) + 1"),
    "row copied within": Program((T(0, (4, 4)),), ("x0.narrow(1, 0, 1).copy_(x0.narrow(1, -1, 1))",), "x0 * 2"),
    # Arguments that share memory, one of them written.
    "half precision times a number, beside a written argument's view": Program(
        (T(1, (4, 4), "torch.bfloat16"), "x0.unsqueeze(0)"), ("x1.abs_()", "v = x0 + 1", "v *= 1e-3"), "v"
    ),
    "written argument seen through another": Program((T(0, (4, 4)), "x0.t()"), ("x1.sub_(1)", "x0[0] = 1"), "x0 * 1"),
    "argument that is a slice of another": Program((T(0, (8,)), "x0[2:5]"), ("x1.div_(2)",), "F.celu(x0, 1.5)"),
    "argument read after a write to its base": Program((T(0, (8,)), "x0[2:5]"), ("x0.mul_(2)",), "x1 + 1"),
    "buffer that shares an argument's memory": Program((T(0, (4,)),), ("s0.add_(x0)",), "x0 + s0", (T(9, (4,)),)),
    "empty state that is given back itself": Program((T(0, ()),), ("s0.unsqueeze_(0)",), "s0", (T(9, (0,)),)),
    "elements that share places": Program(
        (T(0, (2, 3, 4), F32, "overlapping"),), ("x0.index_copy_(0, torch.tensor([0]), x0[-1:].clone())",), "x0.double()"
    ),
    "transposed onto itself": Program((T(0, (4, 4), I64),), ("x0.t().copy_(x0)",), "x0 + 1"),
    # torch.return_types.
    "named results": Program((T(0, (3, 4)),), (), "(x0.min(0), x0.kthvalue(1, 1), torch.frexp(x0))"),
    # Two outputs over one memory are two tensors, and the very argument is itself.
    "whole slice beside its base": Program((T(0, (4,)),), ("v = x0 + 1",), "(v, v[0:], v.detach())"),
    "one chunk": Program((T(0, (0,)),), (), "F.softsign(x0).chunk(2, -1)"),
    "views that give the operand itself": Program(
        (T(0, (4,)), T(1, (2, 3))), (), "(x0.real, torch.atleast_2d(x1), x0.flatten(), torch.broadcast_tensors(x0, x0))"
    ),
    "untouched argument": Program((T(0, (0,)),), ("v = x0.diff(dim=-1)",), "x0"),
    "parameter's view is no parameter": Program(
        (T(0, (3, 1)),), ("v = self.s0.view_as(self.s0)",), "v.positive()", (T(50, (1, 4)),), is_module=True
    ),
    "parameter itself": Program((T(0, (1,)),), (), "self.s0.real", (T(50, (4, 4)),), is_module=True),
    # Lists of views of several tensors.
    "meshgrid": Program(
        (T(0, (3,)), T(1, (2,))), ("x0.neg_()",), "torch.meshgrid(x0 + 1, x1, indexing='ij')"
    ),
    "meshgrid of one written tensor": Program(
        (T(0, ()),), ("v = torch.meshgrid(x0.flatten(), x0.flatten(), indexing='ij')", "x0.mul_(2)"), "v"
    ),
    "broadcast of a written tensor": Program(
        (T(0, (3,)),), ("v = x0[..., None]", "v.copy_(v)"), "torch.broadcast_tensors(x0, v)"
    ),
    # Scalars.
    "matrix transpose of a scalar": Program((T(0, ()),), ("v = x0.T if False else x0.movedim(0, -1)", "v.abs_()"), "v"),
    # Views that strides do not tell, of values that depend on no input.
    "places in a constant": Program((T(0, (1,)),), ("v = torch.linspace(0, 1, 5)",), "v.ceil().as_strided((1, 2), (1, 1))"),
    "repeated places in a constant": Program((T(0, (1,)),), (), "torch.cos(s0).as_strided((2, 2), (0, 1))", (T(9, (4,)),)),
    "places in a global": Program((T(0, (1,)),), (), "s0.as_strided((2,), (1,), 1)", (T(9, (3,)),)),
    "bits of a constant": Program((T(0, (1,)),), (), "torch.full((1,), 1).cumsum(-1).view(torch.int32)"),
    "one element with a stride": Program(
        (T(0, (1,)),), ("v = x0.new_full((2,), 3)", "v.view(-1)[::2].add_(3)"), "v.rsqrt().view_as(v)"
    ),
    # Errors that only data decides, of results that nobody uses, in later calls.
    "division by zero": Program((T(0, (1, 4, 1), I64),), ("v = x0 // x0",), "torch.tensor(2.5)"),
    "remainder by zero": Program((T(0, (3,), I64),), ("v = torch.remainder(-300, x0)",), "x0.argmin()"),
    "index out of range": Program((T(0, (3,), I64), T(1, (3,))), ("v = x1.take(x0.abs())",), "x1 + 1"),
    # Strides.
    "indexed convolution": Program(
        (T(0, (2, 2, 3, 3)),),
        ("v = F.conv2d(x0, T(78, (5, 2, 2, 2), torch.float32), stride=2)", "w = v[torch.tensor([0, 0])]"),
        "(w, F.conv_transpose2d(w, T(56, (5, 2, 2, 2), torch.float32)))",
        is_exact=False,
    ),
    "mask over a transposed tensor": Program((T(0, (1, 5)),), ("v = x0.t()", "v.masked_fill_(v > 0, 1)"), "v.clone()"),
    # A kernel that is wrong for such queries.
    "attention over shared places": Program(
        (T(1, (2, 2, 3, 3), F32, "overlapping"),), (), "torch.softmax(x0 @ x0.mT, -1) @ x0", is_exact=False
    ),
    # The functional operator chooses other strides than the one that writes its statistics.
    "batch norm of a permuted tensor": Program(
        (T(0, (6, 4, 5), F32, "transposed"), T(1, (4,)), T(2, (4,))),
        ("v = F.batch_norm(x0, x1, x2, None, None, True, 0.5, 0.6)",), "(v + 1, x1, x2)", is_exact=False
    ),
}  # fmt: skip

# The same through own kernels.
FOUND_IN_KERNELS = {
    # Of f16 eager takes no square roots for them: -inf and -0.0 to a half are inf and 0.0.
    "halves as exponents of f16": Program(
        ("torch.tensor([-float('inf'), -0.0, 4.0, 2.0] * 9, dtype=torch.float16)",), (),
        "(x0 ** 0.5, x0 ** -0.5, torch.pow(x0, torch.tensor(0.5)))", is_exact=False
    ),
    "halves as exponents in a tensor": Program(
        ("torch.tensor([-float('inf'), -0.0, 4.0, 1e20, -1e20] * 9)",), (),
        "(torch.pow(x0, torch.tensor(0.5)), torch.pow(x0, torch.tensor(-0.5)), torch.pow(x0, torch.tensor(-2.0)))",
        is_exact=False,
    ),
    # Rows of several loops that are kept for a second pass are not whole vectors long: aligned access faulted.
    "norm over two odd dimensions": Program(
        (T(0, (8, 17), "torch.bfloat16"), T(1, (1, 17), "torch.bfloat16")), (),
        "(F.rms_norm(x0 + x1, (8, 17)), (x0 + x1).exp().softmax(0))", is_exact=False,
    ),
    # Eager rounds after each factor: infinity on the way stays.
    "product of f16": Program(
        ("torch.tensor([300.0, 300.0, 1 / 300, 1 / 300] + [1.0] * 13, dtype=torch.float16)",), (),
        "(x0.prod(), x0.reshape(1, 17).prod(1), x0.cumprod(0))",
    ),
    # Eager rounds within them, in vectors otherwise than one by one.
    "whole quotients of bf16": Program(
        ("torch.tensor([65536.0, 127.5] * 32, dtype=torch.bfloat16)",
         "torch.tensor([127.5, 9.125] * 32, dtype=torch.bfloat16)"), (),
        "(x0 // x1, torch.div(x0, x1, rounding_mode='trunc'), torch.div(x0, x1, rounding_mode='floor'))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND_IN_KERNELS)
def test_found_in_kernels(name: str) -> None:
    program = FOUND_IN_KERNELS[name]
    difference = judge(program, options=OWN)
    assert difference is None, f"{difference}\n{program.source()}"


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    program = FOUND[name]
    difference = judge(program)
    assert difference is None, f"{difference}\n{program.source()}"


def test_state_that_shares_memory_is_traced() -> None:
    for lines, result in (
        (("s0.relu_()",), "s1"),
        (("s1.zero_()",), "s0 + 1"),
        (("self.s0.fill_(2)",), "self.s1.sum()"),
    ):
        program = Program((T(0, (1,)),), lines, result, (T(9, (3,)), "s0.reshape(-1)[1:]"), "self" in result)
        assert judge(program) is None, program.source()


@pytest.mark.parametrize("pad", [(-1, 1), (1, -1), (-1, 2, 2, -1), (1, 2)])
def test_a_circular_pad_wraps_round_what_is_not_cut_off(pad: tuple[int, ...]) -> None:
    x = torch.arange(24.0).view(1, 2, 3, 4) if len(pad) == 4 else torch.arange(12.0).view(1, 3, 4)
    traced = smelt.trace(lambda x: torch.nn.functional.pad(x + 1, pad, mode="circular"), x, options={"measure": False})
    assert torch.equal(traced(x), torch.nn.functional.pad(x + 1, pad, mode="circular"))
