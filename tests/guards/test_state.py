"""The adapter for torch's settings: each private name hidden in turn gives the same answers."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils import _python_dispatch

from smelt._torch import exact, state

PRIVATE = (
    "_get_deterministic_algorithms",
    "_get_float32_matmul_precision",
    "_is_any_autocast_enabled",
    "_len_torch_function_stack",
    "_len_torch_dispatch_stack",
    "_functorch",
    "_get_tracing_state",
)


@pytest.fixture(params=[None, *PRIVATE])
def hidden(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # Torch keeps it for all threads at once: two that leave modes in turns leave it set.
    monkeypatch.setattr(_python_dispatch, "_is_in_torch_dispatch_mode", False, raising=False)
    real = torch._C

    class Without:
        def __getattr__(self, name: str) -> Any:
            if name == request.param:
                raise AttributeError(name)
            return getattr(real, name)

    spec = importlib.util.find_spec("smelt._torch.state")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    torch._C = Without()  # type: ignore[assignment]
    try:
        spec.loader.exec_module(module)
    finally:
        torch._C = real
    yield module


def test_settings(hidden: Any) -> None:
    assert hidden.torch_state() == tuple(state.torch_state())
    assert hidden.foreign_context() is None
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        assert hidden.torch_state() == tuple(state.torch_state())
        assert hidden.autocast() == (("cpu", torch.bfloat16),)
    torch.use_deterministic_algorithms(True)
    try:
        assert hidden.is_deterministic()
    finally:
        torch.use_deterministic_algorithms(False)


def test_foreign_contexts(hidden: Any) -> None:
    seen: list[Any] = []
    with torch.device("cpu"):
        seen.append(hidden.foreign_context())
    with FakeTensorMode():
        seen.append(hidden.foreign_context())
    torch.vmap(lambda x: (seen.append(hidden.foreign_context()), x)[1])(torch.ones(2))
    assert seen == [
        "a torch function mode is active",
        "a torch dispatch mode is active",
        "the call is inside a torch.func transform",
    ]
    assert hidden.foreign_context() is None


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        ((1, 2), (1, 2), True),
        ((1,), (1.0,), False),
        ([0.0], [-0.0], False),
        ({1: 2}, {True: 2}, False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
        ({1}, {1.0}, False),
        (slice(1), slice(1), True),
        (slice(1), slice(True), False),
        (torch.ones(1), torch.ones(1), False),
        (object(), object(), False),
    ],
)
def test_same(a: Any, b: Any, equal: bool) -> None:
    assert exact.same(a, b) is equal
    assert exact.same(a, a)
