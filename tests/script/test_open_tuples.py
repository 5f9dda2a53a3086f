"""Tuples of a length that only a run knows: lists in the graph, tuples wherever the program can tell."""

# ruff: noqa: RUF005 (concatenation is what is tested)
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import smelt
from tests.script.checking import agrees


def of_unbind(x: smelt.f32[None, 3]) -> Any:
    t = x.unbind(0)
    return t[1:], t[::-1], t + (x,), len(t), isinstance(t, tuple), isinstance(t, list)


def as_sizes(x: smelt.f32[None, 3], s: list[int]) -> Any:
    return x.view(tuple(s)), torch.zeros(tuple(s)), x.reshape(*s), x.permute(*[1, 0])


def copied(items: list[smelt.f32[3]]) -> Any:
    t = tuple(items)
    items.append(t[0])
    return t, items, len(t)


def of_a_parameter(items: list[smelt.f32[3]]) -> Any:
    t = tuple(items)
    return t[1:], t + (t[0],), isinstance(t, tuple), isinstance(t, list), [a * 2 for a in t], t == (), sum(t)


def gone_over(items: list[smelt.f32[3]]) -> Any:
    t = tuple(items)
    for i, a in enumerate(t):
        if a.sum() > 2:
            return t[i], torch.cat(t)
    return t[0], torch.stack(t)


def of_a_loop(x: smelt.f32[None, 3]) -> Any:
    acc = []
    for row in x:
        acc.append(row * 2)
    return torch.stack(tuple(acc)), tuple(acc)


def of_a_loop_changed(x: smelt.f32[None, 3]) -> Any:
    acc = []
    for row in x:
        acc.append(row * 2)
    t = tuple(acc)
    acc.append(x[0])
    t[0].add_(1)
    return t, acc


def of_numbers(items: list[int]) -> Any:
    t = tuple(items)
    return t, t[1:], len(t), sum(t), max(t)


def of_what_goes_over(items: list[smelt.f32[3]]) -> Any:
    return tuple(reversed(items)), tuple(a + 1 for a in items), tuple(sorted(items, key=lambda a: a.sum().item()))


def chosen(x: smelt.f32[None, 3], c: bool) -> Any:
    t = x.unbind(0) if c else (x * 2).unbind(1)
    return t


def bound_anew(x: smelt.f32[None, 3], c: bool) -> Any:
    t = x.unbind(0)
    if c:
        t = (x,)
    return t


def carried(x: smelt.f32[None, 3], n: int) -> Any:
    t = x.unbind(0)
    for _ in range(n):
        t = torch.stack(t[::-1]).unbind(0)
    return t


def sizes_chosen(x, c: bool) -> Any:
    s = x.shape if c else x.shape[1:]
    return s, isinstance(s, tuple)


def sizes_carried(x, n: int) -> Any:
    s = x.shape
    for _ in range(n):
        s = s[1:]
    return s


def or_an_error(x: smelt.f32[None, 3], c: bool) -> Any:
    t = x.unbind(0)
    if not c:
        raise ValueError("no")
    return t


def or_none(x: smelt.f32[None, 3], c: bool) -> Any:
    t = x.unbind(0)
    if c:
        return t
    return None


def appended(x: smelt.f32[None, 3], n: int) -> Any:
    acc = []
    for i in range(n):
        t = (x + i).unbind(0)
        acc.append(t)
    return acc


def told_apart(x: smelt.f32[None, 3]) -> Any:
    return {"a": x.unbind(0)}, f"{x.unbind(0)[:0]}", x.unbind(0)[:0] == (), x.unbind(0) * 2


def returned_from_within(x: smelt.f32[None, 3], n: int) -> Any:
    for i in range(n):
        t = (x + i).unbind(0)
        if t[0].sum() > 3:
            return t
    return ()


def or_a_list(x: smelt.f32[None, 3], c: bool) -> Any:
    t = x.unbind(0)
    return t if c else list(t)


def a_parameter_with_more(xs: tuple[smelt.f32[3], ...], y: smelt.f32[3]) -> Any:
    ys = xs + (y,)
    zs = (y,) + xs[1:]
    return ys, zs, len(ys), tuple(a + 1 for a in ys), (*xs, y), [*xs, y], ys[0], ys[-1]


