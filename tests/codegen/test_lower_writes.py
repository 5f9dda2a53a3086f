"""Write-backs: into inputs, buffers and parameters, through the version counter, and never too early."""

from __future__ import annotations

import torch

from smelt.codegen.lower import Mutation
from smelt.codegen.lower.result import StateName
from smelt.ir import parse
from smelt.ops.evaluate import evaluate
from tests.codegen.harness import assert_same, call, executables, lookup_in, lowered


def check_writes(text: str, inputs: list[torch.Tensor], state: dict[str, torch.Tensor] | None = None) -> None:
    """Outputs, inputs and state after two runs are what the evaluator leaves, natively and in Python."""
    known = state or {}
    for index in range(2):
        ours = [t.clone() for t in inputs], {k: t.clone() for k, t in known.items()}
        theirs = [t.clone() for t in inputs], {k: t.clone() for k, t in known.items()}
        plan = lowered(text, ours[1])
        executable = executables(plan.plan)[index]
        for _ in range(2):
            expected = evaluate(parse(text), theirs[0], lookup_in(theirs[1]))
            found = call(plan, executable, ours[0], ours[1])
            assert_same(found, expected, exact=True)
            assert_same(ours[0], theirs[0], exact=True)
            assert_same(list(ours[1].values()), list(theirs[1].values()), exact=True)


def test_input_is_updated_and_its_version_bumped() -> None:
    text = """\
graph f(%x: f32[3]) -> f32[3], f32[3] {
  %0: f32[3] = aten.add.Tensor(%x, 1.0)
  %1: f32[3] = aten.exp.default(%x)
  %2: f32[3] = write(%x, %0)
  return %2, %1
}"""
    check_writes(text, [torch.randn(3)])
    plan = lowered(text)
    assert plan.mutations == (Mutation(0),)
    for executable in executables(plan.plan):
        x = torch.randn(3)
        before = x._version
        outputs = call(plan, executable, [x], {})
        assert x._version == before + 1
        assert outputs[0] is x


def test_written_buffer_is_not_a_constant() -> None:
    text = """\
graph f(%x: f32[3]) -> f32[3] {
  %n: i64[] = buffer("n")
  %one: i64[] = const(1)
  %0: i64[] = aten.add.Tensor(%n, %one)
  %1: i64[] = write(%n, %0)
  %2: f32[3] = aten.mul.Tensor(%x, %1)
  return %2
}"""
    check_writes(text, [torch.randn(3)], {"n": torch.tensor(3)})
    plan = lowered(text, {"n": torch.tensor(3)})
    assert plan.constants == () and plan.mutations == (Mutation(StateName("buffer", "n")),)


def test_two_inputs_swap_their_values() -> None:
    text = """\
graph f(%x: f32[3], %y: f32[3]) -> () {
  %0: f32[3] = write(%x, %y)
  %1: f32[3] = write(%y, %x)
  return
}"""
    check_writes(
        text.replace("%1: f32[3] = write(%y, %x)", "%c: f32[3] = aten.neg.default(%y)\n  %1: f32[3] = write(%y, %c)"),
        [torch.randn(3), torch.randn(3)],
    )
    # The evaluator runs nodes in order over shared memory; the graph's meaning is the old values.
    for executable in executables(lowered(text).plan):
        x, y = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
        executable.run([x, y])
        assert x.tolist() == [4.0, 5.0, 6.0] and y.tolist() == [1.0, 2.0, 3.0]


def test_a_view_of_the_target_is_written_into_it() -> None:
    text = """\
graph f(%x: f32[3, 3]) -> f32[3, 3] {
  %0: f32[3, 3]{1, 3} = aten.t.default(%x)
  %1: f32[3, 3] = write(%x, %0)
  return %1
}"""
    for executable in executables(lowered(text).plan):
        x = torch.arange(9.0).reshape(3, 3)
        executable.run([x])
        assert torch.equal(x, torch.arange(9.0).reshape(3, 3).t())


def test_product_does_not_move_past_a_write() -> None:
    text = """\
graph f(%x: f32[2, 4]) -> f32[2, 4], f32[2, 4] {
  %w: f32[4, 4] = param("w")
  %0: f32[2, 4] = aten.linear.default(%x, %w)
  %1: f32[2, 4] = aten.mul.Tensor(%x, 2.0)
  %2: f32[2, 4] = write(%x, %1)
  %3: f32[2, 4] = aten.gelu.default(%0)
  return %2, %3
}"""
    check_writes(text, [torch.randn(2, 4)], {"w": torch.randn(4, 4)})


def test_write_converts_and_broadcasts() -> None:
    text = """\
graph f(%x: f32[2, 3]) -> () {
  %b: f64[2, 3] = buffer("b")
  %0: f32[2, 3] = aten.exp.default(%x)
  %1: f64[2, 3] = write(%b, %0)
  return
}"""
    check_writes(text, [torch.randn(2, 3)], {"b": torch.zeros(2, 3, dtype=torch.float64)})
