"""`options={"dtype": "bf16"}`: the user's dtypes, bounded errors, and what `explain` says of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt._torch.library import precision
from smelt.capture import tensors_of
from smelt.codegen.lower.products import narrowing
from smelt.compiler import pipeline
from smelt.compiler.programs.precision import output_errors
from smelt.ir import DType, Graph, Node, TensorType, parse
from tests.zoo.build import build

BF16 = {"dtype": "bf16", "deterministic": True}
ZOO = ("bert", "gpt2", "llama", "vit", "t5", "resnet", "mobilenet_v2", "swin", "bloom", "wav2vec2")
# Relative to an output's own root mean square; DESIGN: a product rounds its operands and its result, 2^-9 each.
BOUND = 3e-2


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product is narrowed, however small it is, and whatever this CPU has."""
    monkeypatch.setattr(pipeline, "narrowing_pays", lambda node, options: True)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def narrow_products(graph: Graph) -> list[Node]:
    kinds = ("linear", "matmul", "bmm", "conv2d", "scaled_dot_product_attention")
    return [n for n in graph.walk() if n.op.split(".")[1:2] and n.op.split(".")[1] in kinds and is_bf16(n)]


def is_bf16(node: Node) -> bool:
    return isinstance(node.result.type, TensorType) and node.result.type.dtype is DType.BF16


@pytest.mark.spread(10)
@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", ZOO)
def test_a_spread_of_architectures_stays_within_the_bound(name: str) -> None:
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of transformers, while it builds the model
        made = build(name)
    expected = tensors_of(made.model(**made.inputs))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the program traced from .* holds for one path")  # of its mask
        program = smelt.trace(made.model, (), made.inputs, options=BF16)
    found = tensors_of(program(**made.inputs))
    assert program.native_failure is None
    assert narrow_products(program.graph_for(**made.inputs))
    assert [(t.dtype, t.shape) for t in found] == [(t.dtype, t.shape) for t in expected]
    for error in output_errors(expected, found):
        assert error.nonfinite == 0
        assert error.relative is None or error.relative < BOUND
    compiled = smelt.compile(made.model, options=BF16)
    compiled(**made.inputs)
    for a, b in zip(tensors_of(compiled(**made.inputs)), found, strict=True):
        assert torch.equal(a, b)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 32)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.down(F.gelu(self.up(x)))
        return y, y.argmax(-1), y.to(torch.float16)


@pytest.mark.usefixtures("always")
def test_results_have_the_dtypes_of_the_program_and_explain_has_their_errors() -> None:
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(8, 64)
    compiled = smelt.compile(net, options=BF16)
    first = compiled(x)
    rows = smelt.explain(compiled).precision
    again = compiled(x)
    assert [t.dtype for t in again] == [t.dtype for t in first] == [torch.float32, torch.int64, torch.float16]
    assert [row["output"] for row in rows] == [0, 2]
    error = (first[0].double() - again[0].double()).square().mean().sqrt().item()
    assert rows[0]["rms error"] == pytest.approx(error)
    assert 0 < rows[0]["relative to rms"] < 1e-2
    assert rows[0]["note"] == "2 of 2 products in bf16"
    assert "rms error" in str(smelt.explain(compiled))
    assert smelt.explain(compiled).to_dict()["precision"]


@pytest.mark.usefixtures("always")
def test_a_program_knows_its_errors_after_its_first_call() -> None:
    net, x = Net().eval(), torch.randn(8, 64)
    program = smelt.trace(net, x, options=BF16)
    assert "nothing was called" in smelt.explain(program).precision[0]["note"]
    program(x)
    x.zero_()  # what was measured is the first call
    assert smelt.explain(program).precision[0]["rms error"] > 0
    assert smelt.explain(smelt.trace(net, x)).precision == []


@pytest.mark.usefixtures("always")
def test_a_program_that_writes_has_no_errors_to_show() -> None:
    layer = nn.Linear(64, 64)

    def f(x: Tensor) -> Tensor:
        y = layer(x)
        x.add_(1)
        return y

    compiled = smelt.compile(f, options=BF16)
    compiled(torch.randn(4, 64))
    assert "writes" in smelt.explain(compiled).precision[0]["note"]


