"""Results whose sizes may come to 0 and 1 lie as in eager, whatever is free: strides, offsets, what is a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import smelt

SIZES = [(3, 4), (2, 3), (1, 4), (4, 1), (0, 3), (5, 6), (1, 1)]
LAYOUTS: dict[str, Callable[[int, int], Tensor]] = {
    "row-major": lambda h, w: torch.zeros(h, w), "transposed": lambda h, w: torch.zeros(w, h).t(),
    "each second": lambda h, w: torch.zeros(h, 2 * w)[:, ::2], "from a row on": lambda h, w: torch.zeros(h + 1, w)[1:],
}  # fmt: skip


def _told(tensor: Tensor) -> Any:
    return tensor.stride(), tensor.storage_offset(), tensor._base is None


def views(x: Tensor) -> Any:
    y = x * 2
    parts = [
        y, y.clone(), y[:].clone(), y[::2].view(y[::2].shape), y[1:] * 2, y[2:].reshape(-1), y.diagonal(),
        y.diagonal().reshape(-1, 1), y.sum(1, keepdim=True).diagonal(1), y[None] * 2, y[:, None].expand(-1, 2, -1) + 1,
        y[::2].t() - 1, y[1:].flatten(), y[:, 1:].unsqueeze(1).mT + 1, y.unfold(1, 0, 2), y[1:].unflatten(0, (1, -1)),
    ]  # fmt: skip
    return [_told(part) for part in parts], parts


def on_one_path(x: Tensor) -> Any:
    y = x + 1 if x.sum() > 0 else x * 2
    z = y[1:] if y.sum() > 1 else y[2:]
    parts = [y, y[:], y.t() + 1, y.expand(2, *y.shape), y.diagonal(), z + 1, z.t() * 2]
    return [_told(part) for part in parts[:5]], [part.is_contiguous() for part in parts], parts


def layers(x: Tensor) -> Any:
    y = (x + 1).t()
    images = y[None, :, :, None]
    parts = [
        y.roll(1, 0), y.roll((1, 2), (0, 1)), y.cumsum(0), y.sum(0), F.pad(y, (0, 1)), torch.cat([y, y]), y.sort(0)[0],
        torch.zeros_like(y), y.repeat(2, 1), torch.stack([y, y[:]]), y.to(torch.float64) + 1, y.relu(), y > y.long(),
        F.rms_norm(images, images.shape[3:]), F.batch_norm(images, y.new_zeros(y.shape[0]), y.new_ones(y.shape[0])),
    ]  # fmt: skip
    return [_told(part) for part in parts], parts


def shuffled(x: Tensor) -> Any:
    pairs = torch.cat([x, x], 1).unsqueeze(-1).repeat(1, 1, 2)[..., None].permute(0, 1, 3, 2) * 1
    y = torch.channel_shuffle(pairs, 2)
    z = torch.channel_shuffle(pairs.to(memory_format=torch.channels_last), 2)
    return _told(y), y.is_contiguous(memory_format=torch.channels_last), y, z.stride(), z


def compared(x: Tensor) -> Any:
    y = (x * 2).contiguous()
    z = y.view(-1)
    z.add_(1)
    return y.is_set_to(y), z.is_set_to(y.view(-1)), z.is_set_to(y), y.is_set_to(y.clone()), y[1:].is_set_to(y), z


def parts(x: Tensor) -> Any:
    """`real` and `atleast_1d` give back their operand, a view of all of it is another tensor."""
    y, u = x * 2, x + 1
    z, v = y.view_as(y), torch.atleast_1d(u).squeeze()
    return z, y, y.real, v, u, y.real + 1


def test_what_gives_itself_back_is_no_view_of_it() -> None:
    compiled = smelt.compile(parts)
    with torch.no_grad():
        for n in (3, 3, 4, 4, 4, 5):
            z, y, w, v, u, _ = compiled(torch.ones(n, 2))
            assert z is not y and y is w and z.data_ptr() == y.data_ptr()
            assert v is not u and v.data_ptr() == u.data_ptr()


@pytest.mark.spread(5)
@pytest.mark.filterwarnings("ignore::smelt.SmeltWarning")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [views, on_one_path, layers, shuffled, compared], ids=lambda p: p.__name__)
@pytest.mark.parametrize("name", LAYOUTS)
def test_they_lie_as_in_eager(name: str, program: Callable[..., Any], dynamic: bool | None) -> None:
    compiled = smelt.compile(program, dynamic=dynamic)
    for h, w in SIZES:
        for sign in (1, -1):
            _same(name, program, compiled, LAYOUTS[name](h, w).fill_(sign))


def _same(name: str, program: Callable[..., Any], compiled: Any, *args: Tensor) -> None:
    with torch.no_grad():
        want, got = (_shown(call(*[torch.empty_strided(a.shape, a.stride()).copy_(a) for a in args]))
                     for call in (program, compiled))  # fmt: skip
    assert want == got, f"{name} {[tuple(a.shape) for a in args]}:\n{want}\n{got}"


def _shown(value: Any) -> Any:
    if isinstance(value, Tensor):
        return tuple(value.shape), value.stride(), str(value.dtype), [round(n, 4) for n in value.flatten().tolist()]
    return [_shown(item) for item in value] if isinstance(value, (list, tuple)) else value
