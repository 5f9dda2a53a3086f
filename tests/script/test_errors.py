"""What scripting reports before any run, and that it leaves everything as it was."""

import contextlib
import copy
import sys

import pytest
import torch
from torch import nn

import smelt
from smelt import CaptureError

HERE = __file__


def line_of(fn, offset):
    return fn.__code__.co_firstlineno + offset


def mismatch(x: smelt.f32[8, 4], y: smelt.f32[3, 2]):
    z = x + 1
    return z @ y


def test_sizes_that_never_fit_are_reported_with_both_lines():
    with pytest.raises(CaptureError) as caught:
        smelt.script(mismatch)
    error = caught.value
    assert error.where.file == HERE and error.where.line == line_of(mismatch, 2)
    assert f"{HERE}:{line_of(mismatch, 1)}" in str(error) and f"{HERE}:{line_of(mismatch, 0)}" in str(error)
    assert "f32[8, 4]" in str(error) and "f32[3, 2]" in str(error)


def unlike(x, c):
    if c.sum() > 0:
        y = x
    else:
        y = "text"
    return y


def test_arms_that_cannot_merge_are_named():
    with pytest.raises(CaptureError) as caught:
        smelt.script(unlike)
    text = str(caught.value)
    assert caught.value.where.line == line_of(unlike, 1)
    assert f":{line_of(unlike, 2)}" in text and f":{line_of(unlike, 4)}" in text


def test_a_branch_that_fails_on_one_path_only_is_no_error():
    def f(x: smelt.f32[8, 4], y: smelt.f32[3, 2], n: int):
        if n > 0:
            return x @ y
        return x

    program = smelt.script(f)
    assert "py.raise" in str(program.graph)
    x, y = torch.ones(8, 4), torch.ones(3, 2)
    assert torch.equal(program(x, y, 0), x)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        program(x, y, 1)


def test_no_source():
    space = {"torch": torch}
    exec("def f(x):\n    return x + 1", space)
    with pytest.raises(CaptureError, match="source"):
        smelt.script(space["f"])


def test_source_of_a_notebook_cell():
    import linecache

    text = "def f(x):\n    if x.sum() > 0:\n        return x + 1\n    return x - 1\n"
    name = "<ipython-input-7-smelt>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space = {"torch": torch}
    exec(compile(text, name, "exec"), space)
    program = smelt.script(space["f"])
    assert f'@ "{name}":2 in f' in str(program.graph)
    for x in (torch.ones(2), -torch.ones(2)):
        assert torch.equal(program(x), space["f"](x))


def test_what_is_not_callable():
    with pytest.raises(CaptureError):
        smelt.script(3)
    with pytest.raises(CaptureError):
        smelt.script(len)


def test_parameters_that_no_graph_has():
    def f(x, mode: nn.Module):
        return mode(x)

    with pytest.raises(CaptureError, match="mode"):
        smelt.script(f)


def test_an_operator_that_may_be_caught_needs_types():
    def f(x, y):
        try:
            return x @ y
        except RuntimeError:
            return x

    with pytest.raises(CaptureError, match="caught"):
        smelt.script(f)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
        self.seen = []
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x):
        self.calls += 1
        self.seen.append(x.shape[0])
        return self.bn(x)


def test_scripting_leaves_everything_as_it_was():
    model = Counting()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    code = Counting.forward.__code__
    random, shape, hooks = torch.get_rng_state(), torch.Tensor.shape, sys.gettrace()
    with contextlib.suppress(CaptureError):
        smelt.script(model)
    assert model.calls == 0 and model.seen == []
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert Counting.forward.__code__ is code
    assert torch.equal(torch.get_rng_state(), random)
    assert torch.Tensor.shape is shape and sys.gettrace() is hooks
    assert torch.Tensor.dim(torch.ones(2, 3)) == 2 and torch.ones(2).requires_grad is False


def test_copies_are_scripted_anew():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    program = smelt.script(model)
    copied = copy.deepcopy(program)
    x = torch.randn(2, 4)
    assert type(copied) is type(program)
    assert [n.op for n in copied.graph.walk()] == [n.op for n in program.graph.walk()]
    with torch.no_grad():
        model[0].weight.zero_()
        assert not torch.equal(copied(x), program(x))


def test_example_inputs_give_types():
    def f(x, n, mode):
        return x.sum(n) if mode == "sum" else x.mean(n)

    program = smelt.script(f, example_inputs=[(torch.ones(2, 3), 0, "sum"), (torch.ones(4, 3), 1, "mean")])
    assert str(program.graph).startswith("graph f(%x: f32[_, 3], %n: int, %mode: str)")
    for args in ((torch.ones(5, 3), 1, "sum"), (torch.ones(2, 3), 0, "mean")):
        assert torch.equal(program(*args), f(*args))
