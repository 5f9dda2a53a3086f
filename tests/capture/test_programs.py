"""Captured programs replay bit for bit, at every level of recording and in every grad mode."""

from __future__ import annotations

import contextlib
import gc
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from smelt._torch.seen.dispatch import Level, levels
from smelt.capture import capture

from .replay import check

Pair = namedtuple("Pair", ["first", "second"])
TABLE = torch.arange(6.0)


@dataclass
class Box:
    content: Any
    label: str = "box"


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def in_place(a, b):
    c = a.clone()
    c[0] = 1.5
    c[1:, ::2].mul_(b)
    c.t()[0].add_(a[0, 0])
    a.sub_(1)
    return c, a


def views(a):
    b = a.view(-1)
    first, *rest = a.split(1)
    return b[2:5], first, a.transpose(0, 1), [r.squeeze(0) for r in rest], a


def constants(a):
    t = torch.tensor([[1.0, 2.0, 3.0]])
    u = torch.tensor([1.0, 2.0, 3.0])
    u += a[0]
    n = torch.zeros(3)
    n[1] = 4
    return a + t, u, n, torch.arange(3) * 2, torch.tensor(2.5) * a, torch.tensor([4, 5])


def out_argument(a):
    o = torch.empty(2, 3)
    torch.add(a, 1, out=o)
    return o * 2


def foreach(a, b):
    torch._foreach_add_([a, b], 1.0)
    return torch._foreach_mul([a, b], 2.0)


def random_numbers(a):
    return F.dropout(a, 0.5), torch.rand(2, 3) + a, torch.bernoulli(torch.full((4,), 0.5)), torch.randperm(5)


def nested(d, box, pair, n, none):
    s = d["a"][0] + d["b"] * n
    assert none is None
    return {"s": s, "box": Box([s, s * 2]), "pair": Pair(pair.second, n), "same": d["b"], "od": OrderedDict(k=s - 1)}


def data_attribute(a):
    b = (a * 2).data
    b.add_(1)
    return b, a.detach()


def grad_modes(a):
    with torch.no_grad():
        b = a * 2
    with torch.enable_grad():
        c = b + 1
    return c


