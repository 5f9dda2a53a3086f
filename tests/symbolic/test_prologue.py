"""What follows from sizes and parameters alone is computed once for each tuple of sizes, and never shown to be so."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt.codegen.lower.symbolic import prologue
from smelt.codegen.lower.symbolic.prologue import prologue_of
from smelt.compiler import SizedUnit
from smelt.ir import parse
from smelt.runtime.frames import _scratch
from smelt.runtime.pool import Pool


class Biased(nn.Module):
    """Attention with a learned bias by distance, in buckets that grow by a logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(8, 2), nn.Linear(6, 6)

    def forward(self, x: Any) -> Any:
        places = torch.arange(x.shape[1])
        distance = (places[None] - places[:, None]).abs()
        buckets = torch.min((torch.log(distance + 1.0) * 2).long(), torch.full_like(distance, 7))
        bias = self.table(buckets).permute(2, 0, 1).unsqueeze(0)
        q = self.layer(x).unflatten(-1, (2, 3)).transpose(1, 2)
        return torch.softmax(q @ q.transpose(-1, -2) + bias, -1) @ q


def unit_of(compiled: Any) -> SizedUnit:
    return next(row.entry for row in compiled.stats().rows if isinstance(row.entry, SizedUnit))


def check(compiled: Any, module: Any, *shape: int) -> None:
    x = torch.randn(shape)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), module(x))


@torch.no_grad()
def test_a_bias_is_made_once_for_each_tuple_of_sizes() -> None:
    module = Biased()
    compiled = smelt.compile(module)
    for shape in ((2, 5, 6), (3, 7, 6), (4, 9, 6), (2, 33, 6), (3, 7, 6), (2, 2, 6)):
        check(compiled, module, *shape)
    assert compiled.stats().builds == 2 and compiled.stats().fallbacks == {}
    unit = unit_of(compiled)
    assert unit.why_alone == "" and len(unit.templates) == 1
    (template,) = unit.templates
    labels = " ".join(report.label for report in template.lowered.lowered.report.kernels)
    assert "log" not in labels and "embedding" not in labels
    assert template.executable._cannot_share is False
    assert any(tensor is module.table.weight for tensor in unit.constants)


@torch.no_grad()
def test_written_parameters_are_seen() -> None:
    module = Biased()
    compiled = smelt.compile(module)
    for length in (5, 7, 9, 7):
        check(compiled, module, 2, length, 6)
        module.table.weight.mul_(1.5)
        check(compiled, module, 2, length, 6)
    module.table.weight.data.view(-1)[3] = 40.0
    compiled.refresh()
    for length in (5, 7, 9):
        check(compiled, module, 2, length, 6)


@torch.no_grad()
def test_what_a_caller_gets_is_its_own() -> None:
    def table(x: Any) -> Any:
        angles = torch.arange(x.shape[0]).float().sin()
        return angles, angles[1:], x * angles

    compiled = smelt.compile(table)
    for length in (4, 6, 8, 6, 8):
        x = torch.randn(length)
        for _ in range(2):
            found, expected = compiled(x), table(x)
            torch.testing.assert_close(found, expected)
            for one in found:
                one.fill_(9)


@torch.no_grad()
def test_large_values_are_computed_in_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prologue, "KEPT_NBYTES", 8 * 2 * 20 * 20)
    module = Biased()
    compiled = smelt.compile(module)
    for length in (5, 7, 19, 40, 21, 20, 64, 3):
        check(compiled, module, 2, length, 6)
    assert compiled.stats().builds == 2 and len(unit_of(compiled).templates) == 2
    assert unit_of(compiled).why_alone == ""


@torch.no_grad()
def test_from_several_threads() -> None:
    module = Biased()
    compiled = smelt.compile(module)
    for length in (4, 6, 8):
        check(compiled, module, 2, length, 6)
    failures: list[BaseException] = []

    def work(first: int) -> None:
        try:
            with torch.no_grad():
                for length in range(first, first + 20):
                    check(compiled, module, 2, length, 6)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in (9, 9, 15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_graphs_taken_apart() -> None:
    text = """\
graph f(%x: f32[S, 4], %n: int) -> f32[S, 4] {{
  %0: int = aten.sym_size.int(%x, 0)
  %1: i64[S] = aten.arange.default(%0)
  %2: f32[S] = aten.{op}(%1)
  %3: f32[S, 1] = aten.unsqueeze.default(%2, 1)
  %4: f32[S, 4] = aten.mul.Tensor(%x, %3)
  return %4
}}"""
    found = prologue_of(parse(text.format(op="log.default")), {})
    assert found is not None and found.count == 1 and found.state == ()
    assert [node.op for node in found.first.walk()][-1] == "aten.unsqueeze.default"
    assert [node.op for node in found.rest.walk()] == ["aten.mul.Tensor"]
    (value,) = found.values({"S": 5}, lambda kind, path: torch.zeros(0))
    torch.testing.assert_close(value, torch.arange(5).log().unsqueeze(1))
    assert prologue_of(parse(text.format(op="neg.default").replace("f32[S] =", "i64[S] =")), {}) is None
    assert prologue_of(parse(text.format(op="bernoulli.default")), {}) is None
    of_number = text.format(op="log.default").replace("(%0)", "(%n)")
    assert prologue_of(parse(of_number), {}) is None and prologue_of(parse(of_number), {1: "S"}) is not None


def test_memory_that_kernels_work_in_is_zero() -> None:
    pool = Pool()
    dirty = torch.full((256,), 1, dtype=torch.uint8)  # of which four are a denormal number
    pool.give(dirty)
    lent = _scratch(200, pool)
    assert lent is dirty and not lent[:200].any()
    fresh = _scratch(64, None)
    assert fresh is not None and not fresh.any()


@torch.no_grad()
def test_what_acts_is_done_in_each_run(capsys: pytest.CaptureFixture[str]) -> None:
    module = Biased()

    def program(x: Any) -> Any:
        print("called")
        warnings.warn("told", UserWarning, stacklevel=1)
        return module(x)

    compiled = smelt.compile(program)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for length in (5, 7, 9, 33, 7, 2, 33):
            x = torch.randn(2, length, 6)
            capsys.readouterr()
            heard.clear()
            result = compiled(x)
            assert capsys.readouterr().out == "called\n"
            assert [str(warning.message) for warning in heard] == ["told"]
            torch.testing.assert_close(result, module(x))
    assert unit_of(compiled).templates
