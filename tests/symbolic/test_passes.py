"""All passes on graphs whose sizes are symbols, against the evaluator and eager at many sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from smelt.capture import Captured, capture
from smelt.capture.dynamic.spec import Free, Spec
from smelt.compiler.pipeline import FUNCTIONAL, OPTIMIZED
from smelt.ir import Graph, verify
from smelt.ops.check import check
from smelt.ops.evaluate import evaluate
from smelt.passes.base import PassContext
from smelt.passes.manager import run_passes
from smelt.passes.sized import Sizes, has_symbols

_HEADS, _WIDTH = 4, 32


class Attention(nn.Module):
    """Spelled out, so that the passes see one attention, merged products and no copies."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(_WIDTH, _WIDTH) for _ in range(4))
        self.norm = nn.LayerNorm(_WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        x = self.norm(x)
        q, k, v = (f(x).view(b, s, _HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) / (_WIDTH // _HEADS) ** 0.5 + mask
        return x + self.o((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, s, _WIDTH))


class Writes(nn.Module):
    """Mutation through views, sizes as numbers, joins, parts."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        b, s, d = x.shape
        z = x.clone()
        z[:, 1:] += x[:, :-1]
        z[:, 0].mul_(2)
        counts = torch.zeros(b, s)
        counts[:, : s // 2] += 1
        rows = z.reshape(b * s, d)
        first, second = z.chunk(2, -1)
        return torch.cat([first, z, second], -1), rows.mean(0) * s, counts.sum() / (b * s), z.flatten(1).view(b, s, -1)


class Creates(nn.Module):
    """What would be a constant if the sizes were."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        b, s, _ = x.shape
        places = torch.arange(s)
        return x + places[None, :, None], torch.ones(s, s).triu(1), mask + torch.ones(b, 1, s, s)


class Joined(nn.Module):
    """Torch's own code for a composite takes numbers: it is followed at several sizes."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        scale = x.shape[1] ** -0.5
        scores = torch.einsum("bsd,btd->bst", x, x) * scale
        return torch.einsum("bst,btd->bsd", scores, x), x * (x.shape[0] / x.shape[1]) + x.shape[1]


class Loops(nn.Module):
    """As many trips as a size says."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> Any:
        state = torch.zeros(x.shape[0], _WIDTH)
        for i in range(x.shape[1]):
            state = torch.tanh(state + x[:, i])
        return state, mask * x.shape[0]


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.down = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor) -> Any:
        y = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.down(y), F.adaptive_avg_pool2d(y, 1).flatten(1)


@dataclass(frozen=True)
class Case:
    """module, its arguments at sizes, what is free, and the sizes that are run."""

    module: Callable[[], nn.Module]
    arguments: Callable[[Mapping[str, int]], Sequence[torch.Tensor]]
    spec: Spec
    hint: Mapping[str, int]
    others: Sequence[Mapping[str, int]]


def _sequence(sizes: Mapping[str, int]) -> Sequence[torch.Tensor]:
    torch.manual_seed(1)
    b, s = sizes["B"], sizes["S"]
    return torch.randn(b, s, _WIDTH), torch.randn(b, 1, 1, s)


def _image(sizes: Mapping[str, int]) -> Sequence[torch.Tensor]:
    torch.manual_seed(1)
    return (torch.randn(sizes["B"], 3, 16, 12),)


def _free(low: int) -> Spec:
    b, s = Free("B", low=low), Free("S", low=low)
    return {("args[0]", 0): b, ("args[0]", 1): s, ("args[1]", 0): b, ("args[1]", 3): s}


_OTHERS = ({"B": 2, "S": 3}, {"B": 5, "S": 64}, {"B": 7, "S": 2}, {"B": 2, "S": 300})
_ONES = (*_OTHERS, {"B": 1, "S": 9}, {"B": 4, "S": 1}, {"B": 1, "S": 1})
_CASES = {
    f"{module.__name__} from {low}": Case(module, _sequence, _free(low), {"B": 3, "S": 10}, others)
    for module in (Attention, Writes, Creates, Joined, Loops)
    for low, others in ((2, _OTHERS), (1, _ONES))
} | {"Convolutions": Case(Convolutions, _image, {("args[0]", 0): Free("B")}, {"B": 3}, ({"B": 2}, {"B": 9}, {"B": 12}))}


def _captured(case: Case) -> tuple[nn.Module, Captured]:
    torch.manual_seed(0)
    module = case.module().eval()
    with torch.no_grad():
        captured = capture(module, case.arguments(case.hint), {}, target=module, dynamic=case.spec)
    assert captured.sizes is not None, captured.warnings
    return module, captured


def _sizes(captured: Captured) -> Sizes:
    facts = captured.sizes
    assert facts is not None
    gone = {*facts.fixed, *facts.equal}
    kept = {name: origin for name, origin in facts.symbols.items() if name not in gone and origin.range is not None}
    return Sizes(
        {name: (origin.hint, origin.range) for name, origin in kept.items()},  # type: ignore[misc]
        {name: (origin.input, origin.dim) for name, origin in kept.items()},
    )


def _passed(graph: Graph, captured: Captured, sizes: Sizes | None, passes: Any) -> Graph:
    made = graph.clone()
    run_passes(made, passes, PassContext(captured.state.lookup, sizes=sizes))
    verify(made, check)
    return made


@pytest.mark.spread(10)
@pytest.mark.parametrize("name", _CASES)
@pytest.mark.parametrize("with_sizes", [True, False])
def test_answers_stay_at_all_sizes(name: str, with_sizes: bool) -> None:
    case = _CASES[name]
    module, captured = _captured(case)
    assert captured.graph is not None and captured.sizes is not None
    sizes = _sizes(captured) if with_sizes else None
    functional = _passed(captured.graph, captured, sizes, FUNCTIONAL)
    optimized = _passed(
        functional, captured, sizes, [p for p in OPTIMIZED if p.name not in ("attention-fast", "lower-precision")]
    )
    assert has_symbols(optimized)
    ran = 0
    for point in (case.hint, *case.others):
        is_inside = captured.sizes.holds(point)
        if sizes is not None:
            is_inside = is_inside and all(condition.check(point) for condition in sizes.conditions)
        if not is_inside:
            assert point is not case.hint
            continue
        ran += 1
        for graph in (functional, optimized):
            with torch.no_grad():
                expected = module(*case.arguments(point))
                found = evaluate(graph, case.arguments(point), captured.state.lookup)
            expected = expected if isinstance(expected, tuple) else (expected,)
            for a, b in zip(found, expected, strict=True):
                assert (a.shape, a.dtype) == (b.shape, b.dtype), point
                assert a.stride() == b.stride() or a.numel() == 0 or 1 in a.shape, point
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert ran >= 3


def test_attention_is_found_with_symbols() -> None:
    case = _CASES["Attention from 2"]
    _, captured = _captured(case)
    assert captured.graph is not None
    sizes = _sizes(captured)
    optimized = _passed(captured.graph, captured, sizes, (*FUNCTIONAL, *OPTIMIZED))
    ops = [node.op for node in optimized.walk()]
    assert "aten.scaled_dot_product_attention.default" in ops
    # Queries, keys and values are one product.
    assert ops.count("aten.linear.default") == 2
    assert sizes.conditions == []


def test_sizes_are_no_constants() -> None:
    """What is made of sizes alone is not folded, merged or hoisted as what is made of literals is."""
    case = _CASES["Creates from 2"]
    _, captured = _captured(case)
    assert captured.graph is not None
    optimized = _passed(captured.graph, captured, _sizes(captured), (*FUNCTIONAL, *OPTIMIZED))
    assert "aten.arange.default" in [node.op for node in optimized.walk()]
    with torch.no_grad():
        for size in (2, 9):
            found = evaluate(optimized, _sequence({"B": 2, "S": size}), captured.state.lookup)
            assert found[0].shape == (2, size, _WIDTH)


def test_guards_are_kept_of_what_passes_compare() -> None:
    """A graph that was turned by a comparison holds only where it comes out so."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return x.expand(4, x.shape[1]) + 1

    x = torch.randn(1, 6)
    captured = capture(run, (x,), {}, dynamic={("args[0]", 1): Free("N")})
    assert captured.graph is not None and captured.sizes is not None
    sizes = _sizes(captured)
    optimized = _passed(captured.graph, captured, sizes, (*FUNCTIONAL, *OPTIMIZED))
    for size in (2, 6, 11):
        assert captured.sizes.holds({"N": size}) and all(c.check({"N": size}) for c in sizes.conditions)
        given = torch.randn(1, size)
        assert torch.equal(evaluate(optimized, [given])[0], run(given))


def test_numbers_among_the_inputs() -> None:
    """A number that is a symbol is an input, also where passes made a size of it."""

    def run(x: torch.Tensor, n: int) -> Any:
        return x.reshape(n, -1) * n, torch.zeros(n + 1), n

    captured = capture(
        run, (torch.randn(6, 4), 3), {}, dynamic={("args[0]", 0): Free("R"), ("args[1]", None): Free("n", low=1)}
    )
    assert captured.graph is not None and captured.sizes is not None, captured.warnings
    sizes = _sizes(captured)
    optimized = _passed(captured.graph, captured, sizes, (*FUNCTIONAL, *OPTIMIZED))
    for rows, n in ((6, 3), (10, 5), (4, 8), (9, 2)):
        values = {"R": rows, "n": n}
        if captured.sizes.holds(values) and all(c.check(values) for c in sizes.conditions):
            x = torch.randn(rows, 4)
            inputs = [x if value.name != "n" and index == 0 else n for index, value in enumerate(optimized.inputs)]
            for a, b in zip(evaluate(optimized, inputs), run(x, n), strict=True):
                assert torch.equal(a, b) if isinstance(b, torch.Tensor) else a == b


def test_composites_are_followed_at_all_sizes() -> None:
    _, captured = _captured(_CASES["Joined from 2"])
    assert captured.graph is not None
    sizes = _sizes(captured)
    optimized = _passed(captured.graph, captured, sizes, (*FUNCTIONAL, *OPTIMIZED))
    ops = {node.op for node in optimized.walk()}
    assert "aten.einsum.default" not in ops and "aten.bmm.default" in ops
    assert sizes.conditions == []
