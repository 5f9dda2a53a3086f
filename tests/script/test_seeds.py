"""The programs that the project started from, scripted."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from smelt.ir import parse
from tests.script.checking import agrees, by_evaluator, ended, well_formed

X, Y = torch.randn(8, 16, generator=torch.manual_seed(1)), torch.randn(16, 4)


def lerp(x, y, w):
    return x + w * (y - x)


def mse(x, y):
    z = x - y
    return (z * z).mean()


def f1(x, y):
    a = torch.sin(x)
    b = torch.matmul(a, y)
    if b.sum() < 0:
        return -y
    return y


def fn(x, n):
    y = x**2
    if n >= 0:
        return (n + 1) * y
    else:
        return y / n


def fn_of_int(x, n: int):
    y = x**2
    if n >= 0:
        return (n + 1) * y
    else:
        return y / n


class RNN(nn.Module):
    def __init__(self, W_h, U_h, W_y, b_h, b_y):
        super(RNN, self).__init__()  # noqa: UP008 (as in the text)
        self.W_h = nn.Parameter(W_h)
        self.U_h = nn.Parameter(U_h)
        self.W_y = nn.Parameter(W_y)
        self.b_h = nn.Parameter(b_h)
        self.b_y = nn.Parameter(b_y)

    def forward(self, x, h):
        y = []
        for t in range(x.size(0)):
            h = torch.tanh(x[t] @ self.W_h + h & self.U_h + self.b_h)
            y += [torch.tanh(h & self.W_y + self.b_y)]
            if t % 10 == 0:
                print("stats: ", h.mean(), h.var())
        return torch.stack(y), h


class CorrectedRNN(RNN):
    def forward(self, x, h):
        y = []
        for t in range(x.size(0)):
            h = torch.tanh(x[t] @ self.W_h + h @ self.U_h + self.b_h)
            y += [torch.tanh(h @ self.W_y + self.b_y)]
            if t % 10 == 0:
                print("stats: ", h.mean(), h.var())
        return torch.stack(y), h


def weights():
    return torch.randn(3, 4), torch.randn(4, 4), torch.randn(4, 4), torch.randn(4), torch.randn(4)


def scaled_dot_product(q, k, v):
    d_k = q.shape[-1]
    attn_score = torch.matmul(q, k.transpose(-2, -1)) / torch.sqrt(d_k)
    return torch.matmul(F.softmax(attn_score, dim=-1), v)


def corrected_dot_product(q, k, v):
    d_k = q.shape[-1]
    attn_score = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d_k)
    return torch.matmul(F.softmax(attn_score, dim=-1), v)


class Projection(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(16, 16)
        self.layer_norm = nn.LayerNorm(16)

    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dense(hidden_states)
        hidden_states = self.layer_norm(hidden_states, input_tensor)
        return hidden_states


class CorrectedProjection(Projection):
    def forward(self, hidden_states, input_tensor):
        hidden_states = self.dense(hidden_states)
        return self.layer_norm(hidden_states + input_tensor)


def test_lerp():
    program = agrees(lerp, (X, X * 2, torch.tensor(0.25)), (X, X + 1, X))
    assert [n.op for n in program.graph.walk()] == ["aten.sub.Tensor", "aten.mul.Tensor", "aten.add.Tensor"]


def test_mse():
    agrees(mse, (X, X + 1))


def test_f1_takes_both_ways():
    program = agrees(f1, (X, Y), (-X, Y))
    assert [n.op for n in program.graph.walk()].count("if") == 1


def test_fn_of_a_tensor_and_of_an_int():
    agrees(fn, (X, torch.tensor(2)), (X, torch.tensor(-3)))
    agrees(fn_of_int, (X, 2), (X, 3), (X, 6), (X, -3))


def test_fn_runs_with_ints_whatever_its_graph_says():
    program = smelt.script(fn)
    for n in (2, 3, 6, -3):
        assert torch.equal(program(X, n), fn(X, n))


def test_rnn_is_shown_without_running(capsys):
    program = smelt.script(RNN(*weights()))
    text = str(program.graph)
    assert capsys.readouterr().out == ""
    assert " = for %" in text and "if %" in text and 'py.print("stats: ", ' in text
    assert "aten.__and__.Tensor" in text and "aten.stack.default" in text
    assert str(parse(text)) == text


def test_rnn_raises_eagers_error_at_the_users_line():
    model = RNN(*weights())
    program = smelt.script(model)
    args = (torch.randn(12, 2, 3), torch.zeros(2, 4))
    kind, expected = ended(lambda: model(*args))
    assert kind == "raised"
    assert ended(lambda: by_evaluator(program, *args)) == (kind, expected)
    with pytest.raises(expected[0]) as caught:
        program(*args)
    assert str(caught.value) == expected[1]
    lines = [entry.lineno + 1 for entry in caught.traceback if str(entry.path) == __file__]
    first = RNN.forward.__code__.co_firstlineno
    assert first + 3 in lines


def test_corrected_rnn_runs(capsys):
    model = CorrectedRNN(*weights())
    args = (torch.randn(12, 2, 3), torch.zeros(2, 4))
    with torch.no_grad():
        expected = model(*args)
        printed = capsys.readouterr().out
        program = smelt.script(model)
        assert capsys.readouterr().out == ""
        found = by_evaluator(program, *args)
        assert capsys.readouterr().out == printed
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    agrees(model, args, (torch.randn(1, 2, 3), torch.zeros(2, 4)))


@pytest.mark.parametrize(
    ("wrong", "right", "args"),
    [
        (scaled_dot_product, corrected_dot_product, (X, X, X)),
        (Projection(), CorrectedProjection(), (X, X)),
    ],
)
def test_wrong_texts_are_shown_and_corrected_ones_run(wrong, right, args):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        program = smelt.script(wrong)
    assert any("every run of" in str(w.message) and w.filename == __file__ for w in caught)
    well_formed(program.graph)
    assert any(n.op.startswith("aten.") for n in program.graph.walk())
    kind, (error, text) = ended(lambda: wrong(*args))
    assert kind == "raised"
    assert ended(lambda: by_evaluator(program, *args)) == ("raised", (error, text))
    assert ended(lambda: program(*args)) == ("raised", (error, text))
    agrees(right, args)
