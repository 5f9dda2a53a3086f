"""Packed weights of convolutions, element by element."""

from __future__ import annotations

import pytest
import torch

from smelt.runtime.filters import Filters, is_finite, pack_dense, pack_winograd, pack_winograd_row


@pytest.mark.parametrize(
    ("groups", "per_group", "cin", "window", "columns"),
    [(1, 5, 3, 2, 4), (1, 8, 2, 1, 4), (3, 4, 2, 3, 4), (2, 3, 1, 1, 8), (2, 9, 2, 2, 4)],
)
def test_dense(groups: int, per_group: int, cin: int, window: int, columns: int) -> None:
    weight = torch.arange(1.0, groups * per_group * cin * window**2 + 1).view(-1, cin, window, window)
    found = pack_dense(weight, groups, columns)
    panels = -(-per_group // columns)
    assert found.shape == (groups * panels, window**2 * cin, columns) and found.is_contiguous()
    wanted = torch.zeros(groups, panels * columns, window, window, cin)
    wanted[:, :per_group] = weight.view(groups, per_group, cin, window, window).permute(0, 1, 3, 4, 2)
    for group, panel, column in torch.cartesian_prod(*map(torch.arange, (groups, panels, columns))).tolist():
        channel = wanted[group, panel * columns + column].flatten()
        assert torch.equal(found[group * panels + panel, :, column], channel)


def test_winograd() -> None:
    weight = torch.randn(8, 3, 3, 3)
    g = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1.0]], dtype=torch.float64)
    points = (g @ weight.double() @ g.T).float()  # [cout, cin, 4, 4]
    found = pack_winograd(weight, 4)
    torch.testing.assert_close(found, points.view(2, 4, 3, 16).permute(0, 3, 2, 1), rtol=1e-6, atol=1e-7)


def test_winograd_of_a_row() -> None:
    weight = torch.randn(8, 3, 1, 3)
    g = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1.0]], dtype=torch.float64)
    points = torch.einsum("pt,oit->oip", g, weight[:, :, 0].double()).float()
    found = pack_winograd_row(weight, 4)
    assert found.shape == Filters("winograd_row", 1, 4, True).shape(tuple(weight.shape))
    torch.testing.assert_close(found, points.view(2, 4, 3, 4).permute(0, 3, 2, 1), rtol=1e-6, atol=1e-7)


def test_winograd_of_frames() -> None:
    weight = torch.randn(8, 3, 3, 2, 5)  # [cout, cin, 3, kh, kw]
    g = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1.0]], dtype=torch.float64)
    points = torch.einsum("pt,oityx->opyxi", g, weight.double()).float()
    filters = Filters("winograd_frames", 1, 4, True)
    found = filters.packed(weight.view(8, 3, 6, 5))
    assert found.shape == filters.shape((8, 3, 6, 5))
    torch.testing.assert_close(found, points.view(2, 4, 4, 30).permute(0, 2, 3, 1), rtol=1e-6, atol=1e-7)


def test_winograd_of_squares_over_frames() -> None:
    weight = torch.randn(8, 3, 2, 3, 3)  # [cout, cin, taps, 3, 3]
    filters = Filters("winograd_deep", 1, 4, True)
    found = filters.packed(weight.view(8, 3, 6, 3))
    assert found.shape == filters.shape((8, 3, 6, 3))
    for tap in range(2):
        assert torch.equal(found[:, :, tap * 3 : tap * 3 + 3], pack_winograd(weight[:, :, tap], 4))


@pytest.mark.parametrize("groups", [1, 3])
def test_turned(groups: int) -> None:
    weight = torch.randn(6, 5, 2, 4)
    filters = Filters("turned", groups, 4, False)
    found = filters.packed(weight)
    assert found.shape == filters.shape((6, 5, 2, 4))
    by_group = weight.view(groups, 6 // groups, 5, 2, 4)
    for group, panel, column in torch.cartesian_prod(*map(torch.arange, (groups, 2, 4))).tolist():
        channel = panel * 4 + column
        taps = (
            by_group[group, :, channel].flip(1, 2).permute(1, 2, 0) if channel < 5 else torch.zeros(2, 4, 6 // groups)
        )
        assert torch.equal(found[group * 2 + panel, :, column], taps.flatten())


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_what_is_finite(value: float) -> None:
    weight = torch.full((3, 5), torch.finfo(torch.float32).max)
    assert is_finite(weight) and is_finite(-weight) and is_finite(weight[:0])
    weight[1, 2] = value
    assert not is_finite(weight)
