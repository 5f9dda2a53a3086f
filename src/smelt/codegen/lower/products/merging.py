"""Does one wide product beat several narrow ones over the same input? Measured once per shape and process."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from smelt._torch.library import mkldnn, products
from smelt.codegen.lower.products.linear import own_isa_of
from smelt.codegen.lower.static.measure import CHOICES, Timing, time_candidates
from smelt.diag import Options
from smelt.ir import DType

# The parts of a merged product are strided, which their users may pay for: it must win by this much.
_MARGIN = 0.95


def merging_pays(rows: int, columns: Sequence[int], k: int, dtype: DType, options: Options) -> bool:
    """Whether linears f32[rows, k] x f32[k, n] for each n of `columns` run faster as one; False where not measured."""
    if own_isa_of(options, dtype) is not None:
        # An own kernel has no fixed cost that one call of three would save, and strided parts cost their users.
        return False
    is_asked = options.measure and not options.deterministic and options.numerics != "eager-library"
    if not is_asked or dtype is not DType.F32 or not mkldnn.has_linear() or not rows or not k:
        return False
    key = ("merge", rows, tuple(columns), k, torch.get_num_threads())
    best = {t.name: t.latency_us for t in CHOICES.timings(key, lambda: _time(rows, columns, k))}
    return bool(best) and best["merged"] < _MARGIN * best["apart"]


def _time(rows: int, columns: Sequence[int], k: int) -> tuple[Timing, ...]:
    with torch.no_grad():
        x = torch.full((rows, k), 0.5)
        parts = [mkldnn.pack_linear(torch.full((n, k), 0.25), rows) for n in columns]
        whole = mkldnn.pack_linear(torch.full((sum(columns), k), 0.25), rows)
        apart = [p for p in parts if p is not None]
        if whole is None or len(apart) != len(parts):
            return ()
        return time_candidates(
            {
                "apart": lambda: [products.onednn_linear(x, part, None) for part in apart],
                "merged": lambda: products.onednn_linear(x, whole, None),
            }
        )
