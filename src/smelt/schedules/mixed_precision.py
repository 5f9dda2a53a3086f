"""`bf16`: products in bf16, islands of f32 between them.

before:  y = softmax(norm(x @ w))       all in f32
after:   h = bf16(x) @ bf16(w)          y = softmax(f32(norm(f32(h))))
"""

from __future__ import annotations

from typing import Any

import torch

from smelt.ir import is_under
from smelt.ops.record import Trait
from smelt.ops.sets import PRODUCTS, bases_where
from smelt.pattern import short_name
from smelt.schedules.applying import Do, Taker
from smelt.schedules.report import Ready
from smelt.scheduling import Schedule

_CONVOLUTIONS = frozenset(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3))
_PRODUCTS = _CONVOLUTIONS | {name.split(".")[1] for name in PRODUCTS} | {
    "einsum", "scaled_dot_product_attention", "convolution",
}  # fmt: skip
_ISLANDS = bases_where(Trait.KEPT_IN_F32) | {"nll_loss"}


def bf16(model: Schedule | torch.nn.Module, example_inputs: Any = None, *, max_error: float | None = None) -> Ready:
    """Compute products, convolutions and attention in bf16; norms, softmax, sums and losses stay in f32.

    before:  y = norm(linear(x))  in f32      after:  y = norm(f32(linear(bf16(x)))), parameters and results in f32
    model: a schedule, or a module with the arguments of a call. The step applies to the whole if its result is within
    max_error (relative, root mean square; by default 0.05) of the one in f32, else to each submodule that is; the rest
    stays in f32. Counted are products and islands, as far as the program can be captured. Without example inputs the
    error is not measured. `skipped` reports what is refused.
    Raises: ScheduleError (S0605) where nothing of the model can be captured.
    """
    taker = Taker(model, example_inputs)
    places: dict[str, list[str]] = {}
    own = set(taker.schedule.nodes)
    for target in taker.schedule._state.captured[0]:
        for node in target.nodes:
            kind = _kind(short_name(node.op)) if node in own else None
            if kind is not None:
                places.setdefault(kind, []).append(target.path_of(node))
    taker.found.update({kind: len(paths) for kind, paths in places.items()})
    for path in _narrow(taker, taker.schedule.path, places.get("products", []), _precision(max_error)):
        for kind, paths in places.items():
            taker.applied[kind] += sum(is_under(inner, path) for inner in paths)
    return taker.report


def _kind(name: str) -> str | None:
    return "products" if name in _PRODUCTS else "f32 islands" if name in _ISLANDS else None


def _narrow(taker: Taker, path: str, products: list[str], do: Do) -> list[str]:
    """Take the step on a module, or where that is refused on each of its parts with a product. Where it was taken."""
    if not any(is_under(inner, path) for inner in products):
        return []
    if taker.step("modules", [(path, ())], do):
        return [path]
    return [found for part in list(taker.view(path)) for found in _narrow(taker, part.path, products, do)]


def _precision(max_error: float | None) -> Do:
    options = {} if max_error is None else {"max_error": max_error}
    return lambda view, matches, scope: view.precision(torch.bfloat16, **options)
