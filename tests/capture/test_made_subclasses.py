"""Tensors of subclasses that a program makes itself: nobody sees the recorder, whose errors are not the program's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from smelt._torch.seen.dispatch import is_recording
from smelt.diag import CaptureError

X = torch.tensor([1.0, 2.0])


class Mine(torch.Tensor):
    pass


class WithSlots(torch.Tensor):
    __slots__ = ("note",)


class Counting(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Silent(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


class Wrapper(torch.Tensor):
    """Holds a tensor, and answers for operators itself."""

    @staticmethod
    def __new__(cls, inner):
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return cls(func(*(a.inner if isinstance(a, cls) else a for a in args), **(kwargs or {})))


class Initialised(torch.Tensor):
    @staticmethod
    def __new__(cls, values, note):
        return super().__new__(cls, values)

    def __init__(self, values, note):
        self.note = note


def materialised(x):
    made = nn.UninitializedParameter(requires_grad=False)
    made.materialize((2,))
    made.data.fill_(3.0)
    return x + made


def swapped(x):
    a, b = x * 2, x * 3
    torch.utils.swap_tensors(a, b)
    return a - b


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "of a tensor": lambda x: Mine(x) + 1,
    "of numbers": lambda x: Mine([1.0, 2.0]) * x,
    "of sizes": lambda x: Mine(2, 3).zero_(),
    "returned": lambda x: Mine(x),
    "Tensor.__new__": lambda x: torch.Tensor.__new__(Mine, x) * 2,
    "its own __new__": lambda x: Initialised(x, 3) * Initialised(x, 4).note,
    "with slots": lambda x: WithSlots(x) + 1,
    "of a subclass": lambda x: Mine(Mine(x)) + 1,
    "used as plain": lambda x: x * 2 + Mine(x).as_subclass(torch.Tensor),
    "asked for": lambda x: x + 1 if isinstance(Mine(x), Mine) else x,
    "as_subclass": lambda x: x.as_subclass(Mine) + 1,
    "_make_subclass": lambda x: torch.Tensor._make_subclass(Mine, x) + 1,
    "__torch_function__": lambda x: Counting(x) + 1,
    "no __torch_function__": lambda x: Silent(x) + 1,
    "wrapper": lambda x: (Wrapper(x) + 1).inner,
    "stacked": lambda x: torch.stack([Mine(x), x]),
    "branch": lambda x: Mine(x) + 1 if x.sum() > 0 else Mine(x) - 1,
    "Parameter": lambda x: nn.Parameter(x * 2, requires_grad=False) + 1,
    "Buffer": lambda x: nn.Buffer(x * 2) + 1,
    "UninitializedParameter": lambda x: (nn.UninitializedParameter(), x + 1)[1],
    "UninitializedBuffer": lambda x: (nn.UninitializedBuffer(), x + 1)[1],
    "materialised": materialised,
    "copied": lambda x: copy.deepcopy(nn.Parameter(x, requires_grad=False)) + 1,
    "swapped": swapped,
    "LazyLinear": lambda x: nn.LazyLinear(2).has_uninitialized_params() and x + 1,
    "torch.jit.trace": lambda x: torch.jit.trace(lambda t: t + 1, (x,))(x),
}


def _seen(value: Any) -> Any:
    return type(value), value.as_subclass(torch.Tensor).tolist()


@pytest.mark.spread(6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_may_make_tensors_of_subclasses(name, gradients):
    f = PROGRAMS[name]
    with torch.set_grad_enabled(gradients):
        expected = _seen(f(X))
        compiled = smelt.compile(f)
        assert [_seen(compiled(X)) for _ in range(3)] == [expected] * 3
        assert not any("where it is recorded" in reason for reason in compiled.stats().fallbacks)
        try:
            traced = smelt.trace(f, (X,))
        except CaptureError as error:
            assert error.code in ("S0103", "S0104")
        else:
            assert _seen(traced(X)) == expected


def test_what_may_become_a_graph_does():
    for name in ("of a tensor", "of numbers", "its own __new__", "asked for", "no __torch_function__", "branch"):
        f = PROGRAMS[name]

        def program(x, f=f):
            return f(x).as_subclass(torch.Tensor) * 2

        compiled = smelt.compile(program)
        assert [compiled(X).tolist() for _ in range(2)] == [program(X).tolist()] * 2
        if name != "branch":  # no graph of both ways: a subclass may mean something else by an operator
            assert not compiled.stats().fallbacks


@pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")
def test_a_subclass_is_asked_no_more_than_in_eager():
    def f(x):
        return (Counting(x) + 1).as_subclass(torch.Tensor)

    Counting.calls = 0
    f(X)
    expected, compiled = Counting.calls, smelt.compile(f)
    for _ in range(3):
        Counting.calls = 0
        compiled(X)
        assert Counting.calls == expected


@pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")
def test_torchs_constructor_is_itself_again():
    before = torch.Tensor.__new__
    smelt.compile(PROGRAMS["of a tensor"])(X)
    assert torch.Tensor.__new__ is before and "__new__" not in vars(torch.Tensor)
    with pytest.raises(TypeError):
        torch.Tensor("no numbers")


def _seeing(x):
    """Raises where it sees that it is recorded."""
    y = x + torch.rand(2)
    if is_recording():
        raise ValueError("seen")
    return y


STATE = torch.zeros(2)
COUNT = {"calls": 0}


def _writing(x):
    STATE.add_(1)
    return _seeing(x)


def _counting(x):
    COUNT["calls"] += 1
    return _seeing(x)


@pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")
def test_an_error_that_only_recording_causes_is_not_the_programs():
    compiled = smelt.compile(_seeing)
    for seed in range(3):
        torch.manual_seed(seed)
        expected = _seeing(X).tolist()
        torch.manual_seed(seed)
        assert compiled(X).tolist() == expected
    assert compiled.stats().fallbacks == {"it raises ValueError where it is recorded, and not by itself: seen": 3}
    with pytest.raises(CaptureError, match="S0104"):
        smelt.trace(_seeing, (X,))
    with pytest.raises(CaptureError, match="S0302"):
        smelt.compile(_seeing, fullgraph=True)(X)


@pytest.mark.parametrize("f", [_writing, _counting])
def test_what_has_acted_is_not_run_twice(f):
    STATE.zero_()
    COUNT["calls"] = 0
    with pytest.raises(ValueError, match="seen"):
        smelt.compile(f)(X)
    with pytest.raises(ValueError, match="seen"):
        smelt.trace(f, (X,))
    assert (STATE[0] == 2) == (f is _writing) and (COUNT["calls"] == 2) == (f is _counting)


def test_a_programs_own_error_comes_as_in_eager():
    def f(x):
        raise KeyError("own")

    compiled = smelt.compile(f)
    for _ in range(3):
        with pytest.raises(KeyError, match="own") as caught:
            compiled(X)
        assert caught.value.__context__ is None and caught.value.__cause__ is None
    assert not compiled.stats().fallbacks


@pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")
def test_an_error_behind_the_run_does_not_keep_its_answer(monkeypatch):
    def no_guards(*given, **more):
        raise RuntimeError("no guards")

    compiled = smelt.compile(lambda x: x + 1)
    monkeypatch.setattr("smelt.compiler.object.compiled_build._guards", no_guards)
    assert [compiled(X).tolist() for _ in range(3)] == [[2.0, 3.0]] * 3
    assert compiled.stats().fallbacks == {"RuntimeError: no guards": 3} and compiled.stats().builds == 1
    with pytest.raises(CaptureError, match="S0302"):
        smelt.compile(lambda x: x + 1, fullgraph=True)(X)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.numpy().__setitem__(0, x[0].item() + 1),
        lambda x: x.apply_(lambda value: value + 1),
        lambda x: setattr(x, "data", x.data + 1),
        lambda x: x.add_(1),
        lambda x: x.untyped_storage().copy_((x + 1).untyped_storage()),
    ],
)
def test_nor_what_was_written_past_the_recorder(write):
    def f(x):
        write(x)
        return _seeing(x)

    x = torch.zeros(2)
    with pytest.raises(ValueError, match="seen"):
        smelt.compile(f)(x)
    assert x[0] == 1


def _to_what_cannot_be_written(x):
    """An operator of several tensors that raises at the second."""
    try:
        torch._foreach_add_([x, torch.zeros(1).expand(2)], 1)
    except RuntimeError:
        return _seeing(x)


def _to_an_inference_tensor(x):
    return x.add_(1)  # which torch refuses only when it has been done


@pytest.mark.parametrize("write", [_to_what_cannot_be_written, _to_an_inference_tensor])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_nor_what_was_written_by_an_operator_that_raises(write, mode):
    with torch.inference_mode(write is _to_an_inference_tensor):
        x = torch.zeros(2)
    compiled = smelt.compile(write)
    for turn in (1, 2, 3):
        with mode(), pytest.raises((RuntimeError, ValueError), match=r"inference tensor|seen"):
            compiled(x)
        assert x[0] == turn


@pytest.mark.filterwarnings("ignore::smelt.diag.SmeltWarning")
@pytest.mark.parametrize("write", [lambda x: x.add_(1), lambda x: x[:1].mul_(3), lambda x: torch._foreach_add_([x], 1)])
def test_what_an_operator_wrote_before_an_error_that_the_program_catches_is_written_at_each_call(write):
    def f(x):
        try:
            write(x)
        except RuntimeError:
            return x * 2
        return x * 5

    compiled = smelt.compile(f)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode) * 2:
        with torch.inference_mode():
            eager, x = torch.ones(2), torch.ones(2)
        with mode():
            assert (f(eager).tolist(), eager.tolist()) == (compiled(x).tolist(), x.tolist())
