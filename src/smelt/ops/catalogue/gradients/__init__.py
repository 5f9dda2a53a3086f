"""Vector-Jacobian products of the catalogue's operators: one function an operator, or a family.

Operators that only gradients are written in (`unfold_backward`) have one here, too, but no record.

Invariant: a gradient is written in operators of the graph, so that it has a gradient, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.ops.catalogue.gradients import (
    attention,
    functions,
    images,
    indexing,
    layers,
    losses,
    norms,
    pointwise,
    products,
    reductions,
    vectors,
    views,
)
from smelt.ops.record import Gradient

GRADIENTS: Mapping[str, Gradient] = MappingProxyType(
    {
        **pointwise.GRADIENTS,
        **functions.GRADIENTS,
        **reductions.GRADIENTS,
        **norms.GRADIENTS,
        **losses.GRADIENTS,
        **views.GRADIENTS,
        **indexing.GRADIENTS,
        **products.GRADIENTS,
        **attention.GRADIENTS,
        **layers.GRADIENTS,
        **images.GRADIENTS,
        **vectors.GRADIENTS,
    }
)
