"""What Python asks of views whose sizes are free: base, version, offset, flags, identity."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import smelt

Tensor = torch.Tensor


def _asked(y: Tensor, *views: Tensor) -> list[Any]:
    """All that can be asked of views of `y`, after a write through the first."""
    views[0].add_(1)
    return [
        (v._base is y, v._is_view(), v._version, v.storage_offset(), v.is_conj(), v.is_neg(), v is y, v.stride(),
         None if v._base is None else (str(v._base.dtype), v._base._version), v.is_contiguous(), v.is_leaf)
        for v in views
    ]  # fmt: skip


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "reshape": lambda y: y.reshape(-1), "view": lambda y: y.view(-1), "view as": lambda y: y.view_as(y),
    "one before": lambda y: y.reshape(1, *y.shape), "behind": lambda y: y.view(*y.shape, 1),
    "flatten": lambda y: y.flatten(), "unflatten": lambda y: y.unflatten(0, (1, -1)), "ravel": lambda y: y.ravel(),
    "transpose": lambda y: y.transpose(0, 1), "t": lambda y: y.t(), "T": lambda y: y.T, "mT": lambda y: y.mT,
    "permute": lambda y: y.permute(1, 0), "swapaxes": lambda y: y.swapaxes(0, 1), "movedim": lambda y: y.movedim(0, 1),
    "unsqueeze": lambda y: y.unsqueeze(0), "squeeze": lambda y: y.squeeze(), "expand": lambda y: y.expand(1, -1, -1),
    "slice": lambda y: y[1:], "select": lambda y: y[-1], "narrow": lambda y: y.narrow(0, 1, 1),
    "a part of a view": lambda y: y[1:].reshape(-1)[1:], "diagonal": lambda y: y.diagonal(),
    "unfold": lambda y: y.unfold(1, 2, 1), "as_strided": lambda y: y.as_strided((2,), (1,), 1),
    "split": lambda y: y.split(1)[1], "chunk": lambda y: y.chunk(2)[0], "unbind": lambda y: y.unbind()[1],
    "tensor_split": lambda y: y.tensor_split(2)[1], "another dtype": lambda y: y.view(torch.int32),
    "detach": lambda y: y.detach(), "alias": lambda y: torch.ops.aten.alias(y), "itself": lambda y: y.contiguous(),
    "itself to": lambda y: y.to(y.dtype), "real": lambda y: y.real, "negative": lambda y: torch._neg_view(y),
    "made": lambda y: y.t().contiguous(), "converted": lambda y: y.double(),
}  # fmt: skip


@pytest.mark.spread(4)
@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("dynamic", [None, True])
def test_views_of_results(dynamic: bool | None, part: int) -> None:
    for name, view in list(VIEWS.items())[part::2]:

        def program(x: Tensor, view: Callable[[Tensor], Tensor] = view) -> Any:
            y = x * 2
            return _asked(y, view(y), view(y), y.view(-1)), y

        _same(name, program, dynamic, [torch.rand(n, 3) for n in (3, 4, 4, 5)])


@pytest.mark.spread(2)
@pytest.mark.parametrize("dynamic", [None, True])
def test_views_of_complex_results(dynamic: bool | None) -> None:
    views = {
        "view_as_real": torch.view_as_real, "imag": lambda c: c.imag, "real": lambda c: c.real, "conj": torch.conj,
        "conj and back": lambda c: c.conj().conj(), "imag of conj": lambda c: c.conj().imag, "mH": lambda c: c.mH,
    }  # fmt: skip
    for name, view in views.items():

        def program(x: Tensor, view: Any = view) -> Any:
            c = torch.complex(x, x + 1)
            v = view(c)
            return v._base is c, v._is_view(), v.is_conj(), v.is_neg(), v.storage_offset(), str(v.dtype), v.stride()

        _same(name, program, dynamic, [torch.rand(n, 3) for n in (3, 4, 4, 5)])


def test_views_of_what_depends_on_no_data() -> None:
    def program(x: Tensor) -> Any:
        a = torch.zeros(x.shape).add_(1)
        b, c = a.view(-1), x + a
        a.mul_(2)
        a.add_(x)
        d = a.view(-1)
        d.add_(1)
        return c, a._version, b._version, d._version, d._base is a, b._base is a, a.t()._base is d._base, b._is_view()

    compiled = _same("", program, True, [torch.rand(n, 2) for n in (3, 4, 5)])
    assert compiled.stats().builds == 1 and not compiled.stats().fallbacks


def test_sizes_stay_free_where_it_is_asked_where_a_view_begins() -> None:
    def program(x: Tensor) -> Any:
        y = x * 2
        return y[1:].storage_offset() + y[:, 1].storage_offset(), y.reshape(-1)._version, y

    compiled = _same("", program, None, [torch.rand(n, 3) for n in (3, 4, 5, 6)])
    assert compiled.stats().builds == 2 and not compiled.stats().fallbacks


def test_of_tensors_from_outside_nothing_is_kept() -> None:
    def program(x: Tensor) -> Any:
        y = x.reshape(-1)
        return y._base is x, x._is_view(), x._base is None, y * 2

    own, base = torch.rand(3, 2), torch.rand(6)
    _same("", program, None, [own, base.view(3, 2), own, base.view(3, 2), torch.rand(4, 2)])


def test_a_filled_diagonal_counts_as_a_write() -> None:
    def program(x: Tensor) -> Any:
        y = x * 2
        y.fill_diagonal_(1)
        return y._version, y.t()._version, y

    _same("", program, None, [torch.rand(n, 3) for n in (3, 4, 4, 5)])


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_diagonal_past_the_last_column_begins_where_its_matrix_does(dynamic: bool | None) -> None:
    def program(x: Tensor) -> Any:
        d = (x * 2).diagonal(1)
        return d.storage_offset(), d.stride(), d.shape, d

    _same("", program, dynamic, [torch.rand(*shape) for shape in ((4, 4), (3, 5), (4, 1), (2, 1), (4, 1), (1, 1))])


@pytest.mark.parametrize("dynamic", [None, True])
def test_bytes_of_tensors_whose_sizes_the_path_decides(dynamic: bool | None) -> None:
    def program(x: Tensor) -> Any:
        y = x[:2] * 2 if x.sum() > 0 else x.double()
        return y.nbytes, y.numel(), y

    _same("", program, dynamic, [torch.full((n, 3), sign) for n in (4, 5, 4, 6) for sign in (1.0, -1.0)])


def test_versions_that_the_path_decides() -> None:
    def program(x: Tensor) -> Any:
        y = torch.ones(3)
        if x.sum() > 0:
            y.add_(1)
        z = y.view(-1) if x[0] > 0 else x * 2
        return y._version, z._base is y, z._is_view(), y + x

    signs = [torch.tensor(v) for v in ([1.0, 1, 1], [-1.0, -1, -1], [1.0, -3, 1], [-1.0, 3, 1])]
    _same("", program, None, [*signs, *signs])


def _same(name: str, program: Callable[[Tensor], Any], dynamic: bool | None, inputs: list[Tensor]) -> Any:
    compiled = smelt.compile(program, dynamic=dynamic)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", smelt.SmeltWarning)
        for x in (inputs[0], *inputs):
            assert str(compiled(x)) == str(program(x)), name
    return compiled
