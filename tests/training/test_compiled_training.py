"""`compile(model)`: gradients, their order, identity and errors as in eager."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import smelt
from tests.training.harness import is_compiled, pair, same_gradients

Tensor = torch.Tensor


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(width, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.norm(F.gelu(self.up(x))))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1)


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.map(x), 0.5, self.training) * F.dropout(x, 0.1, self.training)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x.abs().long() % 11))).mean(1)


class Several(nn.Module):
    """A tuple in a dict, an integer result, and one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Any]:
        y = self.a(x)
        return {"y": (y, y.argmax(-1)), "unused": self.b(x), "n": 3}


class Islands(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x)
        with torch.no_grad():
            scale = y.abs().amax()
        z = y * scale + y.detach()
        z = z.clone()
        z[:, 0] = 1.0
        z.mul_(2)
        return torch.cat([z[:, 4:], y[:, :4].view(-1, 4).exp()], 1)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "net": (Net, (6, 8)), "normed": (Normed, (5, 3, 8, 8)), "dropping": (Dropping, (6, 8)), "tied": (Tied, (6, 5)),
    "islands": (Islands, (6, 8)),
}  # fmt: skip


def _told(compiled: Any, *args: Tensor, match: str) -> None:
    """That a first call says why eager runs."""
    with pytest.warns(smelt.SmeltWarning, match=match):
        compiled(*args)


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", MODELS)
def test_steps(name: str) -> None:
    make, shape = MODELS[name]
    model, other, compiled = pair(make)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (model, other)]
    for step in range(4):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(step)) * 3
        losses = []
        for m, optimizer in zip((model, compiled), optimizers, strict=True):
            torch.manual_seed(step)
            loss = m(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            losses.append(loss.item())
            after = torch.rand(1)
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        same_gradients(model, other)
        for optimizer in optimizers:
            optimizer.step()
        del after
    for (n, p), q in zip(model.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(p, q, msg=n)
    assert is_compiled(compiled)


def test_random_numbers_go_on_as_in_eager() -> None:
    model, _, compiled = pair(Dropping)
    x = torch.randn(6, 8)
    for _ in range(3):
        found = []
        for m in (model, compiled):
            torch.manual_seed(1)
            m(x).sum().backward()
            found.append(torch.rand(3))
        assert torch.equal(*found)


def test_gradients_accumulate_in_place() -> None:
    model, other, compiled = pair(Net)
    x = torch.randn(6, 8)
    for m in (model, compiled):
        for _ in range(3):
            m(x).sum().backward()
    kept = [p.grad for p in other.parameters()]
    for m in (model, compiled):
        m(2 * x).sum().backward()
    assert all(p.grad is g for p, g in zip(other.parameters(), kept, strict=True))
    same_gradients(model, other)


def test_backward_twice() -> None:
    model, other, compiled = pair(Net)
    x = torch.randn(6, 8)
    compiled(x).sum().backward()
    other.zero_grad()
    for m in (model, compiled):
        loss = m(x).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()
    same_gradients(model, other)


def test_grad_of_inputs_and_of_some_parameters() -> None:
    model, other, compiled = pair(Net)
    x = torch.randn(6, 8, requires_grad=True)
    for _ in range(3):
        found = [
            torch.autograd.grad(m(x).sum(), (x, p.up.weight), allow_unused=True)
            for m, p in ((model, model), (compiled, other))
        ]
        torch.testing.assert_close(*found)
    assert all(p.grad is None for p in other.parameters()) and is_compiled(compiled)


def test_unused_results_leave_no_gradient() -> None:
    model, other, compiled = pair(Several)
    x = torch.randn(6, 8)
    for _ in range(3):
        for m in (model, compiled):
            out = m(x)
            assert out["n"] == 3 and out["y"][1].dtype is torch.int64 and not out["y"][1].requires_grad
            m.zero_grad()
            out["y"][0].sum().backward()
        same_gradients(model, other)
    assert other.b.weight.grad is None and is_compiled(compiled)


def test_hooks() -> None:
    model, other, compiled = pair(Net)
    x = torch.randn(6, 8)
    compiled(x).sum().backward()
    other.zero_grad()
    told: list[list[Any]] = [[], []]
    for m, seen in ((model, told[0]), (other, told[1])):
        m.up.weight.register_hook(lambda g, seen=seen: (seen.append("tensor"), g * 2)[1])
        m.up.weight.register_post_accumulate_grad_hook(lambda p, seen=seen: seen.append(p.grad.sum().item()))
    for m in (model, compiled):
        m(x).sum().backward()
    assert told[0][0] == told[1][0] == "tensor" and told[0][1] == pytest.approx(told[1][1], rel=1e-4)
    same_gradients(model, other)


def test_frozen_and_thawed() -> None:
    model, other, compiled = pair(Net)
    x = torch.randn(6, 8)
    for frozen in (False, True, False, True):
        for m, target in ((model, model), (compiled, other)):
            target.up.weight.requires_grad_(not frozen)
            target.zero_grad()
            m(x).sum().backward()
        same_gradients(model, other)
        assert (other.up.weight.grad is None) == frozen


def test_without_gradients_in_between() -> None:
    model, other, compiled = pair(Net)
    x = torch.randn(6, 8)
    for _ in range(3):
        for m in (model, compiled):
            m.zero_grad()
            m(x).sum().backward()
        with torch.no_grad():
            found = compiled(x)
            assert not found.requires_grad
            torch.testing.assert_close(found, model(x))
        same_gradients(model, other)


def test_a_parameter_written_before_backward() -> None:
    model, other, compiled = pair(Net)
    x = torch.randn(6, 8)
    compiled(x).sum().backward()
    for m, target in ((model, model), (compiled, other)):
        loss = m(x).sum()
        with torch.no_grad():
            target.down.weight.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_gradients_of_gradients() -> None:
    def penalty(m: Any, x: Tensor, parameters: list[Tensor]) -> list[Tensor]:
        (grad,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return list(torch.autograd.grad(grad.square().sum(), parameters, allow_unused=True))

    model, other, compiled = pair(Net)
    x = torch.randn(6, 8, requires_grad=True)
    for _ in range(2):
        found = [penalty(m, x, list(t.parameters())) for m, t in ((model, model), (compiled, other))]
        for a, b in zip(*found, strict=True):
            assert (a is None) == (b is None) or not (a if b is None else b).any()
            if a is not None and b is not None:
                torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-5)
    assert is_compiled(compiled)


class Decaying(nn.Module):
    """What the gradient needs of a buffer is what it held before the call wrote to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.0, 3.0]))
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale.clone()
        self.scale.mul_(10)
        return (x * self.weight * scale).sum()


def test_a_buffer_that_is_written_after_its_use() -> None:
    model, other, compiled = pair(Decaying)
    for _ in range(3):
        for m in (model, compiled):
            m.zero_grad()
            m(torch.ones(2)).backward()
        assert torch.equal(model.weight.grad, other.weight.grad)
    assert is_compiled(compiled)


def test_a_buffer_that_is_written_and_needed() -> None:
    """Eager refuses it on the way back; so does what is compiled, or eager runs."""

    def program(x: Tensor, w: Tensor, buffer: Tensor) -> Tensor:
        y = x * w * buffer
        buffer.mul_(10)
        return y.sum()

    compiled = smelt.compile(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for _ in range(3):
            loss = compiled(torch.ones(2), torch.ones(2, requires_grad=True), torch.tensor([2.0, 3.0]))
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


def test_results_that_are_arguments() -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return x, (x * w).sum()

    compiled = smelt.compile(program)
    for _ in range(3):
        x, w = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        same, loss = compiled(x, w)
        assert same is x
        loss.backward()
        assert torch.equal(x.grad, w.detach()) and torch.equal(w.grad, x.detach())
    assert is_compiled(compiled)


def _both(x: Tensor) -> tuple[Tensor, ...]:
    y = x.sin() * 2
    return y, y[:, :2], y.t()[1:]


def _hidden(x: Tensor) -> tuple[Tensor, ...]:
    y = x.cos() * 2
    return y[:2], y[1:], y.sum()


def _written(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    half = y[:, :2]
    half.mul_(5)
    y.add_(1)
    return y, half


def _twice(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    return y, y, y.view(-1).detach()


@pytest.mark.parametrize("program", [_both, _hidden, _written, _twice, lambda x: (x * 2).split(2, 1)])
def test_results_that_are_views_of_one_another(program: Callable[[Tensor], tuple[Tensor, ...]]) -> None:
    """A write to one of them has a meaning for the others' gradients, or is eager's error."""
    compiled = smelt.compile(program)
    for _ in range(3):
        seen: list[Any] = []
        for f in (program, compiled):
            x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
            found = f(x)
            objects = [[a is b for a in found] for b in found]
            try:
                found[0].mul_(3)
                sum((y * (i + 1)).square().sum() for i, y in enumerate(found)).backward()
            except RuntimeError as error:
                seen.append((objects, str(error)[:40]))
            else:
                seen.append((objects, [y.requires_grad for y in found], [y.stride() for y in found], x.grad))
        if isinstance(seen[0][-1], Tensor):
            torch.testing.assert_close(seen[1][-1], seen[0][-1])
            seen = [each[:-1] for each in seen]
        assert seen[0] == seen[1]
    assert is_compiled(compiled)


VIEWS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "slice": lambda x, w: (x[1:], (x * w).sum()),
    "alone": lambda x, w: (x.t(),),
    "several of one": lambda x, w: (*x.unbind(0), (x @ w).sum()),
    "split and reshaped": lambda x, w: (x.split(2, 1)[1], x.reshape(-1), w.sum()),
    "of two": lambda x, w: (x[0], w[0].view(-1, 1), x * 2),
    "detached": lambda x, w: (x.detach()[0], (x * w).sum()),
}


@pytest.mark.parametrize("name", VIEWS)
def test_results_that_are_views_of_arguments(name: str) -> None:
    """Views of what autograd knows as their base, with the history of a view."""
    compiled = smelt.compile(VIEWS[name])
    for step in range(3):
        seen = []
        for f in (VIEWS[name], compiled):
            leaf = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(step)).requires_grad_()
            x, w = leaf[0] * 1, leaf[1] * 1
            found = f(x, w)
            loss = torch.stack([(y.double() * (i + 1)).sum() for i, y in enumerate(found) if y.requires_grad]).sum()
            (grad,) = torch.autograd.grad(loss, leaf)
            seen.append(([(y._base is x, y._base is w, y.requires_grad, y.stride()) for y in found], grad))
        assert seen[0][0] == seen[1][0]
        torch.testing.assert_close(seen[0][1], seen[1][1])
    assert is_compiled(compiled)


def test_what_is_left_to_eager() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return g * 3

    def own(x: Tensor) -> Tensor:
        return Own.apply(x).sum()

    compiled = smelt.compile(own)
    _told(compiled, torch.ones(3, requires_grad=True), match="backward in Python")
    for _ in range(3):
        x, y = (torch.full((3,), 0.5, requires_grad=True) for _ in range(2))
        own(x).backward()
        compiled(y).backward()
        assert torch.equal(x.grad, y.grad)


def test_anomalies_are_named_by_eager() -> None:
    model, _, compiled = pair(Net)
    x = torch.randn(6, 8)
    compiled(x).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, that this is slow
        with torch.autograd.detect_anomaly(check_nan=True):
            found = compiled(x)
    assert found.grad_fn.name() == model(x).grad_fn.name()


def test_autocast() -> None:
    model, other, compiled = pair(Net)
    x = torch.randn(6, 8)
    for _ in range(3):
        for m in (model, compiled):
            m.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = m(x).float().square().mean()
            loss.backward()
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(q.grad, p.grad, rtol=0.1, atol=2e-2)
    assert is_compiled(compiled)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.map(x)
        with torch.no_grad():
            scale = y.float().square().mean()
        return y * scale


def test_autocast_and_no_grad_together() -> None:
    model, other, compiled = pair(Scaled)
    x = torch.randn(6, 8)
    for _ in range(3):
        for m in (model, compiled):
            m.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = m(x).float().sum()
            loss.backward()
        torch.testing.assert_close(other.map.bias.grad, model.map.bias.grad, rtol=0.05, atol=1e-2)
    assert is_compiled(compiled)


def test_other_sizes() -> None:
    model, other, compiled = pair(Net)
    for n in (3, 5, 5, 3, 7):
        x = torch.randn(n, 8)
        for m in (model, compiled):
            m.zero_grad()
            m(x).sum().backward()
        same_gradients(model, other)


def test_paths() -> None:
    """A program whose path depends on data is one graph, with eager's gradients on each path."""

    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x * w
        return (y if y.sum() > 0 else y * y).sum()

    compiled = smelt.compile(program)
    for sign in (1.0, -1.0, 1.0, -1.0, -1.0):
        found = []
        for f in (program, compiled):
            x, w = torch.tensor([1.0, 2.0], requires_grad=True), torch.full((2,), sign, requires_grad=True)
            f(x, w).backward()
            found.append((x.grad, w.grad))
        assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
    assert is_compiled(compiled) and compiled.stats().builds == 1


def test_writes_where_autograd_does_not_look() -> None:
    def clamped(x: Tensor) -> Tensor:
        y = x.clone()
        with torch.no_grad():
            y.clamp_(min=0.5)
        return (y * y).sum()

    def through_data(x: Tensor) -> Tensor:
        y = x * 2
        y.data.mul_(3)
        return (y * y).sum()

    def detached(x: Tensor) -> Tensor:
        y = x * 2
        y.detach()[0] = 7.0
        return (y * y).sum()

    for program in (clamped, through_data, detached):
        compiled = smelt.compile(program)
        _told(compiled, torch.ones(3, requires_grad=True), match="autograd does not look|gradients are needed")
        for _ in range(2):
            x, y = (torch.linspace(0, 1, 3).requires_grad_() for _ in range(2))
            program(x).backward()
            compiled(y).backward()
            assert torch.equal(x.grad, y.grad)
        if program is not through_data:
            with pytest.raises(smelt.SmeltError, match="autograd does not look"):
                smelt.trace(program, (torch.ones(3),)).grad_graph()


def test_scratch_tensors_written_without_gradients() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = x.abs()
            scale.clamp_(min=0.5)
        return (x * scale).sum()

    compiled = smelt.compile(program)
    for _ in range(3):
        x, y = (torch.linspace(-1, 1, 5).requires_grad_() for _ in range(2))
        program(x).backward()
        compiled(y).backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert is_compiled(compiled)


@pytest.mark.usefixtures("young_heap")
def test_what_was_saved_is_freed() -> None:
    _, _, compiled = pair(Net)
    x = torch.randn(6, 8, requires_grad=True)
    compiled(x).sum().backward()
    loss = compiled(x)
    node = weakref.ref(loss.grad_fn)
    loss.sum().backward()
    del loss
    gc.collect()
    assert node() is None


def test_saved_tensor_hooks_see_what_is_saved() -> None:
    _, other, compiled = pair(Net)
    x = torch.randn(6, 8)
    compiled(x).sum().backward()
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        compiled(x).sum().backward()
    assert packed and other.up.weight.grad is not None


def test_a_budget_of_memory_changes_no_gradient() -> None:
    torch.manual_seed(0)
    # A first layer can be computed again where eager keeps its weight, too: where its input needs a gradient.
    net, x = Net(), torch.randn(6, 8, requires_grad=True)
    expected = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    kept = []
    for budget in (1.0, 0.5, 0):
        compiled = smelt.compile(copy.deepcopy(net), options={"memory_budget": budget})
        compiled(x).square().sum().backward()
        sizes: list[int] = []
        given = [x, *compiled.parameters()]
        with torch.autograd.graph.saved_tensors_hooks(_bytes_into(sizes, given), lambda tensor: tensor):
            found = torch.autograd.grad(compiled(x).square().sum(), list(compiled.parameters()))
        for got, want in zip(found, expected, strict=True):
            torch.testing.assert_close(got, want)
        assert is_compiled(compiled)
        kept.append(sum(sizes))
    assert kept[0] >= kept[1] > kept[2]
    for wrong in (-0.1, 1.5, True, "half"):
        with pytest.raises(smelt.SmeltError, match="memory_budget"):
            smelt.compile(net, options={"memory_budget": wrong})


def _bytes_into(sizes: list[int], given: list[Tensor]) -> Callable[[Tensor], Tensor]:
    places = {tensor.data_ptr() for tensor in given}

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(0 if tensor.data_ptr() in places else tensor.nbytes)
        return tensor

    return pack


class Residual(nn.Module):
    """A block of convolutions, batch norms, pooling and a shortcut of strides 2, wide enough for kernels of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.one, self.two = nn.Conv2d(16, 32, 3, 2, 1), nn.Conv2d(32, 32, 3, padding=1, bias=False)
        self.norm1, self.norm2, self.short = nn.BatchNorm2d(32), nn.BatchNorm2d(32), nn.Conv2d(16, 32, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.norm(self.stem(x))), 3, 2, 1)
        y = self.norm2(self.two(torch.relu(self.norm1(self.one(x)))))
        return torch.relu(y + self.short(x)).mean((2, 3))


def test_convolutions_batch_norms_and_pooling_save_their_operands_alone() -> None:
    """Saved tensors lie as the kernels leave them: channels last, with no copy; batch norms save what comes in."""
    model, other, compiled = pair(Residual)
    x = torch.randn(4, 3, 24, 24)
    for run in range(3):
        for net, call in ((model, model), (other, compiled)):
            net.zero_grad()
            call(x + run).square().sum().backward()
        for (name, p), q in zip(model.named_parameters(), other.parameters(), strict=True):
            # A bias in front of a batch norm has a gradient of rounding errors.
            slack = 1e-3 if name == "one.bias" else 2e-5 * float(p.grad.abs().max())
            torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=slack, msg=name)
            assert q.grad.stride() == p.grad.stride()
        for a, b in zip(model.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(b, a)
    assert is_compiled(compiled)
    saved: dict[int, int] = {}

    def noted(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    nbytes = []
    for call in (model, compiled):
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(noted, lambda tensor: tensor):
            out = call(x)
        nbytes.append(sum(saved.values()))
        del out
    own = sum(p.nbytes for p in model.parameters()) + x.nbytes
    assert nbytes[1] - own <= 0.7 * (nbytes[0] - own), (nbytes, own)


def test_what_reads_attention_with_a_mask_that_is_trained() -> None:
    """Eager's result is row-major then, that of the kernel which stands for it is not."""

    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(1, 2, 4, 4))

        def forward(self, x: Tensor) -> Tensor:
            heads = x.view(3, 4, 2, 8).transpose(1, 2)
            mixed = F.scaled_dot_product_attention(heads, heads, heads, self.bias)
            return mixed.reshape(3, -1, 4, 8).transpose(1, 2).reshape(3, 4, 16)

    model, other, compiled = pair(Biased)
    for _ in range(3):
        x = torch.randn(3, 4, 16)
        for m in (model, compiled):
            m.zero_grad()
            m(x).square().sum().backward()
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
        same_gradients(model, other)
    assert is_compiled(compiled)
