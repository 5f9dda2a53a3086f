"""Each private torch name behind `smelt.ops` has a second way that gives the same answer."""

from __future__ import annotations

import pytest
import torch

from smelt._torch import storage
from smelt._torch.library import schemas
from smelt._torch.seen import fake
from smelt.ir import Builder, DType, TensorType
from smelt.ops import meta
from smelt.ops.meta import CannotRun


@pytest.mark.parametrize("op", ["aten.add.Tensor", "aten.add_.Tensor", "aten.split.Tensor", "aten.linear.default"])
def test_schema_by_name(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = schemas.find_overload(op)
    expected = schemas.read_schema(found)
    monkeypatch.setattr(schemas, "raw_schema", schemas._schema_by_name)
    assert schemas.read_schema(found) == expected


def test_storage_by_query() -> None:
    a, b = torch.empty(3, 4, device="meta"), torch.ones(3, 4)
    pairs = [(a, a.t()), (a, torch.empty_like(a)), (b, b[1:]), (b, b.clone()), (a, b)]
    assert [storage._same_by_storage(*p) for p in pairs] == [True, False, True, False, False]
    assert [storage._same_by_query(*p) for p in pairs] == [True, False, True, False, False]


def test_without_fake_tensors_zeros_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    x = Builder.new("f", {"x": TensorType.of(DType.F32, (2, 3))}).graph.inputs[0]
    by_fake = meta.fake_outcome("aten.sum.dim_IntList", (x, (0,)), {})[0]
    monkeypatch.setattr(fake, "FakeTensorMode", None)
    with pytest.raises(CannotRun, match="no fake tensors"):
        meta.fake_outcome("aten.sum.dim_IntList", (x, (0,)), {})
    assert meta.data_outcome("aten.sum.dim_IntList", (x, (0,)), {})[0].types == by_fake.types