@pytest.mark.usefixtures("always")
def test_nan_infinity_and_large_numbers() -> None:
    layer = nn.Linear(8, 8, bias=False)
    layer.weight.copy_(torch.eye(8))
    x = torch.diag(torch.tensor([float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-30, 0.0, 1.0]))
    program = smelt.trace(layer, x, options=BF16)
    found, expected = program(x), layer(x)
    assert torch.equal(found.isnan(), expected.isnan())
    finite = expected.isfinite()
    assert torch.equal(found.isfinite(), finite)
    torch.testing.assert_close(found[finite], expected[finite], rtol=2**-8, atol=0)


@pytest.mark.usefixtures("always")
def test_changed_weights_are_narrowed_again() -> None:
    net, x = nn.Linear(64, 64), torch.randn(4, 64)
    compiled = smelt.compile(net, options=BF16)
    compiled(x)
    before = compiled(x)
    net.weight.mul_(2)
    net.bias.mul_(2)
    torch.testing.assert_close(compiled(x), before * 2, rtol=1e-2, atol=1e-2)
    compiled(x)
    torch.testing.assert_close(compiled(x), before * 2, rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_programs_of_other_dtypes_are_the_same_to_the_bit(dtype: torch.dtype) -> None:
    net, x = nn.Linear(64, 64).to(dtype), torch.randn(4, 64).to(dtype)
    plain, asked = (smelt.trace(net, x, options={"deterministic": True, **o}) for o in ({}, BF16))
    assert str(plain.graph_for(x)) == str(asked.graph_for(x))
    assert torch.equal(plain(x), asked(x))


@pytest.mark.usefixtures("always")
def test_the_pass_is_named_skipped_and_its_graph_is_text() -> None:
    net, x = nn.Linear(64, 64), torch.randn(4, 64)
    assert "lower-precision" in pipeline.pass_names()
    graph = smelt.trace(net, x, options=BF16).graph_for(x)
    assert narrow_products(graph)
    assert parse(str(graph)) == graph
    assert not narrow_products(smelt.trace(net, x, options={**BF16, "skip": ["lower-precision"]}).graph_for(x))
    assert not narrow_products(smelt.trace(net, x, options={"deterministic": True}).graph_for(x))
    assert smelt.trace(net, x, options=BF16).bisect(x) is None


def test_options_that_differ_in_dtype_differ() -> None:
    plain, asked = smelt.Options.make({}), smelt.Options.make({"dtype": "bf16"})
    assert plain != asked
    assert hash(plain) != hash(asked)
    with pytest.raises(smelt.SmeltError, match="option 'dtype' cannot be 'f16'") as caught:
        smelt.Options.make({"dtype": "f16"})
    assert "default, bf16" in (caught.value.why or "")


def test_only_large_products_on_a_cpu_that_has_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(features: int, size: int, **options: Any) -> int:
        monkeypatch.setattr(narrowing, "multiplies_bf16", lambda: bool(features))
        net, x = nn.Linear(size, size), torch.randn(64, size)
        return len(narrow_products(smelt.trace(net, x, options={**BF16, **options}).graph_for(x)))

    assert count(1, 512) == 1
    assert count(1, 16) == 0
    assert count(0, 512) == 0


def test_products_of_activations_are_narrowed_where_they_measure_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrowing, "multiplies_bf16", lambda: True)
    x = torch.randn(2, 96, 96)
    program = smelt.trace(lambda a: (a @ a).softmax(-1), x, options={"dtype": "bf16"})
    found = program(x)
    assert len(narrow_products(program.graph_for(x))) in (0, 1)
    assert found.dtype is torch.float32
    (error,) = output_errors([(x @ x).softmax(-1)], [found])
    assert error.largest < 0.2


def test_the_cpu_says_whether_it_multiplies_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    for capabilities, expected in (({"avx512_bf16": True}, True), ({"avx512_bf16": False}, False), ({}, False)):
        precision.multiplies_bf16.cache_clear()
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda c=capabilities: c, raising=False)
        assert precision.multiplies_bf16() is expected
    precision.multiplies_bf16.cache_clear()
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    assert precision.multiplies_bf16() is True
    precision.multiplies_bf16.cache_clear()
