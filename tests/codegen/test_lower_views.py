"""Views, outputs that share memory, outputs that are inputs or state, constants, and layouts."""

from __future__ import annotations

import pytest
import torch

import smelt
from smelt.codegen.lower import Fresh, Same, ViewOf
from smelt.codegen.lower.result import StateName
from tests.codegen.harness import call, check, executables, lowered


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def test_views_cost_no_call() -> None:
    text = """\
graph f(%x: f32[4, 6]) -> f32[3, 4] {
  %0: f32[6, 4]{1, 6} = aten.t.default(%x)
  %1: f32[3, 4]{1, 6} = aten.slice.Tensor(%0, 0, 2, 5)
  %2: f32[1, 3, 4]{1, 1, 6} = aten.unsqueeze.default(%1, 0)
  %3: f32[3, 4]{1, 6} = aten.select.int(%2, 0, 0)
  %4: f32[3, 4]{1, 6} = aten.neg.default(%3)
  %5: f32[3, 4] = aten.contiguous.default(%4)
  return %5
}"""
    plan = check(text, [torch.randn(4, 6)])
    assert plan.report.counts == {"view": 4, "dispatcher": 2}


def test_lists_of_views() -> None:
    text = """\
graph f(%x: f32[4, 7]) -> f32[4, 3], f32[4] {
  %0: (f32[4, 3]{7, 1}, f32[4, 3]{7, 1}, f32[4, 1]{7, 1}) = aten.split.Tensor(%x, 3, 1)
  %1: f32[4, 3]{7, 1}, %2: f32[4, 3]{7, 1}, %3: f32[4, 1]{7, 1} = unpack(%0)
  %4: f32[4, 3] = aten.mul.Tensor(%1, %2)
  %5: f32[4]{7} = aten.squeeze.dim(%3, 1)
  %6: f32[4] = aten.exp.default(%5)
  return %4, %6
}"""
    assert check(text, [torch.randn(4, 7)]).report.python_nodes == ()


def test_outputs_that_came_in() -> None:
    text = """\
graph f(%x: f32[4, 6]) -> f32[4, 6], f32[6, 4]{1, 6}, f32[2, 6], f32[3], f32[1, 3], f32[4, 6] {
  %w: f32[3] = param("w")
  %0: f32[6, 4]{1, 6} = aten.t.default(%x)
  %1: f32[2, 6] = aten.slice.Tensor(%x, 0, 1, 3)
  %2: f32[1, 3] = aten.unsqueeze.default(%w, 0)
  %3: f32[4, 6] = aten.contiguous.default(%x)
  return %x, %0, %1, %w, %2, %3
}"""
    state = {"w": torch.randn(3)}
    big = torch.randn(6, 6)
    x = big[2:]
    plan = check(text, [x], state)
    w = StateName("param", "w")
    assert plan.outputs == (
        Same(0), ViewOf(0, (6, 4), (1, 6), 0), ViewOf(0, (2, 6), (6, 1), 6, number=1),
        Same(w), ViewOf(w, (1, 3), (3, 1), 0, number=2), Same(0),
    )  # fmt: skip
    assert plan.plan.instructions == ()
    outputs = call(plan, executables(plan.plan)[1], [x], state)
    assert outputs[0] is x and outputs[3] is state["w"] and outputs[5] is x
    assert all(shares(t, x) for t in outputs[:3])


def test_outputs_that_share_memory_with_each_other() -> None:
    text = """\
graph f(%x: f32[4, 6]) -> f32[4, 6], f32[6, 4]{1, 6}, f32[6], f32[4, 6] {
  %0: f32[4, 6] = aten.exp.default(%x)
  %1: f32[6, 4]{1, 6} = aten.t.default(%0)
  %2: f32[6] = aten.select.int(%0, 0, 1)
  return %0, %1, %2, %0
}"""
    x = torch.randn(4, 6)
    plan = check(text, [x])
    assert plan.outputs == (Fresh(0), Fresh(1), Fresh(2), Fresh(3))
    for executable in executables(plan.plan):
        whole, turned, row, again = call(plan, executable, [x], {})
        assert again is whole
        whole.zero_()
        assert not turned.any() and not row.any()


def test_a_view_of_a_product_may_leave() -> None:
    text = """\
graph f(%x: f32[4, 6]) -> f32[4, 4]{1, 4} {
  %0: f32[6, 4]{1, 6} = aten.t.default(%x)
  %1: f32[4, 4] = aten.mm.default(%x, %0)
  %2: f32[4, 4]{1, 4} = aten.t.default(%1)
  return %2
}"""
    x = torch.randn(4, 6)
    plan = check(text, [x], exact=False)
    native = executables(plan.plan)[1]
    first, second = (call(plan, native, [x], {})[0] for _ in range(2))
    assert not shares(first, second)


def test_constants_are_handed_out_as_copies() -> None:
    text = """\
graph f(%x: f32[2]) -> f32[3], i64[4], f32[3], f32[2, 3]{0, 1} {
  %c: f32[3] = const([1.0, 2.0, 3.0])
  %w: f32[3] = param("w")
  %0: i64[4] = aten.arange.default(4)
  %1: f32[3] = aten.mul.Tensor(%w, 2.0)
  %2: f32[2, 3]{0, 1} = aten.expand.default(%1, [2, 3])
  return %c, %0, %1, %2
}"""
    state = {"w": torch.randn(3)}
    plan = check(text, [torch.zeros(2)], state)
    assert plan.constants == (StateName("param", "w"),)
    native = executables(plan.plan)[1]
    for tensor in call(plan, native, [torch.zeros(2)], state)[:3]:
        tensor.zero_()
    check(text, [torch.zeros(2)], state)
    assert call(plan, native, [torch.zeros(2)], state)[0].tolist() == [1.0, 2.0, 3.0]


