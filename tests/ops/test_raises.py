"""What may raise for its data, its numbers or its sizes: never said to be safe where eager raises."""

import warnings

import pytest
import torch

import smelt
from smelt.ops.effects import effects
from smelt.ops.raises import _ANY_SIZES

HEAD = (
    "graph f(%x: f32[3, 4], %u: f32[_, 4], %v: f32[_, 4], %i: i64[3, 4], %n: int, %s: f32[B, 4], %w: f32[8, 4]) "
    "-> f32[3, 4]"
)


def last(*lines):
    body = "\n".join(f"  {line}" for line in lines)
    return smelt.parse(f"{HEAD} {{\n{body}\n  return %x\n}}\n").body.last


SAFE = [
    ["%r: f32[4] = aten.select.int(%x, 0, -3)"],
    ["%r: f32[_, 4] = aten.slice.Tensor(%x, 0, 0, %n)"],
    ["%r: f32[3, 4] = aten.mul.Tensor(%x, %n)"],
    ["%r: f32[_, 4] = aten.exp.default(%u)"],
    ["%a: f32[_, 4] = aten.exp.default(%u)", "%r: f32[_, 4] = aten.mul.Tensor(%a, %u)"],
    ["%r: f32[_, 8] = aten.linear.default(%u, %w)"],
    ["%r: f32[4, _] = aten.transpose.int(%u, 0, 1)"],
    ["%r: f32[_] = aten.sum.dim_IntList(%u, [1])"],
    ["%r: f32[4, 3] = aten.view.default(%x, [4, 3])"],
    ["%b: int = aten.sym_size.int(%s, 0)", "%c: int = py.mul(%b, 4)", "%r: f32[(B * 4)] = aten.view.default(%s, [%c])"],
    ["%r: f32[3, 4] = aten.remainder.Tensor(%x, %x)"],
    ["%r: i64[3, 4] = aten.floor_divide.default(%i, 2)"],
]
RAISING = [
    ["%r: f32[4] = aten.select.int(%x, 0, %n)"],
    ["%r: f32[4] = aten.select.int(%u, 0, 0)"],
    ["%r: f32[_, _] = aten.view.default(%x, [%n, -1])"],
    ["%r: f32[_, 4] = aten.narrow.default(%x, 0, 0, %n)"],
    ["%r: i64[3, 4] = aten.pow.Tensor_Scalar(%i, %n)"],
    ["%r: f32[_, 4] = aten.add.Tensor(%u, %v)"],
    ["%r: f32[_, 4] = aten.add.Tensor(%u, %x)"],
    ["%r: f32[_, _] = aten.mm.default(%x, %u)"],
    ["%r: f32[_, 4] = aten.cat.default([%u, %v], 1)"],
    ["%r: f32[_] = aten.zeros.default([%n])"],
    ["%r: f32[4] = aten.amax.default(%u, [0])"],
    ["%r: i64[3, 4] = aten.remainder.Tensor(%i, %i)"],
    ["%r: i64[3, 4] = aten.divide.Tensor_mode(%i, %i, rounding_mode=\"floor\")"],
    ["%r: i64[3, 4] = aten.floor_divide.default(%i, %n)"],
    ["%r: f32[3, 4] = aten.masked_fill.Scalar(%x, %i, %n)"],
]  # fmt: skip


@pytest.mark.parametrize("lines", SAFE, ids=lambda lines: lines[-1].partition(" = ")[2])
def test_safe(lines):
    assert not effects(last(*lines)).may_throw


@pytest.mark.parametrize("lines", RAISING, ids=lambda lines: lines[-1].partition(" = ")[2])
def test_raising(lines):
    found = effects(last(*lines))
    assert found.may_throw and found.is_pure


@pytest.mark.parametrize(
    ("bounds", "is_safe"),
    [("(0, 3, 1)", True), ("(0, 4, 1)", False), ("(-4, 3, 1)", False), ("(0, %n, 1)", False), ("(1, 3, 2)", True)],
)
def test_the_index_of_a_loop(bounds, is_safe):
    loop = smelt.parse(
        f"{HEAD} {{\n  %a: f32[4] = aten.select.int(%x, 0, 0)\n"
        f"  %r: f32[4] = for %k: int in {bounds} with (%c: f32[4] = %a) {{\n"
        "    %e: f32[4] = aten.select.int(%x, 0, %k)\n    yield %e\n  }\n  return %x\n}\n"
    ).body.last
    assert effects(loop).may_throw is not is_safe


def test_the_index_of_a_loop_over_a_size():
    text = (
        "graph f(%u: f32[_, 4], %a: f32[4]) -> f32[4] {{\n  %s: int = aten.sym_size.int(%u, {0})\n"
        "  %r: f32[4] = for %k: int in (0, %s, 1) with (%c: f32[4] = %a) {{\n"
        "    %e: f32[4] = aten.select.int(%u, 0, %k)\n    yield %e\n  }}\n  return %r\n}}\n"
    )
    assert not effects(smelt.parse(text.format(0)).body.last).may_throw
    assert effects(smelt.parse(text.format(1)).body.last).may_throw


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("name", sorted(_ANY_SIZES))
def test_operators_that_take_any_sizes(name, rows):
    """They do not raise for any number of rows (what they say of their other arguments was tried before)."""
    more = {
        "transpose": (0, 1), "permute": ([1, 0],), "movedim": (0, 1), "moveaxis": (0, 1), "swapaxes": (0, 1),
        "swapdims": (0, 1), "unsqueeze": (0,), "flip": ([0],), "softmax": (0,), "_softmax": (0, False),
        "special_softmax": (0,), "log_softmax": (0,), "logsumexp": (0,), "cumsum": (0,), "sort": (0,), "argsort": (0,),
    }  # fmt: skip
    packet = getattr(torch.ops.aten, name)
    x = torch.randn(rows, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packet(x, *more.get(name, ()))
