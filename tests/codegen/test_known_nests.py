"""Groups that are alike get the nest that was built for the first of them; all else is built for itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import smelt
from smelt.codegen.lower import Lowered, nests
from smelt.codegen.lower.known_nests import KnownNests
from smelt.diag import Options
from tests.codegen.harness import call, executables, lowered

OWN = Options(deterministic=True)


def updates(*tensors: Tensor) -> None:
    """SGD with momentum and a clipped step: parameters, gradients, momenta."""
    count = len(tensors) // 3
    for p, g, m in zip(tensors[:count], tensors[count : 2 * count], tensors[2 * count :], strict=True):
        m.mul_(0.9).add_(g)
        p.sub_((m * 0.1).clamp(-1, 1))


def sums(x: Tensor, *others: Tensor) -> list[Tensor]:
    """Of a group each, of which none reads what another does."""
    return [(x * (y.T if i % 3 == 2 else y)).sum(1) for i, y in enumerate(others)]


def run(f: Any, inputs: list[Tensor], patch: pytest.MonkeyPatch) -> tuple[Lowered, int]:
    """The plan, which does what eager does and is that of nests built anew each time; and how many nests were built."""
    count = [0]
    build = nests.build

    def counted(*args: Any) -> Any:
        count[0] += 1
        return build(*args)

    with patch.context() as here:
        here.setattr(nests, "build", counted)
        plan = lowered(smelt.trace(f, tuple(t.clone() for t in inputs), check=False).graph_for(*inputs), {}, OWN)
        once = count[0]
        here.setattr(KnownNests, "made", lambda self, group, sources, extra, where, into, make: make(where, into))
        apart = lowered(smelt.trace(f, tuple(t.clone() for t in inputs), check=False).graph_for(*inputs), {}, OWN)
    assert plan.report.kernels == apart.report.kernels
    assert plan.report.nests == apart.report.nests
    for executable in executables(plan.plan):
        ours, theirs = ([t.clone() for t in inputs] for _ in range(2))
        found, expected = call(plan, executable, ours, {}), f(*theirs)
        torch.testing.assert_close([*found, *ours], [*(expected or ()), *theirs])
    return plan, once


def test_more_parameters_are_no_more_nests(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = (
        run(updates, [torch.randn(8, 8) for _ in range(3 * n)], monkeypatch) for n in (2, 12)
    )  # fmt: skip
    assert few[1] == many[1] > 0
    assert len(many[0].report.kernels) == 6 * len(few[0].report.kernels)


def test_names_are_each_groups_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, _ = run(updates, [torch.randn(8, 8) for _ in range(9)], monkeypatch)
    listings = [kernel.listing for kernel in plan.report.kernels]
    assert len(set(listings)) == len(listings)


def test_what_lies_otherwise_is_built_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transposed operands, one memory for two operands, another size: each has a nest of its own."""
    x = torch.randn(6, 6)
    alike, _ = run(sums, [x, *(torch.randn(6, 6) for _ in range(2))], monkeypatch)
    others = [torch.randn(6, 6), torch.randn(6, 6), torch.randn(6, 6), torch.randn(6, 1)]
    found, _ = run(sums, [x, *others], monkeypatch)
    assert len({k.symbol for k in alike.report.kernels}) <= len({k.symbol for k in found.report.kernels})


def test_the_same_tensor_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """`x + y` and `x + x` differ in how many buffers they have."""

    def twice(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        return [(x.sin() + y.cos()).sum(0), (z.sin() + z.cos()).sum(0)]

    run(twice, [torch.randn(5, 5) for _ in range(3)], monkeypatch)
