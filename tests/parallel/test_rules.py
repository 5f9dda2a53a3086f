"""Each rule of how an operator is divided: every sample, each dimension of each operand divided, evenly and not.

The ranks together have to compute what the operator computes, and its gradients, whatever follows from the division.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import smelt
from smelt.ir import Graph, TensorType, Value
from smelt.ops.catalogue import CATALOGUE, record_of
from smelt.ops.catalogue.sharding import RULES
from smelt.ops.catalogue.sharding.forms import FORMS
from smelt.ops.catalogue.sharding.pointwise import is_by_elements
from smelt.ops.ranks.placements import Replicate, Shard, evenly
from tests.autodiff.gradient_harness import graph_of, in_f64, with_tensors
from tests.parallel.ranks import check_gradients, check_outputs, parts_of

_ELSEWHERE = {"aten._grouped_mm.default"}
"""What torch has in f32 and of rows of 16 bytes only (`test_sorted`)."""
_RULED = [
    r.name for r in CATALOGUE
    if (r.name in RULES or r.name in FORMS) and not r.uninitialised and r.name not in _ELSEWHERE
]  # fmt: skip
_POINTWISE = [
    r.name for r in CATALOGUE if r.name not in _RULED and is_by_elements(r.name) and not r.uninitialised
]  # fmt: skip
_NO_GRADIENT = {"aten.floor_divide.default", "aten.remainder.Scalar_Tensor"}
"""Of which torch's own autograd says that it has none."""


