"""Bags of rows as gathers and sums: eager's results and refusals, and what stays torch's operator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import smelt
from smelt.inspect.kernels import compiled_units
from tests.codegen.harness import rms_ratio

_TABLE = torch.randn(50, 24, generator=torch.Generator().manual_seed(0))
_INDICES = torch.randint(0, 50, (7, 5), generator=torch.Generator().manual_seed(1))


def _is_gathered(compiled: object) -> bool:
    ops = [node.op for unit in compiled_units(compiled) for node in unit.optimized.walk()]
    return "aten.gather.default" in ops and not any("embedding_bag" in op for op in ops)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("size", [1, 5])
def test_bags_of_one_size(mode: str, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.EmbeddingBag(50, 24, mode=mode, dtype=dtype).eval()
    compiled = smelt.compile(model, options={"measure": False})
    for indices in (_INDICES[:, :size], _INDICES.T.contiguous().T[:, :size]):
        mine, theirs = compiled(indices), model(indices)
        exact = model.double()(indices)
        model.to(dtype)
        assert mine.stride() == theirs.stride() and rms_ratio(mine, theirs, exact) <= 1.5
    assert _is_gathered(compiled)
    model.weight[_INDICES[3, 0], 4] = torch.inf
    model.weight[_INDICES[4, 0], 5] = torch.nan
    torch.testing.assert_close(compiled(indices), model(indices), equal_nan=True)


@torch.no_grad()
def test_several_tables_and_what_is_joined_behind_them() -> None:
    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(n, 16, mode="sum") for n in (20, 30, 40))

        def forward(self, sparse: Tensor) -> Tensor:
            return torch.cat([table(sparse[:, i]) for i, table in enumerate(self.tables)], 1).relu()

    torch.manual_seed(0)
    model, sparse = Tables().eval(), torch.randint(0, 20, (9, 3, 4))
    compiled = smelt.compile(model, options={"measure": False})
    torch.testing.assert_close(compiled(sparse), model(sparse))
    assert _is_gathered(compiled)


@torch.no_grad()
@pytest.mark.parametrize("wrong", [50, -1])
def test_rows_that_there_are_not(wrong: int) -> None:
    compiled = smelt.compile(lambda i: F.embedding_bag(i, _TABLE, mode="sum"), options={"measure": False})
    compiled(_INDICES)
    compiled(_INDICES)
    indices = _INDICES.clone()
    indices[2, 3] = wrong
    with pytest.raises(RuntimeError):
        F.embedding_bag(indices, _TABLE, mode="sum")
    with pytest.raises(RuntimeError):
        compiled(indices)
    torch.testing.assert_close(compiled(_INDICES), F.embedding_bag(_INDICES, _TABLE, mode="sum"))


_STAYING: dict[str, Callable[[Tensor], Tensor]] = {
    "offsets of several sizes": lambda i: F.embedding_bag(i.flatten(), _TABLE, torch.tensor([0, 3, 20]), mode="sum"),
    "an empty first bag": lambda i: F.embedding_bag(i.flatten(), _TABLE, torch.tensor([0, 0]), mode="sum"),
    "the largest": lambda i: F.embedding_bag(i, _TABLE, mode="max"),
    "a row that counts for nothing": lambda i: F.embedding_bag(i, _TABLE, mode="sum", padding_idx=3),
    "weights": lambda i: F.embedding_bag(i, _TABLE, mode="sum", per_sample_weights=torch.ones(i.shape)),
    "half": lambda i: F.embedding_bag(i, _TABLE.half(), mode="sum"),
    "short indices": lambda i: F.embedding_bag(i.int(), _TABLE, mode="sum"),
}


@torch.no_grad()
@pytest.mark.parametrize("name", _STAYING)
def test_what_stays(name: str) -> None:
    compiled = smelt.compile(_STAYING[name], options={"measure": False})
    torch.testing.assert_close(compiled(_INDICES), _STAYING[name](_INDICES))
    assert not _is_gathered(compiled)


def test_gradients_are_eagers() -> None:
    torch.manual_seed(0)
    model, twin = (nn.EmbeddingBag(50, 24, mode="sum") for _ in range(2))
    twin.load_state_dict(model.state_dict())
    compiled = smelt.compile(twin, options={"measure": False})
    for one in (compiled, model):
        one(_INDICES).square().sum().backward()
    torch.testing.assert_close(twin.weight.grad, model.weight.grad)