def longer_on_one_way(xs: tuple[smelt.f32[3], ...], y: smelt.f32[3], c: bool) -> Any:
    if c:
        xs = xs + (y,)
    return torch.stack(xs), xs


def longer_each_turn(xs: tuple[smelt.f32[3], ...], n: int) -> Any:
    for i in range(n):
        xs = xs + (xs[0] + i,)
    return xs


def made_each_turn(xs: tuple[smelt.f32[3], ...], n: int) -> Any:
    h = xs
    for _ in range(n):
        h = tuple(a * 2 for a in h)
    return h


def sizes_with_more(x, c: bool) -> Any:
    return (*x.shape, 3), x.view((*x.shape[:1], -1)), (*x.size(),) if c else ()


def sizes_added(x, y) -> Any:
    s = x.shape[:-1] + y.shape[-1:]
    return s, torch.zeros(s), tuple(s), list(s), s == (2, 3), s[0] if len(s) else 0


def sizes_longer(x, n: int) -> Any:
    s = tuple(x.shape)
    for _ in range(n):
        s = s + (1,)
    return s, x.reshape(s)


def shown_and_compared(items: list[int]) -> Any:
    t = tuple(items)
    return (
        (0,) + t,
        t + (9,),
        [*t],
        (*t, 1),
        t == (1, 2),
        t in [(1, 2)],
        f"{t}",
        str(t),
        t * 2,
        t < (5,),
        t.count(1),
        t.index(items[0]),
    )


def of_two_comprehensions(items: list[int], c: bool) -> Any:
    t = tuple(items) if c else tuple(a + 1 for a in items)
    for v in t:
        if v > 2:
            return t
    return t[::-1]


def taken_apart(xs: list[smelt.f32[3]]) -> Any:
    a, *b = tuple(xs)
    return a, b


def held(xs: list[smelt.f32[3]], d: dict[str, int]) -> Any:
    t = tuple(xs)
    out = {"t": t, "n": len(t)}
    pair = (t, t[0])
    return (
        out,
        pair,
        [t],
        bool(t),
        not t,
        t and t[0],
        sorted(t, key=lambda a: -a.sum().item()),
        list(zip(t, range(5), strict=False)),
        max(t, key=lambda a: a.sum().item()),
        tuple(enumerate(t)),
    )


def state(xs: list[smelt.f32[3]], n: int) -> Any:
    st = tuple(xs)
    for i in range(n):
        st = tuple(s * 0.5 + i for s in st)
        if torch.stack(st).sum() > 4:
            break
    else:
        st = st[:1]
    return torch.cat(st), st


def of_split(x: smelt.f32[None, 3]) -> Any:
    parts = x.split(2)
    out = []
    for p in parts:
        out.append(p.sum(0))
    return tuple(out), parts, parts[0], len(parts), parts[-1:]


def of_chunks(x: smelt.f32[None, 3]) -> Any:
    parts = x.chunk(2) + x.chunk(3)
    return torch.cat(parts), parts


def numbers_of_a_parameter(xs: tuple[int, ...], k: int) -> Any:
    return (
        k in xs,
        xs.index(k) if k in xs else -1,
        sum(xs),
        xs[1:],
        xs + (k,),
        len(xs),
        sorted(xs),
        xs == (1, 2, 3),
        max(xs),
    )


def optional(xs: tuple[smelt.f32[3], ...], ys: tuple[smelt.f32[3], ...] | None = None) -> Any:
    if ys is None:
        ys = xs
    return tuple(a + b for a, b in zip(xs, ys, strict=True))


def rows_changed(x: smelt.f32[None, 3]) -> Any:
    t = x.unbind(0)
    for v in t[1:]:
        v.add_(1)
    return x * 1, t


def changed_on_a_way(x: smelt.f32[None, 3], c: bool) -> Any:
    t = x.unbind(0) if c else (x[0], x[0])
    t[0].add_(1)
    return x * 1, t, x


def joined_and_changed(xs: tuple[smelt.f32[3], ...], y: smelt.f32[3]) -> Any:
    t = xs + (y,)
    t[-1].add_(1)
    t[0].mul_(2)
    return y * 1, xs[0] * 1, t


