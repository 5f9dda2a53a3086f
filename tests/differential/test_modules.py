"""Modules whose state, structure, modes and flags change between calls: always eager's answer."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import smelt
from tests.differential.compare import difference, observe
from tests.differential.judge import FAST

F = torch.nn.functional


class Tied(nn.Module):
    """An embedding whose table is the output's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.out(self.embed(x.abs().long().clamp(max=6).flatten()))
        return found


class Counting(nn.Module):
    """Buffers that each call changes: a count, a running sum written through a view, one replaced as a whole."""

    count: torch.Tensor
    sums: torch.Tensor
    last: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("sums", torch.zeros(2, 4))
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.sums[1].add_(x.sum(0))
        self.last.copy_(x[0])
        return x * self.count + self.sums.sum() - self.last


class Heads(nn.Module):
    """Three products of one input, which may be merged and packed, and attention spelled out."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(4, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).view(x.shape[0], 2, 4).transpose(0, 1) for f in (self.q, self.k, self.v))
        out = torch.softmax(q @ k.mT * 0.5, -1) @ v
        found: torch.Tensor = self.norm(out.transpose(0, 1).flatten(1))
        return found


class Image(nn.Module):
    """Convolution, batch norm, activation, pooling: what is folded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.end = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(3, 2)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.end(F.relu(self.norm(self.conv(x[None, None]))).mean((-1, -2)))
        return found


MODULES: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)),
    "heads": Heads,
    "image": Image,
    "tied": Tied,
    "dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.ReLU()),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
    "counting": Counting,
    "recurrent": lambda: nn.GRU(4, 3, batch_first=True),
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
}


def _floats(module: nn.Module) -> list[torch.Tensor]:
    return [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]


def _first(module: nn.Module, kind: type[nn.Module] = nn.Linear) -> nn.Module | None:
    return next((m for m in module.modules() if isinstance(m, kind)), None)


def _in_place(module: nn.Module) -> None:
    with torch.no_grad():
        for tensor in _floats(module):
            tensor.mul_(1.5)


def _one_element(module: nn.Module) -> None:
    with torch.no_grad():
        for tensor in _floats(module):
            tensor.view(-1)[-1] += 1


def _data(module: nn.Module) -> None:
    for tensor in _floats(module):
        tensor.data = tensor.data * 0.5


def _load(module: nn.Module) -> None:
    module.load_state_dict({k: v * 2 for k, v in module.state_dict().items()})


def _load_assigned(module: nn.Module) -> None:
    module.load_state_dict({k: v * 2 for k, v in copy.deepcopy(module.state_dict()).items()}, assign=True)


def _replace_parameter(module: nn.Module) -> None:
    linear = _first(module)
    if linear is not None:
        linear.weight = nn.Parameter(torch.ones_like(linear.weight))


def _replace_submodule(module: nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, nn.Linear(child.in_features, child.out_features, bias=False))
            return


def _hook(module: nn.Module) -> None:
    target = _first(module) or module
    target.register_forward_hook(lambda m, args, out: out * 2)


def _pre_hook(module: nn.Module) -> None:
    module.register_forward_pre_hook(lambda m, args: (args[0] + 1,))


def _swap(module: nn.Module) -> None:
    linears = [m for m in module.modules() if isinstance(m, nn.Linear)]
    with torch.no_grad():
        for m in linears:
            m.weight.copy_(m.weight.flip(0))


def _patch_forward(module: nn.Module) -> None:
    linear = _first(module)
    if linear is not None:
        original = linear.forward
        linear.forward = lambda x: original(x) - 3


def _optimizer(module: nn.Module) -> None:
    parameters = list(module.parameters())
    if parameters:
        for p in parameters:
            p.grad = torch.ones_like(p)
        torch.optim.SGD(parameters, lr=0.1).step()


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "in place": _in_place,
    "one element in place": _one_element,
    "data": _data,
    "load_state_dict": _load,
    "load_state_dict, assigned": _load_assigned,
    "replaced parameter": _replace_parameter,
    "replaced submodule": _replace_submodule,
    "other dtype": lambda m: m.double(),
    "train": lambda m: m.train(),
    "train one": lambda m: (list(m.children()) or [m])[-1].train(),
    "hook": _hook,
    "pre-hook": _pre_hook,
    "rows swapped": _swap,
    "patched forward": _patch_forward,
    "optimizer step": _optimizer,
    "zeroed": lambda m: [t.data.zero_() for t in _floats(m)],
}


def make(name: str) -> nn.Module:
    torch.manual_seed(5)
    return MODULES[name]().eval()


