"""What a build for a second size takes: what the first one learnt stands in for a run, and for all stagings but one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import smelt
from smelt.codegen.lower.symbolic import lowering
from smelt.compiler import staged
from smelt.compiler.object.compiled_types import ObservedProgram


class Block(nn.Module):
    """A block of an encoder, or, with a mask, of a decoder."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.norm, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = (p.view(batch, length, 2, 16).transpose(1, 2) for p in self.qkv(self.norm(x)).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return x + self.out(seen.transpose(1, 2).reshape(batch, length, 32))


class Tokens(nn.Module):
    """BERT's and GPT-2's kind."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(256, 32)
        self.blocks = nn.Sequential(Block(is_causal), Block(is_causal))

    def forward(self, ids: Any) -> Any:
        return self.blocks(self.words(ids) + self.places(torch.arange(ids.shape[1])))


class Patches(nn.Module):
    """ViT's kind."""

    def __init__(self) -> None:
        super().__init__()
        self.cut, self.first = nn.Conv2d(3, 32, 8, 8), nn.Parameter(torch.randn(1, 1, 32))
        self.blocks = nn.Sequential(Block(False), Block(False))

    def forward(self, x: Any) -> Any:
        tokens = self.cut(x).flatten(2).transpose(1, 2)
        return self.blocks(torch.cat([self.first.expand(x.shape[0], -1, -1), tokens], 1))[:, 0]


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50, (batch, length))


def images(batch: int, side: int) -> torch.Tensor:
    return torch.randn(batch, 3, side, side)


KINDS = {
    "bert": (lambda: Tokens(False), ids, (24, 40, 33)),
    "gpt2": (lambda: Tokens(True), ids, (24, 40, 33)),
    "vit": (Patches, images, (32, 48, 64)),
    "convolutions": (convolutions, images, (16, 24, 33)),
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often programs are recorded and staged, and graphs lowered with symbols."""
    found: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return function(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    counted(ObservedProgram, "__call__")
    counted(staged, "stage")
    counted(lowering, "lower")
    yield found


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_size_takes_one_staging_and_one_lowering(kind: str, counts: Counter[str]) -> None:
    make, inputs, (first, second, third) = KINDS[kind]
    module = make().eval()
    compiled = smelt.compile(module, options={"adaptive": False})
    with torch.no_grad():

        def check(size: int) -> dict[str, int]:
            counts.clear()
            x = inputs(2, size)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
            return dict(counts)

        assert check(first) == {"__call__": 1}
        assert check(second) == {"stage": 1, "lower": 1}
        assert check(second) == {}
        # Only now the plan has to hold elsewhere: it is lowered once more, and compared.
        assert check(third) == {"lower": 1}
        assert check(third) == check(second) == {}
    assert compiled.stats().builds == 2 and compiled.stats().fallbacks == {}


def test_a_size_of_one_widens_what_is_there(counts: Counter[str]) -> None:
    module = Tokens(False).eval()
    compiled = smelt.compile(module, options={"adaptive": False})
    with torch.no_grad():
        for length in (24, 40, 1, 1, 40, 33):
            x = ids(2, length)
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-5)
    assert counts["__call__"] == 1 and counts["stage"] == 2
    assert compiled.stats().builds == 2 and len(compiled.stats().rows) == 2
    assert [row.calls for row in compiled.stats().entries] == [1, 5]


def told(x: Any) -> Any:
    """Another program from 30 on, which no call showed before."""
    return torch.exp(x) if x.shape[0] > 30 else torch.sin(x) * x.shape[0]


def told_alone(x: Any) -> Any:
    """A size that is compared by identity leaves no guard."""
    return x * 2 if x.shape[0] is SEEN else x * 3


SEEN = 4


@pytest.mark.parametrize("program", [told, told_alone], ids=lambda p: p.__name__)
@pytest.mark.parametrize("sizes", [(4, 40, 5, 4, 41), (40, 4, 5, 41), (4, 5, 40, 41)])
def test_a_program_that_tells_sizes_apart(program: Any, sizes: tuple[int, ...]) -> None:
    compiled = smelt.compile(program, options={"adaptive": False})
    for size in sizes * 2:
        x = torch.randn(size, 3)
        torch.testing.assert_close(compiled(x), program(x))


def test_what_a_program_does_at_a_second_size_is_done_once() -> None:
    done: list[int] = []

    def program(x: Any) -> Any:
        if x.shape[0] > 5:
            done.append(x.shape[0])
        return x * 2

    compiled = smelt.compile(program, options={"adaptive": False})
    for size in (3, 9, 4, 9, 8):
        x = torch.randn(size)
        assert torch.equal(compiled(x), x * 2)
    assert done == [9, 9, 8]


@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
def test_what_a_program_writes_at_a_second_size_is_written_once(tmp_path: Any) -> None:
    file = tmp_path / "log"

    def program(x: Any) -> Any:
        if x.shape[0] > 5:
            with open(file, "a") as out:
                out.write("x")
        return x * 2

    compiled = smelt.compile(program, options={"adaptive": False})
    for size in (3, 9, 4, 9, 8):
        x = torch.randn(size)
        assert torch.equal(compiled(x), x * 2)
    assert file.read_text() == "xxx"


def test_an_error_at_a_second_size_is_the_programs() -> None:
    table = nn.Embedding(16, 4)

    def program(x: Any) -> Any:
        return x + table(torch.arange(x.shape[0]))

    compiled = smelt.compile(program, options={"adaptive": False})
    with torch.no_grad():
        for size in (4, 20, 5, 17, 16):
            x = torch.randn(size, 4)
            if size <= 16:
                assert torch.equal(compiled(x), program(x))
            else:
                with pytest.raises(IndexError, match="index out of range"):
                    compiled(x)


@pytest.mark.parametrize("first", [False, True])
def test_gradients_at_a_second_size_where_the_first_had_none(first: bool) -> None:
    compiled = smelt.compile(lambda x, n: (x * n).tanh(), options={"adaptive": False, "train": True})
    for call, (size, n, needs) in enumerate(((3, 0.5, first), (3, 1.5, True), (5, 2.5, not first), (6, 3.5, True))):
        x = torch.randn(size, requires_grad=needs)
        y = compiled(x, n)
        assert y.requires_grad == needs, call
        if needs:
            y.sum().backward()
            torch.testing.assert_close(x.grad, n * (1 - (x.detach() * n).tanh() ** 2))


def test_what_changed_since_the_first_size_counts() -> None:
    layer = nn.Linear(4, 4)
    scale = [2.0]

    def program(x: Any) -> Any:
        return layer(x) * scale[0]

    compiled = smelt.compile(program, options={"adaptive": False})
    with torch.no_grad():
        for size, factor in ((3, 2.0), (5, 3.0), (6, 3.0), (7, 2.0), (5, 2.0)):
            scale[0] = factor
            layer.weight.mul_(1.5)
            x = torch.randn(size, 4)
            torch.testing.assert_close(compiled(x), program(x))
