"""Higher-order operators of torch as branches and loops of the graph, in and out; Programs inside captured code."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import smelt
from smelt import CaptureError
from tests.doors.programs import Of, assert_alike

_X = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) + 0.1
_LONG = torch.rand(20, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def quiet() -> None:
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=UserWarning)


def _cond(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x.sin(), x * 2), lambda x: (x.cos(), x - 1), (x,))


def _nested_cond(x: torch.Tensor) -> Any:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.max() > 5, lambda x: x / 2, lambda x: x * 3, (x,))

    return torch.cond(x.sum() > 0, inner, lambda x: x.cos(), (x,))


def _while(x: torch.Tensor, n: torch.Tensor) -> Any:
    return while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 1.5 + x), (torch.tensor(0), x))


def _scan(x: torch.Tensor) -> Any:
    return scan(lambda c, row: (torch.tanh(c + row), c * row), torch.zeros(4), x)


def _map(x: torch.Tensor) -> Any:
    return torch_map(lambda row, b: row * b + row.sum(), x, torch.ones(4) * 2)


_CASES: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], str]] = {
    "cond": (_cond, [(_X,), (-_X,)], "if"),
    "nested cond": (_nested_cond, [(_X,), (-_X,), (_X * 90,)], "if"),
    "while_loop": (_while, [(_X, torch.tensor(3)), (_X, torch.tensor(0)), (_X, torch.tensor(9))], "while"),
    "scan": (_scan, [(_LONG,), (-_LONG,)], "for"),
    "map": (_map, [(_LONG,), (-_LONG,)], "for"),
    "short scan": (_scan, [(_X,), (-_X,)], ""),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("name", _CASES)
def test_in_from_export(name: str) -> None:
    f, calls, node = _CASES[name]
    with torch.no_grad():
        program = smelt.from_exported(torch.export.export(Of(f), calls[0]))
        assert not node or node in {n.op for n in program.graph.walk()}
        for args in calls:
            assert_alike(tuple(program(*args)) if isinstance(program(*args), list) else program(*args), f(*args))
    assert program.native_failure is None


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", _CASES)
def test_in_and_out(name: str) -> None:
    f, calls, node = _CASES[name]
    with torch.no_grad():
        out = smelt.from_exported(torch.export.export(Of(f), calls[0])).to_fx()
        names = {str(n.target) for n in out.graph.nodes if isinstance(n.target, torch._ops.HigherOrderOperator)}
        assert names == {"if": {"cond"}, "": set()}.get(node, {"while_loop"})
        for args in calls:
            assert_alike(out(*args), f(*args))


def test_a_loop_in_a_branch_goes_out() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            for i in range(int(n)):
                x = x + i
        else:
            x = x * n
        return x

    program = smelt.trace(f, (_X, torch.tensor(3)))
    out = program.to_fx()
    for x in (_X, -_X):
        for n in (0, 1, 5):
            torch.testing.assert_close(out(x, torch.tensor(n)), f(x, torch.tensor(n)))


def test_what_torch_cannot_carry_is_refused() -> None:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        rows = []
        for i in range(int(n)):
            rows.append(x * i)
        return torch.stack(rows)

    program = smelt.trace(f, (_X, torch.tensor(12)))
    if "for" not in {n.op for n in program.graph.walk()}:
        pytest.fail("the loop was not kept")
    with pytest.raises(CaptureError, match=r"list\[") as caught:
        program.to_fx()
    assert caught.value.code == "S0108" and "test_control_flow.py" in str(caught.value)


def _scaled(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    f = n.item()
    if x.sum() > 0:
        return x * f
    return x + f


def _doubled(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    f = 0.5
    while (x * f).sum() < n:
        f = f * 2
    return x * f


@pytest.mark.parametrize("f", [_scaled, _doubled])
def test_floats_of_regions_are_refused(f: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(CaptureError, match="a float used or carried") as caught:
        smelt.trace(f, (_X, torch.tensor(12.5))).to_fx()
    assert caught.value.code == "S0108"


def test_what_a_loop_without_turns_gives_is_a_copy() -> None:
    program = smelt.from_exported(torch.export.export(Of(_while), (_X, torch.tensor(3))))
    count, found = program(_X, torch.tensor(0))
    assert count == 0 and torch.equal(found, _X) and found.data_ptr() != _X.data_ptr()


def _turns(x: torch.Tensor, n: torch.Tensor) -> Any:
    while x.sum() < 100:
        x = x * 2 + n
        n = n + 1
    return x, n


def test_a_loop_goes_out_and_comes_in_again() -> None:
    args = (_X, torch.tensor(3))
    program = smelt.from_fx(smelt.trace(_turns, args).to_fx(), args)
    assert "while" in {n.op for n in program.graph.walk()}
    for given in (args, (_X * 90, torch.tensor(3)), (_X, torch.tensor(8))):
        assert_alike(program(*given), _turns(*given))


def _choose(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        y = x.sin()
    else:
        y = x.cos()
    return y


@pytest.mark.parametrize("door", ["trace", "compile"])
def test_a_program_inside_captured_code_is_inlined(door: str) -> None:
    inner = smelt.trace(_choose, _X)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x * 2) + 1

    if door == "trace":
        found = smelt.trace(outer, _X)
        assert "if" in {n.op for n in found.graph.walk()}
        assert "aten.sin.default" in str(found.graph) and "aten.cos.default" in str(found.graph)
    else:
        found = smelt.compile(outer)
    for x in (_X, -_X, _X, -_X):
        torch.testing.assert_close(found(x), _choose(x * 2) + 1)
    if door == "compile":
        assert found.stats().builds == 1 and not found.stats().fallbacks


def _says(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        print("above")
    else:
        warnings.warn("below", stacklevel=1)
    return x + 1


def test_what_an_inlined_program_shows_is_shown_at_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    inner = smelt.trace(_says, _X)
    compiled = smelt.compile(lambda x: inner(x) * 2)
    capsys.readouterr()
    for sign in (1, -1, 1, -1, -2, 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.testing.assert_close(compiled(_X * sign), (_X * sign + 1) * 2)
        assert capsys.readouterr().out == ("above\n" if sign > 0 else "")
        assert [str(w.message) for w in caught] == (["below"] if sign < 0 else [])


def test_a_compiled_module_inside_captured_code_is_inlined() -> None:
    module = torch.nn.Linear(4, 4)
    compiled = smelt.compile(module)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return compiled(x).relu()

    with torch.no_grad():
        compiled(_X)
        assert "aten.linear.default" in str(smelt.trace(outer, _X).graph)
        found = smelt.compile(outer)
        for _ in range(3):
            torch.testing.assert_close(found(_X), module(_X).relu())
        assert not found.stats().fallbacks
        module.weight.data = torch.ones(4, 4)
        torch.testing.assert_close(found(_X), module(_X).relu())
