"""How operators can be divided among ranks: one correspondence of dimensions an operator, or a family.

An operator without one is computed by every rank, on whole tensors. Invariant: an explicit table; a rule reads types
and arguments only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from smelt.ir import Node
from smelt.ops.catalogue.sharding import between, layers, places, pointwise, products, reductions, views
from smelt.ops.ranks.placements import Correspondence, Rule
from smelt.ops.registry import arguments_of, schema_of

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **views.RULES,
        **reductions.RULES,
        **products.RULES,
        **layers.RULES,
        **places.RULES,
        **pointwise.RULES,
        **between.RULES,
    }
)


def correspondences_of(node: Node) -> tuple[Correspondence, ...]:
    """How the dimensions of a node's tensors belong together, none where it is not known."""
    schema = schema_of(node.op)
    call = {} if schema is None else arguments_of(schema, node.args, node.kwargs)
    rule = RULES.get(node.op)
    if rule is None and pointwise.is_by_elements(node.op):
        rule = pointwise.by_elements
    found = None if rule is None else rule(node, call)
    if found is None:
        return ()
    return found if isinstance(found, tuple) else (found,)


__all__ = ["RULES", "correspondences_of"]