def list_changed_after(xs: list[smelt.f32[3]]) -> Any:
    t = tuple(xs)
    xs.append(t[0] * 2)
    t[0].add_(1)
    return t, xs, xs[0] * 1


def turned_and_changed(x: smelt.f32[None, 3], n: int) -> Any:
    h = x.unbind(0)
    for _ in range(n):
        h[0].add_(1)
        h = h[1:] + h[:1]
    return h, x * 1


def listed_each_turn(x: smelt.f32[None, 3], n: int) -> Any:
    items = []
    for _ in range(n):
        items = items + [x.unbind(0)]
    return items


def in_a_list_that_grows(x: smelt.f32[None, 3], c: bool) -> Any:
    items = [x.unbind(0)]
    if c:
        items.append(x.unbind(0)[1:])
    return items, len(items[0])


def in_a_dict_that_grows(x: smelt.f32[None, 3], c: bool) -> Any:
    d = {"t": x.unbind(0)}
    if c:
        d["u"] = x.unbind(0)[:1]
    return d


def in_a_pair(x: smelt.f32[None, 3], c: bool) -> Any:
    p = (1, x.unbind(0))
    if c:
        p = (2, x.unbind(0)[:1])
    return p, p[1][0]


def carried_in_a_pair(x: smelt.f32[None, 3], n: int) -> Any:
    p = (0, x.unbind(0))
    for i in range(n):
        p = (i, p[1][::-1])
    return p


def returned_in_a_pair(x: smelt.f32[None, 3], n: int) -> Any:
    for i in range(n):
        t = (x + i).unbind(0)
        if len(t) > 3:
            return i, t
    return None


def longer_on_some_ways(x: smelt.f32[4]) -> Any:
    hist = ()
    for k in range(3):
        if x.sum() > k:
            hist = hist + (x.sum(),)
    return hist


def longer_in_while(x: smelt.f32[4]) -> Any:
    hist = ()
    while x.sum() > 1:
        x = x * 0.5
        hist += (x.sum(),)
    return hist


def longer_in_front(x: smelt.f32[4]) -> Any:
    hist = ()
    while x.abs().sum() > 1:
        x = x * 0.5
        if x.sum() > 2:
            hist = (x,) + hist
    return hist, len(hist), x


def longer_and_stacked(x: smelt.f32[4], n: int) -> Any:
    hist = (x,)
    for _ in range(n):
        hist = hist + (hist[-1] * 2,)
        if hist[-1].sum() > 30:
            break
    return torch.stack(hist), hist


def filled_once(x: smelt.f32[4], n: int) -> Any:
    st = ()
    for _ in range(n):
        if len(st) == 0:
            st = (x, x.sum())
        else:
            st = (st[0] * 0.5, st[1] + 1)
    return st


def two_get_longer(x: smelt.f32[4], n: int) -> Any:
    a = ()
    b = ()
    for i in range(n):
        a = a + (i,)
        b = b + (x * i,)
    return a, b


def of_words_and_numbers(words: list[str], k: str) -> Any:
    out = ()
    for w in words:
        if w == k:
            out = out + (w, len(w))
    return out


def longer_on_a_way(x: smelt.f32[4], c: bool) -> Any:
    t = (x,)
    if c:
        t = t + (x * 2,)
    return torch.stack(t).sum(0), t


def of_two_always(x: smelt.f32[4], n: int) -> Any:
    h = (x, x)
    for _ in range(n):
        h = (h[1], h[0] + h[1])
    return h


def _ramp(scale: float = 1.0) -> torch.Tensor:
    return torch.arange(3.0) * scale


def _rows() -> list[torch.Tensor]:
    return [torch.randn(n, 3, generator=torch.Generator().manual_seed(n)) for n in (2, 1, 4)]


_LISTS = [([_ramp(), _ramp(2)],), ([_ramp()],)]
_NUMBERS = [([1, 2],), ([3],)]
_PAIR = (_ramp(), _ramp(2))
_OF_ROWS = (of_unbind, of_a_loop, of_a_loop_changed, told_apart, of_split, of_chunks, rows_changed)
_GETTING_LONGER = (longer_on_some_ways, longer_in_while, longer_in_front)
_GETTING_LONGER_BY_COUNT = (longer_and_stacked, filled_once, two_get_longer, of_two_always)
_OF_ROWS_AND_FLAG = (
    chosen,
    bound_anew,
    sizes_chosen,
    or_an_error,
    or_none,
    or_a_list,
    sizes_with_more,
    changed_on_a_way,
)
_OF_ROWS_AND_COUNT = (
    carried,
    sizes_carried,
    appended,
    returned_from_within,
    sizes_longer,
    turned_and_changed,
    listed_each_turn,
    carried_in_a_pair,
    returned_in_a_pair,
)


