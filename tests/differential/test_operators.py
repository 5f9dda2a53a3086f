"""torch's own samples of its operators, each as a program of one operator, traced and compiled, against eager."""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import smelt
from smelt.ops.catalogue import CATALOGUE
from tests.differential.compare import difference, observe
from tests.differential.judge import FAST

_DTYPES = (torch.float32, torch.int64)
# Products, which another library may compute; the rest has to agree bit for bit.
_PRODUCTS = (
    "mm", "matmul", "linear", "conv", "einsum", "attention", "dot", "mv", "linalg", "inner", "addr", "cdist",
    "corrcoef", "multi_head", "qr", "svd", "pca", "cholesky", "lu", "geqrf", "pinverse", "ormqr", "cov",
    "det", "triangular", "householder",
)  # fmt: skip


@cache
def operators() -> dict[str, Any]:
    """torch's descriptions of its operators, with samples, by name."""
    if importlib.util.find_spec("expecttest") is None:
        # torch's test helpers derive a class from it, of which nothing is used here.
        absent = types.ModuleType("expecttest")
        absent.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = absent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as samples
        from torch.testing._internal import common_utils
        from torch.testing._internal.opinfo import core
    # They look on the stack, with its lines of source, for a test of torch's own, which there is not.
    common_utils.extract_test_fn = core.extract_test_fn = lambda: None
    # Many of its programs seed torch's generator themselves, which no operator shows.
    samples.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    return {(f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name): op for op in samples.op_db}


def _samples(op: Any, dtype: torch.dtype) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    torch.manual_seed(0)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        yield op.op, (sample.input, *sample.args), sample.kwargs


def _copied(value: Any) -> Any:
    return tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, value)


def sample_difference(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], is_exact: bool) -> str | None:
    """What differs from eager where the operator is the whole program; None where nothing does."""

    def program(*args: Any) -> Any:
        return op(*args, **kwargs)

    first, again = observe(program, _copied(args)), observe(program, _copied(args))
    if first.error is not None or difference(first, again, is_exact=is_exact) is not None:
        return None  # eager itself raises, or is not of one mind
    given = _copied(args)
    torch.manual_seed(0)
    try:
        traced = smelt.trace(program, given, options=FAST)
    except smelt.SmeltError as error:
        traced = None
        if error.code not in ("S0101", "S0102", "S0104", "S0106"):
            return f"trace: {error}"
    if traced is not None:
        text = difference(again, observe(traced, _copied(args)), is_exact=is_exact)
        if text is not None:
            return f"trace: {text}"
    compiled = smelt.compile(program, options=FAST)
    for call in range(2):
        text = difference(again, observe(compiled, _copied(args)), is_exact=is_exact)
        if text is not None:
            return f"compile, call {call}: {text}"
    return None


def _check(name: str, dtype: torch.dtype, limit: int | None) -> None:
    op = operators()[name]
    is_exact = not any(part in name for part in _PRODUCTS)
    if "empty" in name:
        return  # whatever memory held
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (function, args, kwargs) in enumerate(_samples(op, dtype)):
            if number == limit:
                break
            found = sample_difference(function, args, kwargs, is_exact)
            assert found is None, f"{name}, sample {number}: {found}\n{args} {kwargs}"


def _catalogued() -> list[str]:
    names = {record.name.split(".")[1] for record in CATALOGUE}
    return [name for name, op in operators().items() if (op.aten_name or op.name) in names]


def _cases(names: list[str]) -> list[Any]:
    return [
        pytest.param(name, dtype, id=f"{name}-{str(dtype)[6:]}")
        for name in names
        for dtype in _DTYPES
        if dtype in operators()[name].supported_dtypes("cpu")
    ]


@pytest.mark.spread(8)
@pytest.mark.parametrize("part", range(8))
def test_catalogued_operators(part: int) -> None:
    for case in _cases(_catalogued())[part::8]:
        _check(*case.values, limit=1)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(64))
def test_all_operators(part: int) -> None:
    for case in _cases(list(operators()))[part::64]:
        _check(*case.values, limit=None)
