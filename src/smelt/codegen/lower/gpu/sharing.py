"""Products of few tiles and long sums, shared: programs sum ranges of the inner loops, then a second kernel adds up.

    y[i, j] = sum over (k < 8192) of x[i, k] * w[j, k]      ==>      p[c, i, j] = sum over (k < 1024), from 1024 * c on
                                                                     y[i, j] = sum over (c < 8) of p[c, i, j]

Invariant: how often a sum is shared follows from the sizes alone, and ranges are added in order: results repeat.
"""

from __future__ import annotations

from math import prod

from smelt.codegen.fusion.chunks import Stage, in_ranges
from smelt.codegen.kernels.graph import Graph
from smelt.codegen.kernels.nest import Nest
from smelt.codegen.kernels.simplify import simplify_nest
from smelt.codegen.triton.contraction import contraction, tile_of, tiles

_LEAST = 512
"""Inner points of a range: fewer do not pay for a second kernel."""
_WANTED = 132
"""Programs that are to be at work at once."""


def shared_sums(nest: Nest) -> tuple[Stage, ...] | None:
    """The nests of a product that has too few tiles for a GPU; None where it has enough, or is no product."""
    nest = simplify_nest(nest)
    found = contraction(Graph(nest))
    if found is None or prod(nest.inner) < 2 * _LEAST:
        return None
    rows, columns, batch = (prod(nest.sizes[k] for k in loops) for loops in (found.rows, found.columns, found.grid))
    programs = tiles(tile_of(rows, columns, prod(nest.inner), batch, found.factors[0].dtype), rows, columns) * batch
    most = min(_WANTED // programs, prod(nest.inner) // _LEAST) if programs else 0
    count = next((n for n in range(most, 1, -1) if nest.inner[0] % n == 0), 1)
    return in_ranges(nest, count) if count > 1 else None
