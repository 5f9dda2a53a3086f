"""How `dynamic_shapes` are read: what stands where in a call's arguments, and what is refused before anything runs."""

from __future__ import annotations

import dataclasses
from collections import namedtuple
from typing import Any

import pytest
import torch
from torch.export import Dim as ExportDim

from smelt.capture.structure.signature import flatten_arguments
from smelt.compiler.sizes.dims import Dim, read_entry
from smelt.compiler.sizes.dynamic_shapes import check_names, wishes
from smelt.diag import SmeltError


@dataclasses.dataclass
class Batch:
    ids: torch.Tensor
    mask: torch.Tensor
    scale: float = 1.0


Pair = namedtuple("Pair", "left right")
X = torch.zeros(4, 6)


def two(x: Any, y: Any = None, n: int = 3) -> None: ...
def rest(x: Any, *more: Any, flag: bool = False, **named: Any) -> None: ...


def found(shapes: Any, f: Any, *args: Any, **kwargs: Any) -> list[tuple[str, int | None, str, str | None]]:
    return [(w.place, w.axis, w.entry.kind, w.entry.name) for w in wishes(shapes, f, args, kwargs)]


@pytest.mark.parametrize(
    ("shapes", "args", "kwargs", "expected"),
    [
        ({"x": {0: "B"}}, (X,), {}, [("args[0]", 0, "named", "B")]),
        ({"x": {0: "B"}}, (), {"x": X}, [("kwargs['x']", 0, "named", "B")]),
        ({"x": {-1: "B"}}, (X,), {}, [("args[0]", 1, "named", "B")]),
        ({"x": ("B", None)}, (X,), {}, [("args[0]", 0, "named", "B"), ("args[0]", 1, "static", None)]),
        ({"x": [None, 6]}, (X,), {}, [("args[0]", 0, "static", None), ("args[0]", 1, "static", None)]),
        ({"x": None, "y": {1: Dim("S")}}, (X, X), {}, [("args[1]", 1, "named", "S")]),
        ({"y": {0: "B"}}, (X,), {}, []),
        ({"n": "n"}, (X,), {"n": 5}, [("kwargs['n']", None, "named", "n")]),
        (({0: "B"}, None, "n"), (X, X, 7), {}, [("args[0]", 0, "named", "B"), ("args[2]", None, "named", "n")]),
        ({"x": {0: ExportDim.AUTO, 1: ExportDim.STATIC}}, (X,), {},
         [("args[0]", 0, "auto", None), ("args[0]", 1, "static", None)]),
        ({"x": {0: ExportDim.DYNAMIC}}, (X,), {}, [("args[0]", 0, "auto", None)]),
    ],
)  # fmt: skip
def test_places(shapes: Any, args: Any, kwargs: Any, expected: Any) -> None:
    assert found(shapes, two, *args, **kwargs) == expected


def test_varying_parameters() -> None:
    assert found({"more": ({0: "A"}, None)}, rest, X, X, X) == [("args[1]", 0, "named", "A")]
    assert found({"named": {"k": {1: "A"}}}, rest, X, k=X, flag=True) == [("kwargs['k']", 1, "named", "A")]
    assert found({"k": {1: "A"}}, rest, X, k=X) == [("kwargs['k']", 1, "named", "A")]


def test_nested_places_are_those_of_a_signature() -> None:
    value = {"a": [X.clone(), Pair(X.clone(), X.clone())], "b": Batch(X.clone(), X.clone())}
    shapes = {"x": {"a": [{0: "P"}, (None, {1: "Q"})], "b": {"mask": {0: "R"}, "scale": "s"}}}
    places = [place for place, axis, *_ in found(shapes, two, value) if axis is not None]
    paths = flatten_arguments((value,), {}).paths
    assert places == ["args[0]['a'][0]", "args[0]['a'][1].right", "args[0]['b'].mask"]
    assert set(places) <= set(paths)


def test_a_module_is_known_by_its_forward() -> None:
    class M(torch.nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return ids

    assert found({"ids": {0: "B"}}, M(), X) == [("args[0]", 0, "named", "B")]
    with pytest.raises(SmeltError, match="'x', which is no parameter"):
        check_names({"x": {0: "B"}}, M())


def test_bounds() -> None:
    (wish,) = wishes({"x": {0: Dim("B", min=1, max=64)}}, two, (X,), {})
    assert (wish.entry.low, wish.entry.high, wish.value, wish.shown) == (1, 64, 4, "x.shape[0]")
    assert read_entry(ExportDim("B", min=2, max=8), "") == read_entry(Dim("B", min=2, max=8), "")
    assert read_entry(ExportDim("B"), "") == read_entry("B", "")
    hint = read_entry(ExportDim.AUTO(min=2, max=5), "")
    assert (hint.kind, hint.low, hint.high) == ("auto", 2, 5)


@pytest.mark.parametrize(
    ("shapes", "args", "message"),
    [
        ({"z": {0: "B"}}, (X,), "'z', which is no parameter"),
        ({"x": {2: "B"}}, (X,), r"dimension 2 of x"),
        ({"x": {-3: "B"}}, (X,), r"dimension -3 of x"),
        ({"x": {"0": "B"}}, (X,), r"dimension '0' of x"),
        ({"x": {True: "B"}}, (X,), r"dimension True of x"),
        ({"x": ("B",)}, (X,), "gives x 1 dimensions, and it has 2"),
        ({"x": "B"}, (X,), "x is a tensor"),
        ({"x": {0: 5}}, (X,), r"says 5 of x.shape\[0\], which is 4"),
        ({"x": {0: "not a name"}}, (X,), "cannot be called 'not a name'"),
        ({"x": {0: 2.5}}, (X,), r"x.shape\[0\] cannot be 2.5"),
        ({"x": {0: 2 * ExportDim("B")}}, (X,), r"x.shape\[0\] cannot be"),
        ({"x": {"k": {0: "B"}}}, ({"q": X},), "names 'k' in x"),
        ({"x": ({0: "B"},)}, ((X, X),), "1 entries for x"),
        ({"x": {0: "B"}}, ((X, X),), "x is a tuple"),
        ({"y": "B"}, (X, "text"), "y is a str"),
        ({"y": "B"}, (X, True), "y is a bool"),
        (({0: "B"}, None, None, None), (X,), "4 entries, and there are 3 parameters"),
        ("B", (X,), "dynamic_shapes cannot be 'B'"),
    ],
)
def test_what_does_not_fit(shapes: Any, args: Any, message: str) -> None:
    with pytest.raises(SmeltError, match=message) as caught:
        wishes(shapes, two, args, {})
    assert caught.value.code == "S0304"
    assert caught.value.why and caught.value.fix


@pytest.mark.parametrize("wrong", [{"name": "1B"}, {"name": "B", "min": 3, "max": 2}, {"name": "B", "max": 2.0}])
def test_dims_that_mean_nothing(wrong: dict[str, Any]) -> None:
    with pytest.raises(SmeltError) as caught:
        Dim(**wrong)
    assert caught.value.code == "S0304"
