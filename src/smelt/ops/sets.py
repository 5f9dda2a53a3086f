"""Sets of operators by what their records say, so that a fact is written once."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType

from smelt.ops.catalogue import CATALOGUE
from smelt.ops.record import Trait
from smelt.ops.registry import overload, schema_of, tags_of


@cache
def where(trait: Trait) -> frozenset[str]:
    """The overloads of the catalogue that have a trait (one of several joined by `|`)."""
    wanted = trait.value  # an int: `&` of flags makes objects, for each operator of each set
    return frozenset(record.name for record in CATALOGUE if record.traits.value & wanted)


@cache
def bases_where(trait: Trait) -> frozenset[str]:
    """The same by the operators' names, without namespace and overload: for all overloads of these names."""
    return frozenset(name.split(".")[1] for name in where(trait))


PRODUCTS = MappingProxyType({record.name: record.product for record in CATALOGUE if record.product is not None})
"""The arguments of each matrix product."""
NEUTRAL = MappingProxyType({record.name: record.neutral for record in CATALOGUE if record.neutral is not None})
"""The number that changes no result of a reduction."""
_UNTAGGED = bases_where(Trait.BY_ELEMENTS) | {"__iand__", "__ior__", "masked_fill_", "isclose", "ldexp"}


def is_by_elements(op_name: str) -> bool:
    """Whether an operator takes its operands element by element, tagged `pointwise` or not."""
    return "pointwise" in tags_of(op_name) or op_name.split(".")[1] in _UNTAGGED


@cache
def in_place_twin(op_name: str) -> str:
    """The overload that computes the same into its operand, of an operator of one tensor; "" where there is none."""
    schema = schema_of(op_name) if op_name in where(Trait.ANY_LAYOUT) else None
    if schema is None or sum("Tensor" in argument.type for argument in schema.arguments) != 1:
        return ""
    namespace, base, variant = op_name.split(".")
    twin = f"{namespace}.{base}_.{variant}"
    return twin if overload(twin) is not None else ""
