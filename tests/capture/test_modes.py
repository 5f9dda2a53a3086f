"""Modes that a program's regions set are the program's, whatever mode it was captured in and is called in."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import smelt


def inner(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return y * x


def decorated(x: Tensor) -> Tensor:
    return _doubled(x) * x


@torch.no_grad()
def _doubled(x: Tensor) -> Tensor:
    return x * 2


@torch.set_grad_enabled(False)
def _tripled(x: Tensor) -> Tensor:
    return x * 3


def set_by_decorator(x: Tensor) -> Tensor:
    return _tripled(x) * x


@torch.no_grad()
def _parts(x: Tensor) -> Iterator[Tensor]:
    yield x * 2
    yield x * 3


def generator(x: Tensor) -> Tensor:
    return sum((part * x for part in _parts(x)), x)


def enabled_again(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * y
    return z * y


def function_style(x: Tensor) -> Tensor:
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    z = y * x
    torch.set_grad_enabled(False)
    return z


def object_twice(x: Tensor) -> Tensor:
    region = torch.set_grad_enabled(False)
    y = x * 2
    region.__exit__(None, None, None)
    y = y * x
    with region:
        z = x * 5
    return y + z * x


def left_by_an_error(x: Tensor) -> Tensor:
    y = x
    with contextlib.suppress(ValueError), torch.no_grad():
        y = x * 2
        raise ValueError
    return y * x


def exit_stack(x: Tensor) -> Tensor:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.enable_grad())
        y = x * 4
        with torch.inference_mode(False), torch.no_grad():
            y = y + x * x
    return y * x


def asked(x: Tensor) -> Tensor:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(before)
    return y * x


def detached(x: Tensor) -> Tensor:
    return x.detach() * x


def branch(x: Tensor) -> Tensor:
    y = x
    if x.sum() > 0:
        with torch.no_grad():
            y = x * 2
    else:
        with torch.enable_grad():
            y = x * 3
    return y * x


def loop(x: Tensor) -> Tensor:
    y, n = x, x.detach()
    while n.sum() < 20:
        n = n + 4
        with torch.no_grad():
            z = y * 0.5
        y = y + z * x
    return y


def going_backward(x: Tensor) -> Tensor:
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        y = (z * z * x).sum()
    (g,) = torch.autograd.grad(y, z)
    return g * x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(1, 1)

    @torch.no_grad()
    def scale(self, x: Tensor) -> Tensor:
        return self.part(x[None])[0] + 1

    def forward(self, x: Tensor) -> Tensor:
        return self.scale(x) * self.part(x[None])[0]


PROGRAMS = (
    inner, decorated, set_by_decorator, generator, enabled_again, object_twice, left_by_an_error, exit_stack, asked,
    detached, branch, loop, going_backward, Net(),
)  # fmt: skip
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode,
}  # fmt: skip


def _name(value: Any) -> str:
    return getattr(value, "__name__", type(value).__name__)


def answer(f: Callable[[Tensor], Tensor], module: Any, at: float = 3.0) -> list[Any]:
    """The result and the gradients, of the argument and of parameters."""
    x = torch.tensor([at], requires_grad=True)
    state = list(module.parameters()) if isinstance(module, nn.Module) else []
    y = f(x)
    if not y.requires_grad:
        return [y, False]
    return [y.detach(), *torch.autograd.grad(y.sum(), [x, *state], allow_unused=True)]


def same(a: list[Any], b: list[Any]) -> bool:
    if len(a) != len(b):
        return False
    both = zip(a, b, strict=True)
    return all(torch.allclose(p, q) if isinstance(p, Tensor) and isinstance(q, Tensor) else p is q for p, q in both)


@pytest.mark.spread(6)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize(("program", "mode"), list(itertools.product(PROGRAMS, MODES)), ids=_name)
def test_a_region_of_the_program_is_kept_whatever_the_mode_of_the_capture(program: Any, mode: str) -> None:
    """`with torch.no_grad(): y = x * 2; return y * x`, captured without gradients and called with them."""
    with MODES["no_grad" if program is going_backward else mode]():
        traced = smelt.trace(program, (torch.tensor([3.0]),))
    for called, at in itertools.product(MODES, (3.0, -2.0)):
        if program is loop and at < 0:
            continue
        if program is going_backward and "inference" in (mode, called):
            continue  # eager raises there
        with MODES[called]():
            expected, found = answer(program, program, at), answer(traced, program, at)
        assert same(expected, found), (called, at, expected, found)
    if program not in (branch, loop):
        module = traced.to_fx() if program is not asked else None
        assert module is None or same(answer(program, program), answer(module, program))


def test_what_is_set_without_a_region_is_the_programs_too() -> None:
    def whole(f: Callable[[Tensor], Tensor]) -> list[Any]:
        x = torch.tensor([3.0], requires_grad=True)
        with torch.enable_grad():
            y = f(x)
        return [y.detach(), *torch.autograd.grad(y, x)]

    with torch.no_grad():
        traced = smelt.trace(function_style, (torch.tensor([3.0]),))
    assert same(whole(function_style), whole(traced))


def test_an_optimizer_leaves_the_mode_as_it_was() -> None:
    """torch's own `step` reads the mode, sets it, and puts it back without a region."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.5)

    def step(x: Tensor) -> Tensor:
        weight.grad = torch.ones(1)
        optimizer.step()
        return x * x

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = smelt.trace(step, (torch.tensor([3.0]),), check=False).unit.captured.graph
    assert [node.mode for node in graph.walk() if node.op == "aten.mul.Tensor"] == [""]