def autocast(a, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = F.linear(a, w)
        with torch.autocast("cpu", enabled=False):
            z = y.float() @ w
    return y, z


def constant_conversions(a):
    """What depends on no input may be read: it is the same each time."""
    steps = torch.arange(4)
    if steps.sum() > 3:
        a = a * steps[2].item()
    picked = torch.ones(4)[steps > 1]
    return a[: int(steps[1])], picked, [float(v) for v in steps.tolist()], torch.tensor([steps[0], steps[3]])


def aliasing_results(a):
    return a, a, a.view(-1), [a]


def index_with_list(a, b):
    return a[[0, 1]], a[:, torch.tensor([True, False, True])], a.index_put((torch.tensor([0]),), b)


def masked_write(a):
    b = a.clone()
    b[b > 0] = 0.0
    return b, torch.where(a > 0, a, -1.0), a.masked_fill(a < 0, 7)


def global_table(a):
    return a + TABLE[:3]


def complex_numbers(a):
    return torch.fft.rfft(a).abs(), torch.view_as_complex(torch.stack([a, a], -1)).conj() * 2j


def no_op_dropout(a):
    b = F.dropout(a, 0.5, training=False)
    return b, b.contiguous(), b.to(torch.float32)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        return a.exp() * 2

    @staticmethod
    def backward(ctx, g):
        return g


def custom_function(a):
    return Doubled.apply(a)


def checkpointed(a, w):
    return torch.utils.checkpoint.checkpoint(lambda t: F.relu(t @ w.t()), a, use_reentrant=False)


def transforms(a):
    summed = torch.func.grad(lambda t: (t.sin() * TABLE[:3]).sum())(a)
    return torch.vmap(lambda r: r.cumsum(0) + 1)(a), summed


def autograd_inside(a):
    with torch.enable_grad():
        b = a.detach().requires_grad_()
        (g,) = torch.autograd.grad((b**2).sum(), b)
    return g


FUNCTIONS = {
    "in_place": lambda: (in_place, (x(3, 4), x(2)), {}),
    "views": lambda: (views, (x(3, 4),), {}),
    "constants": lambda: (constants, (x(2, 3),), {}),
    "out_argument": lambda: (out_argument, (x(2, 3),), {}),
    "foreach": lambda: (foreach, (x(2), x(3)), {}),
    "random_numbers": lambda: (random_numbers, (x(2, 3),), {}),
    "nested": lambda: (
        nested, ({"a": [x(2)], "b": x(2)}, Box(x(1)), Pair(1, x(3))), {"n": 3, "none": None},
    ),
    "data_attribute": lambda: (data_attribute, (x(3),), {}),
    "grad_modes": lambda: (grad_modes, (x(3),), {}),
    "autocast": lambda: (autocast, (x(3, 4), x(4, 4)), {}),
    "constant_conversions": lambda: (constant_conversions, (x(3),), {}),
    "aliasing_results": lambda: (aliasing_results, (x(2, 2),), {}),
    "index_with_list": lambda: (index_with_list, (x(3, 3), x(3)), {}),
    "masked_write": lambda: (masked_write, (x(3, 3),), {}),
    "global_table": lambda: (global_table, (x(2, 3),), {}),
    "complex_numbers": lambda: (complex_numbers, (x(8),), {}),
    "no_op_dropout": lambda: (no_op_dropout, (x(3),), {}),
    "custom_function": lambda: (custom_function, (x(3),), {}),
    "checkpointed": lambda: (checkpointed, (x(2, 3), x(4, 3)), {}),
    "transforms": lambda: (transforms, (x(2, 3),), {}),
    "autograd_inside": lambda: (autograd_inside, (x(3),), {}),
    "same_tensor_twice": lambda: ((lambda a, b: a.add_(b)), (t := x(3), t), {}),
    "empty_and_0d": lambda: ((lambda a, b: (a.sum(), a * b)), (x(0, 3), torch.tensor(2.0)), {}),
    "nan_inf": lambda: (torch.log_softmax, (torch.tensor([float("nan"), float("inf"), -0.0]), 0), {}),
    "expanded": lambda: ((lambda a: a * 2), (x(1, 3).expand(4, 3),), {}),
    "lambda_scalar": lambda: ((lambda a, n: (a * n, n + 1)), (x(2), 3), {}),
    "none": lambda: ((lambda a: None), (x(2),), {}),
}  # fmt: skip


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)

    def forward(self, a):
        return self.drop(F.relu(self.bn(self.conv(a)))).mean((2, 3))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.table = torch.arange(3.0)
        self.inner = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.inner.weight

    def forward(self, a):
        self.calls.add_(1)
        return self.tied.forward(self.inner(a)) * self.table + self.calls


MODULES = {
    "norms_train": lambda: (Norms().train(), (x(2, 3, 5, 5),), {}),
    "norms_eval": lambda: (Norms().eval(), (x(2, 3, 5, 5),), {}),
    "counting": lambda: (Counting(), (x(2, 3),), {}),
    "lstm": lambda: (nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), (x(2, 5, 3),), {}),
    "gru_cell": lambda: (nn.GRUCell(3, 4), (x(2, 3),), {}),
    "mha": lambda: (nn.MultiheadAttention(8, 2, batch_first=True).eval(), (t := x(2, 3, 8), t, t), {}),
    "encoder_layer": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval(), (x(2, 3, 8),), {}),
    "encoder": lambda: (
        nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False
        ).eval(),
        (x(2, 3, 8),),
        {},
    ),
    "encoder_layer_train": lambda: (nn.TransformerEncoderLayer(8, 2, 16, 0.1).train(), (x(2, 3, 8),), {}),
    "embedding_bag": lambda: (nn.EmbeddingBag(10, 3), (torch.randint(0, 9, (2, 4)),), {}),
    "upsample": lambda: (nn.Upsample(scale_factor=2, mode="bilinear"), (x(1, 2, 3, 3),), {}),
    "method": lambda: (Norms().eval().forward, (x(1, 3, 4, 4),), {}),
}

