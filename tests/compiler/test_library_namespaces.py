"""Operators of libraries, whatever their namespace is called."""

from __future__ import annotations

import uuid

import pytest
import torch

import smelt
from smelt._torch.library.schemas import find_overload

X = torch.tensor([1.0, 2.0])


@pytest.fixture(params=["_m", "m_", "__m", "_c10d"])
def twice(request):
    """An operator `twice` in a namespace of this kind."""
    name = f"{request.param}{uuid.uuid4().hex[:8]}"
    if name.startswith("__"):
        name = f"_x{name}"
    with torch.library._scoped_library(name, "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", torch.empty_like, "Meta")
        yield getattr(torch.ops, name).twice


def test_a_namespace_may_begin_with_an_underscore(twice):
    def f(x):
        return twice(x) + 1

    compiled = smelt.compile(f)
    assert [compiled(X).tolist() for _ in range(3)] == [[3.0, 5.0]] * 3
    assert not compiled.stats().fallbacks
    program = smelt.trace(f, (X,))
    assert program(X).tolist() == [3.0, 5.0]
    assert smelt.parse(str(program.graph)) == program.graph

    def either(x):
        return twice(x) if x.sum() > 0 else x

    compiled = smelt.compile(either)
    assert [compiled(x).tolist() for x in (X, -X, X)] == [[2.0, 4.0], [-1.0, -2.0], [2.0, 4.0]]
    assert not compiled.stats().fallbacks


@pytest.mark.parametrize("name", ["__path__.a.b", "__spec__.a.b", "_dir.upper.default", "loaded_libraries.add.default"])
def test_what_is_no_namespace_has_no_operators(name):
    before = dict(vars(torch.ops))
    assert find_overload(name) is None
    assert vars(torch.ops) == before