def test_operators_that_look_at_types_only_are_constants() -> None:
    text = """\
graph f(%x: f32[2, 3]) -> f32[2, 3] {
  %0: f32[2, 3] = aten.full_like.default(%x, 2.5)
  %1: f32[2, 3] = aten.mul.Tensor(%x, %0)
  return %1
}"""
    plan = check(text, [torch.randn(2, 3)])
    assert plan.report.counts == {"static": 1, "library": 1}


def test_what_follows_from_state_by_a_long_chain_is_a_constant() -> None:
    """As the steps of an unrolled loop do: it is longer than Python's stack is deep."""
    chain = "".join(f"  %{i + 1}: f32[2] = aten.neg.default(%{i})\n" for i in range(600))
    text = f'graph f() -> f32[2] {{\n  %0: f32[2] = param("w")\n{chain}  return %600\n}}'
    plan = check(text, [], {"w": torch.randn(2)})
    assert [name.path for name in plan.constants] == ["w"]


def test_views_that_strides_cannot_tell() -> None:
    text = """\
graph f(%x: f32[2, 4]) -> i32[2, 4], c64[2, 2], i32[2, 4] {
  %0: i32[2, 4] = aten.view.dtype(%x, i32)
  %1: f32[2, 4] = aten.exp.default(%x)
  %2: f32[2, 2, 2] = aten.view.default(%1, [2, 2, 2])
  %3: c64[2, 2] = aten.view_as_complex.default(%2)
  %4: i32[2, 4] = aten.view.dtype(%1, i32)
  return %0, %3, %4
}"""
    x = torch.randn(2, 4)
    plan = check(text, [x])
    assert shares(call(plan, executables(plan.plan)[1], [x], {})[0], x)


def test_empty_scalar_and_expanded_operands() -> None:
    text = """\
graph f(%a: f32[0, 3], %b: f32[], %c: f32[4, 5]{0, 1}) -> f32[0, 3], f32[], f32[4, 5], f32[3, 0]{1, 3} {
  %0: f32[0, 3] = aten.exp.default(%a)
  %1: f32[] = aten.mul.Tensor(%b, 3.0)
  %2: f32[4, 5] = aten.add.Tensor(%c, %b)
  %3: f32[3, 0]{1, 3} = aten.t.default(%0)
  return %0, %1, %2, %3
}"""
    check(text, [torch.empty(0, 3), torch.tensor(torch.nan), torch.randn(5).expand(4, 5)])


def test_values_in_place_of_a_dead_operand() -> None:
    text = """\
graph f(%x: f32[4, 6]) -> f32[4, 6], f32[4, 6] {
  %0: f32[4, 6] = aten.add.Tensor(%x, %x)
  %1: f32[4, 6] = aten.relu.default(%0)
  %2: f32[4, 6] = aten.exp.default(%x)
  %3: f32[4, 6] = aten.tanh.default(%2)
  %4: f32[4, 6] = aten.mul.Tensor(%2, %1)
  return %3, %4
}"""
    plan = check(text, [torch.randn(4, 6)])
    assert [n.target for n in plan.report.nodes if n.how == "dispatcher"] == [
        "aten.relu_.default", "aten.exp.default", "aten.tanh.default",
    ]  # fmt: skip


def test_results_that_may_share_memory_are_not_overwritten() -> None:
    text = """\
graph f(%x: f32[3], %y: f32[2]) -> f32[3, 2] {
  %0: (f32[3, 2]{1, 0}, f32[3, 2]{0, 1}) = aten.meshgrid.indexing([%x, %y], indexing="ij")
  %1: f32[3, 2]{1, 0}, %2: f32[3, 2]{0, 1} = unpack(%0)
  %3: f32[3, 2] = aten.relu.default(%1)
  return %3
}"""
    x, y = torch.tensor([-1.0, 2.0, -3.0]), torch.tensor([1.0, -1.0])
    plan = lowered(text)
    for executable in executables(plan.plan):
        assert torch.equal(executable.run([x, y])[0], x.relu()[:, None].expand(3, 2))
        assert x.tolist() == [-1.0, 2.0, -3.0]


def test_origins_name_the_node() -> None:
    text = """\
graph f(%x: f32[4]) -> f32[4] {
  %0: f32[4] = aten.exp.default(%x)  @ "model.py":7 in forward
  return %0
}"""
    assert lowered(text).plan.origins == ("%0 = aten.exp.default at model.py:7 in forward",)


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_shuffle_that_moves_nothing_is_a_copy(is_staged: bool) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.channel_shuffle(x[:, :2], 2).mul_(3)
        return (y * 2 if is_staged and x.sum() > 0 else y), x[0]

    compiled = smelt.compile(program)
    for number in range(4):
        x = torch.full((2, 4, 3, 3), 1.0 - number % 2)
        found, shown = compiled(x)
        assert torch.equal(found, program(x)[0]) and found.stride() == program(x)[0].stride()
        assert torch.equal(shown, x[0]) and torch.equal(x, torch.full_like(x, 1.0 - number % 2))
    traced = smelt.trace(torch.channel_shuffle, (x, 4))
    assert traced(x, 4).data_ptr() != x.data_ptr()
