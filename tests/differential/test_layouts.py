"""torch's own samples of the catalogue's operators, in layouts that operands come in, through own kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

import smelt
from smelt.codegen.llvm.isa import host_isa
from smelt.codegen.lower import nests
from tests.differential.compare import observe
from tests.differential.envelope import Envelope
from tests.differential.judge import OWN
from tests.differential.test_operators import _catalogued, _samples, operators

_DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int32, torch.int64, torch.uint8,
    torch.bool,
)  # fmt: skip
# Products have tests of their own; the others draw, or return what memory held.
_ELSEWHERE = (
    "mm", "matmul", "linear", "conv", "einsum", "attention", "dot", "mv", "linalg", "inner", "addr", "cdist", "cov",
    "empty", "multi_head", "rand", "dropout", "normal", "bernoulli", "multinomial", "exponential", "cauchy",
    "geometric", "uniform",
)  # fmt: skip
# Of these a sample runs as a kernel in every layout: the tests must not pass because no kernels run.
_KERNELS = ("abs", "add", "amax", "clamp", "exp", "nn.functional.gelu", "softmax", "sum", "where", "cat")

pytestmark = pytest.mark.skipif(host_isa() is None, reason="there are no own kernels for this machine")


def _turned(x: torch.Tensor) -> torch.Tensor:
    return x.mT.contiguous().mT if x.dim() >= 2 else x.clone()


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if x.dim() >= 3 else x.clone()


def _sliced(x: torch.Tensor) -> torch.Tensor:
    room = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1] + 1) if x.dim() else (3,))
    return (room[..., 1::2] if x.dim() else room[1]).copy_(x)


def _offset(x: torch.Tensor) -> torch.Tensor:
    return x.new_zeros(x.numel() + 1)[1:].view(x.shape).copy_(x)


def _expanded(x: torch.Tensor) -> torch.Tensor:
    return x[:1].clone().expand(x.shape) if x.dim() and x.shape[0] else x.clone()


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "plain": torch.clone, "turned": _turned, "channels last": _channels_last, "sliced": _sliced, "offset": _offset,
    "expanded": _expanded,
}  # fmt: skip


def _laid_out(layout: str, value: Any) -> Any:
    def one(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or x.is_complex() or x.layout is not torch.strided:
            return x
        return LAYOUTS[layout](x.detach())

    return tree_map(one, value)


def check(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], layout: str) -> str | None:
    """What differs from eager beyond roundings, or None; also where eager itself raises or gives two answers."""

    def program(*args: Any) -> Any:
        return op(*args, **kwargs)

    envelope = Envelope(lambda: observe(program, _laid_out(layout, args)))
    if envelope.expected.error is not None or envelope.is_unstable:
        return None
    torch.manual_seed(0)
    try:
        graph = smelt.trace(program, _laid_out(layout, args), options=OWN, check=False)
    except smelt.SmeltError as error:
        return None if error.code in ("S0101", "S0102", "S0104", "S0106") else str(error)
    if envelope.difference(observe(program, _laid_out(layout, args))) is not None:
        return None
    return envelope.difference(observe(graph, _laid_out(layout, args)))


def check_operator(name: str, dtype: torch.dtype, limit: int) -> None:
    if dtype not in operators()[name].supported_dtypes("cpu"):
        return
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, (op, args, kwargs) in enumerate(_samples(operators()[name], dtype)):
            if number == limit:
                break
            for layout in LAYOUTS:
                found = check(op, args, kwargs, layout)
                assert found is None, f"{name}, {dtype}, sample {number}, {layout}: {found}\n{args} {kwargs}"


@pytest.mark.spread(5)
@pytest.mark.parametrize("name", _KERNELS)
def test_kernels_in_layouts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[str] = []
    launch = nests.launch

    def counted(*args: Any, **kwargs: Any) -> None:
        launched.append(kwargs["label"])
        launch(*args, **kwargs)

    monkeypatch.setattr(nests, "launch", counted)
    for dtype in (torch.float32, torch.bfloat16):
        check_operator(name, dtype, limit=1)
    assert len(launched) >= len(LAYOUTS)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(64))
def test_catalogue_in_layouts(part: int) -> None:
    names = [name for name in _catalogued() if not any(word in name for word in _ELSEWHERE)]
    for name in names[part::64]:
        for dtype in _DTYPES:
            check_operator(name, dtype, limit=5)
