"""Weights of convolutions as own kernels read them, made of a weight f32[cout, cin / groups, kh, kw].

    dense       [groups * panels, kh * kw * cin / groups, columns]
    turned      the same of a transposed convolution's f32[cin, cout / groups, kh, kw], its last tap first
    depthwise   [vectors, kh, kw, columns]
    winograd    [cout / columns, 16, cin, columns]             G g Gt of each pair of channels
    winograd_row   [cout / columns, 4, cin, columns]           G g, of three taps in a row
    winograd_deep  [cout / columns, 16, taps * cin, columns]   as winograd, of several taps in time: kh counts all rows
    winograd_frames   [cout / columns, 4, kh * kw * cin, columns]   the same of three taps in time: kh counts all rows

Invariant: the same weight gives the same bits wherever it is packed: when a program is lowered, and when a file that
holds the weight alone is loaded.
"""

from __future__ import annotations

from typing import Literal

import torch

from smelt.diag.records import record

Form = Literal["dense", "turned", "depthwise", "winograd", "winograd_row", "winograd_deep", "winograd_frames"]
POINTS, ROW_POINTS = 16, 4
"""Products of a tile of Winograd's: 4 x 4, and 4 along a row."""


@record
class Filters:
    """The form of a packed weight; columns: channels of a panel. is_finite: it must have no inf or NaN."""

    form: Form
    groups: int
    columns: int
    is_finite: bool

    def packed(self, weight: torch.Tensor) -> torch.Tensor:
        """The weight in this form."""
        match self.form:
            case "winograd":
                return pack_winograd(weight, self.columns)
            case "winograd_row":
                return pack_winograd_row(weight, self.columns)
            case "winograd_deep":
                return pack_winograd(frames_side_by_side(weight), self.columns)
            case "winograd_frames":
                return pack_winograd_row(taps_in_time(weight), self.columns)
            case "depthwise":
                return pack_depthwise(weight, self.columns)
            case "dense":
                return pack_dense(weight, self.groups, self.columns)
            case "turned":
                return pack_dense(turned(weight, self.groups), self.groups, self.columns)

    def shape(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        """The sizes of a weight of these sizes, packed."""
        cout, cin, kh, kw = sizes
        match self.form:
            case "winograd":
                return cout // self.columns, POINTS, cin, self.columns
            case "winograd_row":
                return cout // self.columns, ROW_POINTS, cin, self.columns
            case "winograd_deep":
                return cout // self.columns, POINTS, kh // 3 * cin, self.columns
            case "winograd_frames":
                return cout // self.columns, ROW_POINTS, kh // 3 * kw * cin, self.columns
            case "depthwise":
                return -(-cout // self.columns), kh, kw, self.columns
            case "dense":
                panels = -(-(cout // self.groups) // self.columns)
                return self.groups * panels, kh * kw * cin, self.columns
            case "turned":
                return self.groups * -(-cin // self.columns), kh * kw * (cout // self.groups), self.columns


def is_finite(weight: torch.Tensor) -> bool:
    """Whether no element is inf or NaN: read once, where `torch.isfinite` writes a mask."""
    if not weight.numel():
        return True
    least, most = torch.aminmax(weight.detach())
    return bool(least > -torch.inf) and bool(most < torch.inf)  # neither where one is NaN


def turned(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """The weight of the convolution that gives an image's gradient, of that of the convolution which had the image:
    f32[cout, cin / groups, kh, kw] -> f32[cin, cout / groups, kh, kw], the last tap first.
    """
    cout, inner, kh, kw = weight.shape
    by_group = weight.detach().reshape(groups, cout // groups, inner, kh, kw)
    return by_group.transpose(1, 2).flip(3, 4).reshape(groups * inner, cout // groups, kh, kw)


def pack_dense(weight: torch.Tensor, groups: int, columns: int) -> torch.Tensor:
    """f32[cout, cin/g, kh, kw] -> [g * panels, kh * kw * cin/g, columns], channels beyond a group's last being 0."""
    cout, cin, kh, kw = weight.shape
    per_group = cout // groups
    whole, rest = divmod(per_group, columns)
    packed = weight.new_empty(groups, whole + (rest > 0), kh, kw, cin, columns)
    by_group = weight.detach().reshape(groups, per_group, cin, kh, kw)
    full = by_group[:, : per_group - rest].view(groups, whole, columns, cin, kh, kw)
    packed[:, :whole] = full.permute(0, 1, 4, 5, 3, 2)
    if rest:
        packed[:, whole, ..., :rest] = by_group[:, per_group - rest :].permute(0, 3, 4, 2, 1)
        packed[:, whole, ..., rest:] = 0
    return packed.view(-1, kh * kw * cin, columns)


def pack_depthwise(weight: torch.Tensor, lanes: int) -> torch.Tensor:
    """f32[c, 1, kh, kw] -> [c / lanes, kh, kw, lanes], channels beyond the last being 0."""
    c, _, kh, kw = weight.shape
    vectors = -(-c // lanes)
    packed = weight.new_zeros(vectors * lanes, kh, kw)
    packed[:c] = weight[:, 0]
    return packed.view(vectors, lanes, kh, kw).permute(0, 2, 3, 1).contiguous()


def pack_winograd(weight: torch.Tensor, columns: int) -> torch.Tensor:
    """f32[cout, cin, 3, 3] -> G g Gt as f32[cout / columns, 16, cin, columns]."""
    g = _points()
    return _transformed(torch.kron(g, g), weight, columns)


def pack_winograd_row(weight: torch.Tensor, columns: int) -> torch.Tensor:
    """f32[cout, cin, 1, 3] -> G g as f32[cout / columns, 4, cin, columns]."""
    return _transformed(_points(), weight, columns)


def frames_side_by_side(weight: torch.Tensor) -> torch.Tensor:
    """f32[cout, cin, taps * 3, 3] of several taps in time -> f32[cout, taps * cin, 3, 3]: frames as channels."""
    cout, cin, rows, kw = weight.shape
    by_tap = weight.detach().reshape(cout, cin, rows // 3, 3, kw)
    return by_tap.transpose(1, 2).reshape(cout, rows // 3 * cin, 3, kw)


def taps_in_time(weight: torch.Tensor) -> torch.Tensor:
    """f32[cout, cin, 3 * kh, kw] of three taps in time, the rows of one behind those of another ->
    f32[cout, kh * kw * cin, 1, 3]: what a window sees of a frame as channels.
    """
    cout, cin, rows, kw = weight.shape
    by_tap = weight.detach().reshape(cout, cin, 3, rows // 3, kw)
    return by_tap.permute(0, 3, 4, 1, 2).reshape(cout, rows // 3 * kw * cin, 1, 3)


def _points() -> torch.Tensor:
    """G of F(2, 3)."""
    return torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1.0]], dtype=torch.float64)


def _transformed(g: torch.Tensor, weight: torch.Tensor, columns: int) -> torch.Tensor:
    """g, f64[points, taps], times the taps of each pair of channels."""
    (cout, cin), (points, taps) = weight.shape[:2], g.shape
    packed = torch.empty(cout // columns, points, cin, columns)
    for panel, part in zip(packed, weight.detach().split(columns), strict=True):
        # The taps in front: so the product has the panel's own layout.
        turned = part.reshape(columns, cin, taps).permute(2, 1, 0).double().reshape(taps, cin * columns)
        panel.copy_((g @ turned).view(points, cin, columns))
    return packed
