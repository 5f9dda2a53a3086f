"""What a plan cannot hold is refused with the node and its line; what only runs in Python is counted."""

from __future__ import annotations

import pytest
import torch

from smelt._torch.library import shim
from smelt.diag import SmeltError
from tests.codegen.harness import RULE, check, lowered

REFUSED = {
    "symbolic": """\
graph f(%x: f32[B]) -> f32[B] {
  %0: f32[B] = aten.exp.default(%x)  @ "model.py":3 in f
  return %0
}""",
    "in-place": """\
graph f(%x: f32[2]) -> f32[2] {
  %0: f32[2] = aten.relu_.default(%x)  @ "model.py":3 in f
  return %0
}""",
    "device": """\
graph f(%x: f32[2]) -> f32[2]@"meta" {
  %0: f32[2]@"meta" = aten.to.device(%x, device("meta"), f32)  @ "model.py":3 in f
  return %0
}""",
    "sparse": """\
graph f(%x: f32[2, 2]) -> f32[2, 2]:sparse_coo {
  %0: f32[2, 2]:sparse_coo = aten.to_sparse.default(%x)  @ "model.py":3 in f
  return %0
}""",
    "unknown operator": """\
graph f(%x: f32[2]) -> f32[2] {
  %0: f32[2] = nobody.knows.default(%x)  @ "model.py":3 in f
  return %0
}""",
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    with pytest.raises(SmeltError) as caught:
        lowered(REFUSED[case])
    assert caught.value.code == "S0303"
    assert case == "symbolic" or "model.py:3" in str(caught.value)


def test_state_that_changed_its_layout_is_refused() -> None:
    text = """\
graph f(%x: f32[2]) -> f32[2] {
  %w: f32[2] = param("w")
  %0: f32[2] = aten.mul.Tensor(%x, %w)
  return %0
}"""
    with pytest.raises(SmeltError, match="expects"):
        lowered(text, {"w": torch.zeros(3)})


def test_python_nodes_are_counted() -> None:
    text = """\
graph f(%x: f32[6]) -> f32[6], f32[2], f32[4] {
  %0: f32[6] = aten.elu.default(%x, 0.5)
  %1: f32[6] = aten.relu.default(%0)
  %2: (f32[2], f32[4]) = aten.split_with_sizes_copy.default(%1, [2, 4])
  %3: f32[2], %4: f32[4] = unpack(%2)
  return %1, %3, %4
}"""
    plan = check(text, [torch.randn(6)])
    assert plan.report.counts["python"] == 2
    assert [n.op for n in plan.report.python_nodes] == ["aten.elu.default", "aten.split_with_sizes_copy.default"]
    assert plan.report.to_dict()["counts"]["python"] == 2


def test_random_numbers_are_drawn_in_order() -> None:
    text = """\
graph f(%x: f32[6]) -> f32[6], f32[6] {
  %0: f32[6] = aten.rand_like.default(%x)
  %1: f32[6] = aten.dropout.default(%x, 0.5, True)
  %2: f32[6] = aten.rand_like.default(%x)
  return %2, %1
}"""
    plan = lowered(text, {}, RULE)
    x = torch.ones(6)
    torch.manual_seed(0)
    torch.rand_like(x)
    dropped, last = torch.nn.functional.dropout(x, 0.5, True), torch.rand_like(x)
    from tests.codegen.harness import executables

    for executable in executables(plan.plan):
        torch.manual_seed(0)
        found = executable.run([x])
        assert torch.equal(found[0], last) and torch.equal(found[1], dropped)


def test_autocast_nodes_run_under_autocast() -> None:
    text = """\
graph f(%x: f32[2, 4]) -> bf16[2, 4] {
  %w: f32[4, 4] = param("w")
  %0: bf16[2, 4] = aten.linear.default(%x, %w)  ["autocast(bf16)"]
  return %0
}"""
    check(text, [torch.randn(2, 4)], {"w": torch.randn(4, 4)})


HIDDEN = (
    "aoti_torch_cpu__linear_pointwise", "aoti_torch_cpu__linear_pointwise_binary", "aoti_torch_cpu__mkl_linear",
    "aoti_torch_cpu_addmm_out", "aoti_torch_cpu_add_Tensor", "torch_call_dispatcher",
    "torch.ops.mkldnn._reorder_linear_weight", "torch.ops.mkldnn._linear_pointwise", "torch.ops.mkl._mkl_linear",
)  # fmt: skip


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", HIDDEN)
def test_hidden_symbols_change_no_answer(name: str) -> None:
    text = """\
graph f(%x: f32[64, 32]) -> f32[64, 32] {
  %w: f32[1024, 32] = param("w")
  %v: f32[32, 1024] = param("v")
  %b: f32[1024] = param("b")
  %0: f32[64, 1024] = aten.linear.default(%x, %w, %b)
  %1: f32[64, 1024] = aten.gelu.default(%0)
  %2: f32[64, 32] = aten.linear.default(%1, %v)
  %3: f32[64, 32] = aten.add.Tensor(%2, %x)
  %4: f32[64, 32] = aten.layer_norm.default(%3, [32])
  return %4
}"""
    generator = torch.Generator().manual_seed(0)
    state = {n: torch.randn(*s, generator=generator) for n, s in (("w", (1024, 32)), ("v", (32, 1024)), ("b", (1024,)))}
    with shim.hidden(name):
        check(text, [torch.randn(64, 32, generator=generator)], state, exact=False)