def _divisions(graph: Graph, most: int = 6) -> Iterator[dict[str, Shard]]:
    """Each dimension of each input divided by itself; in halves, unevenly, in two parts."""
    count = 0
    for value in graph.inputs:
        if not isinstance(value.type, TensorType):
            continue
        for dim, size in enumerate(value.type.sizes):
            kinds = [Shard(dim, evenly(size, 2))] if size >= 2 else []
            kinds += [Shard(dim, (1, size - 1))] if size >= 3 else []
            kinds += [Shard(dim, (size // 4, size // 4), 2)] if size % 4 == 0 and size else []
            for at in kinds:
                count += 1
                if count <= most:
                    yield {value.name: at}


def _check(name: str) -> int:
    record, divided = record_of(name), 0
    assert record is not None
    for sample in list(record.samples())[:4]:
        sample = with_tensors(sample, in_f64)
        graph, tensors = graph_of(name, sample)
        if not all(isinstance(v.type, TensorType) and v.type.is_static for v in graph.inputs):
            continue
        if any(t.is_complex() or t.is_quantized for t in tensors) or not tensors:
            continue
        for given in _divisions(graph):
            parts = parts_of(graph, 2, given, outputs=[None] * len(graph.outputs))
            check_outputs(graph, tensors, parts)
            if name not in _NO_GRADIENT:
                check_gradients(graph, tensors, parts)
            names = {v.name for v in graph.outputs if isinstance(v, Value)}
            divided += any(not isinstance(parts[0].placements[name], Replicate) for name in names)
    return divided


@pytest.mark.parametrize("name", _RULED)
def test_a_rule_divides_right(name: str) -> None:
    assert _check(name) or name in FORMS or name in _NEVER_DIVIDED


_NEVER_DIVIDED = frozenset((
    # Samples of which weights are larger than what is divided (`test_a_rule_saves_a_gather`), or parts are unequal.
    "aten.lstm.input", "aten.gru.input", "aten.rnn_tanh.input", "aten.rnn_relu.input", "aten.concat.default",
    "aten.concatenate.default",
))  # fmt: skip


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(8, 6, 2, batch_first=True), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0])


class Einsum(nn.Module):
    """Attention by equations, with weights of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(8, 4, 3)) for _ in range(3))
        self.out, self.norm = nn.Parameter(torch.randn(4, 3, 8)), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("...sw,whd->...shd", self.norm(x), w) for w in (self.q, self.k, self.v))
        weights = torch.einsum("bshd,bthd->bhst", q, k).softmax(-1)
        return torch.einsum("bhst,bthd,hdw->bsw", weights, v, self.out)


class Places(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.second, self.name = nn.Linear(8, 8), nn.Linear(8, 8), name

    def forward(self, x: Tensor) -> Tensor:
        return self.second(_PLACES[self.name](self.first(x)))


_PLACES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "fft": lambda x: torch.fft.irfft(torch.fft.rfft(x, dim=1), n=x.shape[1], dim=1),
    "fft2": lambda x: torch.fft.fft2(x).real + torch.view_as_real(torch.fft.fft(x, dim=1)).sum(-1),
    "windows": lambda x: F.pad(x, (0, 0, 0, 1)).unfold(1, 2, 1).sum(-1),
    "strided": lambda x: x.as_strided((x.shape[0], 3, 4, 8), (48, 8, 8, 1)).mean(1).repeat(1, 2, 1)[:, :6],
    "add": lambda x: x.index_add(1, torch.tensor([1, 1]), x[:, :2]),
    "put": lambda x: x.transpose(0, 1).index_put((torch.tensor([1, 4]),), x[:, 0]).transpose(0, 1),
    "pool": lambda x: x + F.adaptive_avg_pool1d(x.transpose(1, 2), 1).transpose(1, 2),
    "glu": lambda x: F.glu(x.repeat(1, 1, 2)).tril(),
    "pool of images without a batch": lambda x: F.max_pool2d(x, 3, 1, 1),
    "any": lambda x: torch.where((x > 9).any() | (x < 9).all(), x, -x),
}  # fmt: skip


@pytest.mark.parametrize("name", _PLACES)
def test_what_goes_by_places(name: str) -> None:
    torch.manual_seed(0)
    s = smelt.schedule(Places(name).double(), (torch.randn(4, 6, 8, dtype=torch.float64),))
    proof = s.data_parallel("dp").verify(mesh="dp=2", steps=1)
    assert proof.error < 1e-9
    # What is sent is gradients, and no more than that of the sequence.
    assert proof.ranks[0].sent["dp"][0] <= 6, proof


@pytest.mark.parametrize("make", [Recurrent, Einsum])
def test_a_rule_saves_a_gather(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(6, 5, 8, dtype=torch.float64)
    s = smelt.schedule(model, (x,)).data_parallel("dp")
    assert s.verify(mesh="dp=2", steps=2).error < 1e-9
    assert "dist.all_gather" not in str(s.graphs("dp=2", 0)["forward"])


def test_products_by_equations_are_divided_by_heads() -> None:
    torch.manual_seed(0)
    ready = smelt.schedules.tensor_parallel(Einsum().double(), (torch.randn(3, 5, 8, dtype=torch.float64),), ranks=2)
    assert ready.applied["tensors"] == 4
    assert ready.schedule.verify(mesh="tp=2", steps=2).error < 1e-9
    assert "dist.all_gather" not in str(ready.schedule.graphs("tp=2", 0)["forward"])


@pytest.mark.parametrize(
    "loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits]
)
@pytest.mark.parametrize("mesh", ["dp=3", "pp=2"])
def test_losses_by_elements(loss: Callable[..., Tensor], mesh: str) -> None:
    class Fitted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return loss(self.second(self.first(x).tanh()), y)

    torch.manual_seed(0)
    s = smelt.schedule(
        Fitted().double(), (torch.randn(8, 8, dtype=torch.float64), torch.rand(8, 4, dtype=torch.float64))
    )
    if mesh == "pp=2":
        s.pipeline(2, microbatches=4)
    else:
        s.data_parallel("dp")
        assert "dist.all_gather" not in str(s.graphs(mesh, 0)["forward"])
    assert s.verify(mesh=mesh, steps=2).error < 1e-9


@pytest.mark.spread(3)
@pytest.mark.parametrize("name", _POINTWISE)
def test_by_elements_divides_right(name: str) -> None:
    _check(name)


def test_most_by_elements_stay_divided() -> None:
    assert sum(_check(name) > 0 for name in _POINTWISE[::10]) > len(_POINTWISE[::10]) // 2


def test_the_table_names_operators() -> None:
    named = [name for name in (*RULES, *FORMS) if not name.startswith("dist.")]
    missing = [
        name for name in named if not hasattr(getattr(torch.ops.aten, name.split(".")[1], None), name.split(".")[2])
    ]
    assert missing == []