def inputs(module: nn.Module, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    dtype = next((t.dtype for t in module.parameters()), torch.float32)
    return torch.randn(5, 4, generator=generator).to(dtype)


def compare_calls(eager: nn.Module, other: Any, state: nn.Module, where: str, count: int = 3) -> None:
    """Both, side by side, with state compared after each call."""
    for call in range(count):
        outside = [*state.parameters(), *state.buffers()]
        expected = observe(eager, (inputs(eager, call),), [*eager.parameters(), *eager.buffers()], seed=call)
        found = observe(other, (inputs(state, call),), outside, seed=call)
        text = difference(expected, found, is_exact=False)
        assert text is None, f"{where}, call {call}: {text}"


@pytest.mark.spread(6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODULES)
def test_compiled_modules_follow_changes(name: str) -> None:
    for what, change in CHANGES.items():
        eager, module = make(name), make(name)
        compiled = smelt.compile(module, options=FAST)
        with torch.no_grad():
            compare_calls(eager, compiled, module, "at first")
        if what == "data" and any(not p.is_leaf for p in eager.parameters()):
            continue
        for one in (eager, module):
            torch.manual_seed(11)
            change(one)
        if what == "zeroed":
            compiled.refresh()  # `.data.zero_()` is counted by nobody
        with torch.no_grad():
            compare_calls(eager, compiled, module, what)


@pytest.mark.spread(6)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODULES)
def test_traced_modules_follow_their_state(name: str) -> None:
    for what in ("in place", "one element in place", "data", "load_state_dict", "load_state_dict, assigned", "train",
                 "other dtype", "rows swapped", "replaced parameter"):  # fmt: skip
        eager, module = make(name), make(name)
        with torch.no_grad():
            torch.manual_seed(0)
            eager(inputs(eager, 0))
            torch.manual_seed(0)
            program = smelt.trace(module, (inputs(module, 0),), options=FAST)
            compare_calls(eager, program, module, "at first")
            for one in (eager, module):
                torch.manual_seed(11)
                CHANGES[what](one)
            compare_calls(eager, program, module, what)


@pytest.mark.spread(10)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_modes(name: str, training: bool) -> None:
    """One compiled object called under every mode in turn; gradients where they are wanted."""
    eager, module = make(name).train(training), make(name).train(training)
    compiled = smelt.compile(module, options=FAST)
    modes: list[tuple[str, Callable[[], Any]]] = [
        ("no_grad", torch.no_grad),
        ("inference_mode", torch.inference_mode),
        ("autocast", lambda: torch.autocast("cpu", torch.bfloat16)),
        ("grad", torch.enable_grad),
    ]
    for what, mode in (*modes, *reversed(modes)):
        for call in range(2):
            results = []
            for one in (eager, compiled):
                torch.manual_seed(call)
                with mode(), torch.autograd.set_grad_enabled(what == "grad"):
                    results.append(observe(one, (inputs(eager, call),), seed=call))
            text = difference(results[0], results[1], is_exact=False)
            assert text is None, f"{what}, call {call}: {text}"
            for a, b in zip(results[0].leaves, results[1].leaves, strict=True):
                assert a.is_inference() == b.is_inference(), what
                assert (a.grad_fn is None) == (b.grad_fn is None), what


def test_gradients_flow_through_a_compiled_module() -> None:
    eager, module = make("mlp"), make("mlp")
    compiled = smelt.compile(module, options=FAST)
    with torch.no_grad():
        compiled(inputs(module, 0))
    eager(inputs(eager, 0)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        compiled(inputs(module, 0)).sum().backward()
    for a, b in zip(eager.parameters(), module.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def test_buffers_that_share_memory() -> None:
    """A buffer that is a slice of another, written by each call."""

    class Slices(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("whole", torch.arange(6.0))
            self.register_buffer("part", self.whole[2:4])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.part.add_(x)
            first = self.whole * 2
            self.whole.mul_(0.5)
            return first + self.part.sum()

    eager, module = Slices(), Slices()
    compiled = smelt.compile(module, options=FAST)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for x in (torch.ones(2), torch.zeros(2), torch.ones(1)):
            assert torch.equal(eager(x), compiled(x))
            assert torch.equal(eager.whole, module.whole)


def test_a_buffer_given_as_the_argument() -> None:
    eager, module = make("counting"), make("counting")
    compiled = smelt.compile(module, options=FAST)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for _ in range(3):
            assert torch.equal(eager(eager.sums), compiled(module.sums))
            assert torch.equal(eager.sums, module.sums)
            x = torch.ones(2, 4)
            assert torch.equal(eager(x), compiled(x))


def test_measured_choices_give_the_same_answer() -> None:
    """Kernels chosen by timing, larger products, several batch sizes in turn."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96), nn.LayerNorm(96)).eval()
    wide = copy.deepcopy(module).double()
    compiled = smelt.compile(module, options={})
    with torch.no_grad():
        for rows in (1, 4, 33, 128, 1, 4):
            x = torch.randn(rows, 96)
            exact, eager, found = wide(x.double()), module(x), (compiled(x), compiled(x))[1]
            theirs, ours = ((y.double() - exact).square().mean().sqrt() for y in (eager, found))
            assert ours <= 3 * theirs + 1e-7, (rows, ours, theirs)