@pytest.mark.spread(18)
@pytest.mark.parametrize(
    ("fn", "calls"),
    [
        *((fn, [(rows,) for rows in _rows()]) for fn in _OF_ROWS),
        *((fn, [(rows, flag) for rows in _rows() for flag in (True, False)]) for fn in _OF_ROWS_AND_FLAG),
        *((fn, [(rows, n) for rows in _rows() for n in (0, 1, 2)]) for fn in _OF_ROWS_AND_COUNT),
        *(
            (fn, _LISTS)
            for fn in (copied, of_a_parameter, gone_over, of_what_goes_over, taken_apart, list_changed_after)
        ),
        *((fn, _NUMBERS) for fn in (of_numbers, shown_and_compared)),
        (as_sizes, [(torch.ones(2, 3), [3, 2])]),
        (a_parameter_with_more, [(_PAIR, _ramp(3)), ((_ramp(),), _ramp(3))]),
        *((fn, [(torch.ones(4) * v,) for v in (0.1, 0.3, 0.6, 2, -3)]) for fn in _GETTING_LONGER),
        *((fn, [(torch.ones(4) * v, n) for v in (0.1, 3) for n in (0, 1, 2, 5)]) for fn in _GETTING_LONGER_BY_COUNT),
        (of_words_and_numbers, [(["a", "b", "a"], "a"), ([], "a"), (["b"], "a")]),
        (longer_on_a_way, [(torch.ones(4), flag) for flag in (True, False)]),
        (joined_and_changed, [(_PAIR, _ramp(3))]),
        (longer_on_one_way, [(_PAIR, _ramp(3), flag) for flag in (True, False)]),
        (longer_each_turn, [(_PAIR, n) for n in (0, 1, 3)]),
        (made_each_turn, [(_PAIR, n) for n in (0, 1, 3)]),
        (sizes_added, [(torch.ones(2, 4), torch.ones(3)), (torch.ones(2), torch.ones(1, 3))]),
        (of_two_comprehensions, [([1, 2], True), ([1, 2], False), ([0], True)]),
        (held, [(items, {}) for (items,) in _LISTS]),
        (state, [(items, n) for (items,) in _LISTS for n in (0, 1, 5)]),
        (numbers_of_a_parameter, [((1, 2, 3), 2), ((4,), 2)]),
        (optional, [(_PAIR,), ((_ramp(),), (_ramp(3),))]),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
@pytest.mark.filterwarnings("ignore:.*compiled again and again")
def test_as_in_eager(fn: Callable[..., Any], calls: Sequence[tuple[Any, ...]]) -> None:
    agrees(fn, *calls)


def or_none_in_a_loop(x: smelt.f32[None, 3], n: int) -> Any:
    t = None
    for i in range(n):
        if i % 2:
            continue
        t = (x + i).unbind(0)
    return t


def test_one_that_may_be_none_is_refused_in_a_loop() -> None:
    with pytest.raises(smelt.CaptureError, match=r"None meets a tuple of any length"):
        _ = smelt.script(or_none_in_a_loop).graph


def asked_for_its_class(x: torch.Tensor) -> Any:
    plain, rows = tuple(x.shape), x.unbind()
    sizes = isinstance(plain, torch.Size), isinstance(x.shape, torch.Size), hasattr(plain, "numel")
    return sizes, isinstance(rows, tuple), hasattr(rows, "append"), hasattr(rows, "count")


def appended_to(x: torch.Tensor) -> Any:
    rows = x.unbind()
    rows.append(x)  # type: ignore[attr-defined]
    return rows


def test_it_is_of_the_class_that_it_has_in_the_program() -> None:
    agrees(asked_for_its_class, (torch.ones(2, 3),))
    with pytest.warns(smelt.SmeltWarning, match="'tuple' object has no attribute 'append'"):
        _ = smelt.script(appended_to).graph