def test_autocast_that_a_program_switches_off_is_off_for_any_caller() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", enabled=False):
            a = x @ w
        return a, x @ w

    x, w = torch.randn(4, 4), torch.randn(4, 4)
    traced = smelt.trace(f, (x, w))
    module = traced.to_fx()
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            expected = f(x, w)
            for found in (traced(x, w), module(x, w)):
                assert [t.dtype for t in found] == [t.dtype for t in expected] == [torch.float32, torch.bfloat16]
                assert torch.allclose(found[0], expected[0]) and torch.allclose(found[1], expected[1], 0.02, 0.02)


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return inner(x)


@pytest.mark.spread(3)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("mode", MODES)
def test_an_exported_program_keeps_its_regions(mode: str) -> None:
    exported = torch.export.export(Inner(), (torch.tensor([3.0]),))
    with MODES[mode]():
        program = smelt.from_exported(exported)
    assert same(answer(program, None), answer(inner, None))


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_a_graph_that_sets_the_mode_without_a_region_keeps_it() -> None:
    """As Dynamo writes regions down."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, (False,))
    y = graph.call_function(torch.mul, (x, 2))
    graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output(graph.call_function(torch.mul, (y, x)))
    module = torch.fx.GraphModule(nn.Module(), graph)
    with torch.no_grad():
        program = smelt.from_fx(module, (torch.tensor([3.0]),))
    with torch.enable_grad():
        assert same(answer(program, None), answer(inner, None))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_regions_that_were_lost_before_are_told_of() -> None:
    exported = torch.export.export(Inner(), (torch.tensor([3.0]),)).run_decompositions({})
    program = smelt.from_exported(exported)
    with torch.no_grad():
        assert torch.equal(program(torch.tensor([3.0])), torch.tensor([18.0]))
    with pytest.warns(smelt.SmeltWarning, match="no_grad"):
        assert same(answer(program, None), answer(exported.module(), None))
    traced = torch.fx.symbolic_trace(Inner())
    program = smelt.from_fx(traced, (torch.tensor([3.0]),))
    with pytest.warns(smelt.SmeltWarning, match="no_grad"):
        assert same(answer(program, None), answer(traced, None))