GRAD = {"no_grad": torch.no_grad, "grad": contextlib.nullcontext, "inference": torch.inference_mode}


@pytest.mark.spread(6)
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_replays(name: str, level: Level) -> None:
    check(FUNCTIONS[name], level)


def test_garbage_is_collected_while_gradients_are_computed() -> None:
    """What is called then is no hook of the program's."""
    before = gc.get_threshold()
    gc.callbacks.append(notice)
    gc.set_threshold(1, 10_000, 10_000)
    try:
        check(FUNCTIONS["autograd_inside"])
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(notice)


def notice(phase: str, info: dict[str, int]) -> None:
    """As a profiler has it called when garbage is collected."""


@pytest.mark.spread(6)
@pytest.mark.parametrize("grad", GRAD)
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("name", MODULES)
def test_module_replays(name: str, level: Level, grad: str) -> None:
    with GRAD[grad]():
        check(MODULES[name], level)


@pytest.mark.parametrize("name", MODULES)
def test_one_graph_whatever_the_grad_mode(name: str) -> None:
    """Except where torch itself takes another path: its attention modules look at the grad mode."""
    if name in ("mha", "encoder_layer", "encoder"):
        assert "no_grad" not in str(check(MODULES[name]).graph)
        return
    graphs = []
    for grad in GRAD.values():
        with grad():
            graphs.append(check(MODULES[name]).graph)
    assert graphs[0] == graphs[1] == graphs[2]


@pytest.mark.parametrize("level", levels())
def test_autograd_of_the_result_is_intact(level: Level) -> None:
    model = Norms().eval()
    a = x(1, 3, 4, 4).requires_grad_()
    model(a).sum().backward()
    expected = [a.grad.clone(), *(p.grad.clone() for p in model.parameters())]
    a.grad = None
    model.zero_grad()
    captured = capture(model, (a,), level=level)
    assert captured.result.grad_fn is not None
    captured.result.sum().backward()
    for want, got in zip(expected, [a.grad, *(p.grad for p in model.parameters())], strict=True):
        assert torch.equal(want, got)


def test_whole_operators_at_the_entry() -> None:
    captured = check(MODULES["encoder_layer_train"])
    ops = [node.op for node in captured.graph.walk()]
    assert "aten.linear.default" in ops and "aten.layer_norm.default" in ops
    assert "aten.scaled_dot_product_attention.default" in ops or "aten.softmax.int" in ops
    with torch.no_grad():
        fast = check(MODULES["encoder_layer"]).graph
    assert "aten._transformer_encoder_layer_fwd.default" in [node.op for node in fast.walk()]


def test_scopes_and_spans() -> None:
    captured = check(MODULES["counting"])
    linears = [node for node in captured.graph.walk() if node.op == "aten.linear.default"]
    assert [node.scope for node in linears] == ["inner", "tied"]  # the second by a direct call of forward
    assert all(node.span.file == __file__ and node.span.function == "Counting.forward" for node in linears)
    kinds = {(node.op, node.args[0]) for node in captured.graph.walk() if node.op in ("param", "buffer", "captured")}
    assert kinds == {
        ("param", "inner.weight"), ("param", "inner.bias"), ("param", "tied.bias"),
        ("buffer", "calls"), ("captured", "table"),
    }  # fmt: skip
    assert captured.state.entries["param", "inner.weight"].aliases == ("tied.weight",)


def test_modes_stand_on_nodes() -> None:
    """What a region of the program sets, whatever the mode of the capture."""
    set_by_regions = ["no_grad", "enable_grad"]
    assert [node.mode for node in check(FUNCTIONS["grad_modes"]).graph.walk()] == set_by_regions
    with torch.no_grad():
        assert [node.mode for node in check(FUNCTIONS["grad_modes"]).graph.walk()] == set_by_regions
    modes = [node.mode for node in check(FUNCTIONS["autocast"]).graph.walk()]
    assert modes == ["autocast(bf16)", "autocast(off)", "autocast(off)"]
