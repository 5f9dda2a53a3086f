"""Structures of arguments and results: taken apart, checked, put together."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from smelt.capture import capture
from smelt.capture.structure.tree import Flattener, UnfitError, match, rebuild
from smelt.diag import CaptureError

Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Frozen:
    data: Any
    tag: str = "t"


@dataclass
class Slotted:
    __slots__ = ("data",)
    data: Any


class Cache:
    """A plain object that holds tensors, as caches of language models do."""

    def __init__(self) -> None:
        self.layers: list[Any] = []
        self.seen = 0


class Named(OrderedDict):
    """A dict with attributes beside its items, as model outputs are."""


@dataclass
class Config:
    width: int = 3
    extras: dict[str, int] = field(default_factory=dict)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a) and equal(vars_of(a), vars_of(b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if vars_of(a):
        return equal(vars_of(a), vars_of(b))
    return bool(a == b)


def vars_of(value: Any) -> list[Any]:
    return list(getattr(value, "__dict__", {}).values())


leaf = st.one_of(
    st.integers(), st.floats(), st.booleans(), st.text(max_size=3), st.none(),
    st.integers(0, 5).map(lambda n: torch.full((2,), float(n))),
)  # fmt: skip
nested = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.tuples(inner, inner).map(lambda p: Pair(*p)),
        inner.map(Frozen),
        inner.map(Slotted),
    ),
    max_leaves=8,
)


def nan_free(value: Any) -> bool:
    return "nan" not in repr(value)


@given(nested.filter(nan_free))
def test_flatten_match_rebuild(value: Any) -> None:
    flattener = Flattener()
    tree = flattener.flatten(value, "v")
    found: dict[int, torch.Tensor] = {}
    match(tree, value, "v", found)
    assert [found[i] for i in range(len(found))] == flattener.tensors or len(found) == len(flattener.tensors)
    back = rebuild(tree, flattener.tensors)
    assert type(back) is type(value)
    second = Flattener()
    second.flatten(back, "v")
    assert [id(t) for t in second.tensors] == [id(t) for t in flattener.tensors]
    match(tree, back, "v", {})


def test_objects_of_every_kind_come_back() -> None:
    cache = Cache()
    cache.layers.append((torch.ones(2), torch.zeros(2)))
    named = Named(a=torch.ones(1), b=2)
    named.note = torch.zeros(1)
    table = defaultdict(list, k=[torch.ones(3)])
    value = [cache, named, table, Frozen(torch.ones(1)), Slotted(torch.ones(1)), OrderedDict(z=torch.ones(1))]
    flattener = Flattener()
    back = rebuild(flattener.flatten(value, "v"), [t + 1 for t in flattener.tensors])
    assert [type(v) for v in back] == [type(v) for v in value]
    assert torch.equal(back[0].layers[0][0], torch.full((2,), 2.0)) and back[0].seen == 0
    assert list(back[1]) == ["a", "b"] and torch.equal(back[1].note, torch.ones(1))
    assert back[2].default_factory is list
    assert back[3].tag == "t" and torch.equal(back[4].data, torch.full((1,), 2.0))


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        (({"a": torch.ones(2)}, 4), {"k": [torch.ones(1)]}, "args[1] is 4"),
        (({"a": torch.ones(2)}, 3.0), {"k": [torch.ones(1)]}, "args[1] is 3.0"),
        (({"a": None}, 3), {"k": [torch.ones(1)]}, "args[0]['a'] is None"),
        (({"b": torch.ones(2)}, 3), {"k": [torch.ones(1)]}, "args[0] has the keys"),
        (({"a": torch.ones(2)}, 3), {"k": (torch.ones(1),)}, "kwargs['k'] is a tuple"),
        (({"a": torch.ones(2)}, 3), {"k": []}, "kwargs['k'] has 0 items"),
        (({"a": torch.ones(2)}, 3), {}, "kwargs has the keys"),
        (({"a": torch.ones(2)},), {"k": [torch.ones(1)]}, "args has 1 items"),
        (({"a": torch.ones(2)}, True), {"k": [torch.ones(1)]}, "args[1] is True"),
    ],
)
def test_a_difference_is_named_by_its_path(args: Any, kwargs: Any, path: str) -> None:
    def fn(d: Any, n: Any, k: Any) -> Any:
        return d["a"] * n + k[0]

    captured = capture(fn, ({"a": torch.ones(2)}, 3), {"k": [torch.ones(1)]})
    with pytest.raises(CaptureError) as caught:
        captured.signature.flatten(args, kwargs)
    assert caught.value.code == "S0107" and path in str(caught.value)


def test_a_tensor_passed_twice_stays_one_input() -> None:
    a = torch.ones(2)
    captured = capture(torch.add, (a, a))
    assert len(captured.graph.inputs) == 1
    assert captured.signature.flatten((a, a)) == [a]
    with pytest.raises(CaptureError, match="identical"):
        captured.signature.flatten((a, a.clone()))


def test_inputs_are_named_after_the_program() -> None:
    def fn(query: Any, options: Any, *, scale: Any) -> Any:
        return query * options["mask"] * scale

    captured = capture(fn, (torch.ones(2), {"mask": torch.ones(2)}), {"scale": torch.ones(1)})
    assert [v.name for v in captured.graph.inputs] == ["query", "options_mask", "scale"]
    assert captured.signature.inputs == ("args[0]", "args[1]['mask']", "kwargs['scale']")


def test_a_result_that_is_an_argument_stays_that_object() -> None:
    captured = capture(lambda d, a: (d, a + 1), ({"k": torch.ones(1)}, torch.ones(1)))
    given_now = {"k": torch.zeros(1)}
    rebuilt = captured.signature.rebuild([torch.zeros(1)], (given_now, torch.ones(1)))
    assert rebuilt[0] is given_now


def test_configuration_objects_are_compared_as_a_whole() -> None:
    captured = capture(lambda a, c: a * c.width, (torch.ones(2), Config()))
    captured.signature.flatten((torch.ones(2), Config()))
    with pytest.raises(CaptureError, match=r"args\[1\]"):
        captured.signature.flatten((torch.ones(2), Config(width=4)))
    assert captured.constants["args[1]"] == Config()


def test_nan_and_signed_zero_are_values() -> None:
    match(Flattener().flatten(float("nan"), "v"), float("nan"), "v", {})
    with pytest.raises(UnfitError):
        match(Flattener().flatten(0.0, "v"), -0.0, "v", {})
