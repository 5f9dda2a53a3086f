"""One lowering for all sizes: right at each, and told where it cannot be."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smelt.capture.dynamic.spec import Free
from smelt.codegen.lower import lower
from smelt.codegen.lower.symbolic import NotSymbolic, lower_symbolic, specialize
from smelt.codegen.lower.symbolic import lowering as symbolic
from smelt.ir import parse
from smelt.ir.sizes import Range, value
from smelt.runtime.plan import Empty, Launch

from .sized import OPTIONS, assert_like_eager, free, sized

SIZES = [(4, 64), (2, 2), (3, 7), (2, 3), (5, 13), (7, 31), (2, 128), (3, 97), (9, 33), (4, 255), (16, 16), (64, 5)]


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(24, 40), nn.LayerNorm(40), nn.Linear(40, 24)

    def forward(self, x):
        return torch.softmax(self.down(F.gelu(self.norm(self.up(x)))), -1)


def chain(x, y):
    return torch.relu(x * 2 + y).sigmoid() - x.abs().sqrt(), (x > y).to(torch.int64)


def reductions(x, y):
    return x.sum(-1), x.mean(0), x.amax(), (x * y).sum((0, 1)), x.var(1), x.argmax(-1), x.softmax(0)


def joined(x, y):
    return torch.cat([x, y, x[:, :2]], 1), torch.stack([x, y]), torch.cat([x, y], 0).sum(0)


def views(x, y):
    rows = x.shape[0] * x.shape[1]
    return (
        x.reshape(rows, -1), x.transpose(0, 1).contiguous(), x.view(-1, 4, 6).sum(1), x[:, 1:], x[-1], y.flatten(),
        x.unsqueeze(1).expand(-1, 3, -1, -1).reshape(3 * x.shape[0], -1), x.permute(2, 0, 1) * 2,
    )  # fmt: skip


def numbers(x, y):
    b, s = x.shape[0], x.shape[1]
    return x * s + b, x / (b * s), x.sum() / s**0.5, torch.full((s, 2), b), torch.arange(s) * 2, b * s, x.shape[1] / 3


def attention(x, y):
    q = x.view(x.shape[0], x.shape[1], 2, 12).transpose(1, 2)
    k = y.view(y.shape[0], y.shape[1], 2, 12).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, k).transpose(1, 2).reshape(x.shape[0], x.shape[1], 24)


def products(x, y):
    return x @ y.transpose(-1, -2), torch.einsum("bsd,bsd->bs", x, y), x.flatten(0, 1) @ torch.ones(24, 3)


PROGRAMS = [Mlp().eval(), chain, reductions, joined, views, numbers, attention, products]


def _arguments(program, b, s):
    count = 1 if isinstance(program, nn.Module) else 2
    generator = torch.Generator().manual_seed(b * 1000 + s)
    return [torch.randn(b, s, 24, generator=generator) for _ in range(count)]


def _sized(program, b=4, s=64):
    args = _arguments(program, b, s)
    return sized(program, args, free(*["BS_"] * len(args)))


@pytest.mark.spread(3)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: getattr(p, "__name__", type(p).__name__))
def test_it_is_eager_at_all_sizes_that_its_guards_allow(program):
    one = _sized(program)
    ran = 0
    for b, s in SIZES:
        args = _arguments(program, b, s)
        if one.holds(args):
            assert_like_eager(one, args)
            ran += 1
    assert ran >= 8


@pytest.mark.spread(3)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: getattr(p, "__name__", type(p).__name__))
def test_what_small_sizes_lower_to_is_right_at_large_ones(program):
    one = _sized(program, 2, 3)
    for b, s in SIZES:
        args = _arguments(program, b, s)
        if one.holds(args):
            assert_like_eager(one, args)


def test_words_are_those_of_a_plan_for_these_sizes_alone():
    one = _sized(PROGRAMS[0])
    matched = 0
    for sizes in ((4, 64), (5, 77), (16, 80), (9, 200)):
        graph = specialize(one.graph, dict(zip(one.lowered.plan.names, sizes, strict=True)))
        alone, found = lower(graph, one.lookup, OPTIONS).plan, one.lowered.plan.at(sizes)
        launches = {i.kernel.symbol: i for i in alone.instructions if isinstance(i, Launch)}
        for launch in found.instructions:
            # One kernel may do for all sizes where a plan for these alone has a narrower one.
            if isinstance(launch, Launch) and launch.kernel.symbol in launches:
                twin = launches[launch.kernel.symbol]
                assert (launch.words, launch.items, launch.item_ns) == (twin.words, twin.items, twin.item_ns)
                assert launch.scratch_nbytes == twin.scratch_nbytes
                matched += 1
    assert matched >= 4


def test_a_decode_step_with_a_cache_that_grows():
    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

        def forward(self, x, keys, values):
            b = x.shape[0]
            q, k, v = (t.view(b, 1, 2, 16).transpose(1, 2) for t in self.qkv(x).split(32, -1))
            keys, values = torch.cat([keys, k], 2), torch.cat([values, v], 2)
            found = F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).reshape(b, 1, 32)
            return x + self.out(found), keys, values

    step = Step().eval()

    def arguments(b, t):
        return torch.randn(b, 1, 32), torch.randn(b, 2, t, 16), torch.randn(b, 2, t, 16)

    one = sized(step, arguments(3, 40), free("B", ("B", None, "T"), ("B", None, "T")))
    for b, t in ((3, 40), (2, 2), (2, 3), (3, 17), (3, 41), (5, 100), (2, 1000), (8, 7)):
        assert one.holds(arguments(b, t))
        assert_like_eager(one, arguments(b, t))


def test_sizes_out_of_range_and_guards_are_told():
    def program(x):
        return x * 2 if x.shape[0] > 10 else x + 1

    one = sized(program, (torch.ones(4, 5),), {("args[0]", 0): Free("N", 2, 100)})
    assert [one.holds((torch.ones(n, 5),)) for n in (1, 2, 10, 11, 101)] == [False, True, True, False, False]
    with pytest.raises(ValueError, match="'N': 11"):
        one.executable.run((torch.ones(11, 5),))


def _no_state(kind, path):
    raise AssertionError


def test_what_needs_a_number_is_told():
    text = """
graph program(%x: f32[N]) -> f32[N] {
  %0: f32[N] = aten.sin.default(%x)
  return %0
}
"""
    with pytest.raises(NotSymbolic, match="no input has the size M"):
        lower_symbolic(parse(text), _no_state, OPTIONS, {"N": 4, "M": 3}, {"N": Range(), "M": Range()})
    with pytest.raises(NotSymbolic, match="no other sizes"):
        lower_symbolic(parse(text), _no_state, OPTIONS, {"N": 4}, {"N": Range(4, 4)})


def test_a_lowering_that_sees_values_is_found_out(monkeypatch):
    text = """
graph program(%x: f32[N]) -> f32[N] {
  %0: f32[N] = aten.sin.default(%x)
  return %0
}
"""
    honest = symbolic.lower

    def peeking(graph, state, options, *, build=True, later=False):
        made = honest(graph, state, options, build=build, later=later)
        first, *rest = made.plan.instructions
        assert isinstance(first, Empty)
        first = replace(first, sizes=(value(graph.inputs[0].type.sizes[0]),))
        return replace(made, plan=replace(made.plan, instructions=(first, *rest)))

    monkeypatch.setattr(symbolic, "lower", peeking)
    with pytest.raises(NotSymbolic, match="the plan is another"):
        lower_symbolic(parse(text), _no_state, OPTIONS, {"N": 40}, {"N": Range()})
